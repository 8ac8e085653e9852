"""Write a dataframe to PostgreSQL by techniques beyond the published ones.

Every function takes an open connection, a `Table` and a frame, and returns when the rows are committed. Durability is
the server's: no table is unlogged, and no commit is asynchronous.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pgpq
import polars as pl
import pyarrow as pa
from psycopg import Connection
from psycopg.postgres import register_default_adapters
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from framehaul.codecs.compiled import arrow_array
from framehaul.codecs.copy_binary import PARSED, in_binary_form, near_key_order
from framehaul.data.documents import with_documents
from framehaul.data.frames import BATCH_ROWS, in_table_order
from framehaul.data.schema import ARRAYS, LONG_NUMBERS, NESTED, Column, ColumnType, Table, quote_postgres, refuse
from framehaul.techniques.clients import UTF8, attached_name, in_utf8
from framehaul.techniques.contract import HALVES, LOCKED
from framehaul.techniques.prepare import prepare, prepare_rows
from framehaul.techniques.registry import DataFrame, also, technique

if TYPE_CHECKING:
    from adbc_driver_postgresql.dbapi import Connection as AdbcConnection
    from duckdb import DuckDBPyConnection

    from framehaul.codecs.compiled import Int64s

type Batches = Iterable[pa.RecordBatch]
type PsycopgPair = tuple[Connection[Any], Connection[Any]]

# Rows encoded at once: about as many bytes as the socket holds, so that the server never waits for the next batch.
COPY_ROWS = 4096
GATHERED_ROWS = 8_192
"""The rows that are gathered at once in another order: few enough for a core's cache."""


def refused_array(table: Table, *, zones: bool) -> Column | None:
    """Return the first list of UUIDs, or of moments with a zone if that is asked, whose binary form drivers lack."""
    # A binary array names the type of its elements.
    for column in table.columns:
        has_zone = zones and getattr(column.innermost.types.arrow, "tz", None)
        if column.type in ARRAYS and (column.element.type is ColumnType.UUID or has_zone):
            return column
    return None


def refuse_arrays(table: Table, driver: str, *, zones: bool = False) -> None:
    """Raise ValueError for a list that the driver does not write, as `refused_array` does."""
    if column := refused_array(table, zones=zones):
        kind = column.types.postgres
        raise ValueError(f"column {column.name} is {kind}, which {driver} does not write: use psycopg or asyncpg")


def copy_batches(
    connection: Connection[Any], table: Table, schema: pa.Schema, batches: Batches, options: str = "FORMAT binary"
) -> None:
    """Copy record batches in PostgreSQL's binary form, in a transaction whose encoding the caller has set to UTF-8."""
    # pgpq matches columns by position, and encodes rows while the server reads the rows before them.
    refuse_arrays(table, "pgpq", zones=True)
    encoder = pgpq.ArrowToPostgresBinaryEncoder(schema)
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH ({options})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(encoder.write_header())
        for batch in batches:
            for start in range(0, batch.num_rows, COPY_ROWS):
                copy.write(encoder.write_batch(batch.slice(start, COPY_ROWS)))
        copy.write(encoder.finish())


def in_slices(frame: DataFrame, table: Table) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return a frame's schema and batches in PostgreSQL's binary form, prepared and converted a slice at a time."""
    # The first slice is converted now, before anything is sent, and later slices while the server reads their
    # predecessors: what is wrong with these is found when they are reached.
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

    parts = map(convert, range(0, max(1, len(frame)), BATCH_ROWS))
    first = next(parts)
    return first.schema, (batch for part in chain([first], parts) for batch in part.to_batches())


def copy_binary(connection: Connection[Any], table: Table, schema: pa.Schema, batches: Batches) -> None:
    """Copy record batches as `copy_batches` does, in a transaction."""
    with in_utf8(connection):
        copy_batches(connection, table, schema, batches)


@technique("copy_binary", "pgpq COPY FROM STDIN (FORMAT binary) from Polars Arrow", pandas=True)
def polars_pgpq_copy_binary(connection: Connection[Any], table: Table, frame: DataFrame) -> None:
    """Polars and pandas 3 give Arrow, and pgpq encodes it without a Python object per value."""
    copy_binary(connection, table, *in_slices(frame, table))


def picked(content: pa.Table, rows: Int64s) -> Iterator[pa.RecordBatch]:
    """Yield these rows in their order, in batches that are gathered on demand, or sliced if they are adjacent."""
    for at in range(0, len(rows), GATHERED_ROWS):
        part = rows[at : at + GATHERED_ROWS]
        adjacent = (np.diff(part) == 1).all()
        places = arrow_array(pa.int64(), len(part), None, [part])  # pa.array() imports pandas
        chosen = content.slice(part[0], len(part)) if adjacent else content.take(places)
        yield from chosen.combine_chunks().to_batches()  # more than 2 GiB of text stay in several


def presorted(frame: DataFrame, table: Table) -> tuple[pa.Table, Int64s]:
    """Return the frame in PostgreSQL's binary form, and its row numbers near the order of the primary key."""
    return near_key_order(in_binary_form(prepare(frame, table, "postgres"), table), table)


@technique("copy_binary", "pgpq COPY, presorted by key, from Polars", key=True, pandas=True)
def polars_pgpq_presorted(connection: Connection[Any], table: Table, frame: DataFrame) -> None:
    """Rows in the order of the primary key append to its index instead of hitting random pages of it."""
    content, rows = presorted(frame, table)
    copy_binary(connection, table, content.schema, picked(content, rows))


@technique(
    "copy_binary", "pgpq COPY, presorted by key, two connections (two transactions), from Polars", HALVES, key=True
)
def polars_pgpq_presorted_two_connections(connections: PsycopgPair, table: Table, frame: pl.DataFrame) -> None:
    """Each connection copies one half of the key's range; when one fails, the rows of the other stay."""
    content, rows = presorted(frame, table)
    halves = picked(content, rows[: len(rows) // 2]), picked(content, rows[len(rows) // 2 :])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(copy_binary, connections, (table, table), (content.schema, content.schema), halves))


PRIMARY_KEY = """
SELECT conname, pg_get_constraintdef(pg_constraint.oid), reloptions IS NULL AND reltablespace = 0
    AND NOT indisreplident AND NOT indisclustered AND obj_description(conindid, 'pg_class') IS NULL
    AND obj_description(pg_constraint.oid, 'pg_constraint') IS NULL, current_setting('maintenance_work_mem')
FROM pg_constraint JOIN pg_class ON pg_class.oid = conindid JOIN pg_index ON indexrelid = conindid
WHERE contype = 'p' AND conrelid = to_regclass(%s)
"""
"""Name and definition of a table's primary key, whether the definition is all of it, and the memory to make it with."""


@technique(
    "copy_binary", "pgpq COPY, then the primary key, in one transaction, from Polars", LOCKED, key=True, pandas=True
)
def polars_pgpq_key_last(connection: Connection[Any], table: Table, frame: DataFrame) -> None:
    """Sort once instead of a million index insertions; the table is locked, and should be almost empty before."""
    schema, batches = in_slices(frame, table)
    alter = f"ALTER TABLE {table.postgres_name}"
    with connection.transaction(), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(UTF8)
        name, definition, is_all, memory = cursor.execute(PRIMARY_KEY, (table.postgres_name,)).fetchone() or [""] * 4
        if not is_all:
            has = definition or "no primary key"
            raise ValueError(f"table {table.name} has {has}: it would become another, append")
        key = quote_postgres(name)
        cursor.execute("SET LOCAL maintenance_work_mem = '256MB'")  # sorts in memory, with parallel workers
        cursor.execute(f"{alter} DROP CONSTRAINT {key}".encode())
        copy_batches(connection, table, schema, batches)
        cursor.execute(f"{alter} ADD CONSTRAINT {key} {definition}".encode())
        cursor.execute(f"SET LOCAL maintenance_work_mem = '{memory}'".encode())  # the transaction may be the caller's


@technique("copy_binary", "pgpq COPY with FREEZE into an empty table, in one transaction, from Polars", LOCKED)
def polars_pgpq_copy_freeze(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Write frozen rows, which need no later VACUUM FREEZE; raises ValueError for a table with rows."""
    schema, batches = in_slices(frame, table)
    with connection.transaction():
        connection.execute(UTF8)
        connection.execute(f"LOCK TABLE {table.postgres_name} IN ACCESS EXCLUSIVE MODE".encode())
        if connection.execute(f"SELECT FROM {table.postgres_name} LIMIT 1".encode()).fetchone() is not None:
            raise ValueError(f"table {table.name} is not empty: COPY with FREEZE wants one that it may truncate first")
        connection.execute(f"TRUNCATE {table.postgres_name}".encode())
        copy_batches(connection, table, schema, batches, "FORMAT binary, FREEZE")


# Makers of the objects that psycopg's binary formats need in place of a dataframe's text.
PYTHON: dict[ColumnType, Callable[[str], object]] = {
    ColumnType.UUID: UUID,
    **PARSED,
    **dict.fromkeys((ColumnType.JSON, *NESTED), lambda text: Jsonb(text, dumps=str)),
}


def made(value: Any, make: Callable[[str], object]) -> object:
    """Return psycopg's object of a value, which may be NULL or a list."""
    if isinstance(value, list):
        return [made(each, make) for each in value]
    return None if value is None else make(value)


@technique("copy_binary", "psycopg COPY FROM STDIN (FORMAT binary) from Polars rows")
def polars_psycopg_copy_binary(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Polars gives row tuples, and psycopg encodes each value."""
    kinds = [column.innermost.type for column in table.columns]
    makers = {at: PYTHON[kind] for at, kind in enumerate(kinds) if kind in PYTHON}
    frame = prepare_rows(frame, table)
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH (FORMAT binary)"
    with in_utf8(connection), connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        # What is text in a frame, and types that psycopg does not know, such as enums, have the binary form of text.
        names = ["text" if one.type is ColumnType.TEXT else one.types.postgres for one in table.columns]
        names = [re.sub(r"\(.*\)", "", name) for name in names]
        register_default_adapters(copy.cursor)  # the caller may have registered others
        copy.set_types([name if connection.adapters.types.get(name) else "text" for name in names])
        for row in frame.iter_rows():
            values = list(row)
            for at, make in makers.items():
                values[at] = made(values[at], make)
            copy.write_row(values)


@contextmanager
def one_commit(connection: AdbcConnection) -> Iterator[Any]:
    """Yield a cursor whose transaction is committed at the end of the block, and rolled back after an error."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(UTF8)
            yield cursor
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


def for_adbc(frame: DataFrame, table: Table) -> pa.Table:
    """Return a frame in PostgreSQL's binary form; raises ValueError for types that ADBC does not write."""
    no_digits = "and ADBC writes no numeric of more digits than Arrow's decimals have: use pgpq"
    refuse(table, LONG_NUMBERS, no_digits, "postgres")
    refuse_arrays(table, "ADBC")
    return in_binary_form(prepare(frame, table, "postgres"), table)


@technique("arrow", "ADBC bulk ingest from Polars Arrow", pandas=True)
def polars_adbc_ingest(connection: AdbcConnection, table: Table, frame: DataFrame) -> None:
    """ADBC encodes Arrow for binary COPY in C++ and copies into the table."""
    content = for_adbc(frame, table)
    with one_commit(connection) as cursor:
        cursor.adbc_ingest(table.name, content, mode="append")


@technique("arrow", "ADBC bulk ingest into a staging table, then INSERT ... SELECT, from Polars Arrow", key=True)
def polars_adbc_staging(connection: AdbcConnection, table: Table, frame: pl.DataFrame) -> None:
    """Copy rows into a temporary table, where they could be checked, and insert them sorted by the key."""
    # It has the frame's columns only: other columns of the target get their defaults.
    content = for_adbc(frame, table)
    staging, columns = f"framehaul_staging_{secrets.token_hex(8)}", table.postgres_columns
    with one_commit(connection) as cursor:
        empty = f"SELECT {columns} FROM {table.postgres_name} WITH NO DATA"
        cursor.execute(f"CREATE TEMPORARY TABLE {staging} ON COMMIT DROP AS {empty}")
        cursor.adbc_ingest(staging, content, mode="append", temporary=True)
        rows = f"SELECT {columns} FROM {staging} ORDER BY {table.postgres_key}"
        cursor.execute(f"INSERT INTO {table.postgres_name} ({columns}) {rows}")


@technique("engine", "DuckDB INSERT into an attached PostgreSQL from Polars Arrow")
def polars_duckdb_insert(connection: DuckDBPyConnection, table: Table, frame: pl.DataFrame) -> None:
    """DuckDB's extension for PostgreSQL scans the frame and copies it into the table, which is attached as `pg`."""
    # https://duckdb.org/docs/stable/core_extensions/postgres
    for name in table.columns_of(*ARRAYS):
        if table.arrow_schema.field(name).type.value_type == pa.string():
            raise ValueError(f"column {name} is a list of text, where DuckDB makes NULL of the text NULL: use psycopg")
    refuse(table, LONG_NUMBERS, "and DuckDB has no more than 38 digits: use pgpq", "postgres")
    content = with_documents(prepare(frame, table, "postgres"), table)
    name = attached_name(connection, table)
    connection.register("frame", content)
    rows = f"SELECT {table.postgres_columns} FROM frame"
    connection.execute(f"INSERT INTO {name} ({table.postgres_columns}) {rows}")


SORTED = "baseline: INSERT ... SELECT ... ORDER BY key inside the server (no client, no parsing)"


@also("none_psycopg_insert_select_sorted", SORTED, True, requires=("key",))
@technique("server", "baseline: INSERT ... SELECT inside the server (no client, no parsing)")
def none_psycopg_insert_select(connection: Connection[Any], table: Table, source: Table, by_key: bool = False) -> None:
    """Insert rows in the order of the frame, or of the primary key, and update the key with each row."""
    order = f"ORDER BY {table.postgres_key}" if by_key else ""
    rows = f"SELECT {table.postgres_columns} FROM {source.postgres_name} {order}"
    connection.execute(f"INSERT INTO {table.postgres_name} ({table.postgres_columns}) {rows}".encode())
