// Drives the PostgreSQL drivers of Go. The protocol is described in ../README.md.
package main

import (
	"bufio"
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
	Do            string  `json:"do"`
	DSN           string  `json:"dsn"`
	Shape         shape   `json:"shape"`
	Connections   int     `json:"connections"`
	WarmupSeconds float64 `json:"warmup_seconds"`
	Seconds       float64 `json:"seconds"`
	Rate          float64 `json:"rate"`
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

func (r *request) validate() error {
	if r.Do == "measure" && r.Connections < 1 {
		return errors.New("a measurement needs at least one connection")
	}
	if r.Rate < 0 {
		return errors.New("the rate is negative")
	}
	return r.Shape.validate()
}

func (s *shape) validate() error {
	switch s.Kind {
	case "fetch":
		return nil
	case "copy", "insert":
	default:
		return fmt.Errorf("unknown kind %q", s.Kind)
	}
	if s.Table == "" || s.Count < 1 || len(s.Columns) == 0 || len(s.Columns) != len(s.Row) {
		return fmt.Errorf("%s needs a table, a count, and as many values in the row as columns", s.Kind)
	}
	return nil
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

type checked struct {
	Rows any `json:"rows"`
}

func check(open opener, r *request) (any, error) {
	c, err := open(r.DSN)
	if err != nil {
		return nil, err
	}
	defer c.close()
	if r.Shape.Kind != "fetch" {
		count, err := r.Shape.run(c)
		return checked{count}, err
	}
	rows := [][]any{}
	_, err = c.fetch(&r.Shape, func(row []any) { rows = append(rows, row) })
	return checked{rows}, err
}

func answer(open opener, line []byte) (any, error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("the request cannot be understood: %w", err)
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	switch r.Do {
	case "check":
		return check(open, &r)
	case "measure":
		return measure(open, &r)
	default:
		return nil, fmt.Errorf("cannot do %q", r.Do)
	}
}

// answerLine gives a line for whatever happens: the program that asks waits for one.
func answerLine(open opener, line []byte) ([]byte, error) {
	result, err := answer(open, line)
	if err == nil {
		var text []byte
		if text, err = json.Marshal(result); err == nil {
			return text, nil
		}
	}
	return json.Marshal(map[string]string{"error": strings.Join(strings.Fields(err.Error()), " ")})
}

func serve(open opener, input io.Reader, output io.Writer) error {
	// A bufio.Scanner would refuse long lines.
	reader := bufio.NewReader(input)
	for {
		line, readErr := reader.ReadBytes('\n')
		if readErr != nil && readErr != io.EOF {
			return readErr
		}
		if len(line) > 0 {
			text, err := answerLine(open, line)
			if err != nil {
				return err
			}
			if _, err := output.Write(append(text, '\n')); err != nil {
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
	}
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
	if err := serve(open, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
