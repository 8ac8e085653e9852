"""Routes from a PostgreSQL table to compressed files for a warehouse; none holds the whole table in memory.

A route gets both servers, an empty directory, and the maximum number of simultaneous connections, threads or files. It
writes its files to the directory: all `.csv.gz` (no header, NULL as an empty field) or all `.parquet`.
"""

import shutil
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import batched
from pathlib import Path
from typing import NamedTuple

from framehaul.data.schema import COMMENT, quote_clickhouse_text
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.buildings import TABLE
from framehaul.techniques import clients
from framehaul.techniques.beyond.postgres_read import pages_query
from framehaul.techniques.streaming import fetch_wire_batches, one_ahead, write_batches

CODEC = "snappy"
"""The codec of all Parquet files, as published; it is pyarrow's default. The study of Parquet compares codecs."""
ROWS_PER_PIECE, READ_BYTES = 2048, 1 << 20
"""The number of rows of COPY that are compressed at once, about 600 KB of buildings, and the bytes to read at once."""


class Route(NamedTuple):
    """A route, with its label in tables and charts; `origin` is `published` for those of the article."""

    name: str
    label: str
    origin: str
    function: Callable[[Servers, Path, int], None]


def csv_gzip(servers: Servers, directory: Path, parallel: int) -> None:
    """COPY to CSV, compress it in threads as it arrives, and distribute it over `parallel` files.

    A gzip file may have many members. Each holds whole rows and is compressed by one thread, as pigz does. The level is
    the fastest, as published: in the article, higher levels never made the whole route faster.
    """
    compress = partial(zlib.compress, level=1, wbits=31)
    with (
        clients.open_psycopg(servers.postgres) as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY {TABLE.postgres_name} TO STDOUT (FORMAT csv)".encode()) as copy,
        closing(one_ahead(batched(map(b"".join, batched(copy, ROWS_PER_PIECE)), 2 * parallel))) as groups,
        ThreadPoolExecutor(parallel) as pool,
    ):
        for pieces in groups:  # the next pieces arrive while these are compressed
            for number, member in enumerate(pool.map(compress, pieces)):
                with (directory / f"part{number % parallel:04}.csv.gz").open("ab") as file:
                    file.write(member)


@contextmanager
def _reachable() -> Iterator[None]:
    """Raise UnavailableError when ClickHouse cannot reach PostgreSQL, as from another network."""
    try:
        yield
    except (clients.QueryError, ServerError) as error:
        if "POSTGRESQL_CONNECTION_FAILURE" not in str(error):
            raise
        why = "ClickHouse cannot reach PostgreSQL at the address that this machine uses"
        raise UnavailableError(f"{why}; give FRAMEHAUL_POSTGRES_DSN a host that both can reach") from None


@_reachable()
def clickhouse_local_copy(servers: Servers, directory: Path, parallel: int) -> None:
    """Copy the table to ClickHouse through its PostgreSQL engine, then dump parts of the copy in several queries.

    Each dump is a LIMIT with an OFFSET, as published. It uses one thread: with more, the order of a Log table would
    differ between dumps, and rows would be missing or duplicated.
    """
    tables, copy = ClickHouseTables(servers.clickhouse), f"{TABLE.name}_copy"
    try:
        # The types are those of the PostgreSQL engine: with Date, as published, dates before 1970 would change.
        source = f"SELECT * FROM {remote(servers.postgres)}"
        tables.create_as(copy, f"CREATE TABLE {copy} ENGINE = Log COMMENT '{COMMENT}' AS {source}")
        rows = int(tables.run(f"SELECT count() FROM {copy}"))
        size = -(-rows // parallel) or 1

        def dump_part(start: int) -> None:
            query = f"SELECT * FROM {copy} LIMIT {size} OFFSET {start} SETTINGS max_threads = 1"
            dump(servers.clickhouse, query, directory / f"part{start // size:04}.parquet")

        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(dump_part, range(0, rows, size)))
    finally:
        tables.drop(copy)


@_reachable()
def clickhouse_direct(servers: Servers, directory: Path, _: int) -> None:
    """Read the table through ClickHouse's PostgreSQL engine as Parquet, in one stream without a copy."""
    dump(servers.clickhouse, f"SELECT * FROM {remote(servers.postgres)}", directory / "part0000.parquet")


def remote(server: PostgresServer) -> str:
    """Return the table function that reads the PostgreSQL table in ClickHouse, with address and login."""
    values = (f"{server.host}:{server.port}", server.database, TABLE.name, server.user, server.password)
    return f"postgresql({', '.join(map(quote_clickhouse_text, values))})"


def dump(server: ClickHouseServer, query: str, file: Path) -> None:
    """Write the result of a query to a Parquet file as it arrives."""
    settings = {"output_format_parquet_compression_method": CODEC, "output_format_parquet_string_as_string": "1"}
    with (
        clients.open_http_client(server) as connection,
        connection.post(f"{query} FORMAT Parquet", settings=settings) as response,
        file.open("wb") as target,
    ):
        shutil.copyfileobj(response, target, READ_BYTES)


def duckdb_parquet(servers: Servers, directory: Path, parallel: int) -> None:
    """Scan ranges of pages with DuckDB over several connections, and write one file per thread."""
    with clients.open_duckdb(servers.postgres) as connection:
        connection.execute(f"SET threads = {parallel}")
        options = f"FORMAT parquet, CODEC '{CODEC}', PER_THREAD_OUTPUT"
        connection.execute(f"COPY (SELECT * FROM pg.{TABLE.postgres_name}) TO '{directory}' ({options})")


def adbc_parquet(servers: Servers, directory: Path, parallel: int) -> None:
    """Read ranges of pages with ADBC in one snapshot, with one connection and one file of pyarrow per range."""
    with ExitStack() as stack:
        connections = [stack.enter_context(clients.open_adbc(servers.postgres)) for _ in range(parallel)]
        first, *others = cursors = [stack.enter_context(connection.cursor()) for connection in connections]
        for cursor in cursors:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        first.execute(f"SELECT pg_export_snapshot(), ({pages_query(TABLE)})")
        [(snapshot, pages)] = first.fetchall()
        for cursor in others:
            cursor.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        bounds = [*(pages * part // parallel for part in range(parallel)), 2**32 - 2]  # the last page of any table

        def write_range(number: int) -> None:
            pages = f"ctid >= '({bounds[number]},0)' AND ctid < '({bounds[number + 1]},0)'"
            cursors[number].execute(f"SELECT {TABLE.postgres_columns} FROM {TABLE.postgres_name} WHERE {pages}")
            write_batches(cursors[number].fetch_record_batch(), TABLE, directory / f"part{number:04}.parquet")

        list(stack.enter_context(ThreadPoolExecutor(parallel)).map(write_range, range(parallel)))


def copy_decoded(servers: Servers, directory: Path, _: int) -> None:
    """Decode binary COPY with compiled loops as the fastest reader of notebook 02 does, and write it with pyarrow."""
    with (
        clients.open_psycopg_plain(servers.postgres) as connection,
        closing(fetch_wire_batches(connection, TABLE)) as batches,
    ):
        write_batches(batches, TABLE, directory / "part0000.parquet")


def pg_parquet(servers: Servers, directory: Path, _: int) -> None:
    """Encode Parquet on the server, and write it to a file as it arrives."""
    query = f"COPY {TABLE.postgres_name} TO STDOUT (FORMAT parquet, COMPRESSION '{CODEC}')"
    with (
        clients.open_psycopg_parquet_stream(servers.postgres) as connection,
        connection.cursor() as cursor,
        cursor.copy(query.encode()) as copy,
        (directory / "part0000.parquet").open("wb") as file,
    ):
        file.writelines(copy)


ROUTES = (
    Route("csv_gzip", "COPY to CSV, gzip -1 in parallel", "published", csv_gzip),
    Route("clickhouse_local_copy", "ClickHouse: copy, then Parquet in parallel", "published", clickhouse_local_copy),
    Route("clickhouse_direct", "ClickHouse: straight to Parquet", "beyond", clickhouse_direct),
    Route("duckdb", "DuckDB: straight to Parquet", "beyond", duckdb_parquet),
    Route("adbc", "ADBC, ranges of pages -> pyarrow Parquet", "beyond", adbc_parquet),
    Route("copy_decoded", "COPY binary decoded by numba -> pyarrow Parquet", "beyond", copy_decoded),
    Route("pg_parquet", "pg_parquet COPY TO STDOUT", "beyond", pg_parquet),
)
