// Runs a PostgreSQL driver of Go once. Request and answer are described in ../README.md.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// errDSN takes the place of what the drivers say about a DSN that they cannot read, for they may quote it.
var errDSN = errors.New("the DSN or a PG* environment variable cannot be understood")

// connection is one connection to the server. It serves one request, and runs only the query of that.
type connection interface {
	// fetch decodes every value of every row and counts the rows. With keep, it hands over each row as JSON wants it.
	fetch(s *shape, keep func(row []any)) (int, error)
	close()
}

// opener connects, and proves that the connection works.
type opener func(dsn string) (connection, error)

var drivers = map[string]opener{
	"pgx":          openPgx,
	"pq":           openPq,
	"pq_undecoded": openPqUndecoded,
}

type request struct {
	DSN           string  `json:"dsn"`
	Shape         shape   `json:"shape"`
	Connections   int     `json:"connections"`
	WarmupSeconds float64 `json:"warmup_seconds"`
	Seconds       float64 `json:"seconds"`
}

type shape struct {
	SQL       string `json:"sql"`
	Arguments values `json:"arguments"`
}

// values are what a driver sends. JSON has one type of numbers; the drivers need to know which of them are integers.
type values []any

func (v *values) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var decoded []any
	if err := decoder.Decode(&decoded); err != nil {
		return err
	}
	for i, value := range decoded {
		number, ok := value.(json.Number)
		if !ok {
			continue
		}
		exact, err := exactNumber(number.String())
		if err != nil {
			return err
		}
		decoded[i] = exact
	}
	*v = decoded
	return nil
}

func exactNumber(text string) (any, error) {
	if strings.ContainsAny(text, ".eE") {
		return strconv.ParseFloat(text, 64)
	}
	return strconv.ParseInt(text, 10, 64)
}

// check runs the query once, over a connection of its own, and gives the rows that it fetched.
func check(open opener, r *request) ([][]any, error) {
	c, err := open(r.DSN)
	if err != nil {
		return nil, err
	}
	defer c.close()
	rows := [][]any{}
	_, err = c.fetch(&r.Shape, func(row []any) { rows = append(rows, row) })
	return rows, err
}

func answer(open opener, input io.Reader, output io.Writer) error {
	var r request
	if err := json.NewDecoder(input).Decode(&r); err != nil {
		return fmt.Errorf("the request cannot be understood: %w", err)
	}
	measured, err := measure(open, &r)
	if err != nil {
		return err
	}
	return json.NewEncoder(output).Encode(measured)
}

func main() {
	names := strings.Join(slices.Sorted(maps.Keys(drivers)), ", ")
	if len(os.Args) != 2 {
		fmt.Fprintf(os.Stderr, "usage: %s <driver>, which is one of: %s\n", os.Args[0], names)
		os.Exit(2)
	}
	open, ok := drivers[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "unknown driver %q, it is one of: %s\n", os.Args[1], names)
		os.Exit(2)
	}
	// One client thread, as in the published benchmark: https://github.com/MagicStack/pgbench
	runtime.GOMAXPROCS(1)
	if err := answer(open, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}
