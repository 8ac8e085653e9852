"""The loops of the decoders of COPY's binary format and of ClickHouse's Native format, compiled by numba.

They stand in one file because numba notices a change only in the file of a loop itself, not in what the loop calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from framehaul.data.text import EIGHT, MOST_BYTES, SIXTEEN, TWENTY_FOUR, compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.data.text import Bytes, Int32s, Int64s, Keys, Words

MOST_FIELD_BYTES = 1 << 30
"""Of a field in PostgreSQL: https://www.postgresql.org/docs/18/limits.html"""
CUT, TOO_LONG = -1, -2
"""In place of where a LEB128 number ends: it goes on behind the data, or has more bytes than a count can have."""
ROW_CUT, TRAILER, OTHER_COUNT, OTHER_LENGTH = range(4)
"""Why `find_fields` ended."""
UUID_TEXT_BYTES = 36
HEX_PAIRS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)
DASH = ord("-")
EVERY_BYTE, EVERY_OTHER_BYTE = np.uint64(0x0101010101010101), np.uint64(0x00FF00FF00FF00FF)
LOW_HALF, SECOND_PAIR, THIRD_PAIR = np.uint64(0xFFFFFFFF), np.uint64(0xFF0000), np.uint64(0xFF00)
ZERO, LOW_DIGIT, TO_LETTERS = np.uint64(ord("0")), np.uint64(15), np.uint64(ord("a") - ord("9") - 1)
FIVE, SIX, NINE = np.uint64(5), np.uint64(6), np.uint64(9)
THIRTY_TWO, FORTY_EIGHT = np.uint64(32), np.uint64(48)
SHORT_RUN = 24
"""Rows up to which comparing all of them takes less time than counting their bytes."""
TOLD_BY_TWO_BYTES = 1 << 19
"""Rows of which two bytes that are random leave short runs."""
MOST_LENGTH_BYTES = 5
"""Of the length of a text in Native, as long as texts have less than 32 GiB."""
WORD_SLACK = np.uint64(32)
"""How far `write_texts` may read and write behind a text."""
SEVEN_BITS = np.uint64(127)
ONE, FOUR = np.uint64(1), np.uint64(4)
LAST_BYTE = np.uint64(255)


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


@compiled
def parse_uuids(data: Bytes, words: Keys, offsets: Int64s, nulls: Bytes, halves: Keys) -> int:
    """Both halves of UUIDs as text, 8-4-4-4-12 digits; the first row that is none, and not NULL, or -1.

    `words` is the data at every byte, eight bytes each: so many digits are read at once, and written again to see that
    they were digits.
    """
    for row in range(len(nulls)):
        if nulls[row]:
            continue
        at = np.uint64(offsets[row])
        if offsets[row + 1] - offsets[row] != UUID_TEXT_BYTES:
            return row
        wrong = np.uint64(
            (data[at + np.uint64(8)] ^ DASH) | (data[at + np.uint64(13)] ^ DASH)
            | (data[at + np.uint64(18)] ^ DASH) | (data[at + np.uint64(23)] ^ DASH)
        )  # fmt: skip
        for half in range(2):
            if half == 0:
                first = words[at]
                second = (words[at + np.uint64(9)] & LOW_HALF) | (words[at + np.uint64(14)] << THIRTY_TWO)
            else:
                first = (words[at + np.uint64(19)] & LOW_HALF) | (words[at + np.uint64(24)] << THIRTY_TWO)
                second = words[at + np.uint64(28)]
            both = np.uint64(0)
            for text in (first, second):
                letters = (text >> SIX) & EVERY_BYTE
                digits = (text & (EVERY_BYTE * LOW_DIGIT)) + letters * NINE
                again = digits + EVERY_BYTE * ZERO + (((digits + EVERY_BYTE * SIX) >> FOUR) & EVERY_BYTE) * TO_LETTERS
                wrong |= (again ^ (text | (letters << FIVE))) | (digits & ~(EVERY_BYTE * LOW_DIGIT))
                pairs = ((digits << FOUR) | (digits >> EIGHT)) & EVERY_OTHER_BYTE
                number = (pairs << TWENTY_FOUR) | (pairs & SECOND_PAIR)
                number |= ((pairs >> THIRTY_TWO << EIGHT) & THIRD_PAIR) | (pairs >> FORTY_EIGHT)
                both = (both << THIRTY_TWO) | (number & LOW_HALF)
            halves[half, row] = both
        if wrong:
            return row
    return -1


@compiled
def first_bytes(data: Bytes, offsets: Int64s, keys: Keys) -> None:
    """The first eight bytes of each text as a number that is larger where the text comes later."""
    for row in range(len(keys)):
        key, start, end = np.uint64(0), offsets[row], offsets[row + 1]
        for index in range(8):
            byte = data[start + index] if start + index < end else np.uint8(0)
            key = (key << EIGHT) | np.uint64(byte)
        keys[row] = key


@compiled
def sort_by_bytes(
    keys: Keys, rows: Int64s, room: Keys, other: Int64s, at: int, end: int, first: int, last: int
) -> None:
    """Sort keys and rows from one place to another by some of the keys' bytes, the lowest of which is number 0."""
    for byte in range(first, last + 1):
        shift, ends = np.uint64(8 * byte), np.zeros(257, np.int64)
        for place in range(at, end):
            ends[((keys[place] >> shift) & LAST_BYTE) + ONE] += 1
        for value in range(256):
            ends[value + 1] += ends[value]
        for place in range(at, end):
            value = (keys[place] >> shift) & LAST_BYTE
            to = at + ends[value]
            ends[value] += 1
            room[to], other[to] = keys[place], rows[place]
        keys[at:end], rows[at:end] = room[at:end], other[at:end]


@compiled
def sort_by_insertion(keys: Keys, rows: Int64s, at: int, end: int) -> None:
    """Sort keys and rows from one place to another, a few of them."""
    for place in range(at + 1, end):
        key, row, before = keys[place], rows[place], place
        while before > at and keys[before - 1] > key:
            keys[before], rows[before] = keys[before - 1], rows[before - 1]
            before -= 1
        keys[before], rows[before] = key, row


@compiled
def sort_long_run(keys: Keys, rows: Int64s, room: Keys, other: Int64s, at: int, end: int, differ: np.uint64) -> None:
    """Sort keys and rows from one place to another, of which these bits are not all the same.

    By as many of the first bytes that differ as tell random values apart; what is equal then goes on by those behind.
    """
    top = 7
    while (differ >> np.uint64(8 * top)) & LAST_BYTE == 0:
        top -= 1
    bottom = max(top - (1 if end - at <= TOLD_BY_TWO_BYTES else 2), 0)
    sort_by_bytes(keys, rows, room, other, at, end, bottom, top)
    shift, first = np.uint64(8 * bottom), at
    for place in range(at + 1, end + 1):
        if place == end or keys[place] >> shift != keys[first] >> shift:
            if place - first <= SHORT_RUN:
                sort_by_insertion(keys, rows, first, place)
            else:
                sort_by_bytes(keys, rows, room, other, first, place, 0, bottom - 1)
            first = place


@compiled
def sort_runs(values: Keys, rows: Int64s, starts: Any) -> None:
    """Sort rows by their values within each run, keeping the order of equal ones, and mark where new runs start."""
    count, at = len(rows), 0
    keys, room, other = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.int64)
    while at < count:
        end = at + 1
        while end < count and not starts[end]:
            end += 1
        if end - at > 1:
            differ = np.uint64(0)
            for place in range(at, end):
                keys[place] = values[rows[place]]
                differ |= keys[place] ^ keys[at]
            if end - at <= SHORT_RUN:
                sort_by_insertion(keys, rows, at, end)
            elif differ:
                sort_long_run(keys, rows, room, other, at, end, differ)
            for place in range(at + 1, end):
                starts[place] = keys[place] != keys[place - 1]
        at = end


@compiled
def group_texts(
    data: Bytes,
    words: Keys,
    offsets: Int64s,
    groups: NDArray[np.uint16],
    firsts: Int64s,
    near: Bytes,
    near_words: Keys,
    places: Int64s,
) -> None:
    """Copy texts to `near`, each behind those of its group, the first of which has the place that `firsts` says.

    Fills in where the text of each place begins, and the last one ends. As `write_texts` does, `near` has room for it.
    """
    count, size = len(groups), np.uint64(len(data))
    ends, rows = np.zeros(len(firsts) + 1, np.uint64), firsts.copy()
    for row in range(count):
        ends[groups[row] + 1] += np.uint64(offsets[row + 1] - offsets[row])
    for group in range(len(firsts)):
        ends[group + 1] += ends[group]
    limits = ends[1:].copy()
    for row in range(count):
        group = groups[row]
        at, start = ends[group], np.uint64(offsets[row])
        length = np.uint64(offsets[row + 1]) - start
        places[rows[group]] = at
        rows[group] += 1
        ends[group] = at + length
        # Behind the last texts of a group stand those of the next, which may be there already.
        if start + length + WORD_SLACK <= size and at + length + WORD_SLACK <= limits[group]:
            near_words[at] = words[start]
            near_words[at + EIGHT] = words[start + EIGHT]
            word = SIXTEEN
            while word < length:
                near_words[at + word] = words[start + word]
                word += EIGHT
        else:
            for byte in range(length):
                near[at + np.uint64(byte)] = data[start + np.uint64(byte)]
    places[count] = limits[-1]


@compiled
def write_texts(data: Bytes, words: Keys, offsets: Int64s, rows: Int64s, out: Bytes, out_words: Keys) -> int:
    """Write the texts of these rows, each behind its length; gives where they end.

    `words` and `out_words` are data and output at every byte, eight bytes each: a text is copied by sixteen and then by
    eight, and what that is too much is written over by the next. `out` has `MOST_LENGTH_BYTES` for each length, and
    `WORD_SLACK` bytes more than it needs. A number without a sign is no index from the end.
    """
    at, size = np.uint64(0), np.uint64(len(data))
    for each in rows:
        row = np.uint64(each)
        start = np.uint64(offsets[row])
        length = np.uint64(offsets[row + ONE]) - start
        rest = length
        while rest > SEVEN_BITS:
            out[at] = np.uint8((rest & SEVEN_BITS) | (SEVEN_BITS + ONE))
            at += ONE
            rest >>= np.uint64(7)
        out[at] = np.uint8(rest)
        at += ONE
        if start + length + WORD_SLACK <= size:
            out_words[at] = words[start]
            out_words[at + EIGHT] = words[start + EIGHT]
            word = SIXTEEN
            while word < length:
                out_words[at + word] = words[start + word]
                word += EIGHT
        else:
            for byte in range(length):
                out[at + np.uint64(byte)] = data[start + np.uint64(byte)]
        at += length
    return int(at)
