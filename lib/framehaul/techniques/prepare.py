"""Check and convert a frame before it is sent, so that no server changes a value without an error."""

import datetime as dt
from ipaddress import ip_address
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.codecs.copy_binary import uuid_bytes
from framehaul.data.documents import check_document, documents, first_refused
from framehaul.data.frames import check_text, conform, from_pandas, from_polars
from framehaul.data.schema import ARRAYS, FIRST_DAY, LAST_DAY, LONG_NUMBERS, NESTED, Column, ColumnType, Table
from framehaul.techniques.registry import Database, DataFrame

# https://clickhouse.com/docs/sql-reference/data-types/date and .../date32
DATES = {
    "Date": (FIRST_DAY, LAST_DAY, "make it a Date32, or text"),
    "Date32": (dt.date(1900, 1, 1), dt.date(2299, 12, 31), "make them text, or replace them by NULL"),
}
FIRST_MOMENT, LAST_MOMENT = dt.datetime.min, dt.datetime.max
"""The range of ClickHouse's DateTime64, without year 0: https://github.com/ClickHouse/ClickHouse/pull/107907
Servers before this change of July 2026 replace moments outside 1900 to 2299 by the nearest moment in that range."""
MOMENTS = (ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_UTC, ColumnType.TIMESTAMP_BERLIN)
"""Types of moments that are checked in nested values; moments of a column are checked when its table is derived."""
NULL_IS = {
    ColumnType.LIST: ("Array", "list", "empty lists"),
    ColumnType.FIXED_LIST: ("Array", "list", "lists of NULLs"),
    ColumnType.NESTED_LIST: ("Array", "list", "empty lists"),
    ColumnType.STRUCT: ("Tuple", "struct", "structs of NULLs"),
    ColumnType.MAP: ("Map", "map", "empty maps"),
}
"""Types that cannot be NULL in ClickHouse: their name in ClickHouse, their name in a frame, and the remedy."""


def prepare(frame: DataFrame | pa.Table, table: Table, database: Database) -> pa.Table:
    """Return the frame as Arrow, with the table's columns and with types that the database stores without a change.

    An Arrow table must have `table.arrow_schema`. Raises ValueError with the name of the column for
    - a value that does not fit the column, NULL in a column without NULL, and text that is not UTF-8;
    - in PostgreSQL, nanoseconds and JSON with repeated keys, which it would change;
    - in ClickHouse, dates out of range, NULL in place of a list and text that is not a UUID, which it would change.
    """
    if isinstance(frame, pa.Table):
        content = frame
    else:
        content = from_polars(frame, table) if isinstance(frame, pl.DataFrame) else from_pandas(frame, table)
    if database == "postgres":
        check_json(content, table)
        return in_microseconds(content, table)
    check_for_clickhouse(content, table)
    return with_long_text(content, table)


def prepare_rows(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the frame for PostgreSQL in Polars, with nested values as JSON; raises ValueError as `prepare` does."""
    frame = conform(frame, table)
    check_text(frame, table)
    content = in_microseconds(frame.to_arrow(), table)
    check_json(content, table)
    nested = {name: documents(content.column(name), name) for name in table.columns_of(*NESTED)}
    return frame.with_columns(pl.Series(name, values=texts) for name, texts in nested.items())


def prepare_file(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the frame for a file that Polars writes for ClickHouse; raises ValueError as `prepare` does."""
    frame = conform(frame, table)
    check_text(frame, table)
    check_for_clickhouse(frame.to_arrow(), table)
    return frame


def check_json(content: pa.Table, table: Table) -> None:
    """Raise ValueError for JSON that jsonb rejects, and for repeated keys, of which jsonb keeps only the last."""
    for name in table.columns_of(ColumnType.JSON):
        if found := first_refused(pl.Series(values=content.column(name)), check_document):
            row, error = found
            raise ValueError(f"column {name}, row {row:,} is no jsonb: {error}; or make it text") from error


def in_microseconds(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with timestamps, in lists as well, in microseconds; raises ValueError for nanoseconds."""
    for column in table.columns:
        kind = column.innermost.types.arrow
        if not pa.types.is_timestamp(kind) or kind.unit != "ns":
            continue
        wanted = pa.timestamp("us", kind.tz)
        try:
            values = content.column(column.name).cast(pa.list_(wanted) if column.type in ARRAYS else wanted)
        except pa.ArrowInvalid:
            said = "holds nanoseconds, and PostgreSQL microseconds: make it a number, which keeps them, or round it"
            raise ValueError(f"column {column.name} {said}") from None
        at = content.column_names.index(column.name)
        content = content.set_column(at, content.schema.field(at).with_type(values.type), values)
    return content


def check_for_clickhouse(content: pa.Table, table: Table) -> None:
    """Raise ValueError for dates and moments out of range, NULL in place of a list, and text that is not a UUID.

    ClickHouse would store another date, an empty list, or NULL without an error. Nested values are checked as well.
    """
    for column in table.columns:
        values = content.column(column.name)
        if column.innermost.type is ColumnType.UUID and column.innermost.nullable:
            texts = pc.list_flatten(values) if column.type in ARRAYS else values
            uuid_bytes(texts.cast(pa.large_string()).combine_chunks(), column.name)
        if column.type is ColumnType.DATE or column.type in NULL_IS:
            for chunk in values.chunks:
                check_nested(column.name, column, chunk)


def check_nested(name: str, part: Column, values: pa.Array) -> None:
    """Raise ValueError for dates, moments and NULL that ClickHouse cannot store in this part of a column."""
    if part.type is ColumnType.DATE:
        first, last, remedy = DATES[part.types.clickhouse]
        if any_outside(values, first, last):
            lacks = f"which ClickHouse's {part.types.clickhouse} does not have"
            raise ValueError(f"column {name} holds dates outside {first} to {last}, {lacks}: {remedy}")
    if part.type in MOMENTS and any_outside(values, FIRST_MOMENT, LAST_MOMENT):
        said = "holds moments that ClickHouse's DateTime64 does not have, which goes from year 1 to 9999"
        raise ValueError(f"column {name} {said}: make them text, or replace them by NULL")
    if part.type not in NULL_IS:
        return
    if nulls := values.null_count:
        kind, what, remedy = NULL_IS[part.type]
        held = f"holds {nulls:,} NULL{'s' * (nulls > 1)} in place of a {what}, and ClickHouse's {kind} cannot be NULL"
        raise ValueError(f"column {name} {held}: make them {remedy}, and keep which they were in a column of its own")
    if part.type is ColumnType.MAP:
        first_item, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        check_nested(name, part.fields[1], values.items.slice(first_item, end - first_item))
    elif part.type is ColumnType.STRUCT:
        for field, inner in zip(part.fields, values.flatten(), strict=True):
            check_nested(name, field, inner)
    else:
        check_nested(name, part.element, values.flatten())


def any_outside(values: pa.Array, first: dt.date, last: dt.date) -> bool:
    """Return whether a date, or a moment in UTC, is outside a range."""
    unit = getattr(values.type, "unit", "D" if values.type == pa.date32() else "ms")
    if unit == "ns":
        return False  # they begin in 1677 and end in 2262
    # pa.scalar() and pa.array() import pandas, which takes longer than few rows.
    (begin, end), found = np.array([first, last], f"M8[{unit}]").astype(int), pc.min_max(values)
    least, most = found["min"].value, found["max"].value
    return least is not None and bool(least < begin or most > end)


def with_long_text(content: pa.Table, table: Table) -> pa.Table:
    """Return the content without addresses and long numbers whose text ClickHouse would read as their bytes."""
    # ClickHouse does so if every text of a batch has as many characters as the type has bytes. Here numbers of that
    # length get a leading zero, and addresses all of their digits.
    # https://github.com/ClickHouse/ClickHouse/blob/master/src/Processors/Formats/Impl/ArrowColumnToCHColumn.cpp
    for name in table.columns_of(*LONG_NUMBERS, ColumnType.IPV6):
        at, texts = content.column_names.index(name), content.column(name)
        lengths = pc.utf8_length(texts)
        alike = pc.is_in(lengths, pa.array([16, 32], lengths.type))  # their sizes in bytes
        if not pc.any(alike).as_py():
            continue
        if name in table.columns_of(ColumnType.IPV6):
            whole = [text and ip_address(text).exploded for text in texts.to_pylist()]
            longer: Any = pa.chunked_array([pa.array(whole, texts.type)])
        else:
            longer = pc.replace_substring_regex(texts, "^(-?)([0-9])", r"\1" "0" r"\2")
        content = content.set_column(at, content.schema.field(at), pc.if_else(alike, longer, texts))
    return content
