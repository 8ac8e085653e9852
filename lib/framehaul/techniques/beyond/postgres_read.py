"""Read a table of PostgreSQL into a dataframe by techniques beyond the published ones."""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.csv

from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.data.documents import without_documents
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import LONG_NUMBERS, NESTED, NO_CSV, ColumnType, Table, quote_postgres_text, refuse
from framehaul.techniques.beyond.postgres_write import PsycopgPair, one_commit
from framehaul.techniques.clients import UTF8, attached_name, in_utf8
from framehaul.techniques.copy_wire import receiving
from framehaul.techniques.registry import DataFrame, ToFrame, technique

if TYPE_CHECKING:
    import asyncpg
    import duckdb
    from adbc_driver_postgresql.dbapi import Connection as AdbcConnection

# COPY's CSV, tab-delimited: quotes protect tabs, newlines and quotes in text. An unquoted empty field is NULL, a quoted
# empty field is empty text. PostgreSQL, Polars and Arrow distinguish the two, so that no text becomes NULL.
COPY_TEXT = r"FORMAT csv, DELIMITER E'\t'"

# A session's settings decide how values are written as text, and a role, a database or a pooler may have set them.
# These give all digits of floats, ISO dates, moments in UTC, and UTF-8, until the end of the transaction, which the
# caller may have begun. https://www.postgresql.org/docs/18/runtime-config-client.html
READ_TEXT = f"SET LOCAL extra_float_digits = 1; SET LOCAL DateStyle = 'ISO'; SET LOCAL TimeZone = 'UTC'; {UTF8}"

type Asyncpg = asyncpg.Connection[Any]
type Psycopg = psycopg.Connection[Any]


def pages_query(table: Table) -> str:
    """Return a query for the number of pages of a table, without parameters, because drivers write them differently."""
    # With E, a backslash is escaped whatever standard_conforming_strings is.
    name = quote_postgres_text(table.postgres_name.replace("\\", r"\\"))
    return f"SELECT pg_relation_size(to_regclass(E{name})) / current_setting('block_size')::int"


@technique("arrow", "ADBC fetch as Arrow -> Polars dataframe", pandas=to_pandas)
def polars_adbc_fetch(connection: AdbcConnection, table: Table, to: ToFrame = to_polars) -> DataFrame:
    """Read Arrow without a Python object per value; UUIDs become text on the server, and dates objects in pandas."""
    with one_commit(connection) as cursor:
        cursor.execute(table.postgres_select_as_in_frames)
        content = cursor.fetch_arrow_table()
    return to(without_documents(content, table), table)


@technique(
    "copy_binary", "asyncpg COPY TO STDOUT (FORMAT binary) decoded by numba -> Polars dataframe", pandas=to_pandas
)
async def polars_asyncpg_copy_decoded(connection: Asyncpg, table: Table, to: ToFrame = to_polars) -> DataFrame:
    """asyncpg returns bytes, and compiled loops decode them while the server sends: the least work per value."""
    decoder = CopyDecoder(table, None if to is to_polars else table.arrow_large_schema)

    async def take(data: bytes) -> None:
        decoder.feed(data)

    query = f"SELECT {decoder.columns} FROM {table.postgres_name}"
    # asyncpg cannot nest a transaction in one that a statement began.
    async with nullcontext() if connection.is_in_transaction() else connection.transaction():
        await connection.execute(UTF8)
        await connection.copy_from_query(query, output=take, format="binary")
    return to(decoder.finish(), table, valid=True)


def copy_from_wire(
    connection: Psycopg, table: Table, condition: str = "true", schema: pa.Schema | None = None
) -> pa.Table:
    """Return the rows of a binary COPY, decoded while the server sends."""
    decoder = CopyDecoder(table, schema)
    query = f"SELECT {decoder.columns} FROM {table.postgres_name} WHERE {condition}"
    with in_utf8(connection):
        for _ in receiving(connection, f"COPY ({query}) TO STDOUT WITH (FORMAT binary)", decoder):
            pass  # the decoder holds the batches
    return decoder.finish()


from_sockets = partial(technique, "copy_binary", client="psycopg_plain", pandas=to_pandas)


@from_sockets("psycopg COPY TO STDOUT (FORMAT binary) read from its socket -> Polars dataframe")
def polars_psycopg_copy_decoded(connection: Psycopg, table: Table, to: ToFrame = to_polars) -> DataFrame:
    """One compiled loop decodes the socket's bytes into columns; no driver splits them into messages first."""
    schema = None if to is to_polars else table.arrow_large_schema
    return to(copy_from_wire(connection, table, schema=schema), table, valid=True)


@from_sockets("psycopg binary COPY read from its sockets, two connections, one snapshot -> Polars dataframe")
def polars_psycopg_copy_decoded_two_connections(
    connections: PsycopgPair, table: Table, to: ToFrame = to_polars
) -> DataFrame:
    """Two backends scan half of the pages each, in one exported snapshot."""
    # https://www.postgresql.org/docs/18/functions-admin.html#FUNCTIONS-SNAPSHOT-SYNCHRONIZATION
    first, second = connections
    schemas = (None if to is to_polars else table.arrow_large_schema,) * 2
    with first.transaction(), second.transaction(), ThreadPoolExecutor(2) as pool:
        for connection in connections:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(UTF8)
        ((snapshot,),) = first.execute("SELECT pg_export_snapshot()").fetchall()
        second.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        ((pages,),) = first.execute(pages_query(table).encode()).fetchall()
        ranges = f"ctid < '({pages // 2},0)'", f"ctid >= '({pages // 2},0)'"  # the second has no upper end
        halves = pool.map(copy_from_wire, connections, (table, table), ranges, schemas)
        return to(pa.concat_tables(halves), table, valid=True)


# ConnectorX takes an address only. Its driver requests UTF-8 whatever the role has set, and receives all values in
# binary: https://github.com/sfackler/rust-postgres/blob/master/tokio-postgres/src/connect_raw.rs
@technique("arrow", "ConnectorX -> Polars dataframe", pandas=to_pandas)
def polars_connectorx_read(url: str, table: Table, to: ToFrame = to_polars) -> DataFrame:
    """ConnectorX reads binary COPY and decodes it into Arrow in Rust; every call opens a connection."""
    from connectorx import read_sql  # importing it takes 50 ms, also with another technique

    # Its pandas output makes a Python object of every text.
    arrow = read_sql(url, table.postgres_select_as_in_frames, return_type="arrow")
    return to(without_documents(arrow, table), table)


@technique("copy_text", "psycopg COPY TO STDOUT delimited text, typed -> Polars dataframe")
def polars_psycopg_copy_text_typed(connection: Psycopg, table: Table) -> pl.DataFrame:
    """Read text as the published technique does, with a type given for every column: nothing is inferred."""
    refuse(table, NO_CSV | {*NESTED}, "which is not parsed from text here: use ADBC", "postgres")
    text = io.BytesIO(BOM_UTF8)  # parsers remove one, which may otherwise be part of the first text
    text.seek(0, io.SEEK_END)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(READ_TEXT)
        with cursor.copy(f"COPY ({table.postgres_select}) TO STDOUT WITH ({COPY_TEXT})".encode()) as copy:
            text.writelines(copy)
    if text.tell() == len(BOM_UTF8):
        return pl.DataFrame(schema=table.polars_schema)
    text.seek(0)
    return pl.read_csv(text, separator="\t", has_header=False, schema=table.polars_schema)


@technique("engine", "DuckDB SELECT from an attached PostgreSQL -> Polars dataframe")
def polars_duckdb_scan(connection: duckdb.DuckDBPyConnection, table: Table) -> pl.DataFrame:
    """DuckDB's postgres extension reads binary COPY over several connections, under one snapshot."""
    # https://duckdb.org/docs/stable/core_extensions/postgres
    name = attached_name(connection, table)
    lacks = {*LONG_NUMBERS, ColumnType.IPV4, ColumnType.IPV6, ColumnType.DURATION}
    refuse(table, lacks, "which DuckDB without extensions does not have as it is: use ADBC", "postgres")
    query = replace(table, reference=name).postgres_select_as_in_frames
    return to_polars(without_documents(connection.execute(query).to_arrow_table(), table), table)


@technique("server", "baseline: COPY TO STDOUT (FORMAT binary), discarded (no decoding)")
def none_psycopg_copy_binary_discarded(connection: Psycopg, table: Table) -> int:
    """Read PostgreSQL's binary format; return the number of bytes."""
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) TO STDOUT WITH (FORMAT binary)"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        return sum(map(len, copy))


@technique("server", "baseline: SELECT serialised as binary inside the server (no wire, no decoding)")
def none_psycopg_serialize(connection: Psycopg, table: Table) -> int:
    """Run the scan and the output functions by EXPLAIN ANALYZE, which sends nothing; return the number of rows."""
    # https://www.postgresql.org/docs/18/sql-explain.html, option SERIALIZE
    explain = "EXPLAIN (ANALYZE, SERIALIZE BINARY, TIMING OFF, BUFFERS OFF, FORMAT JSON)"
    ((plan,),) = connection.execute(f"{explain} {table.postgres_select}".encode()).fetchall()
    return int(plan[0]["Plan"]["Actual Rows"])
