"""Dataframe to PostgreSQL, past what was published.

Every function takes an open connection, a `Table` and a frame, and returns when the rows are committed. Durability is
the server's own throughout: no table is made unlogged, no commit relaxed.
"""

from __future__ import annotations

import io
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from ipaddress import ip_address
from itertools import chain
from typing import Any
from uuid import UUID

import duckdb
import numpy as np
import pandas as pd
import pgpq
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection
from numpy.typing import NDArray
from psycopg import sql
from psycopg.types.json import Jsonb

from framehaul.codecs.binary_form import in_binary_form, with_uuid_bytes
from framehaul.codecs.key_order import STRETCH_ROWS, rows_near_key_order, stretched
from framehaul.data.documents import with_documents
from framehaul.data.frames import BATCH_ROWS, in_table_order
from framehaul.data.schema import (
    ARRAYS,
    LONG_NUMBERS,
    NESTED,
    NO_CSV,
    Column,
    ColumnType,
    Table,
    quote_postgres,
    refuse,
)
from framehaul.techniques.clients import UTF8, check_encoding
from framehaul.techniques.contract import HALVES, LOCKED
from framehaul.techniques.prepare import prepare, prepare_rows
from framehaul.techniques.registry import technique

# COPY's CSV, tab-delimited: quotes protect tabs, newlines and quotes in text. An empty field is NULL, a quoted
# one is empty text: PostgreSQL and Polars agree on that by default, and no text that somebody typed is taken for NULL.
COPY_TEXT = r"FORMAT csv, DELIMITER E'\t'"


# Rows encoded at once: about as many bytes as the socket holds, so that the server never waits for the next batch.
COPY_ROWS = 4096


def copy_batches(
    connection: psycopg.Connection[Any],
    table: Table,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    options: str = "FORMAT binary",
) -> None:
    """Binary COPY of record batches in this schema; pgpq encodes some rows while the server takes in those before.

    Their values are in PostgreSQL's binary form and the columns go by their place; the transaction is the caller's, and
    its text is UTF-8. Raises ValueError for lists of moments in a zone, and of UUIDs: an array says of what type its
    elements are, and pgpq has neither.
    """
    refuse_uuid_lists(table, "pgpq")
    for column in table.columns:
        if column.type in ARRAYS and getattr(column.element.types.arrow, "tz", None):
            raise ValueError(f"column {column.name} is {column.types.postgres}, which pgpq does not write: use ADBC")
    encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH ({options})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(encoder.write_header())
        for batch in batches:
            for start in range(0, batch.num_rows, COPY_ROWS):
                copy.write(encoder.write_batch(batch.slice(start, COPY_ROWS)))
        copy.write(encoder.finish())


def in_slices(frame: pl.DataFrame | pd.DataFrame, table: Table) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The frame in PostgreSQL's binary form, and its schema: a slice is converted while the server takes those before.

    The first is converted now, before anything is sent. Raises as `prepare` does, for others when they are asked for.
    """
    frame = in_table_order(frame, table)

    def convert(first_row: int) -> pa.Table:
        rows = slice(first_row, first_row + BATCH_ROWS)
        try:
            part = prepare(frame[rows] if isinstance(frame, pl.DataFrame) else frame.iloc[rows], table, "postgres")
            return in_binary_form(part, table)
        except ValueError as error:
            if first_row:
                raise ValueError(f"{error} (in what follows row {first_row:,})") from error
            raise

    begin, *others = range(0, max(1, len(frame)), BATCH_ROWS)
    first = convert(begin)
    return first.schema, (batch for part in chain([first], map(convert, others)) for batch in part.to_batches())


def copy_binary(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame | pd.DataFrame) -> None:
    """Binary COPY of a frame, in a transaction of its own."""
    schema, batches = in_slices(frame, table)
    with connection.transaction():
        connection.execute(UTF8)
        copy_batches(connection, table, schema, batches)


@technique(family="copy_binary", label="pgpq COPY FROM STDIN (FORMAT binary) from Polars Arrow")
def polars_pgpq_copy_binary(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """No Python object per value: Polars gives Arrow, pgpq encodes it."""
    copy_binary(connection, table, frame)


@technique(family="copy_binary", label="pgpq COPY FROM STDIN (FORMAT binary) from Pandas Arrow")
def pandas_pgpq_copy_binary(connection: psycopg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """No Python object per value where pandas has none: its text is Arrow already, pgpq encodes it."""
    copy_binary(connection, table, frame)


def copy_in_order(
    connection: psycopg.Connection[Any], table: Table, content: pa.Table, rows: NDArray[np.int64]
) -> None:
    """Binary COPY of these rows, in a transaction of its own: some are picked while the server takes those before.

    The content is in PostgreSQL's binary form.
    """
    with connection.transaction():
        connection.execute(UTF8)
        copy_batches(connection, table, content.schema, picked(content, rows))


def picked(content: pa.Table, rows: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """These rows in their order, some at a time."""
    for at in range(0, len(rows), STRETCH_ROWS):
        yield content.take(pa.array(rows[at : at + STRETCH_ROWS])).combine_chunks().to_batches()[0]


def presorted(frame: pl.DataFrame | pd.DataFrame, table: Table) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return the frame in PostgreSQL's binary form, and its row numbers near the order of the primary key."""
    content = in_binary_form(prepare(frame, table, "postgres"), table)
    return stretched(content, rows_near_key_order(content, table))


@technique(family="copy_binary", label="pgpq COPY, presorted by key, from Polars", requires=("key",))
def polars_pgpq_presorted(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Rows in the order of the primary key append to its index instead of hitting random pages of it."""
    copy_in_order(connection, table, *presorted(frame, table))


@technique(family="copy_binary", label="pgpq COPY, presorted by key, from Pandas", requires=("key",))
def pandas_pgpq_presorted(connection: psycopg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """As with Polars."""
    copy_in_order(connection, table, *presorted(frame, table))


@technique(
    family="copy_binary",
    label="pgpq COPY, presorted by key, two connections (two transactions), from Polars",
    client="psycopg_pair",
    connections=2,
    contract=HALVES,
    requires=("key",),
)
def polars_pgpq_presorted_two_connections(
    connections: tuple[psycopg.Connection[Any], psycopg.Connection[Any]], table: Table, frame: pl.DataFrame
) -> None:
    """Each connection copies one half of the key's range; when one fails the other's rows stay."""
    content, rows = presorted(frame, table)
    halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(copy_in_order, connections, (table, table), (content, content), halves))


PRIMARY_KEY = """
SELECT conname, reloptions IS NULL AND reltablespace = 0 AND NOT indisreplident
    AND obj_description(pg_constraint.oid, 'pg_constraint') IS NULL
    AND pg_get_constraintdef(pg_constraint.oid) = (
        SELECT 'PRIMARY KEY (' || string_agg(quote_ident(name), ', ' ORDER BY at) || ')'
        FROM unnest(%s::text[]) WITH ORDINALITY AS key (name, at)),
    pg_get_constraintdef(pg_constraint.oid)
FROM pg_constraint JOIN pg_class ON pg_class.oid = conindid JOIN pg_index ON indexrelid = conindid
WHERE contype = 'p' AND conrelid = to_regclass(%s)
"""
"""Its name, whether it is nothing but these columns, and what it is."""


def copy_then_build_key(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame | pd.DataFrame) -> None:
    """In one transaction: drop the primary key, COPY, build the key again by sorting once."""
    schema, batches = in_slices(frame, table)
    name = sql.Identifier(table.name)
    with connection.transaction():
        connection.execute(UTF8)
        found = connection.execute(PRIMARY_KEY, (list(table.key), table.postgres_name)).fetchone()
        if found is None or not found[1]:
            there = f"the key {found[2]}" if found else "no primary key"
            raise ValueError(
                f"table {table.name} has {there}, and its rows {table.key}: it would become another, append"
            )
        key = sql.Identifier(found[0])
        connection.execute("SET LOCAL maintenance_work_mem = '256MB'")  # sorts in memory, with parallel workers
        connection.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(name, key))
        copy_batches(connection, table, schema, batches)
        columns = sql.SQL(", ").join(map(sql.Identifier, table.key))
        connection.execute(sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} PRIMARY KEY ({})").format(name, key, columns))


@technique(
    family="copy_binary",
    label="pgpq COPY, then the primary key, in one transaction, from Polars",
    contract=LOCKED,
    requires=("key",),
)
def polars_pgpq_key_last(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Sorting once beats a million index insertions; the table is locked meanwhile, and should start near empty."""
    copy_then_build_key(connection, table, frame)


@technique(
    family="copy_binary",
    label="pgpq COPY, then the primary key, in one transaction, from Pandas",
    contract=LOCKED,
    requires=("key",),
)
def pandas_pgpq_key_last(connection: psycopg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """As with Polars."""
    copy_then_build_key(connection, table, frame)


@technique(
    family="copy_binary",
    label="pgpq COPY with FREEZE into an empty table, in one transaction, from Polars",
    contract=LOCKED,
)
def polars_pgpq_copy_freeze(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Rows arrive as VACUUM FREEZE would leave them, never to be rewritten; raises ValueError on a table with rows."""
    schema, batches = in_slices(frame, table)
    with connection.transaction():
        connection.execute(UTF8)
        connection.execute(f"LOCK TABLE {table.postgres_name} IN ACCESS EXCLUSIVE MODE".encode())
        if connection.execute(f"SELECT FROM {table.postgres_name} LIMIT 1".encode()).fetchone() is not None:
            raise ValueError(f"table {table.name} is not empty: COPY with FREEZE wants one that it may truncate first")
        connection.execute(f"TRUNCATE {table.postgres_name}".encode())
        copy_batches(connection, table, schema, batches, "FORMAT binary, FREEZE")


# What psycopg's binary formats want in place of the text that a dataframe has.
PYTHON: dict[ColumnType, Callable[[str], object]] = {
    ColumnType.UUID: UUID,
    ColumnType.JSON: lambda text: Jsonb(text, dumps=str),
    ColumnType.IPV4: ip_address,
    ColumnType.IPV6: ip_address,
    **dict.fromkeys(NESTED, lambda text: Jsonb(text, dumps=str)),
    **dict.fromkeys(LONG_NUMBERS, Decimal),
}


def python_maker(column: Column) -> Callable[[Any], Any] | None:
    """What makes of a value, or of a list of such, what psycopg takes for the column's type; None where it is that."""
    make = PYTHON.get(column.innermost.type)
    if make is None or column.type not in ARRAYS:
        return make
    return lambda values: [None if value is None else make(value) for value in values]


@technique(family="copy_binary", label="psycopg COPY FROM STDIN (FORMAT binary) from Polars rows")
def polars_psycopg_copy_binary(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Polars gives row tuples, psycopg encodes each value: what asyncpg's binary COPY does, with another driver."""
    made = [(at, make) for at, column in enumerate(table.columns) if (make := python_maker(column))]
    frame = prepare_rows(frame, table)
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH (FORMAT binary)"
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(UTF8)
        with cursor.copy(statement.encode()) as copy:
            copy.set_types([re.sub(r"\(.*\)", "", column.types.postgres) for column in table.columns])
            for row in frame.iter_rows():
                values = list(row)
                for at, make in made:
                    values[at] = None if values[at] is None else make(values[at])
                copy.write_row(values)


@technique(family="copy_text", label="psycopg COPY FROM STDIN from Polars delimited text, streamed")
def polars_psycopg_copy_text_streamed(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Slice by slice: the server parses one while the next is written, and the text is never whole in memory."""
    refuse(table, NO_CSV, "which Polars does not write as CSV: use pgpq or ADBC", "postgres")
    frame = prepare_rows(frame, table)
    # Of an offset Polars writes hours and minutes, and those of long ago have seconds.
    zoned = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Datetime) and kind.time_zone]
    frame = frame.with_columns(pl.col(zoned).dt.convert_time_zone("UTC"))
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH ({COPY_TEXT})"
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(UTF8)
        with cursor.copy(statement.encode()) as copy:
            for part in frame.iter_slices(BATCH_ROWS):
                copy.write(part.write_csv(include_header=False, separator="\t"))


def uuid_lists(table: Table) -> list[str]:
    """The columns of lists of UUIDs."""
    return [name for name in table.columns_within(ColumnType.UUID) if name not in table.columns_of(ColumnType.UUID)]


def refuse_uuid_lists(table: Table, driver: str) -> None:
    """Raises ValueError for lists of UUIDs, whose binary form says that it is one of UUIDs."""
    if lists := uuid_lists(table):
        raise ValueError(
            f"column {lists[0]} is uuid[], which {driver} does not write: use psycopg, asyncpg, or ADBC into a "
            "staging table (polars_adbc_staging)"
        )


@contextmanager
def one_commit(connection: AdbcConnection) -> Iterator[Any]:
    """A cursor whose work is committed at the end of the block, and undone where that fails."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(UTF8)
            yield cursor
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


NOT_BY_ADBC = "and ADBC writes no numeric of more digits than Arrow's decimals have: use pgpq"


def ingest(connection: AdbcConnection, table: Table, frame: pl.DataFrame | pd.DataFrame) -> None:
    """Append a frame by ADBC's bulk ingest, in a transaction; UUIDs go as bytes, for which ADBC asks."""
    refuse(table, LONG_NUMBERS, NOT_BY_ADBC, "postgres")
    refuse_uuid_lists(table, "ADBC")
    content = in_binary_form(prepare(frame, table, "postgres"), table)
    with one_commit(connection) as cursor:
        cursor.adbc_ingest(table.name, content, mode="append")


@technique(family="arrow", label="ADBC bulk ingest from Polars Arrow")
def polars_adbc_ingest(connection: AdbcConnection, table: Table, frame: pl.DataFrame) -> None:
    """ADBC encodes Arrow for binary COPY in C++ and copies into the table."""
    ingest(connection, table, frame)


@technique(family="arrow", label="ADBC bulk ingest from Pandas Arrow")
def pandas_adbc_ingest(connection: AdbcConnection, table: Table, frame: pd.DataFrame) -> None:
    """ADBC encodes Arrow for binary COPY in C++ and copies into the table."""
    ingest(connection, table, frame)


def uuid_lists_as(table: Table, kind: str) -> str:
    """The columns for a SELECT in which lists of UUIDs are cast."""
    lists = uuid_lists(table)
    return ", ".join(
        f"{quoted}::{kind} AS {quoted}" if name in lists else quoted
        for name, quoted in ((name, quote_postgres(name)) for name in table.column_names)
    )


@technique(
    family="arrow",
    label="ADBC bulk ingest into a staging table, then INSERT ... SELECT, from Polars Arrow",
    requires=("key",),
)
def polars_adbc_staging(connection: AdbcConnection, table: Table, frame: pl.DataFrame) -> None:
    """A temporary table takes the rows, the server sorts them into the target: what one does to check them first.

    It has these columns alone: others of the target fill themselves, by default or number. Lists of UUIDs are of text.
    """
    refuse(table, LONG_NUMBERS, NOT_BY_ADBC, "postgres")
    content = in_binary_form(prepare(frame, table, "postgres"), table)
    staging = f"framehaul_staging_{secrets.token_hex(8)}"
    with one_commit(connection) as cursor:
        cursor.execute(
            f"CREATE TEMPORARY TABLE {staging} ON COMMIT DROP AS "
            f"SELECT {uuid_lists_as(table, 'text[]')} FROM {table.postgres_name} WITH NO DATA"
        )
        cursor.adbc_ingest(staging, content, mode="append", temporary=True)
        cursor.execute(
            f"INSERT INTO {table.postgres_name} ({table.postgres_columns}) "
            f"SELECT {uuid_lists_as(table, 'uuid[]')} FROM {staging} ORDER BY {table.postgres_key}"
        )


def insert_by_duckdb(
    connection: duckdb.DuckDBPyConnection, table: Table, frame: pl.DataFrame, conflict: str = ""
) -> None:
    """Insert a frame into a table of the attached `pg`, with an ON CONFLICT clause if one is given."""
    content = with_documents(prepare(frame, table, "postgres"), table)
    check_encoding(connection)
    connection.register("frame", content)
    rows = f"SELECT {table.postgres_columns} FROM frame"
    connection.execute(f"INSERT INTO pg.{table.postgres_name} ({table.postgres_columns}) {rows} {conflict}")


@technique(family="engine", label="DuckDB INSERT into an attached PostgreSQL from Polars Arrow")
def polars_duckdb_insert(connection: duckdb.DuckDBPyConnection, table: Table, frame: pl.DataFrame) -> None:
    """DuckDB's postgres extension scans the frame and copies it into the table.

    https://duckdb.org/docs/stable/core_extensions/postgres
    """
    for name in table.columns_of(*ARRAYS):
        if table.arrow_schema.field(name).type.value_type == pa.string():
            raise ValueError(f"column {name} is a list of text, where DuckDB makes NULL of the text NULL: use psycopg")
    refuse(table, LONG_NUMBERS, "and DuckDB has no more than 38 digits: use pgpq", "postgres")
    insert_by_duckdb(connection, table, frame)


@technique(
    family="pg_parquet",
    label="psycopg pg_parquet COPY FROM STDIN (FORMAT parquet) from Polars",
    client="psycopg_parquet_stream",
)
def polars_psycopg_pg_parquet_stdin(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """A Parquet file over the connection: no directory has to be shared with the server."""
    buffer = io.BytesIO()
    pq.write_table(with_documents(with_uuid_bytes(prepare(frame, table, "postgres"), table), table), buffer)
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH (FORMAT parquet)"
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(UTF8)
        with cursor.copy(statement.encode()) as copy:
            copy.write(buffer.getbuffer())
