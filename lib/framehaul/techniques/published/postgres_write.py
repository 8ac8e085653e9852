"""Write a dataframe to PostgreSQL."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import asyncpg
import pandas as pd
import polars as pl
import psycopg
import pyarrow.parquet as pq

from framehaul.codecs.binary_form import with_uuid_bytes
from framehaul.data.frames import from_pandas
from framehaul.data.schema import ColumnType, Table
from framehaul.techniques.clients import ParquetExchange
from framehaul.techniques.registry import technique

# COPY's CSV, tab-delimited: quotes protect tabs, newlines and quotes in text, and an unquoted \N is NULL.
COPY_TEXT = r"FORMAT csv, DELIMITER E'\t', NULL '\N'"


@technique(family="copy_text", label="asyncpg COPY FROM STDIN from Pandas delimited text")
async def pandas_asyncpg_copy_text(connection: asyncpg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """pandas writes tab-delimited CSV; asyncpg streams it into COPY."""
    buffer = io.BytesIO()
    frame.to_csv(buffer, index=False, header=False, sep="\t", na_rep=r"\N")
    buffer.seek(0)
    await connection.copy_to_table(
        table.name, source=buffer, columns=table.column_names, format="csv", delimiter="\t", null=r"\N"
    )


@technique(family="copy_text", label="asyncpg COPY FROM STDIN from Polars delimited text")
async def polars_asyncpg_copy_text(connection: asyncpg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Polars writes tab-delimited CSV; asyncpg streams it into COPY."""
    buffer = io.BytesIO()
    frame.write_csv(buffer, include_header=False, separator="\t", null_value=r"\N")
    buffer.seek(0)
    await connection.copy_to_table(
        table.name, source=buffer, columns=table.column_names, format="csv", delimiter="\t", null=r"\N"
    )


@technique(family="copy_text", label="psycopg COPY FROM STDIN from Pandas delimited text")
def pandas_psycopg_copy_text(connection: psycopg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """pandas writes tab-delimited CSV; psycopg sends the whole buffer to COPY."""
    buffer = io.BytesIO()
    frame.to_csv(buffer, index=False, header=False, sep="\t", na_rep=r"\N")
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH ({COPY_TEXT})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(buffer.getbuffer())


@technique(family="copy_text", label="psycopg COPY FROM STDIN from Polars delimited text")
def polars_psycopg_copy_text(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Polars writes tab-delimited CSV; psycopg sends the whole buffer to COPY."""
    buffer = io.BytesIO()
    frame.write_csv(buffer, include_header=False, separator="\t", null_value=r"\N")
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH ({COPY_TEXT})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(buffer.getbuffer())


@technique(family="copy_binary", label="asyncpg COPY FROM STDIN (FORMAT binary) from Pandas rows")
async def pandas_asyncpg_copy_binary(connection: asyncpg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """pandas returns row tuples; asyncpg encodes them as COPY's binary format."""
    rows = _none_for_missing(frame, table).itertuples(index=False, name=None)
    await connection.copy_records_to_table(table.name, records=_with_uuids(rows, table), columns=table.column_names)


@technique(family="copy_binary", label="asyncpg COPY FROM STDIN (FORMAT binary) from Polars rows")
async def polars_asyncpg_copy_binary(connection: asyncpg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Polars returns row tuples; asyncpg encodes them as COPY's binary format."""
    rows = frame.iter_rows()
    await connection.copy_records_to_table(table.name, records=_with_uuids(rows, table), columns=table.column_names)


@technique(family="pg_parquet", label="psycopg pg_parquet COPY FROM file.parquet from Pandas dataframe")
def pandas_psycopg_pg_parquet(exchange: ParquetExchange, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes a Parquet file into a shared directory; the server copies from it."""
    path, path_on_server = exchange.new_file()
    pq.write_table(with_uuid_bytes(from_pandas(frame, table), table), path)
    path.chmod(0o644)  # the directory is private to both sides, and the server may run as another user
    into = f"{table.postgres_name} ({table.postgres_columns})"
    exchange.connection.execute(f"COPY {into} FROM '{path_on_server}' WITH (FORMAT parquet)".encode())


@technique(family="pg_parquet", label="psycopg pg_parquet COPY FROM file.parquet from Polars dataframe")
def polars_psycopg_pg_parquet(exchange: ParquetExchange, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes a Parquet file into a shared directory; the server copies from it."""
    path, path_on_server = exchange.new_file()
    pq.write_table(with_uuid_bytes(frame.to_arrow(), table), path)
    path.chmod(0o644)  # the directory is private to both sides, and the server may run as another user
    into = f"{table.postgres_name} ({table.postgres_columns})"
    exchange.connection.execute(f"COPY {into} FROM '{path_on_server}' WITH (FORMAT parquet)".encode())


def _with_uuids(rows: Iterable[tuple[Any, ...]], table: Table) -> Iterator[tuple[Any, ...]]:
    """Return the rows with UUID objects in place of their text."""
    for name in table.columns_of(ColumnType.UUID):
        rows = _with_uuid(rows, table.column_names.index(name))
    return iter(rows)


def _with_uuid(rows: Iterable[tuple[Any, ...]], at: int) -> Iterator[tuple[Any, ...]]:
    for row in rows:
        yield (*row[:at], row[at] and UUID(row[at]), *row[at + 1 :])


def _none_for_missing(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """Return the frame with None in place of pandas' missing values, in nullable columns."""
    nullable = [column.name for column in table.columns if column.nullable]
    return frame.assign(**{name: frame[name].astype(object).where(frame[name].notna(), None) for name in nullable})
