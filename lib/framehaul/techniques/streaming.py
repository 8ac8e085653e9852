"""Moves of any size in little memory: a Parquet file into a table, and a table into a Parquet file.

The streamed ones hold one record batch at a time; the whole ones are the fastest techniques, with the frame in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection

from framehaul.codecs.binary_form import in_binary_form
from framehaul.data.frames import BATCH_ROWS, encode_stream, from_polars, in_table_order, validated
from framehaul.data.schema import Table
from framehaul.techniques import Technique
from framehaul.techniques.beyond import clickhouse_read, clickhouse_write, postgres_read, postgres_write
from framehaul.techniques.clients import UTF8, HttpConnection
from framehaul.techniques.contract import APPEND
from framehaul.techniques.registry import Database, Direction


def in_table_schema(
    batches: Iterator[pa.RecordBatch], table: Table, check: Callable[[pa.Table, Table], object]
) -> Iterator[pa.RecordBatch]:
    """The batches in `table.arrow_schema`, their columns by name; the first is converted now, before anything is sent.

    Raises ValueError, for the others when they are asked for, where a batch has other columns, does not fit, or has
    what `check` refuses.
    """

    def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
        conforming = in_table_order(batch, table).cast(table.arrow_schema)
        check(pa.Table.from_batches([conforming]), table)
        return conforming

    conforming = map(conform, batches)
    return chain(list(islice(conforming, 1)), conforming)


def in_valid_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches, each once it is known to be valid; raises ValueError as `validated` does."""
    for batch in batches:
        yield from validated(pa.Table.from_batches([batch])).to_batches()


def copy_batches(connection: psycopg.Connection[Any], table: Table, batches: Iterator[pa.RecordBatch]) -> None:
    """Binary COPY, encoded as the batches come, in one transaction. Raises ValueError as `in_table_schema` does."""
    conforming = in_table_schema(batches, table, postgres_write.check)
    binary = (in_binary_form(pa.Table.from_batches([batch]), table).to_batches() for batch in conforming)
    with connection.transaction():
        connection.execute(UTF8)
        schema = in_binary_form(table.arrow_schema.empty_table(), table).schema
        postgres_write.copy_batches(connection, table, schema, chain.from_iterable(binary))


def insert_batches(connection: HttpConnection, table: Table, batches: Iterator[pa.RecordBatch]) -> None:
    """An INSERT whose body is an Arrow stream, written batch by batch; small blocks keep the server's memory low.

    Raises ValueError as `in_table_schema` does; blocks that were finished before stay.
    """
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT ArrowStream"
    body = encode_stream(table.arrow_schema, in_table_schema(batches, table, clickhouse_write.check))
    settings = clickhouse_write.ARROW | {"min_insert_block_size_rows": 4 * BATCH_ROWS}
    connection.post(query, body=body, settings=settings).read()


def fetch_batches(connection: AdbcConnection, table: Table) -> Iterator[pa.RecordBatch]:
    """Record batches of about 16 MB, ADBC's default, each decoded when it is asked for; ends its transaction."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(UTF8)
            cursor.execute(f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}")
            yield from in_valid_batches(cursor.fetch_record_batch())
    finally:
        connection.rollback()


def select_batches(connection: HttpConnection, table: Table) -> Iterator[pa.RecordBatch]:
    """Record batches as the server sends them."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
    with connection.post(query, settings=clickhouse_read.ARROW) as response:
        yield from in_valid_batches(pa.ipc.open_stream(response))
        response.read()


def read_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """The record batches of a Parquet file, one at a time.

    By default pyarrow fetches the chunks of all row groups ahead and keeps them until the end of the file.
    """
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
        yield from parquet.iter_batches(BATCH_ROWS)


def write_batches(batches: Iterator[pa.RecordBatch], table: Table, file: Path) -> None:
    """A Parquet file of record batches, each written when it comes."""
    with pq.ParquetWriter(file, table.arrow_schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(table.arrow_schema))


def stream_into_postgres(connection: psycopg.Connection[Any], table: Table, file: Path) -> None:
    """One record batch in memory."""
    copy_batches(connection, table, read_batches(file))


def whole_into_postgres(connection: psycopg.Connection[Any], table: Table, file: Path) -> None:
    """The whole frame in memory."""
    postgres_write.polars_pgpq_copy_binary(connection, table, pl.read_parquet(file))


def stream_from_postgres(connection: AdbcConnection, table: Table, file: Path) -> None:
    """One record batch in memory."""
    write_batches(fetch_batches(connection, table), table, file)


def whole_from_postgres(connection: AdbcConnection, table: Table, file: Path) -> None:
    """The whole frame in memory."""
    pq.write_table(from_polars(postgres_read.polars_adbc_fetch(connection, table), table), file)


def stream_into_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """One record batch in memory."""
    insert_batches(connection, table, read_batches(file))


def whole_into_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """The whole frame in memory."""
    clickhouse_write.polars_http_client_arrow_stream(connection, table, pl.read_parquet(file))


def stream_from_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """One record batch in memory."""
    write_batches(select_batches(connection, table), table, file)


def whole_from_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """The whole frame in memory."""
    pq.write_table(from_polars(clickhouse_read.polars_http_client_arrow_preallocated(connection, table), table), file)


def _move(
    function: Callable[..., None], database: Database, direction: Direction, driver: str, label: str
) -> Technique:
    client = "psycopg" if driver == "pgpq" else driver
    contract = APPEND[database] if direction == "write" else None
    return Technique(function, database, direction, "polars", driver, client, "arrow", label, "beyond", contract)


MOVES = (
    _move(stream_into_postgres, "postgres", "write", "pgpq", "Parquet file -> table, streamed (pgpq)"),
    _move(whole_into_postgres, "postgres", "write", "pgpq", "Parquet file -> Polars frame -> table (pgpq)"),
    _move(stream_from_postgres, "postgres", "read", "adbc", "table -> Parquet file, streamed (ADBC)"),
    _move(whole_from_postgres, "postgres", "read", "adbc", "table -> Polars frame -> Parquet file (ADBC)"),
    _move(stream_into_clickhouse, "clickhouse", "write", "http_client", "Parquet file -> table, streamed (Arrow)"),
    _move(whole_into_clickhouse, "clickhouse", "write", "http_client", "Parquet file -> Polars frame -> table (Arrow)"),
    _move(stream_from_clickhouse, "clickhouse", "read", "http_client", "table -> Parquet file, streamed (Arrow)"),
    _move(whole_from_clickhouse, "clickhouse", "read", "http_client", "table -> Polars frame -> Parquet file (Arrow)"),
)
"""Every move; a streamed one is followed by the one that holds the whole frame."""
STREAMED = MOVES[::2]
