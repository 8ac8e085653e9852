"""The loops of the decoders of COPY's binary format and of ClickHouse's Native format, compiled by numba.

They stand in one file because numba notices a change only in the file of a loop itself, not in what the loop calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from framehaul.data.text import (
    EIGHT,
    KEPT_BYTES,
    MOST_BYTES,
    MOST_INLINE,
    NOT_ASCII,
    SIXTEEN,
    THIRTY_TWO,
    TWENTY_FOUR,
    WORD_SLACK,
    compiled,
    words_of_eight,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from framehaul.data.text import Bytes, Int32s, Int64s, Keys

MOST_FIELD_BYTES = 1 << 30
"""Of a field in PostgreSQL: https://www.postgresql.org/docs/18/limits.html"""
CUT, TOO_LONG = -1, -2
"""In place of where a LEB128 number ends: it goes on behind the data, or has more bytes than a count can have."""
ROW_CUT, TRAILER, OTHER_COUNT, OTHER_LENGTH, OTHER_WIDTH, NO_SINGLE_ROW = range(6)
"""Why `decode_rows` ended."""
ANY_BYTES, TEXT_BYTES, UUID_BYTES = -1, 0, 16
"""In place of the width of a field that has no number in it."""
MESSAGE_HEAD_BYTES = 5
"""Of a message of PostgreSQL's protocol: its type and length, https://www.postgresql.org/docs/18/protocol-message-formats.html"""
COPY_DATA = ord("d")
UUID_TEXT_BYTES = 36
DASH = ord("-")
EVERY_BYTE, EVERY_OTHER_BYTE = np.uint64(0x0101010101010101), np.uint64(0x00FF00FF00FF00FF)
EVERY_OTHER_PAIR, LOW_DIGITS = np.uint64(0x0000FFFF0000FFFF), np.uint64(0x000F000F000F000F)
LOW_HALF, SECOND_PAIR, THIRD_PAIR = np.uint64(0xFFFFFFFF), np.uint64(0xFF0000), np.uint64(0xFF00)
ZERO, LOW_DIGIT, TO_LETTERS = np.uint64(ord("0")), np.uint64(15), np.uint64(ord("a") - ord("9") - 1)
FIVE, SIX, NINE = np.uint64(5), np.uint64(6), np.uint64(9)
FORTY, FORTY_EIGHT = np.uint64(40), np.uint64(48)
SHORT_RUN = 24
"""Rows up to which comparing all of them takes less time than counting their bytes."""
TOLD_BY_TWO_BYTES = 1 << 19
"""Rows of which two bytes that are random leave short runs."""
MOST_LENGTH_BYTES = 5
"""Of the length of a text in Native, as long as texts have less than 32 GiB."""
LINE_BYTES, OFFSETS_OF_A_LINE = 64, 8
"""Of a core's cache."""
CLOSE = 4
"""Of texts that stand close together one in so many is taken, or more."""
SEVEN_BITS = np.uint64(127)
ONE, TWO, FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
LAST_BYTE = np.uint64(255)


def uuid_views_of(halves: Keys, *, reverse: bool, plain: bool = False) -> list[Any]:
    """The two buffers of an array of UUIDs as text, of string views or `plain`; the halves as in `view_uuids`."""
    views, texts = np.empty_like(halves), np.empty(len(halves) * UUID_TEXT_BYTES, np.uint8)
    view_uuids(halves, reverse, words_of_eight(texts), views)
    return [np.arange(0, (len(halves) + 1) * UUID_TEXT_BYTES, UUID_TEXT_BYTES) if plain else views, texts]


def arrow_array(arrow: pa.DataType, rows: int, validity: Bytes | None, buffers: list[Any]) -> pa.Array:
    """An Arrow array of numpy buffers."""
    return pa.Array.from_buffers(
        arrow, rows, [None if buffer is None else pa.py_buffer(buffer) for buffer in (validity, *buffers)]
    )


@compiled
def reversed_bytes(word: np.uint64) -> np.uint64:
    """The eight bytes of a word in the other order."""
    word = ((word >> EIGHT) & EVERY_OTHER_BYTE) | ((word & EVERY_OTHER_BYTE) << EIGHT)
    word = ((word >> SIXTEEN) & EVERY_OTHER_PAIR) | ((word & EVERY_OTHER_PAIR) << SIXTEEN)
    return (word >> THIRTY_TWO) | (word << THIRTY_TWO)


@compiled
def hex_digits(half: np.uint64) -> np.uint64:
    """The eight hexadecimal digits, as text, of the four bytes that are the lower half of a word."""
    half = (half | (half << SIXTEEN)) & EVERY_OTHER_PAIR
    half = (half | (half << EIGHT)) & EVERY_OTHER_BYTE
    digits = ((half >> FOUR) & LOW_DIGITS) | ((half & LOW_DIGITS) << EIGHT)
    letters = ((digits + EVERY_BYTE * SIX) >> FOUR) & EVERY_BYTE
    return digits + EVERY_BYTE * ZERO + letters * TO_LETTERS


@compiled
def view_uuids(halves: Keys, reverse: bool, words: Keys, views: Keys) -> None:
    """Write UUIDs, 8-4-4-4-12 digits, and a view for each; `words` is the text at every byte, eight bytes each.

    The halves have their bytes in the order of the text, or in `reverse`: then each is a little-endian integer. What a
    word has too much is written over by the next.
    """
    for row in range(len(halves)):
        high, low, at = halves[row, 0], halves[row, 1], np.uint64(row * UUID_TEXT_BYTES)
        if reverse:
            high, low = reversed_bytes(high), reversed_bytes(low)
        first, second = hex_digits(high & LOW_HALF), hex_digits(high >> THIRTY_TWO)
        third, fourth = hex_digits(low & LOW_HALF), hex_digits(low >> THIRTY_TWO)
        dash = np.uint64(DASH)
        words[at] = first
        words[at + np.uint64(8)] = dash | (second << EIGHT)
        words[at + np.uint64(13)] = dash | (second >> THIRTY_TWO << EIGHT) | (dash << FORTY)
        words[at + np.uint64(19)] = (third & LOW_HALF) | (dash << THIRTY_TWO)
        words[at + np.uint64(24)] = third >> THIRTY_TWO
        words[at + np.uint64(28)] = fourth
        views[row, 0] = np.uint64(UUID_TEXT_BYTES) | (first << THIRTY_TWO)
        views[row, 1] = at << THIRTY_TWO


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
def decode_rows(  # noqa: C901, PLR0911, PLR0912, PLR0915  calls with arrays cost more than all that one does
    data: Bytes,
    words: Keys,
    end: int,
    head: int,
    plain: bool,
    widths: Int64s,
    bases: Keys,
    numbers: Keys,
    views: Keys,
    text_words: Keys,
    free: Keys,
    nulls: Bytes,
    suspects: Int32s,
) -> tuple[int, int, int, int, int, int]:
    """Decode the whole rows of binary COPY from the start of the data to `end`, as long as `numbers` has room for them.

    `words` is the data at every byte, eight bytes each. Where `head` is not 0 each row stands in a message of its own,
    with so many bytes in front. A field of a width goes to `numbers` [field, row] as an unsigned number, a UUID's bytes
    to `views` [field, row, half]; of a text there is the view, and from `bases` [field] on to `free` [field] the text
    that is not in it, copied as `write_texts` does. Where `plain`, all of a text is there, and `numbers` has where it
    ends. `nulls` [field, row] is set for NULL, with zeros, or an empty text, in its place.

    Texts with bytes above 127, or so it seems, are noted in `suspects`, [field, row, start, length] of each: only those
    can be anything but UTF-8.

    Gives the number of rows, where they end (with the trailer), how many suspects there are, and what came instead of a
    further row: ROW_CUT where the data, or the room, end, TRAILER, a row with OTHER_COUNT of fields, a field of
    OTHER_LENGTH or OTHER_WIDTH, or a message that is NO_SINGLE_ROW; in which field, and the number.
    """
    size, at = np.uint64(end), np.uint64(0)  # numbers without a sign are no indexes from the end
    row, count, most, fields = 0, 0, numbers.shape[1], len(widths)
    cut = NO_SINGLE_ROW if head else ROW_CUT
    free[:] = bases
    while row < most and size - at >= np.uint64(head) + TWO:
        begin, stop = at, size
        if head:
            stop = at + ONE + (reversed_bytes(words[at + ONE]) >> THIRTY_TWO)
            if data[at] != COPY_DATA or stop > size:
                break
            at += np.uint64(head)
            if stop < at + TWO:
                return row, int(begin), count, NO_SINGLE_ROW, 0, 0
        came = np.int16((np.uint16(data[at]) << 8) | data[at + ONE])
        at += TWO
        if came == -1:
            return row, int(at), count, TRAILER if at == stop or not head else NO_SINGLE_ROW, 0, 0
        if came != fields:
            return row, int(begin), count, OTHER_COUNT, 0, int(came)
        for index in range(fields):
            field, this, width = np.uint64(index), np.uint64(row), widths[index]
            if stop - at < FOUR:
                return row, int(begin), count, cut, 0, 0
            number = np.int32(reversed_bytes(words[at]) >> THIRTY_TWO)
            at += FOUR
            if number == -1:
                nulls[field, this] = 1
                numbers[field, this] = free[field] - bases[field]
                views[field, this, 0] = views[field, this, 1] = np.uint64(0)
                continue
            if number < 0 or number > MOST_FIELD_BYTES:
                return row, int(begin), count, OTHER_LENGTH, index, int(number)
            length = np.uint64(number)
            if stop - at < length:
                return row, int(begin), count, cut, 0, 0
            if width > 0 and number != width:
                return row, int(begin), count, OTHER_WIDTH, index, int(number)
            if width == UUID_BYTES:
                views[field, this, 0], views[field, this, 1] = words[at], words[at + EIGHT]
            elif width > 0:
                numbers[field, this] = reversed_bytes(words[at]) >> np.uint64(64 - 8 * width)
            else:
                first, second = words[at], words[at + EIGHT]
                if length <= MOST_INLINE:
                    first, second = first & KEPT_BYTES[length, 0], second & KEPT_BYTES[length, 1]
                if plain or length > MOST_INLINE:
                    to = free[field]
                    if plain:
                        numbers[field, this] = to + length - bases[field]
                    else:
                        views[field, this, 0] = length | (first << THIRTY_TWO)
                        views[field, this, 1] = (to - bases[field]) << THIRTY_TWO
                    text_words[to], text_words[to + EIGHT] = first, second
                    first |= second
                    done = np.uint64(16)
                    while done < length:
                        text_words[to + done] = words[at + done]
                        first |= words[at + done]  # of the last word some bytes are no longer of this text
                        done += EIGHT
                    free[field] = to + length
                else:
                    views[field, this, 0] = length | (first << THIRTY_TWO)
                    views[field, this, 1] = (first >> THIRTY_TWO) | (second << THIRTY_TWO)
                    first |= second
                if first & NOT_ASCII and width == TEXT_BYTES:
                    suspects[0, count], suspects[1, count] = index, row
                    suspects[2, count], suspects[3, count] = at, number
                    count += 1
            at += length
        if head and at != stop:
            return row, int(begin), count, NO_SINGLE_ROW, 0, 0
        row += 1
    return row, int(at), count, ROW_CUT, 0, 0


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
    top, lowest = 7, int(np.int64(0))  # for a plain 0 all that it is given to would be compiled once more
    while (differ >> np.uint64(8 * top)) & LAST_BYTE == 0:
        top -= 1
    bottom = max(top - (1 if end - at <= TOLD_BY_TWO_BYTES else 2), lowest)
    sort_by_bytes(keys, rows, room, other, at, end, bottom, top)
    shift, first = np.uint64(8 * bottom), at
    for place in range(at + 1, end + 1):
        if place == end or keys[place] >> shift != keys[first] >> shift:
            if place - first <= SHORT_RUN:
                sort_by_insertion(keys, rows, first, place)
            else:
                sort_by_bytes(keys, rows, room, other, first, place, lowest, bottom - 1)
            first = place


@compiled
def sort_runs(values: Keys, rows: Int64s, starts: Any) -> None:
    """Sort rows by their values within each run, keeping the order of equal ones, and mark where new runs start."""
    count, at = len(rows), int(np.int64(0))  # no plain 0, as above
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
def texts_bytes(data: Bytes, offsets: Int64s, rows: Int64s) -> int:
    """How many bytes the texts of these rows have, of which there is at least one.

    Where they stand close together memory is read forwards once on the way: whoever then takes them in their own order
    finds them in a core's cache, and need not wait for each, which takes twice as long.
    """
    first = last = rows[0]
    for row in rows:
        first, last = min(first, row), max(last, row)
    seen = 0
    if last - first < CLOSE * len(rows):
        for row in range(first, last, OFFSETS_OF_A_LINE):
            seen -= offsets[row]
        for at in range(offsets[first], offsets[last + 1], LINE_BYTES):
            seen -= data[at]
    size = int(seen > 0)  # which it never is; but what no result depends on a compiler leaves out
    for row in rows:
        size += offsets[row + 1] - offsets[row]
    return size


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
