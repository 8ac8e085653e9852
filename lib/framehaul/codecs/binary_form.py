"""Conversion of Arrow content to PostgreSQL's binary formats, and the order of its rows by primary key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from ipaddress import ip_address
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from framehaul.codecs import native_format
from framehaul.codecs.compiled import arrow_array, numba_waits
from framehaul.codecs.native_format import nulls_of, one_piece, uuid_halves
from framehaul.data.documents import with_documents
from framehaul.data.frames import UUID_BYTES
from framehaul.data.schema import LONG_NUMBERS, NESTED, Column, ColumnType, Table

if TYPE_CHECKING:
    from framehaul.codecs.compiled import Int64s, Keys

STRETCH_ROWS = 8_192
"""The rows of a stretch, which are stored together: few enough for a core's cache."""
MOST_STRETCHES = 1 << 16
"""The number of stretches that 16 bits can count."""
ROWS_BEFORE_NUMBA = 400_000
"""The rows that Polars sorts sooner than numba starts."""
PARSED: dict[ColumnType, Callable[[str], object]] = {
    **dict.fromkeys((ColumnType.IPV4, ColumnType.IPV6), ip_address), **dict.fromkeys(LONG_NUMBERS, Decimal),
}  # fmt: skip
"""The types of text of which psycopg makes the binary form, once it is parsed."""


def in_binary_form(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with text in PostgreSQL's binary formats; raises ValueError for text of another type."""
    content = with_documents(with_uuid_bytes(content, table), table)
    for at, column in enumerate(table.columns):
        if column.type in (ColumnType.JSON, *NESTED):  # jsonb begins with its version
            values = [None if text is None else b"\1" + text.encode() for text in content.column(at).to_pylist()]
            content = content.set_column(at, column.name, pa.array(values, pa.large_binary()))
        elif parse := PARSED.get(column.type):
            parsed = [None if text is None else parse(text) for text in content.column(at).to_pylist()]
            content = content.set_column(at, column.name, _dumped(parsed))
        elif column.type is ColumnType.FIXED_LIST:
            content = content.set_column(at, column.name, content.column(at).cast(pa.list_(column.element.types.arrow)))
    return content


def _dumped(values: list[object]) -> pa.Array:
    from psycopg.adapt import PyFormat, Transformer

    return pa.array(Transformer().dump_sequence(values, [PyFormat.BINARY] * len(values)), pa.large_binary())


def with_uuid_bytes(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with UUIDs as 16 bytes; raises ValueError for text that is not a UUID."""
    for name in table.columns_of(ColumnType.UUID):
        at = content.column_names.index(name)
        content = content.set_column(at, name, uuid_bytes(one_piece(content, name), name))
    return content


def uuid_bytes(text: pa.Array, name: str) -> pa.Array:
    """Return the bytes of UUIDs in text; raises ValueError as `uuid_halves` does."""
    validity = np.packbits(1 - nulls_of(text), bitorder="little") if text.null_count else None
    raw = np.ascontiguousarray(uuid_halves(text, name)).astype(">u8")
    return arrow_array(pa.binary(UUID_BYTES), len(text), validity, [raw])


def near_key_order(content: pa.Table, table: Table) -> tuple[pa.Table, Int64s]:
    """Return the content, laid out anew where that pays, and its rows near the order of PostgreSQL's primary key.

    An index benefits as much as from the exact order. Only columns of numbers and bytes are compared, no decimals and
    lists. Rows that are in order stay as they are, such as those of a key that counts up. The content may be in
    PostgreSQL's binary form. Raises ValueError for text that is not a UUID.
    """
    columns = {column.name: column for column in table.columns}
    kinds = {name: content.schema.field(name).type for name in table.key}
    compared = [
        columns[name]
        for name, kind in kinds.items()
        if columns[name].type is ColumnType.UUID or kind in native_format.WIDE or pa.types.is_primitive(kind)
    ]
    values = pl.DataFrame(pl.from_arrow(content.select([column.name for column in compared])))
    # The first column shows sooner than all of them that rows are not in order.
    if not compared or (values.to_series().is_sorted() and values.to_struct().is_sorted()):
        return content, np.arange(content.num_rows)
    if numba_waits() and content.num_rows <= ROWS_BEFORE_NUMBA:
        return content, values.select(pl.arg_sort_by(values.columns)).to_series().cast(pl.Int64).to_numpy()
    return stretched(content, native_format.sorted_rows(_levels(content, compared), content.num_rows))


def _levels(content: pa.Table, columns: list[Column]) -> Iterator[Keys]:
    """Yield the sort keys of these columns, the most significant first."""
    rows = content.num_rows
    for column in columns:
        levels = native_format.values_of(content, native_format.one_partition(rows), column).levels(0, rows)
        # PostgreSQL compares a UUID's first half first, and ClickHouse the second.
        yield from [*levels][::-1] if column.type is ColumnType.UUID else levels


def stretched(content: pa.Table, rows: Int64s) -> tuple[pa.Table, Int64s]:
    """Return the content with rows that are adjacent in an order near each other, and the order in the result.

    Gathering rows from all of a large table waits for memory at every value. This function reads memory sequentially
    once, and rows that are gathered afterwards are in a cache.
    """
    if not (count := len(rows)):
        return content, rows
    size = max(STRETCH_ROWS, -(-count // MOST_STRETCHES))
    stretch, places = np.empty(count, np.uint16), np.empty(count, np.int64)
    stretch[rows] = np.arange(count) // size
    near = np.argsort(stretch, kind="stable")
    places[near] = np.arange(count)
    groups = near, stretch, np.arange(0, count, size)
    columns = [_grouped(one_piece(content, name), groups) for name in content.column_names]
    return pa.table(columns, schema=content.schema), places.take(rows)


def _grouped(array: pa.Array, groups: native_format.Partitions) -> pa.Array:
    """Return an array with its values grouped."""
    if array.type not in (pa.large_string(), pa.large_binary()) or array.null_count:
        return array.take(pa.array(groups[0]))
    data, offsets = native_format.grouped_texts(array, groups)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(array.type, len(array), buffers)
