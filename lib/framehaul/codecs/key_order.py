"""Sorting of rows by PostgreSQL's primary key, and a layout in which sorted rows are near each other in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from framehaul.codecs.compiled import sort_runs
from framehaul.codecs.native_blocks import WIDE, Partitions, Texts, one_piece, values_of
from framehaul.data.schema import ColumnType, Table
from framehaul.data.text import numba_waits

if TYPE_CHECKING:
    from framehaul.data.schema import Column
    from framehaul.data.text import Int64s

STRETCH_ROWS = 8_192
"""The rows of a stretch, which are stored together: few enough for a core's cache."""
MOST_STRETCHES = 1 << 16
"""The number of stretches that 16 bits can count."""


ROWS_BEFORE_NUMBA = 400_000
"""The rows that Polars sorts sooner than numba starts."""


def near_key_order(content: pa.Table, table: Table) -> tuple[pa.Table, Int64s]:
    """Return the content, laid out anew where that pays, and its rows as `rows_near_key_order` does.

    Rows that are in order stay as they are, such as those of a key that counts up.
    """
    names = [column.name for column in _key_columns(content, table)]
    values = pl.DataFrame(pl.from_arrow(content.select(names)))
    if not names or _is_sorted(values):
        return content, np.arange(content.num_rows)
    if numba_waits() and content.num_rows <= ROWS_BEFORE_NUMBA:
        return content, values.select(pl.arg_sort_by(values.columns)).to_series().cast(pl.Int64).to_numpy()
    return stretched(content, rows_near_key_order(content, table))


def _key_columns(content: pa.Table, table: Table) -> list[Column]:
    """Return the key's columns whose values can be compared as numbers or bytes."""
    columns = {column.name: column for column in table.columns}
    kinds = {name: content.schema.field(name).type for name in table.key}
    return [
        columns[name] for name, kind in kinds.items()
        if columns[name].type is ColumnType.UUID or kind in WIDE or pa.types.is_primitive(kind)
    ]  # fmt: skip


def _is_sorted(values: pl.DataFrame) -> bool:
    if not values.to_series().is_sorted():  # sooner than the columns together
        return False
    descends = pl.lit(False)
    for name in reversed(values.columns):
        value, before = pl.col(name), pl.col(name).shift()
        descends = (value < before) | ((value == before) & descends)
    return not values.select(descends.any()).item()


def rows_near_key_order(content: pa.Table, table: Table) -> Int64s:
    """Return the rows in the approximate order of PostgreSQL's primary key, from which an index benefits as much.

    Only the first bytes of texts are compared, and no decimals, floats and lists, so that compiled loops suffice. The
    content may be in PostgreSQL's binary form. Raises ValueError for text that is not a UUID.
    """
    count = content.num_rows
    rows, starts = np.arange(count), np.zeros(count, np.bool_)
    starts[:1] = True
    for column in _key_columns(content, table) if count else ():
        levels = values_of(content, Partitions.one(count), column).levels(0, count)
        for level in reversed(levels):  # PostgreSQL compares a UUID's first half first
            sort_runs(level, rows, starts)
        if starts.all():
            break
    return rows


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
    groups = Partitions(near, stretch, np.arange(0, count, size))
    columns = [_grouped(one_piece(content, name), groups) for name in content.column_names]
    return pa.table(columns, schema=content.schema), places.take(rows)


def _grouped(array: pa.Array, groups: Partitions) -> pa.Array:
    """Return an array with its values grouped."""
    if array.type not in (pa.large_string(), pa.large_binary()) or array.null_count:
        return array.take(pa.array(groups.rows))
    texts = Texts.of_array("", array, groups)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(texts.offsets, np.int64)), pa.py_buffer(texts.data)]
    return pa.Array.from_buffers(array.type, len(array), buffers)
