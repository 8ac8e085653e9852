"""PostgreSQL's binary COPY as Arrow record batches, decoded by loops that numba compiles: no Python object per value.

Text becomes string views, as Polars' own strings are.

The format: https://www.postgresql.org/docs/18/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from framehaul.compiled import (
    SLACK,
    arrow_array,
    find_fields,
    read_int16,
    read_int32,
    read_int64,
    uuid_views_of,
    views_of,
)
from framehaul.schema import Column, ColumnType, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from framehaul.compiled import Bytes, Int32s

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
TRAILER = -1


class CopyDecoder:
    """Takes the bytes of one binary COPY as they come and makes record batches in `table.arrow_view_schema` of them."""

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
        return pa.Table.from_batches(self.take(), self._table.arrow_view_schema)

    def _decode(self) -> None:
        content = b"".join((*self._pending, SLACK))
        begin = self._header_bytes(content[: -len(SLACK)])
        if not self._begun:
            return
        data = np.frombuffer(content, np.uint8, offset=begin)
        columns = self._table.columns
        most_rows = len(data) // (2 + 4 * len(columns)) + 1  # the last may be cut
        starts, lengths = np.empty((2, len(columns), most_rows), np.int32)
        rows, end, other = find_fields(data[: -len(SLACK)], starts, lengths)
        if other not in (0, TRAILER):
            raise ValueError(f"the binary COPY of {self._table.name} has rows of {other} fields, not of {len(columns)}")
        self._ended = self._ended or other == TRAILER
        self._pending = [content[begin + end : -len(SLACK)]]
        self._pending_bytes = len(self._pending[0])
        self._enough_bytes = max(BATCH_BYTES, 2 * self._pending_bytes)  # a row may be longer than any batch
        if rows:
            arrays = [
                decode(column, data, start[:rows], length[:rows])
                for column, start, length in zip(columns, starts, lengths, strict=True)
            ]
            self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._table.arrow_view_schema))

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
        raise ValueError(f"column {column.name} does not come as {column.types.postgres}")
    arrow = column.arrow_view
    buffers: list[Any]
    match column.type:
        case ColumnType.TEXT | ColumnType.BYTES:
            buffers = views_of(data, starts, lengths)
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
    shifted: NDArray[Any] = since_2000 + since_2000.dtype.type(offset)
    return shifted
