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
MOST_BYTES = (1 << 31) - 1
"""As far as an offset in a view, or in an array of plain strings, reaches."""
MOST_FIELD_BYTES = 1 << 30
"""Of a field in PostgreSQL: https://www.postgresql.org/docs/18/limits.html"""
NOT_ASCII, NOT_ASCII_64 = np.uint32(0x80808080), np.uint64(0x8080808080808080)
"""The bits that only bytes above 127 have."""
EIGHT, SIXTEEN, TWENTY_FOUR = np.uint64(8), np.uint64(16), np.uint64(24)
STRIDE = 64
"""Rows stepped over at once on the way to the next that is not ASCII."""
CUT, TOO_LONG = -1, -2
"""In place of where a LEB128 number ends: it goes on behind the data, or has more bytes than a count can have."""
ROW_CUT, TRAILER, OTHER_COUNT, OTHER_LENGTH = range(4)
"""Why `find_fields` ended."""
SLACK = bytes(INLINE_BYTES + 4)
"""What data must be followed by: a view is filled in by reading so far, and cutting off what is not text."""
UUID_TEXT_BYTES = 36
SHOWN_BYTES = 24
"""Of text that is not UTF-8, in what is said of it."""

# Of each of the three words of a view that holds its text: the bytes that belong to a text of so many bytes.
MASKS = np.array(
    [[(1 << 8 * min(max(length - 4 * word, 0), 4)) - 1 for word in range(3)] for length in range(INLINE_BYTES + 1)],
    np.uint32,
)
HEX_PAIRS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
DASH = ord("-")


class NotTextError(ValueError):
    """A text is not UTF-8; the message says which, and how it can be read."""

    def __init__(self, name: str, row: int, value: bytes) -> None:
        shown = f"{value[:SHOWN_BYTES]!r}{'...' if len(value) > SHOWN_BYTES else ''}"
        super().__init__(f"column {name}, row {row:,}: {shown} is not UTF-8; read the column as binary")


def compiled[F: Callable[..., Any]](function: F) -> F:
    """The function as machine code that does not hold the interpreter's lock; compiled once per machine."""
    return cast("F", numba.njit(nogil=True, cache=True)(function))


def words_at_every_byte(data: Bytes) -> Words:
    """The four bytes from each byte on as one number: reading them at once is many times faster than one by one."""
    return as_strided(data[:4].view(np.uint32), (len(data) - 3,), (1,))


def pairs_at_every_byte(data: Bytes) -> NDArray[np.uint16]:
    """The two bytes from each byte on as one number; what is written there is written to the data."""
    return as_strided(data[:2].view(np.uint16), (max(len(data) - 1, 0),), (1,))


def views_of(data: Bytes, starts: Int32s, lengths: Int32s) -> tuple[list[Any], Int32s]:
    """The two buffers of an array of string views, of the texts in the data; and the rows that are not UTF-8.

    The first buffer holds the views, the second the text that is not in them.
    """
    views, kept = np.empty((len(starts), 4), np.uint32), int(np.maximum(lengths, 0).sum(dtype=np.int64))
    texts, rows = np.empty(kept + len(SLACK), np.uint8), np.empty(len(starts), np.int32)
    suspects = view_texts(words_at_every_byte(data), starts, lengths, views, words_at_every_byte(texts), rows)
    return [views, texts], rows[: keep_invalid(data, starts, lengths, rows, suspects)]


def text_views_of(name: str, first_row: int, data: Bytes, starts: Int32s, lengths: Int32s) -> list[Any]:
    """`views_of` a column of this name whose rows begin with this one; raises ValueError for what is not UTF-8."""
    buffers, invalid = views_of(data, starts, lengths)
    if len(invalid):
        start, row = starts[invalid[0]], int(invalid[0])
        raise NotTextError(name, first_row + row, data[start : start + lengths[row]].tobytes())
    return buffers


def first_invalid_text(data: Bytes, offsets: Int32s | Int64s) -> int:
    """The first row of an Arrow array of strings, whose offsets are in place, that is not UTF-8; -1 where all are."""
    words = as_strided(data[:8].view(np.uint64), (len(data) - 7,), (1,)) if len(data) > 7 else np.empty(0, np.uint64)  # noqa: PLR2004
    return find_invalid_text(data, words, offsets)


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
def utf8_length(first: int, second: int, third: int, fourth: int) -> int:
    """How many of these bytes the character has that they begin with, 0 where they begin with none.

    Strictly: no overlong forms, no surrogates, nothing beyond U+10FFFF. Table 3-7 of
    https://www.unicode.org/versions/Unicode17.0.0/core-spec/chapter-3/#G7404
    """
    length = 0
    if first < 0x80:  # noqa: PLR2004  this and the others are the table's
        length = 1
    elif 0xC2 <= first <= 0xDF:  # noqa: PLR2004
        if second & 0xC0 == 0x80:  # noqa: PLR2004
            length = 2
    elif 0xE0 <= first <= 0xEF:  # noqa: PLR2004
        least = 0xA0 if first == 0xE0 else 0x80  # noqa: PLR2004
        most = 0x9F if first == 0xED else 0xBF  # noqa: PLR2004
        if least <= second <= most and third & 0xC0 == 0x80:  # noqa: PLR2004
            length = 3
    elif 0xF0 <= first <= 0xF4:  # noqa: PLR2004
        least = 0x90 if first == 0xF0 else 0x80  # noqa: PLR2004
        most = 0x8F if first == 0xF4 else 0xBF  # noqa: PLR2004
        if least <= second <= most and third & 0xC0 == 0x80 and fourth & 0xC0 == 0x80:  # noqa: PLR2004
            length = 4
    return length


@compiled
def view_texts(words: Words, starts: Int32s, lengths: Int32s, views: Words, texts: Words, suspects: Int32s) -> int:
    """Fill in the string view of each text; those that are too long for it are copied to `texts`, one after the other.

    `words` and `texts` are data at every byte; a length of -1 is NULL. All in one loop: a function called from it with
    arrays would count references for every text, which takes six times as long.
    https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout

    Gives how many rows have bytes above 127, or seem to, and notes them: only those can be anything but UTF-8.
    """
    free = found = 0
    for row in range(len(starts)):
        start, length, bits = starts[row], max(lengths[row], 0), np.uint32(0)
        views[row, 0] = length
        if length > INLINE_BYTES:
            views[row, 1] = words[start]
            views[row, 2] = 0  # the first, and only, buffer behind the views
            views[row, 3] = free
            for index in range(0, length, 4):
                texts[free + index] = words[start + index]
                bits |= words[start + index]  # of the last word some bytes are no longer of this text: see "seem to"
            free += length
        else:
            for word in range(3):
                views[row, 1 + word] = words[start + 4 * word] & MASKS[length, word]
                bits |= words[start + 4 * word] & MASKS[length, word]
        if bits & NOT_ASCII:
            suspects[found] = row
            found += 1
    return found


@compiled
def keep_invalid(data: Bytes, starts: Int32s, lengths: Int32s, suspects: Int32s, count: int) -> int:
    """Keep, of the first so many suspects, those rows whose text is not UTF-8; gives how many they are."""
    kept = 0
    for index in range(count):
        row = suspects[index]
        at, end = starts[row], starts[row] + lengths[row]
        while at < end:
            length = utf8_length(data[at], data[at + 1], data[at + 2], data[at + 3])  # what follows the last is slack
            if length == 0 or length > end - at:
                suspects[kept] = row
                kept += 1
                break
            at += length
    return kept


@compiled
def rows_in_place(offsets: Int32s | Int64s, size: int) -> bool:
    """Whether the offsets never go back, and stay within so many bytes."""
    wrong = offsets[0] < 0 or offsets[-1] > size
    for row in range(len(offsets) - 1):
        wrong |= offsets[row] > offsets[row + 1]
    return not wrong


@compiled
def find_invalid_text(data: Bytes, words: NDArray[np.uint64], offsets: Int32s | Int64s) -> int:
    """The first row whose text, between offsets that are in place, is not UTF-8; -1 where there is none.

    `words` is the data at every byte, eight bytes each. All texts are gone through as one, four words of ASCII at a
    time, or one; a row is looked for only where a character has more than one byte.
    """
    at, end, row, rows = int(offsets[0]), int(offsets[-1]), 0, len(offsets) - 1
    while at < end:
        following, here = end - at, np.uint64(at)  # an index without a sign is not counted from the end
        if (
            following > 31  # noqa: PLR2004
            and (words[here] | words[here + EIGHT] | words[here + SIXTEEN] | words[here + TWENTY_FOUR]) & NOT_ASCII_64
            == 0
        ):
            at += 32
            continue
        if following > 7 and words[here] & NOT_ASCII_64 == 0:  # noqa: PLR2004  bytes of a word
            at += 8
            continue
        length = utf8_length(
            data[at],
            data[at + 1] if following > 1 else 0,
            data[at + 2] if following > 2 else 0,  # noqa: PLR2004
            data[at + 3] if following > 3 else 0,  # noqa: PLR2004
        )
        if length != 1:
            while row + STRIDE < rows and offsets[row + STRIDE] <= at:
                row += STRIDE
            while offsets[row + 1] <= at:
                row += 1
            if length == 0 or at + length > offsets[row + 1]:  # or the text ends inside the character
                return row
        at += length
    return -1


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
