"""PostgreSQL's binary COPY as Arrow record batches, decoded by loops that numba compiles: no Python object per value.

Text becomes string views, as Polars' own strings are.

The format: https://www.postgresql.org/docs/18/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from framehaul.codecs.compiled import (
    OTHER_COUNT,
    OTHER_LENGTH,
    TRAILER,
    arrow_array,
    find_fields,
    read_int16,
    read_int32,
    read_int64,
    uuid_views_of,
)
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.data.text import MOST_BYTES, SLACK, text_views_of, views_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from framehaul.data.text import Bytes, Int32s

BATCH_BYTES = 1 << 20
"""Bytes decoded at once: they and the batch made of them stay in the CPU's cache."""

SIGNATURE = b"PGCOPY\n\xff\r\n\0"
FIXED_WIDTHS = {
    ColumnType.BOOL: 1, ColumnType.INT16: 2, ColumnType.INT32: 4, ColumnType.DATE: 4, ColumnType.INT64: 8,
    ColumnType.FLOAT32: 4, ColumnType.FLOAT64: 8, ColumnType.TIMESTAMP: 8, ColumnType.TIMESTAMP_NS: 8,
    ColumnType.TIMESTAMP_UTC: 8, ColumnType.TIMESTAMP_BERLIN: 8, ColumnType.UUID: 16,
}  # fmt: skip
# PostgreSQL counts days and microseconds from 2000-01-01, Arrow from 1970-01-01.
DAYS_TO_2000 = 10_957
MICROSECONDS_TO_2000 = DAYS_TO_2000 * 86_400_000_000
CRITICAL_FLAGS = 0xFFFF0000
"""Flags of the header of which a reader has to know all that are set; there is one, which PostgreSQL no longer has."""


class CopyDecoder:
    """Takes the bytes of one binary COPY as they come and makes record batches in `table.arrow_view_schema` of them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._pending = [b""]
        self._pending_bytes = 0
        self._enough_bytes = BATCH_BYTES
        self._begun = self._ended = False
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        """Decoded so far."""

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
            raise ValueError(f"the binary COPY of {self._table.name} ended before its trailer, after {self._place}")
        return pa.Table.from_batches(self.take(), self._table.arrow_view_schema)

    @property
    def _place(self) -> str:
        return f"{self._rows:,} rows and {self._bytes:,} bytes"

    def _decode(self) -> None:
        content = b"".join((*self._pending, SLACK))
        size = len(content) - len(SLACK)
        if size > MOST_BYTES:
            raise ValueError(f"{size:,} bytes came at once: feed at most {MOST_BYTES:,}")
        begin = 0 if self._begun else self._header_bytes(content[:size])
        end = begin + self._decode_rows(content, begin, size) if self._begun else 0
        self._bytes += end
        if self._ended and end < size:
            raise ValueError(f"{size - end:,} bytes follow the trailer of the binary COPY of {self._table.name}")
        self._pending = [content[end:size]]
        self._pending_bytes = size - end
        self._enough_bytes = max(BATCH_BYTES, 2 * self._pending_bytes)  # a row may be longer than any batch

    def _decode_rows(self, content: bytes, begin: int, size: int) -> int:
        """Make a batch of the whole rows that there are; gives the bytes that they take."""
        if self._ended:
            return 0
        columns, data = self._table.columns, np.frombuffer(content, np.uint8, offset=begin)
        most_rows = (size - begin) // (2 + 4 * len(columns)) + 1  # the last may be cut
        starts, lengths = np.empty((2, len(columns), most_rows), np.int32)
        rows, end, other, number = find_fields(data[: size - begin], starts, lengths)
        if rows:
            try:
                arrays = [
                    decode(column, data, start[:rows], length[:rows], self._rows)
                    for column, start, length in zip(columns, starts, lengths, strict=True)
                ]
            except ValueError as error:
                raise ValueError(f"{error} (in what follows {self._place})") from error
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._table.arrow_view_schema))
            self._rows += rows
        if other in (OTHER_COUNT, OTHER_LENGTH):
            self._bytes += begin + end
            fields = f"rows of {number} fields, not of {len(columns)}"
            fault = fields if other == OTHER_COUNT else f"a field of {number} bytes"
            raise ValueError(f"the binary COPY of {self._table.name} has {fault}, after {self._place}")
        self._ended = other == TRAILER
        return end

    def _header_bytes(self, content: bytes) -> int:
        """Length of the header at the start of the content, 0 while it is not whole; sets `_begun` at its end."""
        if not content.startswith(SIGNATURE[: len(content)]):
            raise ValueError(f"this is no binary COPY: it begins with {content[: len(SIGNATURE)]!r}")
        extension_at = len(SIGNATURE) + 4
        if len(content) < extension_at + 4:
            return 0
        if flags := int.from_bytes(content[len(SIGNATURE) : extension_at]) & CRITICAL_FLAGS:
            raise ValueError(f"the binary COPY of {self._table.name} has flags that are not known here: {flags:#x}")
        header = extension_at + 4 + int.from_bytes(content[extension_at : extension_at + 4])
        self._begun = len(content) >= header
        return header if self._begun else 0


def decode(column: Column, data: Bytes, starts: Int32s, lengths: Int32s, first_row: int = 0) -> pa.Array:
    """A column, from where its fields start in the data and how long they are, -1 for NULL.

    `first_row` is the number of the first of them, for what is said of one. Raises ValueError.
    """
    null, arrow = lengths == -1, column.arrow_view
    check_widths(column, first_row, lengths)
    buffers: list[Any]
    match column.type:
        case ColumnType.TEXT:
            buffers = text_views_of(column.name, first_row, data, starts, lengths)
        case ColumnType.BYTES:
            buffers, _ = views_of(data, starts, lengths)
        case ColumnType.UUID:
            buffers = uuid_views_of(data, np.where(null, -1, starts), flip=0)
        case ColumnType.BOOL:
            buffers = [np.packbits(data[np.where(null, 0, starts)] != 0, bitorder="little")]
        case ColumnType.INT16:
            buffers = [integers(read_int16, np.int16, data, starts, lengths)]
        case ColumnType.INT32 | ColumnType.FLOAT32:
            buffers = [integers(read_int32, np.int32, data, starts, lengths)]
        case ColumnType.DATE:
            buffers = [since_1970(column, integers(read_int32, np.int32, data, starts, lengths), DAYS_TO_2000)]
        case ColumnType.INT64 | ColumnType.FLOAT64:
            buffers = [integers(read_int64, np.int64, data, starts, lengths)]
        case ColumnType.DECIMAL:
            raise ValueError(
                f"column {column.name} is numeric, whose binary form is not decoded here: use ADBC or text"
            )
        case _:
            arrow = pa.timestamp("us", arrow.tz)  # whatever a frame may hold, PostgreSQL has microseconds
            buffers = [since_1970(column, integers(read_int64, np.int64, data, starts, lengths), MICROSECONDS_TO_2000)]
    validity = np.packbits(~null, bitorder="little") if null.any() else None
    return arrow_array(arrow, len(starts), validity, buffers).cast(column.arrow_view)


def check_widths(column: Column, first_row: int, lengths: Int32s) -> None:
    """Raises ValueError for fields that are not as long as a column of one width has them, and are not NULL."""
    width = FIXED_WIDTHS.get(column.type)
    if width is not None and len(wrong := np.flatnonzero((lengths != width) & (lengths != -1))):
        row = int(wrong[0])
        raise ValueError(
            f"column {column.name} does not come as {column.types.postgres}: "
            f"row {first_row + row:,} has {lengths[row]} bytes, not {width}"
        )


def integers(
    read: Callable[[Bytes, Int32s, Int32s, Any], None], dtype: type[Any], data: Bytes, starts: Int32s, lengths: Int32s
) -> NDArray[Any]:
    """Fields of one width as numbers; 0 where they are NULL."""
    out = np.empty(len(starts), dtype)
    read(data, starts, lengths, out)
    return out


def since_1970(column: Column, since_2000: NDArray[Any], offset: int) -> NDArray[Any]:
    """Days or microseconds as Arrow counts them. Raises ValueError for infinity, which dataframes do not have.

    The least and the greatest number stand for -infinity and infinity.
    """
    limits = np.iinfo(since_2000.dtype)
    if len(since_2000) and (since_2000.min() == limits.min or since_2000.max() == limits.max):
        raise ValueError(f"column {column.name} holds infinity or -infinity, which no dataframe has in place of a date")
    if len(since_2000) and since_2000.max() > limits.max - offset:
        raise ValueError(f"column {column.name} holds a moment that PostgreSQL does not have")
    shifted: NDArray[Any] = since_2000 + since_2000.dtype.type(offset)
    return shifted
