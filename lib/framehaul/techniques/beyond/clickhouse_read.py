"""Read a table of ClickHouse into a dataframe by techniques beyond the published ones."""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from framehaul.codecs.native_format import read_native
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import FLOATS, NESTED, ColumnType, Table, refuse
from framehaul.techniques.clients import ChdbRemote, HttpConnection, HttpPair, Settings
from framehaul.techniques.registry import DataFrame, ToFrame, also, technique

if TYPE_CHECKING:
    import pandas as pd
    from clickhouse_connect.driver.client import Client as ConnectClient

# A SELECT returns all rows or raises an error. A profile may end it early without an error, by a limit, or by an
# overflow mode for rows, bytes or time: https://clickhouse.com/docs/operations/settings/query-complexity
LIMITED = ("read", "result", "timeout", "set", "distinct", "sort", "group_by", "join", "transfer")
ALL_ROWS: dict[str, str | int] = {"limit": 0, "offset": 0}
ALL_ROWS |= {f"{name}_overflow_mode": "throw" for name in LIMITED}
ALL_ROWS |= {f"{name}_overflow_mode_leaf": "throw" for name in ("read", "timeout")}
# By default a block, and so a record batch, ends at 1 MB, about 8,000 rows of an ordinary table. With a larger limit it
# ends at 65,409 rows: https://clickhouse.com/docs/operations/settings/settings#preferred_block_size_bytes
LARGE_BLOCKS: dict[str, str | int] = {"preferred_block_size_bytes": 16 << 20}
# Each thread reads the page cache itself, without another thread that reads ahead from slow disks: this takes a fifth
# less CPU time of the server. The kernel reads ahead.
# https://clickhouse.com/docs/operations/settings/settings#local_filesystem_read_method
READ_DIRECTLY: dict[str, str | int] = {"local_filesystem_read_method": "pread"}
# Text is Arrow strings instead of binary, dates are dates instead of numbers, every row has its text, and nothing is
# compressed, which costs more than it saves on loopback. ClickHouse's native writer is the default of a stock server,
# but not of the embedded one:
# https://clickhouse.com/docs/operations/settings/formats#output_format_arrow_use_native_writer
ARROW: dict[str, str | int] = {
    **ALL_ROWS,
    **LARGE_BLOCKS,
    **READ_DIRECTLY,
    "output_format_arrow_string_as_string": 1,
    "output_format_arrow_date_as_uint16": 0,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "output_format_arrow_compression_method": "none",
    "output_format_arrow_use_native_writer": 1,
}
# LowCardinality columns are Arrow dictionaries: an index for each row, and each text once for each block.
ARROW_DICTIONARY = ARROW | {"output_format_arrow_low_cardinality_as_dictionary": 1}
# Types of columns are sent as names: https://clickhouse.com/docs/interfaces/formats/Native
NATIVE = ALL_ROWS | READ_DIRECTLY | {"output_format_native_encode_types_in_binary_format": 0}


def read_arrow(response: http.client.HTTPResponse, *, preallocated: bool = False) -> pa.Table:
    """Return the Arrow stream of a response, decoded as it arrives, through `Preallocated` if that is true."""
    with response:
        content = pa.ipc.open_stream(Preallocated(response) if preallocated else response).read_all()
        response.read()  # the end of the body, so that the connection can be used again
    return content


def select_arrow(connection: HttpConnection, table: Table, settings: Settings, preallocated: bool = False) -> pa.Table:
    """Return the table's rows as the Arrow stream that the server sends with these settings."""
    query = f"{table.clickhouse_select_as_in_frames} FORMAT ArrowStream"
    return read_arrow(connection.post(query, settings=settings), preallocated=preallocated)


@technique("arrow", "http.client SELECT ... FORMAT ArrowStream, streamed -> Polars dataframe", pandas=to_pandas)
def polars_http_client_arrow_stream(connection: HttpConnection, table: Table, to: ToFrame = to_polars) -> DataFrame:
    """Decode Arrow, whose buffers Polars takes over, and pandas 3 for text; UUIDs become text on the server."""
    return to(select_arrow(connection, table, ARROW), table)


@technique("arrow", "http.client SELECT ... FORMAT ArrowStream, dictionaries -> Polars dataframe")
def polars_http_client_arrow_dictionary(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """Decode LowCardinality columns from dictionaries into plain text."""
    return to_polars(select_arrow(connection, table, ARROW_DICTIONARY), table)


class Preallocated:
    """A response as a file, each of whose reads goes from the socket into one new allocation."""

    # `http.client` joins a read from pieces, which is one more copy. Arrow's memory pool (mimalloc) takes two to three
    # times as long for these allocations when it gets them from the kernel.
    closed = False

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def read(self, length: int) -> pa.Buffer:
        """Return the next `length` bytes, or all that are left."""
        space, filled = np.empty(length, np.uint8), 0
        while filled < length and (count := self._response.readinto(space[filled:])):
            filled += count
        return pa.py_buffer(space[:filled])


@technique(
    "arrow", "http.client SELECT ... FORMAT ArrowStream, preallocated reads -> Polars dataframe", pandas=to_pandas
)
def polars_http_client_arrow_preallocated(
    connection: HttpConnection, table: Table, to: ToFrame = to_polars
) -> DataFrame:
    """Receive by `readinto` instead of `read`, and decode dictionaries for Polars."""
    settings = ARROW_DICTIONARY if to is to_polars else ARROW
    return to(select_arrow(connection, table, settings, preallocated=True), table)


@technique("arrow", "http.client SELECT ... FORMAT ArrowStream, two connections by partition -> Polars dataframe")
def polars_http_client_arrow_two_connections(connections: HttpPair, table: Table) -> pl.DataFrame:
    """Read every other partition over each connection, by two SELECTs, which do not share a snapshot of the table."""
    if "_partition_id" in table.column_names:  # which hides ClickHouse's own
        return to_polars(select_arrow(connections[0], table, ARROW_DICTIONARY, preallocated=True), table)
    # Concurrently written rows may be in one half and not in the other; merges never move rows between partitions.
    listing = f"SELECT DISTINCT _partition_id FROM {table.clickhouse_name} ORDER BY ALL FORMAT TSV"
    partitions = connections[0].post(listing, settings=ALL_ROWS).read().decode().split()

    def half(connection: HttpConnection, names: list[str]) -> pl.DataFrame:
        query = table.clickhouse_select_as_in_frames
        chosen = ", ".join(f"'{name}'" for name in names) or "''"
        query = f"{query} WHERE _partition_id IN ({chosen}) FORMAT ArrowStream"
        response = connection.post(query, settings=ARROW_DICTIONARY | {"max_threads": 1})
        return to_polars(read_arrow(response, preallocated=True), table)

    with ThreadPoolExecutor(2) as pool:
        return pl.concat(pool.map(half, connections, (partitions[::2], partitions[1::2])), rechunk=False)


@technique(
    "http_native", "http.client SELECT ... FORMAT Native, decoded by numba -> Polars dataframe", pandas=to_pandas
)
def polars_http_client_native_decoded(connection: HttpConnection, table: Table, to: ToFrame = to_polars) -> DataFrame:
    """Compiled loops decode columns into the library's layout as they arrive: the least work on both sides."""
    with connection.post(f"{table.clickhouse_select} FORMAT Native", settings=NATIVE | LARGE_BLOCKS) as response:
        content = read_native(response, table, None if to is to_polars else table.arrow_large_schema)
    return to(content, table, valid=True)


@technique("arrow", "clickhouse-connect query_arrow -> Polars dataframe")
def polars_clickhouse_connect_query_arrow(client: ConnectClient, table: Table) -> pl.DataFrame:
    """Polars takes over the driver's Arrow table."""
    return to_polars(client.query_arrow(table.clickhouse_select_as_in_frames, settings=ARROW, use_strings=True), table)


@technique("arrow", "clickhouse-connect query_df_arrow -> Polars dataframe", pandas="pandas")
def polars_clickhouse_connect_query_df_arrow(client: ConnectClient, table: Table, library: str = "polars") -> DataFrame:
    """Return the driver's own frame, whose dtypes in pandas are Arrow's; bytes are refused as no text."""
    refuse(table, {ColumnType.BYTES}, "of which query_df_arrow makes text: use query_arrow", "clickhouse", "anywhere")
    query = table.clickhouse_select_as_in_frames
    return client.query_df_arrow(query, settings=ARROW, use_strings=True, dataframe_library=library)


RUST = "clickhouse-connect query_df, Rust codec -> Pandas dataframe"


@also("pandas_clickhouse_connect_query_df_rust", RUST, client="clickhouse_connect_rust")
@technique("http_native", "clickhouse-connect query_df -> Pandas dataframe")
def pandas_clickhouse_connect_query_df(client: ConnectClient, table: Table) -> pd.DataFrame:
    """The driver decodes Native blocks, in Cython or Rust; bytes stay bytes, and no rows have columns."""
    # https://clickhouse.com/docs/integrations/language-clients/python/driver-api#client-query-method
    objects = "of which the driver makes Python's objects, with one mark for NULL and NaN and each key of a map once"
    refuse(table, NESTED, f"{objects}: use query_arrow", "clickhouse")
    changed = {*FLOATS, ColumnType.DATE, ColumnType.TIME, ColumnType.BYTES, ColumnType.TIMESTAMP_NS}
    refuse(table, changed, "of whose elements the driver makes others: use query_arrow", "clickhouse", "nested")
    as_bytes = dict.fromkeys(table.columns_of(ColumnType.BYTES), "bytes")
    query = table.clickhouse_select_as_in_frames
    in_utc = NATIVE | {"session_timezone": "UTC"}  # the driver gives moments without a zone the zone of the session
    return client.query_df(query, settings=in_utc, column_formats=as_bytes).reindex(columns=table.column_names)


@technique("engine", "chDB SELECT ... FROM remote() -> Polars dataframe")
def polars_chdb_remote(remote: ChdbRemote, table: Table) -> pl.DataFrame:
    """A ClickHouse engine in this process reads native blocks and writes Arrow."""
    # `remote` sends all settings except limit and offset, which a profile may set: so rows are counted.
    source = remote.table(table.name)
    counted = remote.engine.query(f"SELECT count() FROM {source}", "TSV").bytes()
    settings = remote.settings(ARROW | {"output_format_arrow_use_native_writer": 0})
    query = f"{replace(table, reference=source).clickhouse_select_as_in_frames} {settings}"
    content = pa.ipc.open_stream(remote.engine.query(query, "ArrowStream").bytes()).read_all()
    if not counted or content.num_rows < int(counted):
        remedy = "take limit and offset out of the user's profile or read over HTTP, where they are undone"
        raise ValueError(f"{content.num_rows:,} of {int(counted or 0):,} rows came: {remedy}")
    return to_polars(content, table)


@technique("server", "baseline: SELECT ... FORMAT Native, discarded (no decoding)")
def none_http_client_native_discarded(connection: HttpConnection, table: Table) -> int:
    """Read ClickHouse's own format, the least work for the server, into one buffer; return the number of bytes."""
    response = connection.post(f"{table.clickhouse_select} FORMAT Native", settings=NATIVE | LARGE_BLOCKS)
    scratch, total = bytearray(1 << 20), 0
    while count := response.readinto(scratch):
        total += count
    return total
