"""Move a Parquet file of any size into a table, or a table into a Parquet file, in bounded memory.

Streamed moves hold a few record batches in memory; whole moves hold the frame.
"""

import secrets
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection
from psycopg import Connection

from framehaul.codecs.copy_binary import CopyDecoder, in_binary_form, near_key_order
from framehaul.codecs.native_format import NOT_DECODED, native_blocks, read_blocks
from framehaul.data import frames
from framehaul.data.frames import BATCH_ROWS
from framehaul.data.schema import NO_NATIVE, Table
from framehaul.techniques import Technique
from framehaul.techniques.beyond import clickhouse_read, clickhouse_write, postgres_read, postgres_write
from framehaul.techniques.beyond.postgres_write import picked
from framehaul.techniques.clients import HttpConnection, in_utf8
from framehaul.techniques.contract import APPEND
from framehaul.techniques.copy_wire import receiving
from framehaul.techniques.prepare import in_microseconds, prepare
from framehaul.techniques.registry import CLIENTS_OF, Database, Direction

type Batches = Iterator[pa.RecordBatch]
ROWS_TO_WRITE, ROWS_TO_KEEP = 262_144, 131_072
"""The rows that are sorted and sent together, and the rows of a row group."""
MOST_BYTES = 64 << 20
"""The limit of both in bytes, for long rows."""


def in_table_schema(batches: Batches, table: Table, database: Database) -> Batches:
    """Return the batches as `prepare` returns tables; raises ValueError as it does, with the first row of the batch."""
    # The first batch is converted now, before anything is sent; later batches are checked when they are reached.

    def conforming() -> Batches:
        first_row = 0
        for batch in batches:
            try:
                content = frames.validated(pa.Table.from_batches([frames.in_table_order(batch, table)]))
                if content.schema.types != table.arrow_schema.types:
                    content = frames.from_polars(pl.DataFrame(content), table)
                content = content.cast(table.arrow_schema)  # which refuses NULL where the table has none
                for column in table.columns:
                    frames.check_forms(content.column(column.name), column)
                yield from prepare(content, table, database).to_batches()
            except ValueError as error:
                raise ValueError(f"{error} (in the batch that begins with row {first_row:,})") from error
            first_row += batch.num_rows

    checked = conforming()
    return chain(list(islice(checked, 1)), checked)


def gathered(batches: Batches, rows: int) -> Iterator[pa.Table]:
    """Yield tables of consecutive batches with at least this many rows, or `MOST_BYTES`."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= rows or sum(one.nbytes for one in held) >= MOST_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def one_ahead[T](items: Iterator[T]) -> Generator[T]:
    """Yield the items; a thread makes each item while its predecessor is used."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def copy_batches(connection: Connection[Any], table: Table, batches: Batches, together: int = ROWS_TO_WRITE) -> None:
    """Write batches by binary COPY in one transaction, `together` rows at a time near the order of the primary key."""
    conforming = in_table_schema(batches, table, "postgres")
    schema = in_binary_form(in_microseconds(table.arrow_schema.empty_table(), table), table).schema
    contents = (in_binary_form(content, table) for content in gathered(conforming, together))
    ordered = (picked(*near_key_order(content, table)) if table.key else content.to_batches() for content in contents)
    postgres_write.copy_binary(connection, table, schema, chain.from_iterable(ordered))


def insert_batches(connection: HttpConnection, table: Table, batches: Batches, together: int = ROWS_TO_WRITE) -> None:
    """Insert batches as Native blocks of one partition, sorted as the table is, from `together` rows at a time."""
    conforming = in_table_schema(batches, table, "clickhouse")
    if not table.columns_of(*NO_NATIVE):
        contents = one_ahead(gathered(conforming, together))
        blocks = chain.from_iterable(native_blocks(content, table) for content in contents)
        clickhouse_write.insert_native(connection, table, blocks)
        return
    # A type that is not encoded as Native goes as Arrow, in small blocks, which keep the server's memory low.
    query = f"{table.clickhouse_insert} FORMAT ArrowStream"
    settings = clickhouse_write.insert_once(min_insert_block_size_rows=together)
    connection.post(query, body=frames.encode_stream(table.arrow_schema, conforming), settings=settings).read()


def fetch_wire_batches(connection: Connection[Any], table: Table, batch_bytes: int = 0) -> Generator[pa.RecordBatch]:
    """Yield batches of a binary COPY of about `batch_bytes`, decoded on demand."""
    decoder = CopyDecoder(table, table.arrow_large_schema, batch_bytes)
    query = f"SELECT {decoder.columns} FROM {table.postgres_name}"
    with in_utf8(connection):
        for _ in receiving(connection, f"COPY ({query}) TO STDOUT WITH (FORMAT binary)", decoder):
            yield from decoder.take()
    yield from decoder.finish().to_batches()


def select_batches(connection: HttpConnection, table: Table) -> Generator[pa.RecordBatch]:
    """Yield batches of Native blocks, or of Arrow for types not decoded here; ending early closes the connection."""
    if table.columns_of(*NOT_DECODED):
        query = f"{table.clickhouse_select_as_in_frames} FORMAT ArrowStream"
        with connection.post(query, settings=clickhouse_read.ARROW) as response:
            for batch in pa.ipc.open_stream(response):
                yield from frames.validated(frames.with_bytes(pa.Table.from_batches([batch]), table)).to_batches()
            response.read()
    else:
        query = f"{table.clickhouse_select} FORMAT Native"
        with connection.post(query, settings=clickhouse_read.NATIVE | clickhouse_read.LARGE_BLOCKS) as response:
            yield from read_blocks(response, table, table.arrow_large_schema)


def read_batches(file: Path) -> Batches:
    """Yield the record batches of a Parquet file."""
    # By default pyarrow fetches the chunks of all row groups ahead and keeps them until the end of the file.
    with pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as parquet:
        yield from parquet.iter_batches(BATCH_ROWS)


def write_batches(batches: Batches, table: Table, file: Path) -> None:
    """Write record batches to a Parquet file with row groups of `ROWS_TO_KEEP`, which replaces `file` at the end."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    try:
        # Closed in any case: after an error the source would otherwise go on, with its connection locked.
        contents = one_ahead(gathered(batches, ROWS_TO_KEEP))
        with pq.ParquetWriter(partial, table.arrow_schema) as writer, closing(contents):
            for content in contents:
                writer.write_table(content.cast(table.arrow_schema))
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def stream_into_postgres(connection: Connection[Any], table: Table, file: Path) -> None:
    """Hold 262,144 rows in memory, as read and as sent."""
    copy_batches(connection, table, read_batches(file))


def whole_into_postgres(connection: Connection[Any], table: Table, file: Path) -> None:
    """Hold the whole frame in memory."""
    postgres_write.polars_pgpq_copy_binary(connection, table, pl.read_parquet(file))


def stream_from_postgres(connection: Connection[Any], table: Table, file: Path, batch_bytes: int = 0) -> None:
    """Hold up to three row groups of 131,072 rows: one is made while its predecessor is written."""
    with closing(fetch_wire_batches(connection, table, batch_bytes)) as batches:
        write_batches(batches, table, file)


def whole_from_postgres(connection: AdbcConnection, table: Table, file: Path) -> None:
    """Hold the whole frame in memory."""
    frame: Any = postgres_read.polars_adbc_fetch(connection, table)
    pq.write_table(frames.from_polars(frame, table), file)


def stream_into_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """Hold 262,144 rows as sent, and up to twice as many as read, because some are read ahead."""
    insert_batches(connection, table, read_batches(file))


def whole_into_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """Hold the whole frame in memory."""
    clickhouse_write.polars_http_client_arrow_stream(connection, table, pl.read_parquet(file))


def stream_from_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """Hold up to three row groups of 131,072 rows: one is made while its predecessor is written."""
    with closing(select_batches(connection, table)) as batches:
        write_batches(batches, table, file)


def whole_from_clickhouse(connection: HttpConnection, table: Table, file: Path) -> None:
    """Hold the whole frame in memory."""
    frame: Any = clickhouse_read.polars_http_client_arrow_preallocated(connection, table)
    pq.write_table(frames.from_polars(frame, table), file)


def _move(function: Callable[..., None], driver: str, family: str, label: str) -> Technique:
    """Return the record of a move, with database and direction from its name."""
    _, preposition, server = function.__name__.split("_")
    database, client = cast("Database", server), CLIENTS_OF.get(driver, driver)
    direction: Direction = "write" if preposition == "into" else "read"
    contract = APPEND[database] if direction == "write" else None
    return Technique(function, database, direction, "polars", driver, client, family, label, "beyond", contract)


MOVES = (
    _move(stream_into_postgres, "pgpq", "copy_binary", "Parquet file -> table, streamed (pgpq)"),
    _move(whole_into_postgres, "pgpq", "copy_binary", "Parquet file -> Polars frame -> table (pgpq)"),
    _move(stream_from_postgres, "psycopg", "copy_binary", "table -> Parquet file, streamed (binary COPY)"),
    _move(whole_from_postgres, "adbc", "arrow", "table -> Polars frame -> Parquet file (ADBC)"),
    _move(stream_into_clickhouse, "http_client", "http_native", "Parquet file -> table, streamed (Native)"),
    _move(whole_into_clickhouse, "http_client", "arrow", "Parquet file -> Polars frame -> table (Arrow)"),
    _move(stream_from_clickhouse, "http_client", "http_native", "table -> Parquet file, streamed (Native)"),
    _move(whole_from_clickhouse, "http_client", "arrow", "table -> Polars frame -> Parquet file (Arrow)"),
)
"""All moves; each streamed move is followed by its whole counterpart."""
STREAMED = MOVES[::2]
