"""Sorting of rows by PostgreSQL's primary key, and a layout in which sorted rows are near each other in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from framehaul.codecs import native_blocks
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.data.text import numba_waits

if TYPE_CHECKING:
    from framehaul.data.text import Int64s, Keys

STRETCH_ROWS = 8_192
"""The rows of a stretch, which are stored together: few enough for a core's cache."""
MOST_STRETCHES = 1 << 16
"""The number of stretches that 16 bits can count."""
ROWS_BEFORE_NUMBA = 400_000
"""The rows that Polars sorts sooner than numba starts."""


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
        if columns[name].type is ColumnType.UUID or kind in native_blocks.WIDE or pa.types.is_primitive(kind)
    ]
    values = pl.DataFrame(pl.from_arrow(content.select([column.name for column in compared])))
    # The first column shows sooner than all of them that rows are not in order.
    if not compared or (values.to_series().is_sorted() and values.to_struct().is_sorted()):
        return content, np.arange(content.num_rows)
    if numba_waits() and content.num_rows <= ROWS_BEFORE_NUMBA:
        return content, values.select(pl.arg_sort_by(values.columns)).to_series().cast(pl.Int64).to_numpy()
    return stretched(content, native_blocks.sorted_rows(_levels(content, compared), content.num_rows))


def _levels(content: pa.Table, columns: list[Column]) -> Iterator[Keys]:
    """Yield the sort keys of these columns, the most significant first."""
    rows = content.num_rows
    for column in columns:
        levels = native_blocks.values_of(content, native_blocks.one_partition(rows), column).levels(0, rows)
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
    groups = native_blocks.Partitions(near, stretch, np.arange(0, count, size))
    columns = [_grouped(native_blocks.one_piece(content, name), groups) for name in content.column_names]
    return pa.table(columns, schema=content.schema), places.take(rows)


def _grouped(array: pa.Array, groups: native_blocks.Partitions) -> pa.Array:
    """Return an array with its values grouped."""
    if array.type not in (pa.large_string(), pa.large_binary()) or array.null_count:
        return array.take(pa.array(groups.rows))
    data, offsets = native_blocks.grouped_texts(array, groups)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(array.type, len(array), buffers)
