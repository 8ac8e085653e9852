"""The loops of the decoders of COPY's binary format and of ClickHouse's Native format, compiled by numba.

They stand in one file because numba notices a change only in the file of a loop itself, not in what the loop calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from framehaul.data.text import MOST_BYTES, compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.data.text import Bytes, Int32s, Int64s, Words

MOST_FIELD_BYTES = 1 << 30
"""Of a field in PostgreSQL: https://www.postgresql.org/docs/18/limits.html"""
CUT, TOO_LONG = -1, -2
"""In place of where a LEB128 number ends: it goes on behind the data, or has more bytes than a count can have."""
ROW_CUT, TRAILER, OTHER_COUNT, OTHER_LENGTH = range(4)
"""Why `find_fields` ended."""
UUID_TEXT_BYTES = 36
HEX_PAIRS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
DASH = ord("-")


def pairs_at_every_byte(data: Bytes) -> NDArray[np.uint16]:
    """The two bytes from each byte on as one number; what is written there is written to the data."""
    return as_strided(data[:2].view(np.uint16), (max(len(data) - 1, 0),), (1,))


def uuid_views_of(data: Bytes, starts: Int32s, *, flip: int) -> list[Any]:
    """The two buffers of an array of string views of UUIDs as text; `starts` and `flip` as in `view_uuids`."""
    views, texts = np.empty((len(starts), 4), np.uint32), np.empty(len(starts) * UUID_TEXT_BYTES, np.uint8)
    view_uuids(data, starts, flip, pairs_at_every_byte(texts), views)
    return [views, texts]


def arrow_array(arrow: pa.DataType, rows: int, validity: Bytes | None, buffers: list[Any]) -> pa.Array:
    """An Arrow array of numpy buffers."""
    return pa.Array.from_buffers(
        arrow, rows, [None if buffer is None else pa.py_buffer(buffer) for buffer in (validity, *buffers)]
    )


@compiled
def view_uuids(data: Bytes, starts: Int32s, flip: int, pairs: NDArray[np.uint16], views: Words) -> None:
    """Write UUIDs as text, and a view for each; a start of -1 is NULL.

    `pairs` is the text at every byte. `flip` is 0 where the 16 bytes are in the order of the text, 7 where each half
    of them is a little-endian integer.
    """
    for row in range(len(starts)):
        views[row, :] = 0
        start, at = starts[row], row * UUID_TEXT_BYTES
        if start < 0:
            continue
        views[row, 0] = UUID_TEXT_BYTES
        views[row, 3] = at
        for index in range(16):
            if index in (4, 6, 8, 10):
                pairs[at] = DASH  # and a zero behind it, which the next pair overwrites
                at += 1
            pairs[at] = HEX_PAIRS[data[start + (index ^ flip)]]
            at += 2
        first = row * UUID_TEXT_BYTES
        views[row, 1] = np.uint32(pairs[first]) | (np.uint32(pairs[first + 2]) << 16)


@compiled
def read_varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """A LEB128 number of at most nine bytes, which 63 bits hold, and where it ends; or CUT, or TOO_LONG."""
    number = shift = 0
    while at < end:
        byte = int(data[at])
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004
            return number, at
        shift += 7
        if shift == 63:  # noqa: PLR2004
            return 0, TOO_LONG
    return 0, CUT


@compiled
def find_texts(data: Bytes, at: int, starts: Int32s, lengths: Int32s, done: int) -> tuple[int, int, bool]:
    """Note start and length of the texts from `at` on, each behind its length, the first of which is number `done`.

    Gives how many are done and where they end, when the data end or all are found; and whether what follows is a
    length that no text here can have.
    """
    for row in range(done, len(starts)):
        length, start = read_varint(data, at, len(data))
        if start == TOO_LONG or length > MOST_BYTES - at:
            return row, at, True
        if start == CUT or length > len(data) - start:
            return row, at, False
        starts[row], lengths[row] = start, length
        at = start + length
    return len(starts), at, False


@compiled
def big_endian(data: Bytes, at: int) -> int:
    """The four bytes at a place as a signed integer."""
    unsigned = (
        (np.uint32(data[at]) << 24) | (np.uint32(data[at + 1]) << 16)
        | (np.uint32(data[at + 2]) << 8) | np.uint32(data[at + 3])
    )  # fmt: skip
    return np.int32(unsigned)  # type: ignore[return-value]


@compiled
def find_fields(data: Bytes, starts: Int32s, lengths: Int32s) -> tuple[int, int, int, int]:
    """Fill in, [field, row], where every field of every whole row starts and how long it is; -1 is NULL.

    Gives the number of rows, the bytes that they take (with the trailer), and what came instead of a further row:
    ROW_CUT where the data end, TRAILER, or a row with OTHER_COUNT of fields, or a field of OTHER_LENGTH, and which.
    """
    fields = len(starts)
    row_at = row = 0
    while len(data) - row_at >= 2:  # noqa: PLR2004  bytes of a count
        count = np.int16((np.uint16(data[row_at]) << 8) | data[row_at + 1])
        if count == -1:
            return row, row_at + 2, TRAILER, 0
        if count != fields:
            return row, row_at, OTHER_COUNT, int(count)
        at = row_at + 2
        for field in range(fields):
            if len(data) - at < 4:  # noqa: PLR2004  bytes of a length
                return row, row_at, ROW_CUT, 0
            length = big_endian(data, at)
            at += 4
            if length < -1 or length > MOST_FIELD_BYTES:
                return row, row_at, OTHER_LENGTH, int(length)
            if length > len(data) - at:
                return row, row_at, ROW_CUT, 0
            starts[field, row] = at
            lengths[field, row] = length
            at += max(length, 0)
        row_at = at
        row += 1
    return row, row_at, ROW_CUT, 0


@compiled
def read_int16(data: Bytes, starts: Int32s, lengths: Int32s, out: NDArray[np.int16]) -> None:
    """Fields of two bytes; 0 where they are NULL."""
    for row in range(len(starts)):
        at = starts[row]
        out[row] = np.int16((np.uint16(data[at]) << 8) | data[at + 1]) if lengths[row] > 0 else np.int16(0)


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
