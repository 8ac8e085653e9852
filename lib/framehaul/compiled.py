"""The loops of the decoders of COPY's binary format and of ClickHouse's Native format, compiled by numba.

They stand in one file because numba notices a change only in the file of a loop itself, not in what the loop calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numba
import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    type Bytes = NDArray[np.uint8]
    type Words = NDArray[np.uint32]
    type Int32s = NDArray[np.int32]
    type Int64s = NDArray[np.int64]

INLINE_BYTES = 12
"""Text up to this length is held by a string view itself."""
SLACK = bytes(INLINE_BYTES + 4)
"""What data must be followed by: a view is filled in by reading so far, and cutting off what is not text."""
UUID_TEXT_BYTES = 36

# Of each of the three words of a view that holds its text: the bytes that belong to a text of so many bytes.
MASKS = np.array(
    [[(1 << 8 * min(max(length - 4 * word, 0), 4)) - 1 for word in range(3)] for length in range(INLINE_BYTES + 1)],
    np.uint32,
)
HEX_PAIRS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
DASH = ord("-")


def compiled[F: Callable[..., Any]](function: F) -> F:
    """The function as machine code that does not hold the interpreter's lock; compiled once per machine."""
    return cast("F", numba.njit(nogil=True, cache=True)(function))


def words_at_every_byte(data: Bytes) -> Words:
    """The four bytes from each byte on as one number: reading them at once is many times faster than one by one."""
    return as_strided(data[:4].view(np.uint32), (len(data) - 3,), (1,))


def pairs_at_every_byte(data: Bytes) -> NDArray[np.uint16]:
    """The two bytes from each byte on as one number; what is written there is written to the data."""
    return as_strided(data[:2].view(np.uint16), (max(len(data) - 1, 0),), (1,))


def views_of(data: Bytes, starts: Int32s, lengths: Int32s) -> list[Any]:
    """The two buffers of an array of string views: views of the texts in the data, and the text that is not in them."""
    views, kept = np.empty((len(starts), 4), np.int32), int(np.maximum(lengths, 0).sum(dtype=np.int64))
    texts = np.empty(kept + len(SLACK), np.uint8)
    view_texts(words_at_every_byte(data), starts, lengths, views, words_at_every_byte(texts))
    return [views, texts]


def uuid_views_of(data: Bytes, starts: Int32s, *, flip: int) -> list[Any]:
    """The two buffers of an array of string views of UUIDs as text; `starts` and `flip` as in `view_uuids`."""
    views, texts = np.empty((len(starts), 4), np.int32), np.empty(len(starts) * UUID_TEXT_BYTES, np.uint8)
    view_uuids(data, starts, flip, pairs_at_every_byte(texts), views)
    return [views, texts]


def arrow_array(arrow: pa.DataType, rows: int, validity: Bytes | None, buffers: list[Any]) -> pa.Array:
    """An Arrow array of numpy buffers."""
    return pa.Array.from_buffers(
        arrow, rows, [None if buffer is None else pa.py_buffer(buffer) for buffer in (validity, *buffers)]
    )


@compiled
def view_texts(words: Words, starts: Int32s, lengths: Int32s, views: Int32s, texts: Words) -> None:
    """Fill in the string view of each text; those that are too long for it are copied to `texts`, one after the other.

    `words` and `texts` are data at every byte; a length of -1 is NULL. All in one loop: a function called from it with
    arrays would count references for every text, which takes six times as long.
    https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout
    """
    free = 0
    for row in range(len(starts)):
        start, length = starts[row], max(lengths[row], 0)
        views[row, 0] = length
        if length > INLINE_BYTES:
            views[row, 1] = words[start]
            views[row, 2] = 0  # the first, and only, buffer behind the views
            views[row, 3] = free
            for index in range(0, length, 4):
                texts[free + index] = words[start + index]
            free += length
        else:
            for word in range(3):
                views[row, 1 + word] = words[start + 4 * word] & MASKS[length, word]


@compiled
def view_uuids(data: Bytes, starts: Int32s, flip: int, pairs: NDArray[np.uint16], views: Int32s) -> None:
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
def find_texts(data: Bytes, at: int, starts: Int32s, lengths: Int32s, done: int) -> tuple[int, int]:
    """Note start and length of the texts from `at` on, each behind its length, the first of which is number `done`.

    Gives how many are done and where they end, when the data end or all are found.
    """
    for row in range(done, len(starts)):
        length, start = read_varint(data, at, len(data))
        if start < 0 or start + length > len(data):
            return row, at
        starts[row], lengths[row] = start, length
        at = start + length
    return len(starts), at


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
