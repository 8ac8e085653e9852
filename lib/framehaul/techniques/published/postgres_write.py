"""Write a dataframe to PostgreSQL."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import asyncpg
import polars as pl
import psycopg
import pyarrow.parquet as pq

from framehaul.codecs.copy_binary import with_uuid_bytes
from framehaul.data.frames import from_pandas
from framehaul.data.schema import ColumnType, Table
from framehaul.techniques.clients import ParquetExchange
from framehaul.techniques.published.postgres_read import COPY_TEXT
from framehaul.techniques.registry import DataFrame, technique


def as_text(frame: DataFrame) -> io.BytesIO:
    """Return the frame as tab-delimited CSV."""
    buffer = io.BytesIO()
    if isinstance(frame, pl.DataFrame):
        frame.write_csv(buffer, include_header=False, separator="\t", null_value=r"\N")
    else:
        frame.to_csv(buffer, index=False, header=False, sep="\t", na_rep=r"\N")
    buffer.seek(0)
    return buffer


@technique("copy_text", "asyncpg COPY FROM STDIN from Polars delimited text", pandas=True)
async def polars_asyncpg_copy_text(connection: asyncpg.Connection[Any], table: Table, frame: DataFrame) -> None:
    """The dataframe library writes tab-delimited CSV; asyncpg streams it into COPY."""
    text: Any = {"format": "csv", "delimiter": "\t", "null": r"\N"}  # as COPY_TEXT
    await connection.copy_to_table(table.name, source=as_text(frame), columns=table.column_names, **text)


@technique("copy_text", "psycopg COPY FROM STDIN from Polars delimited text", pandas=True)
def polars_psycopg_copy_text(connection: psycopg.Connection[Any], table: Table, frame: DataFrame) -> None:
    """The dataframe library writes tab-delimited CSV; psycopg sends the whole buffer to COPY."""
    text = as_text(frame)
    statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN WITH ({COPY_TEXT})"
    with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(text.getbuffer())


def rows_of(frame: DataFrame, table: Table) -> Iterator[list[Any]]:
    """Yield the rows with UUID objects in place of their text, and None in place of pandas' missing values."""
    if isinstance(frame, pl.DataFrame):
        rows = frame.iter_rows()
    else:
        nullable = {column.name: frame[column.name] for column in table.columns if column.nullable}
        objects = {name: values.astype(object).where(values.notna(), None) for name, values in nullable.items()}
        rows = frame.assign(**objects).itertuples(index=False, name=None)
    places = [table.column_names.index(name) for name in table.columns_of(ColumnType.UUID)]
    for row in map(list, rows):
        for at in places:
            row[at] = row[at] and UUID(row[at])
        yield row


@technique("copy_binary", "asyncpg COPY FROM STDIN (FORMAT binary) from Polars rows", pandas=True)
async def polars_asyncpg_copy_binary(connection: asyncpg.Connection[Any], table: Table, frame: DataFrame) -> None:
    """The dataframe library returns row tuples; asyncpg encodes them as COPY's binary format."""
    rows = rows_of(frame, table)
    await connection.copy_records_to_table(table.name, records=rows, columns=table.column_names)


@technique("pg_parquet", "psycopg pg_parquet COPY FROM file.parquet from Polars dataframe", pandas=True)
def polars_psycopg_pg_parquet(exchange: ParquetExchange, table: Table, frame: DataFrame) -> None:
    """A Parquet file is written into a shared directory; the server copies from it."""
    path, path_on_server = exchange.new_file()
    content = frame.to_arrow() if isinstance(frame, pl.DataFrame) else from_pandas(frame, table)
    pq.write_table(with_uuid_bytes(content, table), path)
    path.chmod(0o644)  # the directory is private to both sides, and the server may run as another user
    into = f"{table.postgres_name} ({table.postgres_columns})"
    exchange.connection.execute(f"COPY {into} FROM '{path_on_server}' WITH (FORMAT parquet)".encode())
