package main

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/lib/pq"
)

// pqConnection uses lib/pq through database/sql.
type pqConnection struct {
	pool *sql.DB
	// conn is the only one of its pool, and is held: database/sql would replace a lost one and say nothing.
	conn      *sql.Conn
	newTarget func(typeName string) (any, error)
	// What the columns of the query are scanned into. A program knows that before it runs its query,
	// so it is found out only once for a connection.
	targets   []any
	typeNames []string
}

// openPq decodes every value into a type of Go that a program can work with.
func openPq(dsn string) (connection, error) {
	return openPqWith(dsn, naturalTarget)
}

// openPqUndecoded leaves what database/sql does not know as text, arrays and names above all. The published benchmark
// of 2016 drove lib/pq like this: https://github.com/MagicStack/pgbench/blob/master/_golang/main.go
func openPqUndecoded(dsn string) (connection, error) {
	return openPqWith(dsn, func(string) (any, error) { return new(any), nil })
}

func openPqWith(dsn string, newTarget func(string) (any, error)) (connection, error) {
	config, err := pq.NewConfig(dsn)
	if err != nil {
		return nil, errDSN
	}
	c, err := connectPq(config)
	if config.SSLMode == "" && errors.Is(err, pq.ErrSSLNotSupported) {
		// Without an sslmode, libpq and pgx go on without TLS where the server has none ("prefer"); lib/pq gives up.
		// Its own "prefer" (v1.12.3) does not close the connection that was refused TLS: the garbage collector does.
		config.SSLMode = pq.SSLModeDisable
		c, err = connectPq(config)
	}
	if err != nil {
		return nil, err
	}
	c.newTarget = newTarget
	return c, nil
}

func connectPq(config pq.Config) (*pqConnection, error) {
	connector, err := pq.NewConnectorConfig(config)
	if err != nil {
		return nil, errDSN
	}
	pool := sql.OpenDB(connector)
	conn, err := pool.Conn(context.Background())
	if err != nil {
		_ = pool.Close()
		return nil, err
	}
	c := &pqConnection{pool: pool, conn: conn}
	if err := conn.PingContext(context.Background()); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func naturalTarget(typeName string) (any, error) {
	switch typeName {
	case "BOOL":
		return new(bool), nil
	case "INT2", "INT4", "INT8", "OID":
		return new(int64), nil
	case "FLOAT4", "FLOAT8":
		return new(float64), nil
	case "TEXT", "NAME", "CHAR", "VARCHAR", "BPCHAR", "NUMERIC", "UUID", "JSON", "JSONB":
		return new(string), nil
	case "BYTEA":
		return new([]byte), nil
	case "DATE", "TIMESTAMP", "TIMESTAMPTZ":
		return new(time.Time), nil
	case "_INT2", "_INT4", "_INT8":
		// Its Scan makes a new slice for each row.
		return pq.Array(new([]int64)), nil
	default:
		return nil, fmt.Errorf("no Go type is chosen for columns of the type %q", typeName)
	}
}

func (c *pqConnection) fetch(s *shape, keep func(row []any)) (int, error) {
	rows, err := c.conn.QueryContext(context.Background(), s.SQL, s.Arguments...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	if err := c.findTargets(rows); err != nil {
		return 0, err
	}
	count := 0
	for rows.Next() {
		if err := rows.Scan(c.targets...); err != nil {
			return 0, err
		}
		count++
		if keep != nil {
			keep(c.row())
		}
	}
	return count, rows.Err()
}

func (c *pqConnection) findTargets(rows *sql.Rows) error {
	if c.targets != nil {
		return nil
	}
	types, err := rows.ColumnTypes()
	if err != nil {
		return err
	}
	targets := make([]any, len(types))
	for i, columnType := range types {
		if targets[i], err = c.newTarget(columnType.DatabaseTypeName()); err != nil {
			return err
		}
		c.typeNames = append(c.typeNames, columnType.DatabaseTypeName())
	}
	c.targets = targets
	return nil
}

// row makes of the values just scanned what the answer to a check shows.
func (c *pqConnection) row() []any {
	row := make([]any, len(c.targets))
	for i, target := range c.targets {
		row[i] = reflect.ValueOf(target).Elem().Interface()
		bytes, ok := row[i].([]byte)
		switch {
		case !ok:
		case bytes == nil:
			row[i] = nil
		case c.typeNames[i] == "BYTEA":
			row[i] = hex.EncodeToString(bytes)
		default:
			row[i] = string(bytes)
		}
	}
	return row
}

// close drops errors: the request has its answer already.
func (c *pqConnection) close() {
	_ = c.conn.Close()
	_ = c.pool.Close()
}
