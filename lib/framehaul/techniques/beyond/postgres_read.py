"""Read a table of PostgreSQL into a dataframe by techniques beyond the published ones."""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import connectorx
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.csv

from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.data.documents import without_documents
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import LONG_NUMBERS, NESTED, NO_CSV, ColumnType, Table, quote_postgres_text, refuse
from framehaul.techniques.clients import UTF8, check_encoding
from framehaul.techniques.copy_wire import receive_copy
from framehaul.techniques.registry import technique

if TYPE_CHECKING:
    import asyncpg
    import duckdb
    import pandas as pd
    from adbc_driver_postgresql.dbapi import Connection as AdbcConnection

# COPY's CSV, tab-delimited: quotes protect tabs, newlines and quotes in text. An unquoted empty field is NULL, a quoted
# empty field is empty text. PostgreSQL, Polars and Arrow distinguish the two, so that no text becomes NULL.
COPY_TEXT = r"FORMAT csv, DELIMITER E'\t'"

# A session's settings decide how values are written as text, and a role, a database or a pooler may have set them.
# These give all digits of floats, ISO dates, moments in UTC, and UTF-8, until the end of the transaction, which the
# caller may have begun. https://www.postgresql.org/docs/18/runtime-config-client.html
READ_TEXT = f"SET LOCAL extra_float_digits = 1; SET LOCAL DateStyle = 'ISO'; SET LOCAL TimeZone = 'UTC'; {UTF8}"

type PsycopgPair = tuple[psycopg.Connection[Any], psycopg.Connection[Any]]


def pages_query(table: Table) -> str:
    """Return a query for the number of pages of a table, without parameters, because drivers write them differently."""
    # With E, a backslash is escaped whatever standard_conforming_strings is.
    name = quote_postgres_text(table.postgres_name.replace("\\", r"\\"))
    return f"SELECT pg_relation_size(to_regclass(E{name})) / current_setting('block_size')::int"


def page_ranges(pages: int) -> tuple[str, str]:
    """Return conditions that split a table of this many pages in two TID range scans; the second has no upper end."""
    return f"ctid < '({pages // 2},0)'", f"ctid >= '({pages // 2},0)'"


def fetch_arrow(connection: AdbcConnection, query: str) -> pa.Table:
    """Return the result of a query, which ADBC runs as binary COPY and decodes into Arrow in C++."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(UTF8)
            cursor.execute(query)
            return cursor.fetch_arrow_table()
    finally:
        connection.rollback()  # ends the transaction, which ADBC begins with the first statement, and the setting


@technique("arrow", "ADBC fetch as Arrow -> Polars dataframe")
def polars_adbc_fetch(connection: AdbcConnection, table: Table) -> pl.DataFrame:
    """Read Arrow without a Python object per value; UUIDs become text on the server."""
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return to_polars(without_documents(fetch_arrow(connection, query), table), table)


@technique("arrow", "ADBC fetch as Arrow -> Pandas dataframe")
def pandas_adbc_fetch(connection: AdbcConnection, table: Table) -> pd.DataFrame:
    """Read Arrow with Python objects for dates only; text stays Arrow inside pandas 3."""
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return to_pandas(without_documents(fetch_arrow(connection, query), table), table)


async def copy_decoded(connection: asyncpg.Connection[Any], table: Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows of a binary COPY, decoded batch by batch while the server sends, in views or in a schema."""
    decoder = CopyDecoder(table, schema)

    async def take(data: bytes) -> None:
        decoder.feed(data)

    query = f"SELECT {decoder.columns} FROM {table.postgres_name}"
    # asyncpg cannot nest a transaction in one that a statement began.
    async with nullcontext() if connection.is_in_transaction() else connection.transaction():
        await connection.execute(UTF8)
        await connection.copy_from_query(query, output=take, format="binary")
    return decoder.finish()


@technique("copy_binary", "asyncpg COPY TO STDOUT (FORMAT binary) decoded by numba -> Polars dataframe")
async def polars_asyncpg_copy_decoded(connection: asyncpg.Connection[Any], table: Table) -> pl.DataFrame:
    """asyncpg returns bytes, and compiled loops decode them into Arrow: the least work per value."""
    return to_polars(await copy_decoded(connection, table), table, valid=True)


@technique("copy_binary", "asyncpg COPY TO STDOUT (FORMAT binary) decoded by numba -> Pandas dataframe")
async def pandas_asyncpg_copy_decoded(connection: asyncpg.Connection[Any], table: Table) -> pd.DataFrame:
    """Compiled loops decode the text of each batch into the layout of pandas."""
    return to_pandas(await copy_decoded(connection, table, table.arrow_large_schema), table, valid=True)


def from_sockets[F: Callable[..., Any]](label: str, connections: int = 1) -> Callable[[F], F]:
    """Register a technique that reads binary COPY from the socket of each psycopg connection."""
    client = "psycopg_plain" if connections == 1 else "psycopg_plain_pair"
    return technique("copy_binary", label, client=client)


def copy_from_wire(
    connection: psycopg.Connection[Any], table: Table, condition: str = "true", schema: pa.Schema | None = None
) -> pa.Table:
    """Return the rows of a binary COPY, read from psycopg's socket and decoded while the server sends."""
    decoder = CopyDecoder(table, schema)
    query = f"SELECT {decoder.columns} FROM {table.postgres_name} WHERE {condition}"
    with connection.transaction():
        connection.execute(UTF8)
        receive_copy(connection, f"COPY ({query}) TO STDOUT WITH (FORMAT binary)", decoder)
    return decoder.finish()


@from_sockets("psycopg COPY TO STDOUT (FORMAT binary) read from its socket -> Polars dataframe")
def polars_psycopg_copy_decoded(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """One compiled loop decodes the socket's bytes into columns; no driver splits them into messages first."""
    return to_polars(copy_from_wire(connection, table), table, valid=True)


@from_sockets("psycopg COPY TO STDOUT (FORMAT binary) read from its socket -> Pandas dataframe")
def pandas_psycopg_copy_decoded(connection: psycopg.Connection[Any], table: Table) -> pd.DataFrame:
    """Compiled loops decode the text of each batch into the layout of pandas."""
    return to_pandas(copy_from_wire(connection, table, schema=table.arrow_large_schema), table, valid=True)


def copy_halves_from_wire(connections: PsycopgPair, table: Table, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows by `copy_from_wire`, half of the pages over each connection, in one snapshot."""
    # https://www.postgresql.org/docs/18/functions-admin.html#FUNCTIONS-SNAPSHOT-SYNCHRONIZATION
    first, second = connections
    with first.transaction(), second.transaction(), ThreadPoolExecutor(2) as pool:
        for connection in connections:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(UTF8)
        ((snapshot,),) = first.execute("SELECT pg_export_snapshot()").fetchall()
        second.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        ((pages,),) = first.execute(pages_query(table).encode()).fetchall()
        halves = pool.map(copy_from_wire, connections, (table, table), page_ranges(pages), (schema, schema))
        return pa.concat_tables(halves)


@from_sockets("psycopg binary COPY read from its sockets, two connections, one snapshot -> Polars dataframe", 2)
def polars_psycopg_copy_decoded_two_connections(connections: PsycopgPair, table: Table) -> pl.DataFrame:
    """Two backends scan half of the pages each, in one exported snapshot."""
    return to_polars(copy_halves_from_wire(connections, table), table, valid=True)


@from_sockets("psycopg binary COPY read from its sockets, two connections, one snapshot -> Pandas dataframe", 2)
def pandas_psycopg_copy_decoded_two_connections(connections: PsycopgPair, table: Table) -> pd.DataFrame:
    """Compiled loops decode the text of each batch into the layout of pandas."""
    return to_pandas(copy_halves_from_wire(connections, table, table.arrow_large_schema), table, valid=True)


# ConnectorX takes an address only. Its driver requests UTF-8 whatever the role has set, and receives all values in
# binary: https://github.com/sfackler/rust-postgres/blob/master/tokio-postgres/src/connect_raw.rs
@technique("arrow", "ConnectorX -> Polars dataframe")
def polars_connectorx_read(url: str, table: Table) -> pl.DataFrame:
    """ConnectorX reads binary COPY and decodes it in Rust; every call opens a connection."""
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return to_polars(without_documents(connectorx.read_sql(url, query, return_type="arrow"), table), table)


@technique("arrow", "ConnectorX -> Pandas dataframe")
def pandas_connectorx_read(url: str, table: Table) -> pd.DataFrame:
    """ConnectorX returns Arrow, because its pandas output makes a Python object of every text."""
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return to_pandas(without_documents(connectorx.read_sql(url, query, return_type="arrow"), table), table)


def copy_text(connection: psycopg.Connection[Any], table: Table) -> io.BytesIO:
    """Return rows as tab-delimited CSV; raises ValueError for types whose text form no parser here supports."""
    refuse(table, NO_CSV | {*NESTED}, "which is not parsed from text here: use ADBC", "postgres")
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    buffer = io.BytesIO(BOM_UTF8)  # parsers remove one, which may otherwise be part of the first text
    buffer.seek(0, io.SEEK_END)
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(READ_TEXT)
        with cursor.copy(f"COPY ({query}) TO STDOUT WITH ({COPY_TEXT})".encode()) as copy:
            for row in copy:
                buffer.write(row)
    buffer.seek(0)
    return buffer


@technique("copy_text", "psycopg COPY TO STDOUT delimited text, typed -> Polars dataframe")
def polars_psycopg_copy_text_typed(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """Read text as the published technique does, with a type given for every column: nothing is inferred."""
    text = copy_text(connection, table)
    if text.getbuffer().nbytes == len(BOM_UTF8):
        return pl.DataFrame(schema=table.polars_schema)
    return pl.read_csv(text, separator="\t", has_header=False, schema=table.polars_schema)


@technique("copy_text", "psycopg COPY TO STDOUT delimited text, typed, through Arrow -> Pandas dataframe")
def pandas_psycopg_copy_text_typed(connection: psycopg.Connection[Any], table: Table) -> pd.DataFrame:
    """Arrow's CSV reader parses on all cores, and its text becomes pandas' without a copy."""
    text = copy_text(connection, table)
    if text.getbuffer().nbytes == len(BOM_UTF8):
        return to_pandas(table.arrow_schema.empty_table(), table)
    reading = pa.csv.ReadOptions(column_names=table.column_names)
    parsing = pa.csv.ParseOptions(delimiter="\t", newlines_in_values=True, ignore_empty_lines=False)
    nulls = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
    converting = pa.csv.ConvertOptions(column_types=table.arrow_schema, **nulls)
    return to_pandas(pa.csv.read_csv(text, reading, parsing, converting), table)


@technique("engine", "DuckDB SELECT from an attached PostgreSQL -> Polars dataframe")
def polars_duckdb_scan(connection: duckdb.DuckDBPyConnection, table: Table) -> pl.DataFrame:
    """DuckDB's postgres extension reads binary COPY over several connections, under one snapshot."""
    # https://duckdb.org/docs/stable/core_extensions/postgres
    check_encoding(connection)
    lacks = {*LONG_NUMBERS, ColumnType.IPV4, ColumnType.IPV6, ColumnType.DURATION}
    refuse(table, lacks, "which DuckDB without extensions does not have as it is: use ADBC", "postgres")
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM pg.{table.postgres_name}"
    return to_polars(without_documents(connection.execute(query).to_arrow_table(), table), table)
