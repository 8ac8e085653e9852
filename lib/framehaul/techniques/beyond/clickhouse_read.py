"""ClickHouse to dataframe, past what was published.

Every function takes an open client and a `Table`, and returns the table's content as a fully materialised frame.
"""

from __future__ import annotations

import http.client
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import adbc_driver_manager.dbapi
import aiohttp
import clickhouse_driver
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from _ch_core import StreamDecoder
from clickhouse_connect.driver.client import Client as ClickHouseConnectClient

from framehaul.codecs.native_format import read_native
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import ARRAYS, NESTED, ColumnType, Table, quote_clickhouse, refuse
from framehaul.techniques.clients import ChdbRemote, HttpConnection, UrlLib3Endpoint, adbc_settings
from framehaul.techniques.registry import technique

# All rows, or an error: a profile may have a SELECT end early without a word, by a limit, or by what is to happen past
# one of rows, bytes or time. https://clickhouse.com/docs/operations/settings/query-complexity
ALL_ROWS: dict[str, str | int] = {
    "limit": 0,
    "offset": 0,
    "read_overflow_mode": "throw",
    "read_overflow_mode_leaf": "throw",
    "result_overflow_mode": "throw",
    "timeout_overflow_mode": "throw",
    "timeout_overflow_mode_leaf": "throw",
    "set_overflow_mode": "throw",
    "distinct_overflow_mode": "throw",
    "sort_overflow_mode": "throw",
    "group_by_overflow_mode": "throw",
    "join_overflow_mode": "throw",
    "transfer_overflow_mode": "throw",
}
# By default a block, and so a record batch, ends at a megabyte, some eight thousand rows of an ordinary table. With
# more room it ends at 65,409: https://clickhouse.com/docs/operations/settings/settings#preferred_block_size_bytes
LARGE_BLOCKS: dict[str, str | int] = {"preferred_block_size_bytes": 16 << 20}
# What lies in the page cache is read by the thread that wants it, and not handed over by another one, which reads ahead
# from slow disks: a fifth less CPU time of the server. Here the kernel reads ahead.
# https://clickhouse.com/docs/operations/settings/settings#local_filesystem_read_method
READ_DIRECTLY: dict[str, str | int] = {"local_filesystem_read_method": "pread"}
# Text as Arrow strings instead of binary, dates as dates instead of numbers, every row with its own text, and no
# compression, which on loopback costs more than it saves. The native writer is ClickHouse's own, which a stock server
# uses by default and this one does not:
# https://clickhouse.com/docs/operations/settings/formats#output_format_arrow_use_native_writer
ARROW: dict[str, str | int] = (
    ALL_ROWS
    | LARGE_BLOCKS
    | READ_DIRECTLY
    | {
        "output_format_arrow_string_as_string": 1,
        "output_format_arrow_date_as_uint16": 0,
        "output_format_arrow_low_cardinality_as_dictionary": 0,
        "output_format_arrow_compression_method": "none",
        "output_format_arrow_use_native_writer": 1,
    }
)
# LowCardinality columns travel as Arrow dictionaries: an index for each row, and each text once for each block.
ARROW_DICTIONARY = ARROW | {"output_format_arrow_low_cardinality_as_dictionary": 1}
# The types of columns by their names: https://clickhouse.com/docs/interfaces/formats/Native
NATIVE = ALL_ROWS | READ_DIRECTLY | {"output_format_native_encode_types_in_binary_format": 0}


def read_arrow(response: http.client.HTTPResponse, *, preallocated: bool = False) -> pa.Table:
    """The Arrow stream in a response, decoded as it arrives; `preallocated` as in the class of that name."""
    with response:
        content = pa.ipc.open_stream(Preallocated(response) if preallocated else response).read_all()
        response.read()  # the end of the body, so that the connection can be used again
    return content


def select_arrow(
    connection: HttpConnection, table: Table, settings: dict[str, str | int], *, preallocated: bool = False
) -> pa.Table:
    """Return the table's rows as the server's Arrow stream has them."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
    return read_arrow(connection.post(query, settings=settings), preallocated=preallocated)


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, streamed -> Polars dataframe")
def polars_http_client_arrow_stream(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """Polars takes over Arrow's buffers; UUIDs become text on the server."""
    return to_polars(select_arrow(connection, table, ARROW), table)


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, streamed -> Pandas dataframe")
def pandas_http_client_arrow_stream(connection: HttpConnection, table: Table) -> pd.DataFrame:
    """pandas 3 keeps text in Arrow's buffers; only dates become Python objects."""
    return to_pandas(select_arrow(connection, table, ARROW), table)


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, dictionaries -> Polars dataframe")
def polars_http_client_arrow_dictionary(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """LowCardinality columns travel as dictionaries and become plain text here."""
    return to_polars(select_arrow(connection, table, ARROW_DICTIONARY), table)


class Preallocated:
    """A response as a file whose reads go from the socket straight into one new allocation each.

    `http.client` joins a read from pieces, one copy more. Arrow's own pool (mimalloc) would take two to three times as
    long for these allocations when it has to ask the kernel for them.
    """

    closed = False

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def read(self, length: int) -> pa.Buffer:
        """The next `length` bytes, or what is left of them."""
        space, filled = np.empty(length, np.uint8), 0
        while filled < length and (count := self._response.readinto(space[filled:])):
            filled += count
        return pa.py_buffer(space[:filled])


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, preallocated reads -> Polars dataframe")
def polars_http_client_arrow_preallocated(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """`readinto` instead of `read`, dictionaries as above."""
    return to_polars(select_arrow(connection, table, ARROW_DICTIONARY, preallocated=True), table)


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, preallocated reads -> Pandas dataframe")
def pandas_http_client_arrow_preallocated(connection: HttpConnection, table: Table) -> pd.DataFrame:
    """`readinto` instead of `read`."""
    return to_pandas(select_arrow(connection, table, ARROW, preallocated=True), table)


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, lz4 -> Polars dataframe")
def polars_http_client_arrow_lz4(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """Buffers compressed with LZ4: for networks slower than loopback."""
    compressed = ARROW_DICTIONARY | {"output_format_arrow_compression_method": "lz4_frame"}
    return to_polars(select_arrow(connection, table, compressed), table)


@technique(family="arrow", label="http.client SELECT ... FORMAT Arrow, whole body -> Polars dataframe")
def polars_http_client_arrow_file(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """The file format has its index at the end, so all of it has to be there first."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT Arrow"
    body = connection.post(query, settings=ARROW_DICTIONARY).read()
    return to_polars(pa.ipc.open_file(body).read_all(), table)


@technique(family="arrow", label="http.client SELECT ... FORMAT ArrowStream, Arrow's C++ writer -> Polars dataframe")
def polars_http_client_arrow_library_writer(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """The server builds Arrow through the Arrow library: what servers without the native writer do."""
    library = ARROW | {"output_format_arrow_use_native_writer": 0}
    return to_polars(select_arrow(connection, table, library), table)


@technique(
    family="arrow",
    label="http.client SELECT ... FORMAT ArrowStream, two connections by partition -> Polars dataframe",
    client="http_client_pair",
    connections=2,
)
def polars_http_client_arrow_two_connections(
    connections: tuple[HttpConnection, HttpConnection], table: Table
) -> pl.DataFrame:
    """Every other partition over each connection: two SELECTs, and not one snapshot of the table.

    Rows written meanwhile may be in one half and not in the other; merges never move rows between partitions.
    """
    select = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name}"
    listing = f"SELECT DISTINCT _partition_id FROM {table.clickhouse_name} ORDER BY ALL FORMAT TSV"
    partitions = connections[0].post(listing, settings=ALL_ROWS).read().decode().split()
    first, second = (", ".join(f"'{name}'" for name in partitions[at::2]) or "''" for at in (0, 1))

    def half(connection: HttpConnection, condition: str) -> pl.DataFrame:
        query = f"{select} WHERE _partition_id {condition} FORMAT ArrowStream"
        response = connection.post(query, settings=ARROW_DICTIONARY | {"max_threads": 1})
        return to_polars(read_arrow(response, preallocated=True), table)

    with ThreadPoolExecutor(2) as pool:
        conditions = f"IN ({first})", f"IN ({second})"
        return pl.concat(pool.map(half, connections, conditions), rechunk=False)


@technique(family="arrow", label="urllib3 SELECT ... FORMAT ArrowStream, streamed -> Polars dataframe")
def polars_urllib3_arrow_stream(endpoint: UrlLib3Endpoint, table: Table) -> pl.DataFrame:
    """The HTTP client that most libraries are built on, read as a stream."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
    response = endpoint.post(query, settings=ARROW_DICTIONARY)
    content = pa.ipc.open_stream(response).read_all()
    response.drain_conn()
    return to_polars(content, table)


@technique(family="arrow", label="urllib3 SELECT ... FORMAT ArrowStream, streamed -> Pandas dataframe")
def pandas_urllib3_arrow_stream(endpoint: UrlLib3Endpoint, table: Table) -> pd.DataFrame:
    """The HTTP client that most libraries are built on, read as a stream."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
    response = endpoint.post(query, settings=ARROW)
    content = pa.ipc.open_stream(response).read_all()
    response.drain_conn()
    return to_pandas(content, table)


@technique(family="arrow", label="aiohttp SELECT ... FORMAT ArrowStream, whole body -> Polars dataframe")
async def polars_aiohttp_arrow_stream(session: aiohttp.ClientSession, table: Table) -> pl.DataFrame:
    """For code that is asynchronous already; the body is collected, then decoded."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream"
    async with session.post("/", params={"query": query, **ARROW_DICTIONARY}) as response:
        body = await response.read()
    return to_polars(pa.ipc.open_stream(body).read_all(), table)


@technique(family="http_native", label="http.client SELECT ... FORMAT Native, Rust codec -> Polars dataframe")
def polars_http_client_native_rust(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """clickhouse-connect-core decodes ClickHouse's own format into Arrow, block by block."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT Native"
    time = "of whose times of day the codec makes others: read it as Arrow"
    refuse(table, {ColumnType.TIME}, time, "clickhouse", "anywhere")
    refuse(
        table, {ColumnType.MAP}, "of which the codec keeps each key once: read it as Arrow", "clickhouse", "anywhere"
    )
    decoder = StreamDecoder()
    parts = [pl.DataFrame(schema=table.polars_schema)]
    with connection.post(query, settings=NATIVE) as response:
        while chunk := response.read1(1 << 20):
            parts += [to_polars(pa.table(block), table) for block in decoder.feed(chunk)]
    parts += [to_polars(pa.table(block), table) for block in decoder.finish()]
    return pl.concat(parts, rechunk=False)


@technique(family="http_native", label="http.client SELECT ... FORMAT Native, decoded by numba -> Polars dataframe")
def polars_http_client_native_decoded(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """Columns become Polars' own string views as they arrive: the least work on both sides."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Native"
    with connection.post(query, settings=NATIVE | LARGE_BLOCKS) as response:
        return to_polars(read_native(response, table), table, valid=True)


@technique(family="http_native", label="http.client SELECT ... FORMAT Native, decoded by numba -> Pandas dataframe")
def pandas_http_client_native_decoded(connection: HttpConnection, table: Table) -> pd.DataFrame:
    """As with Polars; of each block the text is laid out as pandas holds it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Native"
    with connection.post(query, settings=NATIVE | LARGE_BLOCKS) as response:
        return to_pandas(read_native(response, table, table.arrow_large_schema), table, valid=True)


# By itself the driver asks for a compressed answer, which takes ten times as long over loopback.
# https://clickhouse.com/docs/operations/settings/settings#enable_http_compression
ADBC: dict[str, str | int] = {"enable_http_compression": 0}
# It takes no text that is not UTF-8, so where there are bytes all comes as such, and what is text is proven here.
ADBC_BYTES = ARROW | ADBC | {"output_format_arrow_string_as_string": 0}


@technique(family="arrow", label="ADBC fetch as Arrow -> Polars dataframe", client="adbc_clickhouse")
def polars_adbc_fetch(connection: adbc_driver_manager.dbapi.Connection, table: Table) -> pl.DataFrame:
    """ClickHouse's own driver, an Arrow stream over HTTP: with the same calls as to any other database."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name}"
    settings = adbc_settings(ADBC_BYTES if table.columns_of(ColumnType.BYTES) else ARROW_DICTIONARY | ADBC)
    with connection.cursor(adbc_stmt_kwargs=settings) as cursor:
        cursor.execute(query)
        return to_polars(cursor.fetch_arrow_table(), table)


@technique(family="arrow", label="clickhouse-connect query_arrow -> Polars dataframe")
def polars_clickhouse_connect_query_arrow(client: ClickHouseConnectClient, table: Table) -> pl.DataFrame:
    """The driver's Arrow table, taken over by Polars."""
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name}"
    return to_polars(client.query_arrow(query, settings=ARROW, use_strings=True), table)


def text_query(table: Table) -> str:
    """SELECT of a table whose strings are all text; raises ValueError where some are bytes: the driver has one type."""
    refuse(table, {ColumnType.BYTES}, "of which query_df_arrow makes text: use query_arrow", "clickhouse", "nested")
    if names := table.columns_of(ColumnType.BYTES):
        raise ValueError(f"columns {names} are bytes, of which query_df_arrow would make text: use query_arrow")
    return f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name}"


@technique(family="arrow", label="clickhouse-connect query_df_arrow -> Polars dataframe")
def polars_clickhouse_connect_query_df_arrow(client: ClickHouseConnectClient, table: Table) -> pl.DataFrame:
    """The driver's own way into Polars."""
    query = text_query(table)
    frame = client.query_df_arrow(query, settings=ARROW, use_strings=True, dataframe_library="polars")
    assert isinstance(frame, pl.DataFrame)
    return frame


@technique(family="arrow", label="clickhouse-connect query_df_arrow -> Pandas dataframe")
def pandas_clickhouse_connect_query_df_arrow(client: ClickHouseConnectClient, table: Table) -> pd.DataFrame:
    """The driver's own way into pandas through Arrow: every column has an Arrow-backed dtype."""
    query = text_query(table)
    frame = client.query_df_arrow(query, settings=ARROW, use_strings=True, dataframe_library="pandas")
    assert isinstance(frame, pd.DataFrame)
    return frame


# The driver gives moments that have no zone that of the session.
IN_UTC = NATIVE | {"session_timezone": "UTC"}


def query_df(client: ClickHouseConnectClient, table: Table) -> pd.DataFrame:
    """The driver's own frame; bytes, of which it would make text, stay bytes, and no rows have columns as well."""
    objects = "of which the driver makes Python's objects, with one mark for NULL and NaN and each key of a map once"
    refuse(table, NESTED, f"{objects}: use query_arrow", "clickhouse")
    for name in table.columns_of(*ARRAYS):
        kind = table.arrow_schema.field(name).type.value_type
        if pa.types.is_floating(kind):
            raise ValueError(f"column {name} is an Array of floats: NaN would be all its NULLs, use query_arrow")
        if pa.types.is_date(kind) or pa.types.is_time(kind) or pa.types.is_binary(kind) or kind == pa.timestamp("ns"):
            raise ValueError(f"column {name} is an Array of {kind}, of which the driver makes another: use query_arrow")
    as_bytes = dict.fromkeys(table.columns_of(ColumnType.BYTES), "bytes")
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name}"
    return client.query_df(query, settings=IN_UTC, column_formats=as_bytes).reindex(columns=table.column_names)


@technique(family="http_native", label="clickhouse-connect query_df -> Pandas dataframe")
def pandas_clickhouse_connect_query_df(client: ClickHouseConnectClient, table: Table) -> pd.DataFrame:
    """The driver decodes Native blocks, in Python and Cython.

    https://clickhouse.com/docs/integrations/language-clients/python/driver-api#client-query-method
    """
    return query_df(client, table)


@technique(
    family="http_native",
    label="clickhouse-connect query_df, Rust codec -> Pandas dataframe",
    client="clickhouse_connect_rust",
)
def pandas_clickhouse_connect_query_df_rust(client: ClickHouseConnectClient, table: Table) -> pd.DataFrame:
    """The driver decodes Native blocks, in Rust."""
    return query_df(client, table)


def query_for_driver(table: Table) -> str:
    """SELECT of a table whose blocks clickhouse-driver makes Arrow of.

    Moments are numbers of their unit: it makes a float of the seconds, which has not all digits. And booleans are not
    sparse: of a column that is mostly false, as a server sends such, it makes integers, and of those no Arrow
    (https://github.com/mymarilyn/clickhouse-driver/blob/0.2.11/clickhouse_driver/columns/base.py#L49).
    """
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name}"
    kinds = {quote_clickhouse(column.name): column.types.arrow for column in table.columns}
    replaced = [f"materialize({name}) AS {name}" for name, kind in kinds.items() if pa.types.is_boolean(kind)]
    units = {name: UNIX_UNITS[kind.unit] for name, kind in kinds.items() if pa.types.is_timestamp(kind)}
    replaced += [f"toUnixTimestamp64{unit}({name}) AS {name}" for name, unit in units.items()]
    return f"SELECT * REPLACE ({', '.join(replaced)}) FROM ({query})" if replaced else query


UNIX_UNITS = {"ms": "Milli", "us": "Micro", "ns": "Nano"}
"""Of https://clickhouse.com/docs/sql-reference/functions/type-conversion-functions#tounixtimestamp64milli"""
TIMESTAMPS = {kind for kind in ColumnType if pa.types.is_timestamp(kind.value.arrow)}
NOT_DRIVEN = {ColumnType.TIME, ColumnType.FIXED_BYTES, ColumnType.DURATION, *NESTED}


@technique(family="native_columnar", label="clickhouse-driver query_arrow -> Polars dataframe")
def polars_clickhouse_driver_query_arrow(client: clickhouse_driver.Client, table: Table) -> pl.DataFrame:
    """The native protocol's blocks, which clickhouse-driver since 0.2.11 decodes into Arrow."""
    no_arrow = "which clickhouse-driver does not make Arrow of: read it over HTTP"
    refuse(table, NOT_DRIVEN, no_arrow, "clickhouse", "anywhere")
    refuse(table, TIMESTAMPS, "whose moments clickhouse-driver rounds: read it over HTTP", "clickhouse", "nested")
    content: Any = client.query_arrow(query_for_driver(table), settings=NATIVE)
    for name in table.columns_of(*TIMESTAMPS):
        at = content.column_names.index(name)
        content = content.set_column(at, name, content.column(name).cast(table.arrow_schema.field(name).type))
    return to_polars(content, table)


@technique(family="engine", label="chDB SELECT ... FROM remote() -> Polars dataframe")
def polars_chdb_remote(remote: ChdbRemote, table: Table) -> pl.DataFrame:
    """A ClickHouse engine in this process fetches native blocks and writes Arrow; nothing is decoded twice.

    Raises ValueError where fewer rows come than were there: of a limit or an offset in the profile of the remote user
    it is only told by their number, because `remote` sends all settings there but these two.
    """
    source = remote.table(table.name)
    counted = remote.engine.query(f"SELECT count() FROM {source}", "TSV").bytes()
    settings = remote.settings(ARROW | {"output_format_arrow_use_native_writer": 0})
    query = f"SELECT {table.clickhouse_columns_as_in_frames} FROM {source} {settings}"
    content = pa.ipc.open_stream(remote.engine.query(query, "ArrowStream").bytes()).read_all()
    if not counted or content.num_rows < int(counted):
        raise ValueError(
            f"{content.num_rows:,} of {int(counted or 0):,} rows came: take limit and offset out of the user's profile "
            "or read over HTTP, where they are undone"
        )
    return to_polars(content, table)
