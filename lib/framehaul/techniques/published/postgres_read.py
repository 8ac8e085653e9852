"""Read a table of PostgreSQL into a dataframe."""

import io
from pathlib import Path
from typing import Any

import asyncpg
import pandas as pd
import polars as pl
import psycopg
import pyarrow.parquet as pq
from sqlalchemy import Connection

from framehaul.data.schema import FLOATS, ColumnType, Table
from framehaul.techniques.clients import ParquetExchange
from framehaul.techniques.registry import DataFrame, ToFrame, technique

type Asyncpg = asyncpg.Connection[Any]
type Psycopg = psycopg.Connection[Any]

# COPY's CSV, tab-delimited: quotes protect tabs, newlines and quotes in text, and an unquoted \N is NULL.
COPY_TEXT = r"FORMAT csv, DELIMITER E'\t', NULL '\N'"


def csv_to_pandas(file: io.BytesIO, table: Table, separator: str = ",") -> pd.DataFrame:
    r"""Return a server's CSV, in which only \N is NULL, parsed by pandas."""
    names, null, text = table.column_names, r"\N", dict.fromkeys(table.columns_of(ColumnType.TEXT), "str")
    return pd.read_csv(file, sep=separator, header=None, names=names, na_values=null, keep_default_na=False, dtype=text)


def csv_to_polars(file: io.BytesIO, table: Table, separator: str = ",") -> pl.DataFrame:
    r"""Return a server's CSV, in which only \N is NULL, parsed by Polars; text and floats have the table's dtypes."""
    kinds = {name: table.polars_schema[name] for name in table.columns_of(ColumnType.TEXT, *FLOATS)}
    options: dict[str, Any] = {"has_header": False, "null_values": r"\N", "empty_string_is_null": False}
    return pl.read_csv(file, separator=separator, new_columns=table.column_names, schema_overrides=kinds, **options)


def rows_to_pandas(rows: Any, table: Table) -> pd.DataFrame:
    """Return a frame whose columns pandas builds from row tuples."""
    return pd.DataFrame(rows, columns=table.column_names)


def rows_to_polars(rows: Any, table: Table) -> pl.DataFrame:
    """Return a frame whose columns Polars builds from row tuples."""
    return pl.DataFrame(rows, schema=table.column_names, orient="row")


@technique("copy_text", "psycopg COPY TO STDOUT delimited text -> Polars dataframe", pandas=csv_to_pandas)
def polars_psycopg_copy_text(connection: Psycopg, table: Table, to: ToFrame = csv_to_polars) -> DataFrame:
    """COPY returns tab-delimited CSV; the dataframe library parses it."""
    buffer = io.BytesIO()
    statement = f"COPY ({table.postgres_select}) TO STDOUT WITH ({COPY_TEXT})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        while chunk := copy.read():
            buffer.write(chunk)
    buffer.seek(0)
    return to(buffer, table, separator="\t")


@technique("row_fetch", "psycopg row fetch -> Polars dataframe", pandas=rows_to_pandas)
def polars_psycopg_row_fetch(connection: Psycopg, table: Table, to: ToFrame = rows_to_polars) -> DataFrame:
    """psycopg decodes every value into a Python object; the dataframe library builds columns from the rows."""
    return to(connection.execute(table.postgres_select.encode()).fetchall(), table)


@technique("row_fetch", "asyncpg row fetch -> Polars dataframe", pandas=rows_to_pandas)
async def polars_asyncpg_row_fetch(connection: Asyncpg, table: Table, to: ToFrame = rows_to_polars) -> DataFrame:
    """asyncpg decodes binary rows into records; the dataframe library builds columns from them."""
    rows = await connection.fetch(table.postgres_select)
    return to([tuple(row) for row in rows], table)


@technique("prepared_fetch", "asyncpg prepared row fetch -> Polars dataframe", pandas=rows_to_pandas)
async def polars_asyncpg_prepared_fetch(connection: Asyncpg, table: Table, to: ToFrame = rows_to_polars) -> DataFrame:
    """asyncpg fetches rows as in the row fetch, through an explicitly prepared statement."""
    statement = await connection.prepare(table.postgres_select)
    return to([tuple(row) for row in await statement.fetch()], table)


@technique("convenience", "psycopg / SQLAlchemy -> pandas.read_sql_query")
def pandas_sqlalchemy_read_sql_query(connection: Connection, table: Table) -> pd.DataFrame:
    """Read with pandas' own reader over a SQLAlchemy connection."""
    # https://pandas.pydata.org/docs/reference/api/pandas.read_sql_query.html
    return pd.read_sql_query(table.postgres_select.replace("%", "%%"), connection)  # psycopg looks for placeholders


@technique("convenience", "psycopg / SQLAlchemy -> polars.read_database")
def polars_sqlalchemy_read_database(connection: Connection, table: Table) -> pl.DataFrame:
    """Read with Polars' own reader over a SQLAlchemy connection."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html
    return pl.read_database(table.postgres_select.replace(":", r"\:"), connection)  # SQLAlchemy looks for placeholders


def parquet_to_polars(path: Path) -> pl.DataFrame:
    """Return a Parquet file as pyarrow reads it for Polars."""
    return pl.DataFrame(pq.read_table(path))


@technique("pg_parquet", "psycopg pg_parquet COPY TO file.parquet -> Polars dataframe", pandas=pd.read_parquet)
def polars_psycopg_pg_parquet(exchange: ParquetExchange, table: Table, to: ToFrame = parquet_to_polars) -> DataFrame:
    """The server writes a Parquet file into a shared directory; pyarrow reads it for the dataframe library."""
    path, path_on_server = exchange.new_file()
    statement = f"COPY ({table.postgres_select}) TO '{path_on_server}' WITH (FORMAT parquet)"
    exchange.connection.execute(statement.encode())
    return to(path)
