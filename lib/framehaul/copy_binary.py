"""PostgreSQL's binary COPY as Arrow record batches, decoded by loops that numba compiles: no Python object per value.

The format: https://www.postgresql.org/docs/18/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numba
import numpy as np
import pyarrow as pa

from framehaul.schema import Column, ColumnType, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    type Bytes = NDArray[np.uint8]
    type Int32s = NDArray[np.int32]
    type Int64s = NDArray[np.int64]

BATCH_BYTES = 1 << 20
"""Bytes decoded at once: they and the batch made of them stay in the CPU's cache."""

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
FIXED_WIDTHS = {
    ColumnType.INT32: 4, ColumnType.DATE: 4, ColumnType.INT64: 8, ColumnType.FLOAT64: 8, ColumnType.UUID: 16,
}  # fmt: skip
DAYS_TO_2000 = 10_957  # PostgreSQL counts days from 2000-01-01, Arrow from 1970-01-01
DATE_INFINITY = np.iinfo(np.int32)  # -infinity and infinity are the least and the greatest day
TRAILER = -1
HEX_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
DASH = ord("-")


class CopyDecoder:
    """Takes the bytes of one binary COPY as they come and makes record batches in `table.arrow_schema` of them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._pending = [b""]
        self._pending_bytes = 0
        self._enough_bytes = BATCH_BYTES
        self._begun = self._ended = False
        self._batches: list[pa.RecordBatch] = []

    def feed(self, data: bytes) -> None:
        """Take some more bytes, cut anywhere. Raises ValueError when they are no binary COPY of this table."""
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= self._enough_bytes:
            self._decode()

    def take(self) -> list[pa.RecordBatch]:
        """The batches that are ready, each handed out once."""
        batches, self._batches = self._batches, []
        return batches

    def finish(self) -> pa.Table:
        """All rows not taken yet. Raises ValueError when the bytes ended before the trailer of binary COPY."""
        self._decode()
        if not self._ended:
            raise ValueError(f"the binary COPY of {self._table.name} ended before its trailer")
        return pa.Table.from_batches(self.take(), self._table.arrow_schema)

    def _decode(self) -> None:
        content = b"".join(self._pending)
        begin = self._header_bytes(content)
        if not self._begun:
            return
        data = np.frombuffer(content, np.uint8, offset=begin)
        columns = self._table.columns
        most_rows = len(data) // (2 + 4 * len(columns)) + 1  # the last may be cut
        starts, lengths = np.empty((2, len(columns), most_rows), np.int32)
        rows, end, other = find_fields(data, starts, lengths)
        if other not in (0, TRAILER):
            raise ValueError(f"the binary COPY of {self._table.name} has rows of {other} fields, not of {len(columns)}")
        self._ended = self._ended or other == TRAILER
        self._pending = [content[begin + end :]]
        self._pending_bytes = len(self._pending[0])
        self._enough_bytes = max(BATCH_BYTES, 2 * self._pending_bytes)  # a row may be longer than any batch
        if rows:
            arrays = [
                decode(column, data, start[:rows], length[:rows])
                for column, start, length in zip(columns, starts, lengths, strict=True)
            ]
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._table.arrow_schema))

    def _header_bytes(self, content: bytes) -> int:
        """Length of the header at the start of the content, 0 once it was taken off; sets `_begun` at its end."""
        if self._begun:
            return 0
        if not content.startswith(SIGNATURE[: len(content)]):
            raise ValueError(f"this is no binary COPY: it begins with {content[: len(SIGNATURE)]!r}")
        extension_at = len(SIGNATURE) + 4
        if len(content) < extension_at + 4:
            return 0
        header = extension_at + 4 + int.from_bytes(content[extension_at : extension_at + 4])
        self._begun = len(content) >= header
        return header


def decode(column: Column, data: Bytes, starts: Int32s, lengths: Int32s) -> pa.Array:
    """A column, from where its fields start in the data and how long they are, -1 for NULL. Raises ValueError."""
    null = lengths == -1
    width = FIXED_WIDTHS.get(column.type)
    if width is not None and not ((lengths == width) | null).all():
        raise ValueError(f"column {column.name} does not come as {column.type.value.postgres}")
    buffers: list[Any]
    if column.type is ColumnType.TEXT:
        buffers = texts(copy_text, data, starts, np.where(null, 0, lengths))
    elif column.type is ColumnType.UUID:
        buffers = texts(write_uuids, data, starts, np.where(null, 0, 36))
    elif column.type in (ColumnType.INT64, ColumnType.FLOAT64):
        buffers = [np.empty(len(starts), np.int64)]
        read_int64(data, starts, lengths, buffers[0])
    else:
        buffers = [np.empty(len(starts), np.int32)]
        read_int32(data, starts, lengths, buffers[0])
        if column.type is ColumnType.DATE:
            buffers[0] = days_from_1970(column, buffers[0])
    validity = np.packbits(~null, bitorder="little") if null.any() else None
    buffers = [None if buffer is None else pa.py_buffer(buffer) for buffer in (validity, *buffers)]
    return pa.Array.from_buffers(column.type.value.arrow, len(starts), buffers)


def texts(write: Callable[[Bytes, Int32s, Int32s, Bytes], None], data: Bytes, starts: Int32s, lengths: Int32s) -> Any:
    """Offsets and content of an Arrow string array."""
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    content = np.empty(offsets[-1], np.uint8)
    write(data, starts, offsets, content)
    return [offsets, content]


def days_from_1970(column: Column, days: Int32s) -> Int32s:
    """Days as Arrow counts them. Raises ValueError for infinite dates, which dataframes do not have."""
    if len(days) and (days.min() == DATE_INFINITY.min or days.max() == DATE_INFINITY.max):
        raise ValueError(f"column {column.name} holds the date infinity or -infinity, which no dataframe has")
    return days + np.int32(DAYS_TO_2000)


def compiled[F: Callable[..., Any]](function: F) -> F:
    """The function as machine code that does not hold the interpreter's lock; compiled once per machine."""
    return cast("F", numba.njit(nogil=True, cache=True)(function))


@compiled
def big_endian(data: Bytes, at: int) -> int:
    """The four bytes at a place as a signed integer."""
    unsigned = (
        (np.uint32(data[at]) << 24) | (np.uint32(data[at + 1]) << 16)
        | (np.uint32(data[at + 2]) << 8) | np.uint32(data[at + 3])
    )  # fmt: skip
    return np.int32(unsigned)  # type: ignore[return-value]


@compiled
def find_fields(data: Bytes, starts: Int32s, lengths: Int32s) -> tuple[int, int, int]:
    """Fill in, [field, row], where every field of every whole row starts and how long it is; -1 is NULL.

    Gives the number of rows, the bytes that they take (with the trailer), and what stands there instead of a row of
    as many fields: a count that differs, the trailer, or 0 where the data end.
    """
    fields = len(starts)
    row_at = row = 0
    while row_at + 2 <= len(data):
        count = np.int16((np.uint16(data[row_at]) << 8) | data[row_at + 1])
        if count != fields:
            return row, row_at + 2, count  # type: ignore[return-value]
        at = row_at + 2
        for field in range(fields):
            if at + 4 > len(data):
                return row, row_at, 0
            length = big_endian(data, at)
            at += 4
            starts[field, row] = at
            lengths[field, row] = length
            at += max(length, 0)
        if at > len(data):
            break
        row_at = at
        row += 1
    return row, row_at, 0


@compiled
def read_int32(data: Bytes, starts: Int32s, lengths: Int32s, out: Int32s) -> None:
    """Fields of four bytes; 0 where they are NULL."""
    for row in range(len(starts)):
        out[row] = big_endian(data, starts[row]) if lengths[row] > 0 else np.int32(0)


@compiled
def read_int64(data: Bytes, starts: Int32s, lengths: Int32s, out: Int64s) -> None:
    """Fields of eight bytes; 0 where they are NULL."""
    for row in range(len(starts)):
        if lengths[row] > 0:
            high, low = big_endian(data, starts[row]), big_endian(data, starts[row] + 4)
            out[row] = (np.int64(high) << 32) | np.int64(np.uint32(low))
        else:
            out[row] = 0


@compiled
def copy_text(data: Bytes, starts: Int32s, offsets: Int32s, out: Bytes) -> None:
    """Texts, one after the other; byte by byte is fastest for the short ones that tables hold."""
    for row in range(len(starts)):
        start, offset = starts[row], offsets[row]
        for index in range(offsets[row + 1] - offset):
            out[offset + index] = data[start + index]


@compiled
def write_uuids(data: Bytes, starts: Int32s, offsets: Int32s, out: Bytes) -> None:
    """UUIDs of 16 bytes as the 36 characters they are in a dataframe."""
    for row in range(len(starts)):
        at = offsets[row]
        if at == offsets[row + 1]:
            continue
        for index in range(16):
            if index in (4, 6, 8, 10):
                out[at] = DASH
                at += 1
            byte = data[starts[row] + index]
            out[at] = HEX_DIGITS[byte >> 4]
            out[at + 1] = HEX_DIGITS[byte & 15]
            at += 2
