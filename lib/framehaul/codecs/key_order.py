"""Sorting of rows by PostgreSQL's primary key, and a layout in which sorted rows are near each other in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from framehaul.codecs.compiled import sort_runs
from framehaul.codecs.native_blocks import WIDE, Partitions, Texts, one_piece, values_of
from framehaul.data.schema import ColumnType, Table

if TYPE_CHECKING:
    from framehaul.data.text import Int64s

STRETCH_ROWS = 8_192
"""The rows of a stretch, which are stored together: few enough for a core's cache."""
MOST_STRETCHES = 1 << 16
"""The number of stretches that 16 bits can count."""


def rows_near_key_order(content: pa.Table, table: Table) -> Int64s:
    """Return the rows in the approximate order of PostgreSQL's primary key, from which an index benefits as much.

    Only the first bytes of texts are compared, and no decimals, floats and lists, so that compiled loops suffice. The
    content may be in PostgreSQL's binary form. Raises ValueError for text that is not a UUID.
    """
    count = content.num_rows
    rows, starts = np.arange(count), np.zeros(count, np.bool_)
    starts[:1] = True
    columns = {column.name: column for column in table.columns}
    for name in table.key if count else ():
        kind = content.schema.field(name).type
        if columns[name].type is ColumnType.UUID or kind in WIDE or pa.types.is_primitive(kind):
            levels = values_of(content, Partitions.one(count), columns[name]).levels(0, count)
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
