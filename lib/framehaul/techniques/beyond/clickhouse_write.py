"""Dataframe to ClickHouse, past what was published.

Every function takes an open client, a `Table` and a frame, and returns when the server has acknowledged the rows. A
large INSERT is cut into blocks, here as everywhere in ClickHouse: when it fails midway, finished blocks stay.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import secrets
from collections.abc import Buffer, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from itertools import chain
from typing import Any, BinaryIO

import adbc_driver_manager.dbapi
import httpx
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from clickhouse_connect.driver.client import Client as ClickHouseConnectClient

from framehaul.codecs.binary_form import uuid_bytes
from framehaul.codecs.native_blocks import native_blocks
from framehaul.data.frames import (
    ADDRESSES,
    BATCH_ROWS,
    UUIDS,
    arrow_stream,
    check_forms,
    check_text,
    conform,
    from_pandas,
    from_polars,
    in_clickhouse_order,
    in_table_order,
)
from framehaul.data.objects import exact_objects
from framehaul.data.schema import (
    ARRAYS,
    FIRST_DAY,
    FLOATS,
    LAST_DAY,
    LONG_NUMBERS,
    NESTED,
    Column,
    ColumnType,
    Table,
    refuse,
)
from framehaul.techniques.clients import ChdbRemote, HttpConnection, adbc_settings
from framehaul.techniques.contract import IDEMPOTENT, REPLACED
from framehaul.techniques.registry import technique

# What they hold: https://clickhouse.com/docs/sql-reference/data-types/date and .../date32
DATES = {
    "Date": (FIRST_DAY, LAST_DAY, "make it a Date32"),
    "Date32": (dt.date(1900, 1, 1), dt.date(2299, 12, 31), "ClickHouse has no type for them"),
}

# Rows are stored, and what is wrong with them is said, when the INSERT is answered, even where a profile has had them
# queued. NULL where there may be none is an error and not a zero, a column that is missing likewise, and columns whose
# names differ in case are two. https://clickhouse.com/docs/operations/settings/formats
INSERT: dict[str, str | int] = {
    "async_insert": 0,
    "wait_for_async_insert": 1,
    "input_format_null_as_default": 0,
}
ARROW = INSERT | {
    "input_format_arrow_allow_missing_columns": 0,
    "input_format_arrow_case_insensitive_column_matching": 0,
}
PARQUET = INSERT | {
    "input_format_parquet_allow_missing_columns": 0,
    "input_format_parquet_case_insensitive_column_matching": 0,
}
# The types of columns by their names: https://clickhouse.com/docs/interfaces/formats/Native
NATIVE = INSERT | {"input_format_native_decode_types_in_binary_format": 0}


def own_token() -> dict[str, str | int]:
    """The setting with which an INSERT is no other's: a table that drops blocks which it has had keeps this one.

    Replicated tables do so by default, without a word.
    https://clickhouse.com/docs/guides/developer/deduplicating-inserts-on-retries
    """
    return {"insert_deduplication_token": secrets.token_hex(16)}


BYTES_OF_LONG = (16, 32)
"""Of addresses, long integers and wide decimals in ClickHouse."""


def check_dates(frame: pl.DataFrame, table: Table) -> None:
    """Raises ValueError for dates that ClickHouse's type cannot hold: it would store others in their place."""
    for column in table.columns:
        if column.type is ColumnType.DATE:
            first, last, remedy = DATES[column.types.clickhouse]
            if not frame[column.name].is_between(first, last).all():
                raise ValueError(f"column {column.name} holds dates outside {first} to {last}: {remedy}")


class NullListError(ValueError):
    """NULL stands in place of a list, a struct or a map, of which ClickHouse has none."""


def check_nested(content: pa.Table, table: Table) -> None:
    """Raises ValueError for NULL in place of a list, a struct or a map, and for dates in them that ClickHouse lacks.

    For moments likewise. For such NULL it would store an empty list, or a struct of NULLs, at any depth.
    """
    for column in table.columns:
        if column.type in NULL_IS:
            for chunk in content.column(column.name).chunks:
                check_inside(column, column, chunk)


def check_inside(column: Column, part: Column, values: pa.Array) -> None:
    """`check_nested` of what is inside of a column, or all of it."""
    if part.type is ColumnType.DATE:
        first, last, _ = DATES[part.types.clickhouse]
        found = pc.min_max(values.cast(pa.int32())).as_py()  # of any year, which dates of Python are not
        ends = [(day - dt.date(1970, 1, 1)).days for day in (first, last)]
        if found["min"] is not None and not ends[0] <= found["min"] <= found["max"] <= ends[1]:
            raise ValueError(
                f"column {column.name} holds dates outside {first} to {last}, which ClickHouse's "
                f"{part.types.clickhouse} does not have: make them text, or replace them by NULL"
            )
    if part.type in MOMENTS and any_outside(values, FIRST_MOMENT, LAST_MOMENT):
        raise ValueError(
            f"column {column.name} holds moments that ClickHouse's DateTime64 does not have, which goes from "
            "year 1 to 9999: make them text, or replace them by NULL"
        )
    if part.type not in NULL_IS:
        return
    if values.null_count:
        kind, what, remedy = NULL_IS[part.type]
        nulls = f"{values.null_count:,} NULL{'s' * (values.null_count > 1)}"
        raise NullListError(
            f"column {column.name} holds {nulls} in place of a {what}, and ClickHouse's {kind} cannot be NULL: make "
            f"them {remedy}, and keep which they were in a column of its own"
        )
    if part.type is ColumnType.MAP:
        first, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        check_inside(column, part.fields[1], values.items.slice(first, end - first))
    elif part.type is ColumnType.STRUCT:
        for field, inner in zip(part.fields, values.flatten(), strict=True):
            check_inside(column, field, inner)
    else:
        check_inside(column, part.element, values.flatten())


def any_outside(moments: pa.Array, first: dt.datetime, last: dt.datetime) -> bool:
    """Whether a moment in UTC is before the first or after the last, in its own unit or in microseconds."""
    unit = pa.timestamp(moments.type.unit)
    compared = pa.timestamp("us") if unit.unit == "ns" else unit  # nanoseconds end in 2262
    plain = moments.cast(unit).cast(compared, safe=False)
    least, most = (pa.scalar(end).cast(compared, safe=False) for end in (first, last))
    return pc.any(pc.or_(pc.less(plain, least), pc.greater(plain, most))).as_py() is True


FIRST_MOMENT, LAST_MOMENT = dt.datetime.min, dt.datetime.max
"""Of ClickHouse's DateTime64, but for the year 0: https://github.com/ClickHouse/ClickHouse/pull/107907

Servers older than that change, of July 2026, store the nearest moment of 1900 to 2299 in place of others.
"""
MOMENTS = (ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_UTC, ColumnType.TIMESTAMP_BERLIN)
"""What may be inside of what is nested; columns of their own are looked at where tables are made for them."""
# Where ClickHouse has no NULL: what it and a frame call it, and what to make of it.
NULL_IS = {
    ColumnType.LIST: ("Array", "list", "empty lists"),
    ColumnType.FIXED_LIST: ("Array", "list", "lists of NULLs"),
    ColumnType.NESTED_LIST: ("Array", "list", "empty lists"),
    ColumnType.STRUCT: ("Tuple", "struct", "structs of NULLs"),
    ColumnType.MAP: ("Map", "map", "empty maps"),
}


def validate(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The frame in the table's columns and dtypes.

    Raises ValueError for other columns, for text that is not UTF-8, and for what ClickHouse would change: NULL,
    integers, dates.
    """
    frame = conform(frame, table)
    check_text(frame, table)
    check_dates(frame, table)
    check_nested(frame.select(table.columns_of(*NULL_IS)).to_arrow(), table)
    check_uuids(frame.select(table.columns_within(ColumnType.UUID)).to_arrow(), table)
    return frame


def to_arrow(frame: pl.DataFrame | pd.DataFrame, table: Table) -> pa.Table:
    """The frame as Arrow. Raises ValueError as `validate` does."""
    content = from_polars(frame, table) if isinstance(frame, pl.DataFrame) else from_pandas(frame, table)
    check(content, table)
    return with_long_text(content, table)


def with_long_text(content: pa.Table, table: Table) -> pa.Table:
    """The content with no text of an address or a long number that ClickHouse would take for the bytes of one.

    It does where all texts of a batch have as many characters as the type has bytes: of those numbers have a zero more
    in front then, and addresses all of their digits.
    https://github.com/ClickHouse/ClickHouse/blob/master/src/Processors/Formats/Impl/ArrowColumnToCHColumn.cpp
    """
    for name in table.columns_of(*LONG_NUMBERS, ColumnType.IPV6):
        at, texts = content.column_names.index(name), content.column(name)
        lengths = pc.utf8_length(texts)
        alike = pc.is_in(lengths, pa.array(BYTES_OF_LONG, lengths.type))
        if not pc.any(alike).as_py():
            continue
        if name in table.columns_of(ColumnType.IPV6):
            whole = [text and ip_address(text).exploded for text in texts.to_pylist()]
            longer: Any = pa.chunked_array([pa.array(whole, texts.type)])
        else:
            longer = pc.replace_substring_regex(texts, "^(-?)([0-9])", r"\1" "0" r"\2")
        content = content.set_column(at, name, pc.if_else(alike, longer, texts))
    return content


def check_uuids(content: pa.Table, table: Table, *, anywhere: bool = False) -> None:
    """Raises ValueError, naming column and row, for text that is no UUID, where ClickHouse would make NULL of it.

    That is where there may be NULL, in lists above all; `anywhere` asks it of other columns as well.
    """
    for column in table.columns:
        if column.innermost.type is ColumnType.UUID and (column.innermost.nullable or anywhere):
            texts = content.column(column.name)
            if column.type in ARRAYS:
                texts = pc.list_flatten(texts)
            uuid_bytes(texts.cast(pa.large_string()).combine_chunks(), column.name)


def check(content: pa.Table, table: Table) -> None:
    """Raises ValueError for what ClickHouse would store otherwise than it is: dates that it lacks, NULL for a list."""
    check_uuids(content, table)
    dates = pl.from_arrow(content.select(table.columns_of(ColumnType.DATE)))
    assert isinstance(dates, pl.DataFrame)
    check_dates(dates, table)
    check_nested(content, table)


def insert_arrow(connection: HttpConnection, table: Table, content: pa.Table, **settings: str | int) -> None:
    """INSERT of an Arrow stream sent batch by batch: the server parses one batch while the next is written."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT ArrowStream"
    connection.post(query, body=arrow_stream(content), settings=ARROW | own_token() | settings).read()


@technique(family="arrow", label="http.client INSERT FORMAT ArrowStream, streamed, from Polars")
def polars_http_client_arrow_stream(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """What ClickHouse and Polars have in common is Arrow: nothing is encoded, little is parsed."""
    insert_arrow(connection, table, to_arrow(frame, table))


@technique(family="arrow", label="http.client INSERT FORMAT ArrowStream, streamed, from Pandas")
def pandas_http_client_arrow_stream(connection: HttpConnection, table: Table, frame: pd.DataFrame) -> None:
    """As with Polars; pandas' text is Arrow already."""
    insert_arrow(connection, table, to_arrow(frame, table))


@technique(family="arrow", label="http.client INSERT FORMAT ArrowStream, two insert threads, from Polars")
def polars_http_client_arrow_insert_threads(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """The server sorts and writes two blocks at a time; a quarter of a million rows to a block, so that there are some.

    By default a block takes up to a million rows: https://clickhouse.com/docs/operations/settings/settings#min_insert_block_size_rows
    """
    insert_arrow(connection, table, to_arrow(frame, table), max_insert_threads=2, min_insert_block_size_rows=262_144)


@technique(family="arrow", label="http.client INSERT FORMAT ArrowStream, presplit by partition, from Polars")
def polars_http_client_arrow_by_partition(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Rows of one month travel together: the server's blocks can be small without making many parts."""
    frame = in_table_order(frame, table)
    if table.partition_by_month_of:
        frame = frame.sort(pl.col(table.partition_by_month_of).dt.month_start(), maintain_order=True)
    insert_arrow(connection, table, to_arrow(frame, table), max_insert_threads=2, min_insert_block_size_rows=65_536)


@technique(family="arrow", label="http.client INSERT FORMAT ArrowStream, presplit by partition, from Pandas")
def pandas_http_client_arrow_by_partition(connection: HttpConnection, table: Table, frame: pd.DataFrame) -> None:
    """As with Polars, which also does the sorting: Arrow is the same to both."""
    content = to_arrow(frame, table)
    if table.partition_by_month_of:
        month = pl.Series(values=content.column(table.partition_by_month_of)).dt.month_start()
        content = content.take(pa.array(month.arg_sort().to_numpy()))
    insert_arrow(connection, table, content, max_insert_threads=2, min_insert_block_size_rows=65_536)


@technique(
    family="arrow", label="http.client INSERT FORMAT ArrowStream, presorted by key, from Polars", requires=("key",)
)
def polars_http_client_arrow_presorted(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """The server finds its sorting done; whether that pays for sorting here is the question."""
    insert_arrow(connection, table, to_arrow(in_clickhouse_order(in_table_order(frame, table), table), table))


@technique(
    family="arrow",
    label="http.client INSERT FORMAT ArrowStream, two connections, from Polars",
    client="http_client_pair",
    connections=2,
)
def polars_http_client_arrow_two_connections(
    connections: tuple[HttpConnection, HttpConnection], table: Table, frame: pl.DataFrame
) -> None:
    """Half of the rows over each connection: two INSERTs, parsed, sorted and written side by side."""
    frame = in_table_order(frame, table)
    middle = len(frame) // 2
    halves = to_arrow(frame[:middle], table), to_arrow(frame[middle:], table)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(insert_arrow, connections, (table, table), halves))


@technique(
    family="arrow",
    label="http.client INSERT FORMAT ArrowStream, two connections, from Pandas",
    client="http_client_pair",
    connections=2,
)
def pandas_http_client_arrow_two_connections(
    connections: tuple[HttpConnection, HttpConnection], table: Table, frame: pd.DataFrame
) -> None:
    """As with Polars."""
    content = to_arrow(frame, table)
    middle = content.num_rows // 2
    halves = content.slice(0, middle), content.slice(middle)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(insert_arrow, connections, (table, table), halves))


@contextmanager
def exchanged(connection: HttpConnection, table: Table) -> Iterator[Table]:
    """A new table, of another name, which takes the place of the table at the end of the block, unless that fails.

    https://clickhouse.com/docs/sql-reference/statements/exchange
    """
    new = table.renamed(f"{table.name} {secrets.token_hex(8)}")
    connection.post(f"CREATE TABLE {new.clickhouse_name} AS {table.clickhouse_name}").read()
    try:
        yield new
        connection.post(f"EXCHANGE TABLES {new.clickhouse_name} AND {table.clickhouse_name}").read()
    finally:
        connection.post(f"DROP TABLE {new.clickhouse_name} SYNC").read()


@technique(
    family="arrow",
    label="http.client INSERT FORMAT ArrowStream into a new table, then EXCHANGE TABLES, from Polars",
    contract=REPLACED,
)
def polars_http_client_arrow_exchange(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """All or nothing: readers see the table as it was until it is, at once, all of the frame and nothing but it."""
    content = to_arrow(frame, table)
    with exchanged(connection, table) as new:
        insert_arrow(connection, new, content)


@technique(
    family="arrow",
    label="http.client INSERT FORMAT ArrowStream with a deduplication token, from Polars",
    contract=IDEMPOTENT,
)
def polars_http_client_arrow_deduplicated(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """May be tried again when no answer came: the server drops blocks that it has under the same token.

    The token is a hash of the content; the table remembers the last thousand blocks, for which a setting of it is
    changed: https://clickhouse.com/docs/operations/settings/merge-tree-settings#non_replicated_deduplication_window
    """
    content, digest = to_arrow(frame, table), hashlib.sha256()
    for part in arrow_stream(content):
        digest.update(part)
    connection.post(
        f"ALTER TABLE {table.clickhouse_name} MODIFY SETTING non_replicated_deduplication_window = 1000"
    ).read()
    insert_arrow(connection, table, content, insert_deduplicate=1, insert_deduplication_token=digest.hexdigest())


def insert_parquet(connection: HttpConnection, table: Table, frame: pl.DataFrame, **options: Any) -> None:
    """INSERT of a Parquet file that Polars writes with these options. Raises ValueError as `validate` does."""
    buffer = io.BytesIO()
    validate(frame, table).write_parquet(buffer, **options)
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Parquet"
    connection.post(query, body=buffer.getvalue(), settings=PARQUET | own_token()).read()


@technique(family="http_parquet", label="http.client INSERT FORMAT Parquet, zstd, from Polars")
def polars_http_client_parquet_zstd(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Polars' own default codec: the published way over another HTTP client."""
    insert_parquet(connection, table, frame)


@technique(family="http_parquet", label="http.client INSERT FORMAT Parquet, lz4, from Polars")
def polars_http_client_parquet_lz4(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """A codec that costs less CPU on both sides for more bytes."""
    insert_parquet(connection, table, frame, compression="lz4")


@technique(family="http_parquet", label="http.client INSERT FORMAT Parquet, snappy, from Polars")
def polars_http_client_parquet_snappy(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """What most other writers default to."""
    insert_parquet(connection, table, frame, compression="snappy")


@technique(family="http_parquet", label="http.client INSERT FORMAT Parquet, uncompressed, from Polars")
def polars_http_client_parquet_uncompressed(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Only Parquet's encodings, no codec."""
    insert_parquet(connection, table, frame, compression="uncompressed")


@technique(family="http_parquet", label="http.client INSERT FORMAT Parquet, lz4, small row groups, from Polars")
def polars_http_client_parquet_row_groups(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """More row groups give the server's decoder more to do side by side."""
    insert_parquet(connection, table, frame, compression="lz4", row_group_size=65_536)


@technique(family="http_parquet", label="httpx async HTTP INSERT FORMAT Parquet, file-like body, from Polars")
async def polars_httpx_parquet_file(client: httpx.AsyncClient, table: Table, frame: pl.DataFrame) -> None:
    """httpx cuts a body of bytes into many small writes; as a stream of large ones it goes faster.

    https://github.com/encode/httpx/discussions/3353
    """
    buffer = io.BytesIO()
    validate(frame, table).write_parquet(buffer)
    buffer.seek(0)

    async def chunks(file: BinaryIO) -> Any:
        while chunk := file.read(1 << 20):
            yield chunk

    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Parquet"
    response = await client.post("/", params={"query": query, **PARQUET, **own_token()}, content=chunks(buffer))
    response.raise_for_status()


@technique(family="arrow", label="ADBC bulk ingest from Polars Arrow", client="adbc_clickhouse")
def polars_adbc_ingest(connection: adbc_driver_manager.dbapi.Connection, table: Table, frame: pl.DataFrame) -> None:
    """ClickHouse's own driver sends an Arrow stream, batch by batch, compressed with LZ4."""
    batches = to_arrow(frame, table).to_reader(BATCH_ROWS)
    with connection.cursor(adbc_stmt_kwargs=adbc_settings(ARROW | own_token())) as cursor:
        cursor.adbc_ingest(table.name, batches, mode="append")


@technique(family="arrow", label="clickhouse-connect insert_arrow from Polars Arrow")
def polars_clickhouse_connect_insert_arrow(client: ClickHouseConnectClient, table: Table, frame: pl.DataFrame) -> None:
    """The driver writes an Arrow file in memory and posts it."""
    client.insert_arrow(table.clickhouse_name, to_arrow(frame, table), settings=ARROW)


def without_lost_nulls(frame: pd.DataFrame, table: Table) -> pd.DataFrame:
    """The frame in the table's columns, in its order: the driver goes by their place.

    Raises ValueError for other columns, and for NULL where there may be none, for which the driver would send a zero;
    NaN is a value.
    """
    frame = in_table_order(frame, table)
    for column in table.columns:
        if frame[column.name].dtype == "string_view[pyarrow]":
            raise ValueError(f"column {column.name} is text as views, which pandas does not filter: cast it to str")
        if not column.nullable and column.type not in FLOATS and frame[column.name].hasnans:
            raise ValueError(f"column {column.name} may not be NULL, and {frame[column.name].isna().sum()} values are")
        if column.type in (ColumnType.ENUM, *LONG_NUMBERS):
            check_forms(pa.array(frame[column.name], from_pandas=True), column)
    # The driver cuts off, or makes a zero of, what is in another dtype than the table's, and asks nothing of addresses.
    others = tuple(
        column for column in table.columns
        if column.type in (ColumnType.DATE, *ADDRESSES)
        or (column.type is not ColumnType.TEXT  # which bytes are as well
            and str(frame[column.name].dtype) not in (column.types.pandas, column.types.pandas_nullable))
    )  # fmt: skip
    from_pandas(frame[[column.name for column in others]], replace(table, columns=others))
    kinds = {name: table.arrow_schema.field(name).type for name in table.columns_of(*NULL_IS)}
    nested = {name: exact_objects(frame[name], kind) for name, kind in kinds.items()}
    uuids = {name: pa.array(frame[name], from_pandas=True) for name in table.columns_of(ColumnType.UUID)
             if frame[name].dtype != UUIDS}  # fmt: skip
    content = pa.table(nested | uuids)
    of = replace(table, columns=tuple(column for column in table.columns if column.name in content.column_names))
    check_uuids(content, of, anywhere=True)
    for column in of.columns:
        check_forms(content.column(column.name), column)
    check_nested(content, table)
    return frame


def insert_df(client: ClickHouseConnectClient, table: Table, frame: pd.DataFrame) -> None:
    """The driver's own INSERT of a frame, as Native blocks."""
    refuse(table, {ColumnType.DURATION}, "which the driver does not make of timedeltas: use Arrow", "clickhouse")
    refuse(table, {ColumnType.MAP}, "which the driver takes as dictionaries alone: use Arrow", "clickhouse", "anywhere")
    frame = without_lost_nulls(frame, table)
    client.insert_df(table.clickhouse_name, frame, column_names=table.column_names, settings=NATIVE | own_token())


@technique(family="http_native", label="clickhouse-connect insert_df from Pandas")
def pandas_clickhouse_connect_insert_df(client: ClickHouseConnectClient, table: Table, frame: pd.DataFrame) -> None:
    """The driver encodes the frame as Native blocks, in Python and Cython.

    https://clickhouse.com/docs/integrations/language-clients/python/driver-api#client-insert-method
    """
    insert_df(client, table, frame)


@technique(
    family="http_native",
    label="clickhouse-connect insert_df, Rust codec, from Pandas",
    client="clickhouse_connect_rust",
)
def pandas_clickhouse_connect_insert_df_rust(
    client: ClickHouseConnectClient, table: Table, frame: pd.DataFrame
) -> None:
    """The driver encodes the frame as Native blocks, in Rust."""
    refuse(table, LONG_NUMBERS[:4], "which the codec does not make of text: use Arrow", "clickhouse")
    refuse(table, {ColumnType.TIMESTAMP_NS}, "in which the codec has microseconds: use Arrow", "clickhouse", "nested")
    insert_df(client, table, frame)


NO_NATIVE = {*ARRAYS, *NESTED, *LONG_NUMBERS, ColumnType.FIXED_BYTES, ColumnType.IPV4, ColumnType.IPV6}


def insert_native(connection: HttpConnection, table: Table, blocks: Iterator[Iterator[Buffer]]) -> None:
    """INSERT of Native blocks, which the server stores as they come instead of gathering a million rows first.

    https://clickhouse.com/docs/operations/settings/settings#min_insert_block_size_rows
    """
    refuse(table, NO_NATIVE, "which is not encoded here: send it as Arrow", "clickhouse")
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Native"
    settings = NATIVE | own_token() | {"min_insert_block_size_rows": 0, "min_insert_block_size_bytes": 0}
    connection.post(query, body=chain.from_iterable(blocks), settings=settings).read()


@technique(
    family="http_native",
    label="http.client INSERT FORMAT Native, a partition a block, presorted, from Polars",
    requires=("key",),
)
def polars_http_client_native_presorted(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Blocks of a month each, in the table's order, made by compiled loops: the server has nothing to split or sort."""
    insert_native(connection, table, native_blocks(to_arrow(frame, table), table))


@technique(
    family="http_native",
    label="http.client INSERT FORMAT Native, a partition a block, presorted, from Pandas",
    requires=("key",),
)
def pandas_http_client_native_presorted(connection: HttpConnection, table: Table, frame: pd.DataFrame) -> None:
    """As with Polars."""
    insert_native(connection, table, native_blocks(to_arrow(frame, table), table))


@technique(family="engine", label="chDB INSERT INTO remote() from Polars Arrow")
def polars_chdb_remote(remote: ChdbRemote, table: Table, frame: pl.DataFrame) -> None:
    """A ClickHouse engine in this process scans the frame and sends native blocks."""
    content = to_arrow(frame, table)  # noqa: F841  # chDB finds it by its name
    remote.engine.query(
        f"INSERT INTO FUNCTION {remote.table(table.name)} ({table.clickhouse_columns}) "
        f"SELECT {table.clickhouse_columns} FROM Python(content) {remote.settings(NATIVE)}"
    )
