package main

import (
	"context"
	"encoding/hex"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// pgxConnection uses the interface of pgx itself, not the one of database/sql.
type pgxConnection struct {
	conn *pgx.Conn
}

func openPgx(dsn string) (connection, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, errDSN
	}
	conn, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	c := &pgxConnection{conn}
	if err := conn.Ping(context.Background()); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *pgxConnection) fetch(s *shape, keep func(row []any)) (int, error) {
	rows, err := c.conn.Query(context.Background(), s.SQL, s.Arguments...)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	count := 0
	for rows.Next() {
		row, err := rows.Values()
		if err != nil {
			return 0, err
		}
		count++
		if keep != nil {
			keep(pgxRow(row, rows.FieldDescriptions()))
		}
	}
	return count, rows.Err()
}

// pgxRow makes of decoded values what the answer to a check shows.
func pgxRow(row []any, fields []pgconn.FieldDescription) []any {
	for i, value := range row {
		switch value := value.(type) {
		case []byte:
			row[i] = hex.EncodeToString(value)
		case rune:
			// pgx decodes the one-byte type "char" to a rune, which in Go is the same type as an int4.
			if fields[i].DataTypeOID == pgtype.QCharOID {
				row[i] = string(value)
			}
		}
	}
	return row
}

// close drops errors: the request has its answer already.
func (c *pgxConnection) close() {
	_ = c.conn.Close(context.Background())
}
