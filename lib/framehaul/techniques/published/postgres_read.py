"""Read a table of PostgreSQL into a dataframe."""

from __future__ import annotations

import io
from typing import Any

import asyncpg
import pandas as pd
import polars as pl
import psycopg
import pyarrow.parquet as pq
from sqlalchemy import Connection

from framehaul.data.schema import FLOATS, ColumnType, Table
from framehaul.techniques.clients import ParquetExchange
from framehaul.techniques.registry import technique

# COPY's CSV, tab-delimited: quotes protect tabs, newlines and quotes in text, and an unquoted \N is NULL.
COPY_TEXT = r"FORMAT csv, DELIMITER E'\t', NULL '\N'"


def copied_text(connection: psycopg.Connection[Any], table: Table) -> io.BytesIO:
    """Return the table as tab-delimited CSV."""
    buffer = io.BytesIO()
    statement = f"COPY (SELECT {table.postgres_columns} FROM {table.postgres_name}) TO STDOUT WITH ({COPY_TEXT})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        while chunk := copy.read():
            buffer.write(chunk)
    buffer.seek(0)
    return buffer


@technique("copy_text", "psycopg COPY TO STDOUT delimited text -> Pandas dataframe")
def pandas_psycopg_copy_text(connection: psycopg.Connection[Any], table: Table) -> pd.DataFrame:
    """COPY returns tab-delimited CSV; pandas parses it."""
    file, names = copied_text(connection, table), table.column_names
    text = dict.fromkeys(table.columns_of(ColumnType.TEXT), "str")
    return pd.read_csv(file, sep="\t", header=None, names=names, na_values=[r"\N"], keep_default_na=False, dtype=text)


@technique("copy_text", "psycopg COPY TO STDOUT delimited text -> Polars dataframe")
def polars_psycopg_copy_text(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """COPY returns tab-delimited CSV; Polars parses it."""
    kinds = {name: table.polars_schema[name] for name in table.columns_of(ColumnType.TEXT, *FLOATS)}
    options: dict[str, Any] = {"has_header": False, "null_values": r"\N", "empty_string_is_null": False}
    text = copied_text(connection, table)
    return pl.read_csv(text, separator="\t", new_columns=table.column_names, schema_overrides=kinds, **options)


@technique("row_fetch", "psycopg row fetch -> Pandas dataframe")
def pandas_psycopg_row_fetch(connection: psycopg.Connection[Any], table: Table) -> pd.DataFrame:
    """psycopg decodes every value into a Python object; pandas builds columns from the rows."""
    rows = connection.execute(f"SELECT {table.postgres_columns} FROM {table.postgres_name}".encode()).fetchall()
    return pd.DataFrame(rows, columns=table.column_names)


@technique("row_fetch", "psycopg row fetch -> Polars dataframe")
def polars_psycopg_row_fetch(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """psycopg decodes every value into a Python object; Polars builds columns from the rows."""
    rows = connection.execute(f"SELECT {table.postgres_columns} FROM {table.postgres_name}".encode()).fetchall()
    return pl.DataFrame(rows, schema=table.column_names, orient="row")


@technique("row_fetch", "asyncpg row fetch -> Pandas dataframe")
async def pandas_asyncpg_row_fetch(connection: asyncpg.Connection[Any], table: Table) -> pd.DataFrame:
    """asyncpg decodes binary rows into records; pandas builds columns from them."""
    rows = await connection.fetch(f"SELECT {table.postgres_columns} FROM {table.postgres_name}")
    return pd.DataFrame([tuple(row) for row in rows], columns=table.column_names)


@technique("row_fetch", "asyncpg row fetch -> Polars dataframe")
async def polars_asyncpg_row_fetch(connection: asyncpg.Connection[Any], table: Table) -> pl.DataFrame:
    """asyncpg decodes binary rows into records; Polars builds columns from them."""
    rows = await connection.fetch(f"SELECT {table.postgres_columns} FROM {table.postgres_name}")
    return pl.DataFrame([tuple(row) for row in rows], schema=table.column_names, orient="row")


@technique("prepared_fetch", "asyncpg prepared row fetch -> Pandas dataframe")
async def pandas_asyncpg_prepared_fetch(connection: asyncpg.Connection[Any], table: Table) -> pd.DataFrame:
    """asyncpg fetches rows as in the row fetch, through an explicitly prepared statement."""
    statement = await connection.prepare(f"SELECT {table.postgres_columns} FROM {table.postgres_name}")
    rows = await statement.fetch()
    return pd.DataFrame([tuple(row) for row in rows], columns=table.column_names)


@technique("prepared_fetch", "asyncpg prepared row fetch -> Polars dataframe")
async def polars_asyncpg_prepared_fetch(connection: asyncpg.Connection[Any], table: Table) -> pl.DataFrame:
    """asyncpg fetches rows as in the row fetch, through an explicitly prepared statement."""
    statement = await connection.prepare(f"SELECT {table.postgres_columns} FROM {table.postgres_name}")
    rows = await statement.fetch()
    return pl.DataFrame([tuple(row) for row in rows], schema=table.column_names, orient="row")


@technique("convenience", "psycopg / SQLAlchemy -> pandas.read_sql_query")
def pandas_sqlalchemy_read_sql_query(connection: Connection, table: Table) -> pd.DataFrame:
    """Read with pandas' own reader over a SQLAlchemy connection."""
    # https://pandas.pydata.org/docs/reference/api/pandas.read_sql_query.html
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    return pd.read_sql_query(query.replace("%", "%%"), connection)  # psycopg looks for placeholders


@technique("convenience", "psycopg / SQLAlchemy -> polars.read_database")
def polars_sqlalchemy_read_database(connection: Connection, table: Table) -> pl.DataFrame:
    """Read with Polars' own reader over a SQLAlchemy connection."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    return pl.read_database(query.replace(":", r"\:"), connection)  # SQLAlchemy looks for placeholders


@technique("pg_parquet", "psycopg pg_parquet COPY TO file.parquet -> Pandas dataframe", client="psycopg_parquet")
def pandas_psycopg_pg_parquet(exchange: ParquetExchange, table: Table) -> pd.DataFrame:
    """The server writes a Parquet file into a shared directory; pandas reads it."""
    path, path_on_server = exchange.new_file()
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    exchange.connection.execute(f"COPY ({query}) TO '{path_on_server}' WITH (FORMAT parquet)".encode())
    return pd.read_parquet(path)


@technique("pg_parquet", "psycopg pg_parquet COPY TO file.parquet -> Polars dataframe", client="psycopg_parquet")
def polars_psycopg_pg_parquet(exchange: ParquetExchange, table: Table) -> pl.DataFrame:
    """The server writes a Parquet file into a shared directory; pyarrow reads it for Polars."""
    path, path_on_server = exchange.new_file()
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}"
    exchange.connection.execute(f"COPY ({query}) TO '{path_on_server}' WITH (FORMAT parquet)".encode())
    return pl.DataFrame(pq.read_table(path))
