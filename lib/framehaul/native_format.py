"""ClickHouse's Native format as Arrow record batches with string views, decoded by loops that numba compiles.

Columns are decoded while the server still writes those behind them, from memory that is used again for the next ones:
what bounds such a read is the kernel, which has to find and zero each page of memory that is new.

The format: https://clickhouse.com/docs/interfaces/formats/Native, of a SELECT of a table's own columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from framehaul.compiled import SLACK, arrow_array, find_texts, read_varint, uuid_views_of, views_of
from framehaul.schema import Column, ColumnType, Table

if TYPE_CHECKING:
    from framehaul.compiled import Bytes, Int32s

SCRATCH_BYTES = 4 << 20
"""Room for what was received and is not decoded yet, at first."""
READ_BYTES = 1 << 18
"""Bytes asked for at once where the end of a column is not known."""
DIGITS_OF_32_BITS, DIGITS_OF_64_BITS = 9, 18
MOST_BYTES = (1 << 31) - 1
"""Of the text of a column in one block: as far as the offset in a view reaches."""

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
    buffers: list[Any]
    match column.type:
        case ColumnType.TEXT | ColumnType.BYTES:
            buffers = views_of(*source.texts(rows))
        case ColumnType.UUID:
            buffers = uuid_views_of(source.take(16 * rows), np.arange(0, 16 * rows, 16, dtype=np.int32), flip=7)
        case ColumnType.BOOL:
            buffers = [np.packbits(source.take(rows), bitorder="little")]
        case ColumnType.DECIMAL:
            buffers = [decimals(source, column.types.arrow.precision, rows)]
        case ColumnType.DATE if column.types.clickhouse == "Date":
            buffers = [source.take(2 * rows).view("<u2").astype(np.int32)]
        case _:
            buffers = [source.take(column.arrow_view.bit_width // 8 * rows).copy()]
    return arrow_array(column.arrow_view, rows, validity, buffers)


def decimals(source: Source, precision: int, rows: int) -> Bytes:
    """Decimals as Arrow has them, in 128 bits; ClickHouse takes no more than the digits need.

    https://clickhouse.com/docs/sql-reference/data-types/decimal. Raises ValueError when the body ends inside them.
    """
    width = 4 if precision <= DIGITS_OF_32_BITS else 8 if precision <= DIGITS_OF_64_BITS else 16
    raw = source.take(width * rows)
    if width == 16:  # noqa: PLR2004  bytes of 128 bits
        return raw.copy()
    numbers = raw.view(f"<i{width}").astype(np.int64)
    return np.stack([numbers, numbers >> 63], axis=1).view(np.uint8)


def read_dictionary(source: Source, column: Column, rows: int) -> pa.Array:
    """A LowCardinality column of text, each row as its text. Raises ValueError when the body ends inside it."""
    version, flags, size = source.take(24).view("<u8").tolist()
    if version != SHARED_DICTIONARIES or not flags & OWN_KEYS or flags & GLOBAL_DICTIONARY:
        raise ValueError(f"column {column.name} came with a dictionary of another kind ({version}, {flags:#x})")
    views, texts = views_of(*source.texts(size))
    source.take(8)  # the number of rows once more
    indexes = source.take(rows << (flags & INDEX_TYPE)).view(INDEX_TYPES[flags & INDEX_TYPE])
    # The first key of a nullable column stands for NULL.
    validity = np.packbits(indexes != 0, bitorder="little") if column.nullable else None
    return arrow_array(column.arrow_view, rows, validity, [views[indexes], texts])


class Source:
    """Hands out a body piece by piece, each until the next one is asked for."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._data = np.empty(SCRATCH_BYTES + len(SLACK), np.uint8)
        self._at = self._end = 0

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
        """A LEB128 number. Raises ValueError when it is not whole."""
        number, end = read_varint(self._data, self._at, self._end)
        while end < 0:
            self._more(1)
            number, end = read_varint(self._data, self._at, self._end)
        self._at = end
        return number

    def text(self) -> str:
        """A text behind its length."""
        return self.take(self.number()).tobytes().decode()

    def texts(self, count: int) -> tuple[Bytes, Int32s, Int32s]:
        """The bytes of the next so many texts with slack behind them, where in there each starts, and its length.

        Raises ValueError for more bytes than can be pointed into.
        """
        starts, lengths = np.empty((2, count), np.int32)
        done, size = find_texts(self._data[self._at : self._end], 0, starts, lengths, 0)
        while done < count:
            self._more(1)
            done, size = find_texts(self._data[self._at : self._end], size, starts, lengths, done)
        if size > MOST_BYTES:
            raise ValueError(f"a column of a block takes more than {MOST_BYTES:,} bytes: ask for smaller blocks")
        self._at += size
        return self._data[self._at - size : self._at + len(SLACK)], starts, lengths

    def _more(self, length: int) -> None:
        if not self._receive(length):
            raise ValueError("the body ends inside a block")

    def _receive(self, length: int) -> bool:
        """Receive something, at best so many bytes and more; makes room where there is too little."""
        if self._room() < length:
            rest = self._data[self._at : self._end]
            if len(self._data) < 2 * (len(rest) + length + len(SLACK)):
                self._data = np.empty(2 * (len(rest) + length + len(SLACK)), np.uint8)
            self._data[: len(rest)] = rest
            self._at, self._end = 0, len(rest)
        wanted = min(max(length, READ_BYTES), self._room())
        count = self._body.readinto(memoryview(self._data)[self._end : self._end + wanted])
        self._end += count
        return count > 0

    def _room(self) -> int:
        return len(self._data) - len(SLACK) - self._end
