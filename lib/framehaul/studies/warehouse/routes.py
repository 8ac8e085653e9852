"""Ways from a PostgreSQL table to compressed files that a warehouse loads. Each holds little of the table in memory.

A route gets both servers, the table, an empty directory and how much may run at once, and leaves files there: all
`.csv.gz`, without a header and with NULL as an empty field, or all `.parquet`.
"""

from __future__ import annotations

import collections
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.data.schema import (
    COMMENT,
    Column,
    ColumnType,
    Table,
    quote_clickhouse,
    quote_clickhouse_text,
    quote_postgres_text,
)
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.warehouse.buildings import SCHEMA
from framehaul.techniques import clients
from framehaul.techniques.beyond.postgres_read import pages_query

CODEC = "snappy"
"""Of all Parquet files here, as published; notebook 13 compares codecs."""
GZIP_LEVEL = 1
"""The fastest, as published: higher levels never made the whole way faster there."""
GZIP_MEMBER_BYTES = 1 << 20
ROW_GROUP_BYTES = 16 << 20
READ_BYTES = 1 << 20

TYPES = {pa.int32(): ColumnType.INT32, pa.date32(): ColumnType.DATE, pa.string(): ColumnType.TEXT}
SOURCE = Table(
    "framehaul_buildings",
    tuple(Column(field.name, TYPES[field.type], nullable=True) for field in SCHEMA),
    key=(),
)
"""The table of `buildings` on PostgreSQL; nothing in it is a key, as published."""

type Function = Callable[[Servers, Table, Path, int], None]


@dataclass(frozen=True)
class Route:
    """A way to the files, and how tables and charts call it; `published` for those of the article."""

    name: str
    label: str
    origin: str
    function: Function


def csv_gzip(servers: Servers, table: Table, directory: Path, parallel: int) -> None:
    """`COPY` to CSV, cut by size between rows, compressed in threads as it comes: one file after the other.

    A gzip file may have many members; each is made of whole rows by a thread of its own, which is what pigz does.
    """
    with (
        clients.open_psycopg(servers.postgres) as connection,
        ThreadPoolExecutor(parallel) as pool,
        connection.cursor() as cursor,
    ):
        table_bytes = _one(cursor, f"SELECT pg_table_size({quote_postgres_text(table.postgres_name)})")
        bytes_per_file = max(GZIP_MEMBER_BYTES, table_bytes // parallel)
        query = f"COPY (SELECT {table.postgres_columns} FROM {table.postgres_name}) TO STDOUT (FORMAT csv)"
        with cursor.copy(query.encode()) as rows:
            written = 0
            for length, member in _gzip_members(pool, _pieces(rows, GZIP_MEMBER_BYTES), at_once=2 * parallel):
                with (directory / f"part{written // bytes_per_file:04}.csv.gz").open("ab") as file:
                    file.write(member)
                written += length


def _pieces(rows: Iterable[Any], size: int) -> Iterator[bytes]:
    """Rows of COPY, which come one at a time, joined to pieces of about this many bytes."""
    piece = bytearray()
    for row in rows:
        piece += row
        if len(piece) >= size:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _gzip_members(pool: ThreadPoolExecutor, pieces: Iterable[bytes], at_once: int) -> Iterator[tuple[int, bytes]]:
    """The length of each piece and its gzip member, in their order, with no more than `at_once` of them in memory."""

    def compressed(piece: bytes) -> tuple[int, bytes]:
        return len(piece), zlib.compress(piece, GZIP_LEVEL, wbits=31)

    waiting: collections.deque[Future[tuple[int, bytes]]] = collections.deque()
    for piece in pieces:
        waiting.append(pool.submit(compressed, piece))
        if len(waiting) == at_once:
            yield waiting.popleft().result()
    for member in waiting:
        yield member.result()


def clickhouse_local_copy(servers: Servers, table: Table, directory: Path, parallel: int) -> None:
    """ClickHouse copies the table through its PostgreSQL engine, then dumps parts of the copy at once.

    As published a dump is a LIMIT with an OFFSET. It has one thread, else the order of a Log table would not be the
    same for all dumps, and rows would be missing and others be there twice.
    """
    copy = f"{table.name}_copy"
    with _remote_errors(), local_copy(servers, table, copy) as rows:
        size = -(-rows // parallel) or 1

        def dump_part(start: int) -> None:
            part = f"LIMIT {size} OFFSET {start} SETTINGS max_threads = 1"
            query = f"SELECT * FROM {quote_clickhouse(copy)} {part}"
            dump(servers.clickhouse, query, directory / f"part{start // size:04}.parquet")

        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(dump_part, range(0, rows, size)))


@contextmanager
def local_copy(servers: Servers, table: Table, name: str) -> Iterator[int]:
    """A copy of the PostgreSQL table on ClickHouse for as long as the block lasts; gives its number of rows."""
    tables = ClickHouseTables(servers.clickhouse)
    try:
        # The types are those of the PostgreSQL engine: with Date, as published, dates before 1970 would be others.
        select = f"SELECT * FROM {remote(servers, table)}"
        tables.create_as(name, f"CREATE TABLE {quote_clickhouse(name)} ENGINE = Log COMMENT '{COMMENT}' AS {select}")
        yield int(tables.run(f"SELECT count() FROM {quote_clickhouse(name)}"))
    finally:
        tables.drop_named(name)


def clickhouse_direct(servers: Servers, table: Table, directory: Path, _: int) -> None:
    """ClickHouse reads the table through its PostgreSQL engine and writes Parquet of it: one stream, no copy."""
    query = f"SELECT * FROM {remote(servers, table)}"
    with _remote_errors():
        dump(servers.clickhouse, query, directory / "part0000.parquet")


def remote(servers: Servers, table: Table) -> str:
    """The table as ClickHouse sees it: a table function with address and login."""
    server = servers.postgres
    values = (f"{server.host}:{server.port}", server.database, table.name, server.user, server.password)
    return f"postgresql({', '.join(map(quote_clickhouse_text, values))})"


def dump(server: ClickHouseServer, query: str, file: Path) -> None:
    """The result of a query as a Parquet file, written as it comes."""
    settings: dict[str, str | int] = {
        "output_format_parquet_compression_method": CODEC, "output_format_parquet_string_as_string": 1,
    }  # fmt: skip
    with (
        clients.open_http_client(server) as connection,
        connection.post(f"{query} FORMAT Parquet", settings=settings) as response,
        file.open("wb") as target,
    ):
        while piece := response.read(READ_BYTES):
            target.write(piece)


@contextmanager
def _remote_errors() -> Iterator[None]:
    """Where ClickHouse cannot reach PostgreSQL, the route is not to be had: they may be in different networks."""
    try:
        yield
    except (clients.QueryError, ServerError) as error:
        if "POSTGRESQL_CONNECTION_FAILURE" not in str(error):
            raise
        raise UnavailableError(
            "ClickHouse cannot reach PostgreSQL at the address that this machine uses; give FRAMEHAUL_POSTGRES_DSN a "
            "host that both can reach"
        ) from None


def duckdb_parquet(servers: Servers, table: Table, directory: Path, parallel: int) -> None:
    """DuckDB scans ranges of pages over several connections and writes a file for each thread."""
    with clients.open_duckdb(servers.postgres) as connection:
        connection.execute(f"SET threads = {parallel}")
        connection.execute(
            f"COPY (SELECT * FROM pg.{table.postgres_name}) TO '{directory}/parts' "
            f"(FORMAT parquet, CODEC '{CODEC}', PER_THREAD_OUTPUT)"
        )
    for part in (directory / "parts").iterdir():
        part.rename(directory / part.name)
    (directory / "parts").rmdir()


def adbc_parquet(servers: Servers, table: Table, directory: Path, parallel: int) -> None:
    """ADBC over ranges of pages, one connection and one file for each, all of one snapshot; pyarrow writes."""
    with ExitStack() as stack:
        connections = [stack.enter_context(clients.open_adbc(servers.postgres)) for _ in range(parallel)]
        cursors = [stack.enter_context(connection.cursor()) for connection in connections]
        for cursor in cursors:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        snapshot = _one(cursors[0], "SELECT pg_export_snapshot()")
        for cursor in cursors[1:]:
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        ranges = page_ranges(_one(cursors[0], pages_query(table)), parallel)

        def write_range(number: int) -> None:
            cursors[number].execute(
                f"SELECT {table.postgres_columns} FROM {table.postgres_name} WHERE {ranges[number]}"
            )
            write_parquet(cursors[number].fetch_record_batch(), table, directory / f"part{number:04}.parquet")

        list(stack.enter_context(ThreadPoolExecutor(parallel)).map(write_range, range(parallel)))
        for connection in connections:
            connection.rollback()


def page_ranges(pages: int, parts: int) -> list[str]:
    """Conditions that split a table of so many pages, each a TID range scan; the last has no upper end."""
    bounds = [pages * part // parts for part in range(parts)]
    lower = [f"ctid >= '({bound},0)'" for bound in bounds]
    return [*(f"{low} AND ctid < '({upper},0)'" for low, upper in zip(lower, bounds[1:], strict=False)), lower[-1]]


def _one(cursor: Any, query: str) -> Any:
    cursor.execute(query)
    return cursor.fetchone()[0]


def copy_decoded(servers: Servers, table: Table, directory: Path, _: int) -> None:
    """Binary COPY decoded by compiled loops (the fastest reader of notebook 02) while it comes; pyarrow writes."""
    decoder = CopyDecoder(table)

    def batches() -> Iterator[pa.RecordBatch]:
        query = f"COPY (SELECT {table.postgres_columns} FROM {table.postgres_name}) TO STDOUT (FORMAT binary)"
        with (
            clients.open_psycopg(servers.postgres) as connection,
            connection.cursor() as cursor,
            cursor.copy(query.encode()) as copy,
        ):
            for piece in _pieces(copy, READ_BYTES):
                decoder.feed(piece)
                yield from decoder.take()
        yield from decoder.finish().to_batches()

    write_parquet(batches(), table, directory / "part0000.parquet")


def write_parquet(batches: Iterable[pa.RecordBatch], table: Table, file: Path) -> None:
    """A Parquet file of record batches, a row group for some 16 MB of them."""
    with pq.ParquetWriter(file, table.arrow_schema, compression=CODEC) as writer:
        group: list[pa.RecordBatch] = []
        for batch in batches:
            group.append(batch.cast(table.arrow_schema))
            if sum(part.nbytes for part in group) >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group))
                group.clear()
        writer.write_table(pa.Table.from_batches(group, table.arrow_schema))


def pg_parquet(servers: Servers, table: Table, directory: Path, _: int) -> None:
    """The server itself makes Parquet of the table; the client writes down what comes."""
    with (
        clients.open_psycopg_parquet_stream(servers.postgres) as connection,
        connection.cursor() as cursor,
        (directory / "part0000.parquet").open("wb") as file,
    ):
        query = f"COPY (SELECT {table.postgres_columns} FROM {table.postgres_name}) TO STDOUT"
        with cursor.copy(f"{query} (FORMAT parquet, COMPRESSION '{CODEC}')".encode()) as copy:
            for piece in copy:
                file.write(piece)


ROUTES = (
    Route("csv_gzip", "COPY to CSV, gzip -1 in parallel", "published", csv_gzip),
    Route("clickhouse_local_copy", "ClickHouse: copy, then Parquet in parallel", "published", clickhouse_local_copy),
    Route("clickhouse_direct", "ClickHouse: straight to Parquet", "beyond", clickhouse_direct),
    Route("duckdb", "DuckDB: straight to Parquet", "beyond", duckdb_parquet),
    Route("adbc", "ADBC, ranges of pages -> pyarrow Parquet", "beyond", adbc_parquet),
    Route("copy_decoded", "COPY binary decoded by numba -> pyarrow Parquet", "beyond", copy_decoded),
    Route("pg_parquet", "pg_parquet COPY TO STDOUT", "beyond", pg_parquet),
)
