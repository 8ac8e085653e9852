"""ClickHouse's Native format as Arrow record batches with string views, decoded by loops that numba compiles.

Numbers stay where they arrived, and so does all text longer than the 12 bytes that a view holds itself: a string view
points into the bytes that came over the wire, so nothing is copied that need not be. Columns are decoded while the
server still writes those behind them.

The format: https://clickhouse.com/docs/interfaces/formats/Native, of a SELECT of a table's own columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from framehaul.compiled import (
    SLACK,
    UUID_TEXT_BYTES,
    compiled,
    pairs_at_every_byte,
    view_uuids,
    words_at_every_byte,
    write_view,
)
from framehaul.schema import Column, ColumnType, Table

if TYPE_CHECKING:
    from framehaul.compiled import Bytes, Int32s, Words

ARENA_BYTES = 16 << 20
"""Bytes that share one allocation: so large that the system backs it by large pages."""
MOST_BYTES = 1 << 30
"""Of a column in one block: twice as many, and a view's offset of 32 bits would not reach its end."""
READ_BYTES = 1 << 18
"""Bytes asked for at once where the end of a column is not known."""

# LowCardinality: https://github.com/ClickHouse/ClickHouse/blob/master/src/DataTypes/Serializations/SerializationLowCardinality.cpp
SHARED_DICTIONARIES = 1
INDEX_TYPE, GLOBAL_DICTIONARY, OWN_KEYS = 0xFF, 0x100, 0x200
INDEX_TYPES = ("<u1", "<u2", "<u4", "<u8")


class Body(Protocol):
    """A response, read straight into memory."""

    def readinto(self, buffer: Any, /) -> int:
        """Fill some of the buffer and say how much; 0 at the end."""


def read_native(body: Body, table: Table) -> pa.Table:
    """All blocks of a body whose columns are those of the table, text as string views.

    Raises ValueError when the body ends inside a block or holds other columns.
    """
    source = Source(body)
    batches = []
    while not source.at_end():
        batches += read_block(source, table)
    return pa.Table.from_batches(batches, table.arrow_view_schema)


def read_block(source: Source, table: Table) -> list[pa.RecordBatch]:
    """The next block, or nothing for one without rows. Raises ValueError for other columns, or half a block."""
    columns, rows = source.number(), source.number()
    if columns != len(table.columns):
        raise ValueError(f"{columns} columns came for {table.name}, which has {len(table.columns)}")
    arrays = []
    for column in table.columns:
        name, kind = source.text(), source.text()
        if (name, kind) != (column.name, column.clickhouse_type):
            raise ValueError(f"column {column.name} of type {column.clickhouse_type} came as {name} of type {kind}")
        if rows:
            arrays.append(read_column(source, column, rows))
    return [pa.RecordBatch.from_arrays(arrays, schema=table.arrow_view_schema)] if rows else []


def read_column(source: Source, column: Column, rows: int) -> pa.Array:
    """A column of so many rows. Raises ValueError when the body ends inside it."""
    if column.low_cardinality:
        return read_dictionary(source, column, rows)
    validity = np.packbits(source.take(rows) == 0, bitorder="little") if column.nullable else None
    arrow = column.arrow_view
    values: list[Any]
    match column.type:
        case ColumnType.TEXT | ColumnType.BYTES:
            values = list(source.texts(rows))
        case ColumnType.UUID:
            views, text = np.empty((rows, 4), np.int32), np.empty(rows * UUID_TEXT_BYTES, np.uint8)
            starts = np.arange(0, 16 * rows, 16, dtype=np.int32)
            view_uuids(source.take(16 * rows), starts, 7, pairs_at_every_byte(text), views)
            values = [views, text]
        case ColumnType.BOOL:
            values = [np.packbits(source.take(rows), bitorder="little")]
        case ColumnType.DATE:
            values = [source.take(2 * rows).view("<u2").astype(np.int32)]
        case _:
            values = [source.take(arrow.bit_width // 8 * rows)]
    return array(arrow, rows, validity, values)


def read_dictionary(source: Source, column: Column, rows: int) -> pa.Array:
    """A LowCardinality column of text, each row as its text. Raises ValueError when the body ends inside it."""
    version, flags, size = source.take(24).view("<u8").tolist()
    if version != SHARED_DICTIONARIES or not flags & OWN_KEYS or flags & GLOBAL_DICTIONARY:
        raise ValueError(f"column {column.name} came with a dictionary of another kind ({version}, {flags:#x})")
    views, data = source.texts(size)
    source.take(8)  # the number of rows once more
    indexes = source.take(rows << (flags & INDEX_TYPE)).view(INDEX_TYPES[flags & INDEX_TYPE])
    # The first key of a nullable column stands for NULL.
    validity = np.packbits(indexes != 0, bitorder="little") if column.nullable else None
    return array(column.arrow_view, rows, validity, [views[indexes], data])


def array(arrow: pa.DataType, rows: int, validity: Bytes | None, values: list[Any]) -> pa.Array:
    """An Arrow array of these buffers."""
    buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in (validity, *values)]
    return pa.Array.from_buffers(arrow, rows, buffers)


class Source:
    """Hands out a body piece by piece, each where it arrived."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._at = self._end = 0
        self._move_to_new_arena(np.empty(0, np.uint8), 0)

    def at_end(self) -> bool:
        """Whether everything was handed out and nothing follows."""
        return self._at == self._end and not self._receive(1)

    def take(self, length: int) -> Bytes:
        """The next so many bytes. Raises ValueError when there are fewer."""
        while self._end - self._at < length:
            self._more(length - (self._end - self._at))
        self._at += length
        return self._data[self._at - length : self._at]

    def number(self) -> int:
        """A LEB128 number."""
        number, end = read_varint(self._data, self._at, self._end)
        while end < 0:
            self._more(1)
            number, end = read_varint(self._data, self._at, self._end)
        self._at = end
        return number

    def text(self) -> str:
        """A text behind its length."""
        return self.take(self.number()).tobytes().decode()

    def texts(self, count: int) -> tuple[Int32s, Bytes]:
        """Views of the next so many texts, and the bytes that they point into."""
        views = np.empty((count, 4), np.int32)
        done, begin = 0, self._at
        at = begin
        while True:
            done, at = view_texts(self._data, self._words, at, self._end, views, done)
            if done == count:
                self._at = at
                return views, self._data
            data = self._data
            self._more(1)
            if self._data is not data:  # the column moved on to a new arena, as a whole
                done, at = 0, self._at

    def _more(self, length: int) -> None:
        if not self._receive(length):
            raise ValueError("the body ends inside a block")

    def _receive(self, length: int) -> bool:
        """Receive something, at best so many bytes and more; moves what was not handed out to a new arena when full."""
        if len(self._data) - len(SLACK) - self._end < max(length, 1):
            self._move_to_new_arena(self._data[self._at : self._end], length)
        free = len(self._data) - len(SLACK) - self._end
        count = self._body.readinto(memoryview(self._data)[self._end : self._end + min(max(length, READ_BYTES), free)])
        self._end += count
        return count > 0

    def _move_to_new_arena(self, rest: Bytes, length: int) -> None:
        if len(rest) + length > MOST_BYTES:
            raise ValueError(f"a column of a block takes more than {MOST_BYTES:,} bytes: ask for smaller blocks")
        self._data = np.empty(max(ARENA_BYTES, 2 * (len(rest) + length)) + len(SLACK), np.uint8)
        self._data[: len(rest)] = rest
        self._words = words_at_every_byte(self._data)
        self._at, self._end = 0, len(rest)


@compiled
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A LEB128 number and where it ends; -1 in place of the end where it goes on behind the data."""
    number = shift = 0
    while at < end:
        byte = int(data[at])
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004
            return number, at
        shift += 7
    return 0, -1


@compiled
def view_texts(data: Bytes, words: Words, at: int, end: int, views: Int32s, done: int) -> tuple[int, int]:
    """Fill in views of the texts from `at` on, the first of which is number `done`, as far as they are there.

    Gives the number of those done and where they end.
    """
    for row in range(done, len(views)):
        length, start = read_varint(data, at, end)
        if start < 0 or start + length > end:
            return row, at
        write_view(words, start, length, views, row)
        at = start + length
    return len(views), at
