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

	"github.com/jackc/pgx/v5"
)

// errDSN takes the place of what the drivers say about a DSN that they cannot read, for they may quote it.
var errDSN = errors.New("the DSN or a PG* environment variable cannot be understood")

// connection is one connection to the server. It serves one request, and runs only the query of that.
type connection interface {
	// fetch decodes every value of every row and counts the rows. With keep, it hands over each row as JSON wants it.
	fetch(s *shape, keep func(row []any)) (int, error)
	copyRows(s *shape) (int, error)
	insertRows(s *shape) (int, error)
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
	Kind      string   `json:"kind"`
	SQL       string   `json:"sql"`
	Arguments values   `json:"arguments"`
	Table     string   `json:"table"`
	Columns   []string `json:"columns"`
	Row       values   `json:"row"`
	Count     int      `json:"count"`
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

func (s *shape) run(c connection) (int, error) {
	switch s.Kind {
	case "copy":
		return c.copyRows(s)
	case "insert":
		return c.insertRows(s)
	default:
		return c.fetch(s, nil)
	}
}

// tableName is quoted as a whole by its user; a schema before the name has to be split off for that.
func (s *shape) tableName() pgx.Identifier {
	return strings.Split(s.Table, ".")
}

func (s *shape) columnList() string {
	quoted := make([]string, len(s.Columns))
	for i, column := range s.Columns {
		quoted[i] = pgx.Identifier{column}.Sanitize()
	}
	return strings.Join(quoted, ", ")
}

func (s *shape) insertStatement() string {
	placeholders := make([]string, len(s.Columns))
	for i := range placeholders {
		placeholders[i] = "$" + strconv.Itoa(i+1)
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)",
		s.tableName().Sanitize(), s.columnList(), strings.Join(placeholders, ", "))
}

func (s *shape) copyStatement() string {
	return fmt.Sprintf("COPY %s (%s) FROM STDIN", s.tableName().Sanitize(), s.columnList())
}

// check runs the query once, over a connection of its own. It gives the rows that it fetched, or how many it sent.
func check(open opener, r *request) ([][]any, int, error) {
	c, err := open(r.DSN)
	if err != nil {
		return nil, 0, err
	}
	defer c.close()
	if r.Shape.Kind != "fetch" {
		count, err := r.Shape.run(c)
		return nil, count, err
	}
	rows := [][]any{}
	count, err := c.fetch(&r.Shape, func(row []any) { rows = append(rows, row) })
	return rows, count, err
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
