"""Write a dataframe to ClickHouse by techniques beyond the published ones.

Every function takes an open client, a `Table` and a frame, and returns when the server has acknowledged the rows.
ClickHouse splits a large INSERT into blocks: when it fails midway, finished blocks stay.
"""

from __future__ import annotations

import hashlib
import io
import json
import secrets
from collections.abc import Buffer, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from framehaul.codecs.copy_binary import with_uuid_bytes
from framehaul.codecs.native_format import native_blocks
from framehaul.data.frames import arrow_stream, from_polars, in_table_order
from framehaul.data.schema import LONG_NUMBERS, NO_NATIVE, ColumnType, Table, quote_clickhouse_text, refuse
from framehaul.techniques.clients import ChdbRemote, HttpConnection, HttpPair
from framehaul.techniques.contract import IDEMPOTENT, REPLACED
from framehaul.techniques.prepare import prepare, prepare_file
from framehaul.techniques.registry import DataFrame, also, technique

if TYPE_CHECKING:
    import pandas as pd
    from clickhouse_connect.driver.client import Client as ConnectClient

# An INSERT returns after its rows are stored, or with their error, even if a profile would queue them. NULL in a column
# that is not nullable is an error and not a zero. A missing column is an error, column names are case-sensitive, and
# types are sent as names. https://clickhouse.com/docs/operations/settings/formats
INSERT: dict[str, str | int] = {"async_insert": 0, "wait_for_async_insert": 1, "input_format_null_as_default": 0}
# A Distributed table has sent them to its shards.
INSERT |= {"input_format_native_decode_types_in_binary_format": 0, "insert_distributed_sync": 1}
INSERT |= {f"input_format_{form}_allow_missing_columns": 0 for form in ("arrow", "parquet")}
INSERT |= {f"input_format_{form}_case_insensitive_column_matching": 0 for form in ("arrow", "parquet")}

PRESORTED = "http.client INSERT FORMAT Native, a partition a block, presorted, from Polars"
UNCOMPRESSED = "http.client INSERT FORMAT Parquet, uncompressed, from Polars"


def insert_once(**settings: str | int) -> dict[str, str | int]:
    """Return the settings of one INSERT, with a token of its own: replicated tables drop repeated blocks by default."""
    # https://clickhouse.com/docs/guides/developer/deduplicating-inserts-on-retries
    return INSERT | {"insert_deduplication_token": secrets.token_hex(16)} | settings


def insert_arrow(connection: HttpConnection, table: Table, content: pa.Table, **settings: str | int) -> None:
    """Insert an Arrow stream, sent batch by batch: the server parses one batch while the next is encoded."""
    query = f"{table.clickhouse_insert} FORMAT ArrowStream"
    connection.post(query, body=arrow_stream(content), settings=insert_once(**settings)).read()


@technique("arrow", "http.client INSERT FORMAT ArrowStream, streamed, from Polars", pandas=True)
def polars_http_client_arrow_stream(connection: HttpConnection, table: Table, frame: DataFrame) -> None:
    """Send Arrow, which is how Polars and pandas 3 hold text: it takes little encoding and little parsing."""
    insert_arrow(connection, table, prepare(frame, table, "clickhouse"))


@technique("arrow", "http.client INSERT FORMAT ArrowStream, two insert threads, from Polars")
def polars_http_client_arrow_insert_threads(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """The server sorts and writes two blocks at a time, of 262,144 rows instead of about a million by default."""
    # https://clickhouse.com/docs/operations/settings/settings#min_insert_block_size_rows
    content = prepare(frame, table, "clickhouse")
    insert_arrow(connection, table, content, max_insert_threads=2, min_insert_block_size_rows=262_144)


@technique("arrow", "http.client INSERT FORMAT ArrowStream, two connections, from Polars", pandas=True)
def polars_http_client_arrow_two_connections(connections: HttpPair, table: Table, frame: DataFrame) -> None:
    """Send half of the rows over each connection: two INSERTs are parsed, sorted and written in parallel."""
    content = prepare(frame, table, "clickhouse")
    middle = content.num_rows // 2
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(insert_arrow, connections, (table, table), (content.slice(0, middle), content.slice(middle))))


@contextmanager
def staging_table(connection: HttpConnection, table: Table, engine: str = "") -> Iterator[Table]:
    """Create an empty copy of a table for the block, with its engine or another; a client that is killed leaves it."""
    # ClickHouse's joinGet reads a dot as the end of a database name, in quotes as well.
    staging = table.renamed(f"{table.name.replace('.', ' ')} {secrets.token_hex(8)}")
    try:
        connection.post(f"CREATE TABLE {staging.clickhouse_name} AS {table.clickhouse_name} {engine}").read()
        yield staging
    finally:
        connection.post(f"DROP TABLE IF EXISTS {staging.clickhouse_name} SYNC").read()


@contextmanager
def exchanged(connection: HttpConnection, table: Table) -> Iterator[Table]:
    """Create an empty copy of the table for the block, which replaces the table at its end unless it raises."""
    # https://clickhouse.com/docs/sql-reference/statements/exchange
    with staging_table(connection, table) as new:
        yield new
        connection.post(f"EXCHANGE TABLES {new.clickhouse_name} AND {table.clickhouse_name}").read()


@technique(
    "arrow", "http.client INSERT FORMAT ArrowStream into a new table, then EXCHANGE TABLES, from Polars", REPLACED
)
def polars_http_client_arrow_exchange(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Replace all rows atomically: readers see either the old table or all of the frame."""
    content = prepare(frame, table, "clickhouse")
    with exchanged(connection, table) as new:
        insert_arrow(connection, new, content)


@technique("arrow", "http.client INSERT FORMAT ArrowStream with a deduplication token, from Polars", IDEMPOTENT)
def polars_http_client_arrow_deduplicated(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Insert rows so that a retry is safe: the server drops blocks that it has under the same hash of the content."""
    # A setting of the table is changed, so that it remembers the last thousand blocks:
    # https://clickhouse.com/docs/operations/settings/merge-tree-settings#non_replicated_deduplication_window
    content, digest = prepare(frame, table, "clickhouse"), hashlib.sha256()
    for part in arrow_stream(content):
        digest.update(part)
    window = "non_replicated_deduplication_window = 1000"
    connection.post(f"ALTER TABLE {table.clickhouse_name} MODIFY SETTING {window}").read()
    insert_arrow(connection, table, content, insert_deduplicate=1, insert_deduplication_token=digest.hexdigest())


@also("polars_http_client_parquet_uncompressed", UNCOMPRESSED, "uncompressed")
@also("polars_http_client_parquet_lz4", "http.client INSERT FORMAT Parquet, lz4, from Polars", "lz4")
@technique("http_parquet", "http.client INSERT FORMAT Parquet, zstd, from Polars")
def polars_http_client_parquet_zstd(
    connection: HttpConnection, table: Table, frame: pl.DataFrame, codec: Any = "zstd"
) -> None:
    """Send Parquet, in Polars' default codec as the published techniques do, or in one that takes less CPU time."""
    buffer = io.BytesIO()
    prepare_file(frame, table).write_parquet(buffer, compression=codec)
    connection.post(f"{table.clickhouse_insert} FORMAT Parquet", body=buffer.getvalue(), settings=insert_once()).read()


@technique("arrow", "clickhouse-connect insert_arrow from Polars Arrow")
def polars_clickhouse_connect_insert_arrow(client: ConnectClient, table: Table, frame: pl.DataFrame) -> None:
    """The driver writes an Arrow file in memory and posts it."""
    client.insert_arrow(table.clickhouse_name, prepare(frame, table, "clickhouse"), settings=insert_once())


@technique("http_native", "clickhouse-connect insert_df from Pandas")
def pandas_clickhouse_connect_insert_df(client: ConnectClient, table: Table, frame: pd.DataFrame) -> None:
    """The driver encodes the frame as Native blocks, in Python and Cython, and matches columns by position."""
    # https://clickhouse.com/docs/integrations/language-clients/python/driver-api#client-insert-method
    # The driver sends zero for NULL in columns that are not nullable, truncates values of other dtypes than the table's
    # and checks neither addresses nor UUIDs. `prepare` checks all of these, and its result is not sent.
    refuse(table, {ColumnType.DURATION}, "which the driver does not make of timedeltas: use Arrow", "clickhouse")
    maps = "which the driver takes as dictionaries alone: use Arrow"
    refuse(table, {ColumnType.MAP}, maps, "clickhouse", "anywhere")
    with_uuid_bytes(prepare(frame, table, "clickhouse"), table)
    if views := [name for name, kind in frame.dtypes.items() if kind == "string_view[pyarrow]"]:
        raise ValueError(f"column {views[0]} is text as views, which pandas does not filter: cast it to str")
    frame = in_table_order(frame, table)
    client.insert_df(table.clickhouse_name, frame, column_names=table.column_names, settings=insert_once())


@technique("http_native", "clickhouse-connect insert_df, Rust codec, from Pandas", client="clickhouse_connect_rust")
def pandas_clickhouse_connect_insert_df_rust(client: ConnectClient, table: Table, frame: pd.DataFrame) -> None:
    """The driver encodes the frame as Native blocks, in Rust."""
    refuse(table, LONG_NUMBERS[:4], "which the codec does not make of text: use Arrow", "clickhouse")
    refuse(table, {ColumnType.TIMESTAMP_NS}, "in which the codec has microseconds: use Arrow", "clickhouse", "nested")
    pandas_clickhouse_connect_insert_df(client, table, frame)


def insert_native(connection: HttpConnection, table: Table, blocks: Iterator[Iterator[Buffer]]) -> None:
    """Insert Native blocks, which the server stores one by one instead of collecting a million rows first."""
    # https://clickhouse.com/docs/operations/settings/settings#min_insert_block_size_rows
    refuse(table, NO_NATIVE, "which is not encoded here: send it as Arrow", "clickhouse")
    query = f"{table.clickhouse_insert} FORMAT Native"
    settings = insert_once(min_insert_block_size_rows=0, min_insert_block_size_bytes=0)
    connection.post(query, body=chain.from_iterable(blocks), settings=settings).read()


@technique("http_native", PRESORTED, key=True, pandas=True)
def polars_http_client_native_presorted(connection: HttpConnection, table: Table, frame: DataFrame) -> None:
    """Compiled loops make blocks of one month each, in the table's order: the server has nothing to split or sort."""
    insert_native(connection, table, native_blocks(prepare(frame, table, "clickhouse"), table))


@technique("engine", "chDB INSERT INTO remote() from Polars Arrow")
def polars_chdb_remote(remote: ChdbRemote, table: Table, frame: pl.DataFrame) -> None:
    """A ClickHouse engine in this process scans the frame and sends native blocks."""
    content = prepare(frame, table, "clickhouse")  # noqa: F841  # chDB reads it by its name
    described = remote.engine.query(f"DESCRIBE TABLE {remote.table(table.name)}", "TSV").data()
    if names := [line.split("\t")[0] for line in described.splitlines() if line.split("\t")[2] == "EPHEMERAL"]:
        raise ValueError(f"column {names[0]} is EPHEMERAL, and chDB computes others by its default: use http.client")
    rows = f"SELECT {table.clickhouse_columns} FROM Python(content) {remote.settings(INSERT)}"
    remote.engine.query(f"INSERT INTO FUNCTION {remote.table(table.name)} ({table.clickhouse_columns}) {rows}")


# With two cores the server is fastest with smaller blocks and two insert threads.
FASTEST: dict[str, str | int] = {"max_insert_threads": 2, "min_insert_block_size_rows": 262_144}
SHUFFLED = "baseline: INSERT ... SELECT inside the server, shuffled first (no client, no parsing)"


@also("none_http_client_insert_select_unsorted", SHUFFLED, True, requires=("key",))
@technique("server", "baseline: INSERT ... SELECT inside the server (no client, no parsing)")
def none_http_client_insert_select(
    connection: HttpConnection, table: Table, source: Table, shuffled: bool = False
) -> None:
    """Insert rows as the server stores them, sorted by key within a partition, or shuffled, so that it sorts again."""
    order = f"ORDER BY cityHash64({table.clickhouse_key})" if shuffled else ""
    rows = f"SELECT {table.clickhouse_columns} FROM {source.clickhouse_name} {order}"
    connection.post(f"{table.clickhouse_insert} {rows}", settings=FASTEST).read()


@technique("server", "baseline: INSERT FORMAT ArrowStream into null(), from Polars (parsed, never stored)")
def polars_http_client_arrow_discarded(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> int:
    """Insert without sorting, compressing and writing; return the number of rows that the server reports."""
    query = f"INSERT INTO FUNCTION null({quote_clickhouse_text(table.clickhouse_structure)}) FORMAT ArrowStream"
    response = connection.post(query, body=arrow_stream(from_polars(frame, table)))
    response.read()
    return int(json.loads(response.headers["X-ClickHouse-Summary"])["written_rows"])
