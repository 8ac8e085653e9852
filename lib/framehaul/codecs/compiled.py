"""The compiled loops of the codecs for binary COPY and ClickHouse's Native format.

They are in one file because numba's cache notices changes in a loop's own file only, not in other files that it calls.
Other modules call loops as attributes of this module, because `start_numba` replaces them.
"""

from __future__ import annotations

import threading
from string import hexdigits
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    type Bytes = NDArray[np.uint8]
    type Int32s = NDArray[np.int32]
    type Int64s = NDArray[np.int64]
    type Keys = NDArray[np.uint64]

MOST_BYTES = (1 << 31) - 1
"""The largest offset in a view, or in an array of plain strings."""
INLINE_BYTES = 12
"""The longest text that is stored inside its string view."""
MOST_INLINE = np.uint64(INLINE_BYTES)
SLACK = bytes(INLINE_BYTES + 4)
"""Bytes that must follow the data, because texts are read in whole words and then masked."""
WORD_SLACK = np.uint64(32)
"""Bytes after the end of a text that copying by words may overwrite."""
KEPT_BYTES = np.array(
    [[(1 << 8 * min(length, 8)) - 1, (1 << 8 * max(length - 8, 0)) - 1] for length in range(INLINE_BYTES + 1)],
    np.uint64,
)
"""Masks, by the length of an inline text, of its bytes in the two words that are read."""
NOT_ASCII = np.uint64(0x8080808080808080)
"""A mask of the highest bit of each byte, which is set in bytes above 127."""
MOST_FIELD_BYTES = 1 << 30
"""The longest field in PostgreSQL: https://www.postgresql.org/docs/18/limits.html"""
ROW_CUT, TRAILER, OTHER_COUNT, OTHER_LENGTH, OTHER_WIDTH, NO_SINGLE_ROW, NO_DECIMAL = range(7)
"""The reasons why `decode_rows` ended."""
NUMERIC, ANY_BYTES, TEXT_BYTES, UUID_BYTES = -2, -1, 0, 16
"""The widths of fields that are not numbers of a fixed width; NUMERIC - scale is that of a numeric with a scale."""
GROUP, DIGITS_OF_A_GROUP, MOST_GROUPS = 10_000, 4, 10
"""The base of the digits of a numeric, their decimal digits, and the most in front of the point in 38 digits."""
NEGATIVE, MOST_HIGH = 0x4000, np.uint64(2**63 - 1)
"""The sign of a numeric below zero, and the greatest upper half of a signed integer."""
ARRAY_HEAD_BYTES, DIMENSION_BYTES = 12, 8
"""The bytes before the dimensions of an array, and of each dimension."""
MESSAGE_HEAD_BYTES = 5
"""The bytes of the type and the length of a message: https://www.postgresql.org/docs/18/protocol-message-formats.html"""
COPY_DATA, DASH = ord("d"), ord("-")
UUID_TEXT_BYTES, UUID_DASHES = 36, (8, 13, 18, 23)
UUID_DIGITS = np.delete(np.arange(UUID_TEXT_BYTES, dtype=np.uint64), UUID_DASHES).reshape(2, 16)
"""The places of the digits in the text of a UUID, for each half."""
NO_DIGIT = np.uint8(16)
DIGIT_OF = np.array([int(chr(byte), 16) if chr(byte) in hexdigits else NO_DIGIT for byte in range(256)], np.uint8)
"""The value of each byte as a hexadecimal digit."""
EVERY_BYTE, EVERY_OTHER_BYTE = np.uint64(0x0101010101010101), np.uint64(0x00FF00FF00FF00FF)
EVERY_OTHER_PAIR, LOW_DIGITS = np.uint64(0x0000FFFF0000FFFF), np.uint64(0x000F000F000F000F)
LOW_HALF, ZERO, TO_LETTERS = np.uint64(0xFFFFFFFF), np.uint64(ord("0")), np.uint64(ord("a") - ord("9") - 1)
ONE, TWO, FOUR, SIX, EIGHT, SIXTEEN = [np.uint64(number) for number in (1, 2, 4, 6, 8, 16)]
THIRTY_TWO, FORTY, SIXTY_THREE = [np.uint64(number) for number in (32, 40, 63)]
SEVEN_BITS, LAST_BYTE = np.uint64(127), np.uint64(255)
SHORT_RUN = 24
"""The longest run that is sorted faster by comparison than by counting bytes."""
DISTINCT_BY_TWO_BYTES = 1 << 19
"""The most rows that two random bytes separate into short runs."""
MOST_LENGTH_BYTES = 5
"""The most bytes of a text's length in Native, for texts below 32 GiB."""
LINE_BYTES, OFFSETS_OF_A_LINE = 64, 8
"""The bytes and the offsets in a cache line."""
CLOSE = 4
"""Texts are close together if at least one in this many is read."""
COMPILING = threading.RLock()
_WAITING: list[str] = []
"""The names of the loops, until numba starts."""
_left_bytes = [1 << 19]
"""The bytes that a process may still decode without numba, in about as long as numba takes to start."""


def compiled[F: Callable[..., Any]](function: F) -> F:
    """Mark a loop that `start_numba` compiles to machine code, which releases the interpreter's lock."""
    _WAITING.append(function.__name__)
    return function


def numba_waits() -> bool:
    """Return whether numba, which takes half a second to start, has not been started."""
    return bool(_WAITING)


def start_numba(size: int | None = None) -> None:
    """Compile the loops, unless they are to take only `size` bytes and plain Python ends sooner.

    Machine code is cached on the machine. Compilation is serialised: if two threads make the first call, one may fail
    with a KeyError in numba 0.68.1. Numba's own lock covers only the compilation:
    https://github.com/numba/numba/issues/2517
    """
    if not _WAITING:
        return
    if size is not None and size <= _left_bytes[0]:
        _left_bytes[0] -= size
        return
    import numba

    def dispatcher_of(function: Callable[..., Any]) -> Any:
        dispatcher: Any = numba.njit(nogil=True, cache=True)(function)
        compile_for = dispatcher._compile_for_args

        def one_at_a_time(*arguments: Any) -> Any:
            with COMPILING:
                return compile_for(*arguments)

        dispatcher._compile_for_args = one_at_a_time
        return dispatcher

    with COMPILING:
        globals().update({name: dispatcher_of(globals()[name]) for name in _WAITING})
        _WAITING.clear()


def for_reading[A: NDArray[Any]](array: A) -> A:
    """Return a read-only view of the array, because loops are compiled once more for writable arrays."""
    view = array.view()
    view.flags.writeable = False
    return view


NO_WORDS = as_strided(np.zeros(16, np.uint8)[:8].view(np.uint64), (2,), (1,))
"""A placeholder of the type of `words_of_eight` for data without a whole word."""


def words_of_eight(data: Bytes) -> Keys:
    """Return a view of the data as overlapping numbers: the eight bytes that begin at each byte."""
    if len(data) <= 7:  # noqa: PLR2004  bytes of a word
        return NO_WORDS if data.flags.writeable else for_reading(NO_WORDS)
    return as_strided(data[:8].view(np.uint64), (len(data) - 7,), (1,))


def views_of(data: Bytes, starts: Int32s, lengths: Int32s, *, plain: bool = False) -> tuple[list[Any], Int32s]:
    """Return the two buffers of an array of string views for texts in the data, and the rows that may not be UTF-8.

    The first buffer holds the views, the second the text outside of views. If `plain`, the buffers are the offsets and
    the text of an array of large strings.
    """
    rows, kept = np.empty(len(starts), np.int32), np.maximum(lengths, 0).sum(dtype=np.int64)
    texts = np.empty(int(kept) + int(WORD_SLACK), np.uint8)
    places = np.empty((len(starts) + 1, 1) if plain else (len(starts), 2), np.uint64)
    words = words_of_eight(for_reading(data))
    suspects = view_texts(words, starts, lengths, plain, places, words_of_eight(texts), rows)
    return [places, texts], rows[:suspects]


def not_utf8(data: Bytes, starts: Int32s, lengths: Int32s) -> list[int]:
    """Return the positions of the texts, given as start and length in the data, that are not UTF-8."""
    if not len(starts):
        return []
    try:
        arrow_array(pa.string_view(), len(starts), None, views_of(data, starts, lengths)[0]).validate(full=True)
    except pa.ArrowInvalid:
        texts = [data[start : start + length].tobytes() for start, length in zip(starts, lengths, strict=True)]
        return [at for at, text in enumerate(texts) if text.decode(errors="ignore").encode() != text]
    return []


def uuid_views_of(halves: Keys, *, reverse: bool, plain: bool = False) -> list[Any]:
    """Return the two buffers of UUIDs as string views, or as `plain` strings, from halves as in `view_uuids`.

    Raises ValueError for more than string views can point to.
    """
    if len(halves) * UUID_TEXT_BYTES > MOST_BYTES:
        raise ValueError(f"UUIDs of a block take more than {MOST_BYTES:,} bytes as text: ask for smaller blocks")
    views, texts = np.empty_like(halves), np.empty(len(halves) * UUID_TEXT_BYTES, np.uint8)
    view_uuids(halves, reverse, words_of_eight(texts), views)
    return [np.arange(0, (len(halves) + 1) * UUID_TEXT_BYTES, UUID_TEXT_BYTES) if plain else views, texts]


def arrow_array(arrow: pa.DataType, rows: int, validity: Bytes | None, buffers: list[Any]) -> pa.Array:
    """Return an Arrow array in numpy buffers."""
    made = [None if buffer is None else pa.py_buffer(buffer) for buffer in (validity, *buffers)]
    return pa.Array.from_buffers(arrow, rows, made)


@compiled
def view_texts(
    words: Keys, starts: Int32s, lengths: Int32s, plain: bool, places: Keys, text_words: Keys, suspects: Int32s
) -> int:
    """Fill in the string view of each text, and append texts that are too long for a view to a buffer.

    If `plain`, `places` are the offsets of the texts in place of views, and the buffer gets all texts. `words` and
    `text_words` are the `words_of_eight` of data and buffer; each word overwrites the excess bytes of the previous one.
    A length of -1 is NULL. Returns the number of `suspects`, rows that may have bytes above 127: only they can be
    invalid UTF-8. The loop calls no function with arrays, because counting references takes six times as long.
    https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout
    """
    free, count = np.uint64(0), 0
    for row in range(len(starts)):
        at, length = np.uint64(starts[row]), np.uint64(max(lengths[row], 0))
        first, second = words[at], words[at + EIGHT]
        if plain or length > MOST_INLINE:
            if plain:
                places[row, 0] = free
            else:
                places[row, 0] = length | (first << THIRTY_TWO)
                places[row, 1] = free << THIRTY_TWO  # in the only buffer after the views
            text_words[free], text_words[free + EIGHT] = first, second
            first |= second
            done = np.uint64(16)
            while done < length:
                text_words[free + done] = words[at + done]
                first |= words[at + done]  # the last word may include bytes after the text
                done += EIGHT
            free += length
        else:
            first, second = first & KEPT_BYTES[length, 0], second & KEPT_BYTES[length, 1]
            places[row, 0] = length | (first << THIRTY_TWO)
            places[row, 1] = (first >> THIRTY_TWO) | (second << THIRTY_TWO)
            first |= second
        if first & NOT_ASCII:
            suspects[count] = row
            count += 1
    if plain:
        places[len(starts), 0] = free
    return count


@compiled
def reversed_bytes(word: np.uint64) -> np.uint64:
    """Return a word with its eight bytes reversed."""
    word = ((word >> EIGHT) & EVERY_OTHER_BYTE) | ((word & EVERY_OTHER_BYTE) << EIGHT)
    word = ((word >> SIXTEEN) & EVERY_OTHER_PAIR) | ((word & EVERY_OTHER_PAIR) << SIXTEEN)
    return (word >> THIRTY_TWO) | (word << THIRTY_TWO)


@compiled
def hex_digits(half: np.uint64) -> np.uint64:
    """Return the lower four bytes of a word as eight hexadecimal digits of text."""
    half = (half | (half << SIXTEEN)) & EVERY_OTHER_PAIR
    half = (half | (half << EIGHT)) & EVERY_OTHER_BYTE
    digits = ((half >> FOUR) & LOW_DIGITS) | ((half & LOW_DIGITS) << EIGHT)
    letters = ((digits + EVERY_BYTE * SIX) >> FOUR) & EVERY_BYTE
    return digits + EVERY_BYTE * ZERO + letters * TO_LETTERS


@compiled
def view_uuids(halves: Keys, reverse: bool, words: Keys, views: Keys) -> None:
    """Write UUIDs as 8-4-4-4-12 digits, and a view of each; `words` is the `words_of_eight` of the text.

    The bytes of each half are in the order of the text, or in `reverse`, as in little-endian integers. Each word
    overwrites the excess bytes of the previous one.
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
def find_texts(data: Bytes, at: int, starts: Int32s, lengths: Int32s, done: int) -> tuple[int, int, bool]:
    """Fill in start and length of the texts from position `at` and row `done` on; each text follows its length.

    A length is a LEB128 number of at most nine bytes, which fits into 63 bits. Returns the number of texts in the data,
    their end, and whether an impossible length follows.
    """
    for row in range(done, len(starts)):
        length, shift, start, byte = 0, 0, at, 128
        while byte > 127:  # noqa: PLR2004  the most in seven bits
            if start == len(data) or shift == 63:  # noqa: PLR2004
                return row, at, start < len(data)
            byte = int(data[start])
            length |= (byte & 127) << shift
            start += 1
            shift += 7
        if length > MOST_BYTES - at:
            return row, at, True
        if length > len(data) - start:
            return row, at, False
        starts[row], lengths[row] = start, length
        at = start + length
    return len(starts), at, False


@compiled
def numeric_halves(data: Bytes, at: int, length: int, scale: int) -> tuple[np.uint64, np.uint64, bool]:
    """Return a numeric as a 128-bit integer of 10 ** -scale, low half first, and whether it is one.

    It is none if it is NaN or infinite, has digits beyond the scale, or more than 128 bits.
    https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/numeric.c (numeric_send)
    """
    low, high = np.uint64(0), np.uint64(0)
    if length < EIGHT:
        return low, high, False
    count = (int(data[at]) << 8) | int(data[at + 1])
    weight = int(np.int16((np.uint16(data[at + 2]) << 8) | data[at + 3]))
    sign = (int(data[at + 4]) << 8) | int(data[at + 5])
    last = -((scale + DIGITS_OF_A_GROUP - 1) // DIGITS_OF_A_GROUP)
    if length != 8 + 2 * count or (sign != 0 and sign != NEGATIVE) or (count > 0 and weight >= MOST_GROUPS):  # noqa: PLR1714  numba
        return low, high, False
    if count > max(0, weight - last + 1):
        return low, high, False
    for place in range(count and weight - last + 1):
        digit, factor, start = 0, GROUP, at + 8 + 2 * place
        if place < count:
            digit = (int(data[start]) << 8) | int(data[start + 1])
        if weight - place == last and scale % DIGITS_OF_A_GROUP:
            factor = 10 ** (scale % DIGITS_OF_A_GROUP)
            if digit % (GROUP // factor):
                return low, high, False
            digit //= GROUP // factor
        by = np.uint64(factor)
        if digit >= GROUP or high >= MOST_HIGH // by:
            return low, high, False
        lower = (low & LOW_HALF) * by + np.uint64(digit)
        upper = (low >> THIRTY_TWO) * by + (lower >> THIRTY_TWO)
        low, high = (upper << THIRTY_TWO) | (lower & LOW_HALF), high * by + (upper >> THIRTY_TWO)
    if sign == NEGATIVE:
        low, high = ~low + ONE, ~high + (ONE if low == np.uint64(0) else np.uint64(0))
    return low, high, (high >> SIXTY_THREE == ONE) == (sign == NEGATIVE) or (low | high) == np.uint64(0)


@compiled
def decode_rows(  # noqa: C901, PLR0911, PLR0912, PLR0915  calling a function with arrays costs more than decoding
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
    """Decode whole rows of binary COPY from the start of the data to `end`, at most as many as fit into `numbers`.

    `words` is the `words_of_eight` of the data. If `head` is not 0, each row is in a separate message, after `head`
    bytes. Outputs:

    - `numbers` [field, row]: fields of a fixed width, as unsigned numbers; with `plain`, the ends of texts.
    - `views` [field, row, half]: the bytes of a UUID, the 128 bits of a numeric, and views of texts.
    - `texts`, per field from `bases` to `free`: texts too long for a view, or all if `plain`.
    - `nulls` [field, row]: 1 for NULL, whose value is zero or an empty text.
    - `suspects` [field, row, start, length]: texts that may have bytes above 127; only they can be invalid UTF-8.

    Returns the number of rows, their end (with the trailer), the number of suspects, the reason why decoding ended, and
    the field and the number of a fault. Reasons are ROW_CUT at the end of data or room, TRAILER, and faults: a row with
    OTHER_COUNT of fields, a field of OTHER_LENGTH or OTHER_WIDTH, a numeric that is NO_DECIMAL of its column, a message
    that is NO_SINGLE_ROW.
    """
    size, at = np.uint64(end), np.uint64(0)  # unsigned: numba treats signed indexes as possibly negative
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
            elif width <= NUMERIC:
                low, high, is_decimal = numeric_halves(data, int(at), int(number), NUMERIC - width)
                if not is_decimal:
                    return row, int(begin), count, NO_DECIMAL, index, 0
                views[field, this, 0], views[field, this, 1] = low, high
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
                        first |= words[at + done]  # the last word may include bytes after the text
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
def split_arrays(data: Bytes, offsets: Int64s, nulls: NDArray[np.bool_], ends: Int32s, rows: Bytes) -> int:
    """Write the elements of arrays as rows of binary COPY with one field; fill in where each array's elements end.

    `ends` begins with 0. Returns the number of bytes, or -1 for an array that is damaged or of several dimensions.
    https://github.com/postgres/postgres/blob/master/src/backend/utils/adt/arrayfuncs.c (array_send)
    """
    to = elements = 0
    for row in range(len(nulls)):
        at, end = offsets[row], offsets[row + 1]
        if not nulls[row]:
            if end - at < ARRAY_HEAD_BYTES:
                return -1
            dimensions = number_at(data, at)
            at += ARRAY_HEAD_BYTES
            count = 0
            if dimensions:
                if dimensions != 1 or end - at < DIMENSION_BYTES:
                    return -1
                count = number_at(data, at)
                at += DIMENSION_BYTES
            for _ in range(count):
                if end - at < 4:  # noqa: PLR2004  bytes of a length
                    return -1
                length = number_at(data, at)
                if length < -1 or length > end - at - 4:
                    return -1
                size = 4 + max(0, length)
                rows[to], rows[to + 1] = 0, 1
                rows[to + 2 : to + 2 + size] = data[at : at + size]
                to += 2 + size
                at += size
            if at != end:
                return -1
            elements += max(0, count)
        ends[row + 1] = elements
    return to


@compiled
def number_at(data: Bytes, at: int) -> int:
    """Return the signed 32 bits at a place, in network order."""
    high, low = (int(data[at]) << 8) | int(data[at + 1]), (int(data[at + 2]) << 8) | int(data[at + 3])
    return int(np.int32(np.uint32((high << 16) | low)))


@compiled
def parse_uuids(data: Bytes, offsets: Int64s, nulls: Bytes, halves: Keys) -> int:
    """Fill in both halves of UUIDs of 8-4-4-4-12 digits; return the first row that is neither UUID nor NULL, or -1."""
    for row in range(len(nulls)):
        if nulls[row]:
            continue
        at = np.uint64(offsets[row])
        if offsets[row + 1] - offsets[row] != UUID_TEXT_BYTES:
            return row
        wrong = np.uint8(0)
        for dash in UUID_DASHES:
            if data[at + np.uint64(dash)] != DASH:
                return row
        for half in range(2):
            number = np.uint64(0)
            for place in UUID_DIGITS[half]:
                digit = DIGIT_OF[data[at + place]]
                wrong |= digit
                number = (number << FOUR) | np.uint64(digit)
            halves[half, row] = number
        if wrong >= NO_DIGIT:
            return row
    return -1


@compiled
def eight_bytes(data: Bytes, offsets: Int64s, skipped: int, keys: Keys) -> None:
    """Fill in the eight bytes of each text after the `skipped` ones, as a number that sorts as the texts do."""
    for row in range(len(keys)):
        key, start, end = np.uint64(0), offsets[row] + skipped, offsets[row + 1]
        for index in range(8):
            byte = data[start + index] if start + index < end else np.uint8(0)
            key = (key << EIGHT) | np.uint64(byte)
        keys[row] = key


@compiled
def sort_by_bytes(
    keys: Keys, rows: Int64s, room: Keys, other: Int64s, at: int, end: int, first: int, last: int
) -> None:
    """Sort keys and rows of a range of places by the bytes from `first` to `last` of the keys; byte 0 is the lowest."""
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
    """Sort keys and rows of a short range of places by insertion."""
    for place in range(at + 1, end):
        key, row, before = keys[place], rows[place], place
        while before > at and keys[before - 1] > key:
            keys[before], rows[before] = keys[before - 1], rows[before - 1]
            before -= 1
        keys[before], rows[before] = key, row


@compiled
def sort_long_run(keys: Keys, rows: Int64s, room: Keys, other: Int64s, at: int, end: int, differ: np.uint64) -> None:
    """Sort keys and rows of a range of places; `differ` has the bits in which the keys differ.

    It first sorts by as many differing bytes as separate random values, and then equal keys by the lower bytes.
    """
    top, lowest = 7, int(np.int64(0))  # a literal 0 would make numba compile the called functions once more
    while (differ >> np.uint64(8 * top)) & LAST_BYTE == 0:
        top -= 1
    bottom = max(top - (1 if end - at <= DISTINCT_BY_TWO_BYTES else 2), lowest)
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
    """Sort rows stably by their values within each run, and mark where new runs start."""
    count, at = len(rows), int(np.int64(0))  # no literal 0, as above
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
    data: Bytes, words: Keys, offsets: Int64s, groups: Any, firsts: Int64s, out: Bytes, out_words: Keys, places: Int64s
) -> None:
    """Copy texts to `out`, grouped by `groups`, and fill in their offsets by place; `firsts` begin the groups.

    `out` has `WORD_SLACK` bytes more than the texts, as in `write_texts`.
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
        # The excess bytes of a word must not overwrite the next group, whose texts may already be copied.
        if start + length + WORD_SLACK <= size and at + length + WORD_SLACK <= limits[group]:
            out_words[at] = words[start]
            out_words[at + EIGHT] = words[start + EIGHT]
            word = SIXTEEN
            while word < length:
                out_words[at + word] = words[start + word]
                word += EIGHT
        else:
            for byte in range(length):
                out[at + np.uint64(byte)] = data[start + np.uint64(byte)]
    places[count] = limits[-1]


@compiled
def texts_bytes(data: Bytes, offsets: Int64s, rows: Int64s) -> int:
    """Return the number of bytes in the texts of these rows, of which there must be at least one.

    If the texts are close together, their memory is read sequentially. Gathering the texts in any order afterwards
    finds them in a core's cache and takes half the time.
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
    size = int(seen > 0)  # always 0, but without this use a compiler omits the reads above
    for row in rows:
        size += offsets[row + 1] - offsets[row]
    return size


@compiled
def write_texts(data: Bytes, words: Keys, offsets: Int64s, rows: Int64s, out: Bytes, out_words: Keys) -> int:
    """Write the texts of these rows, each after its length, and return where they end.

    `words` and `out_words` are the `words_of_eight` of data and output. The next text overwrites the excess bytes of
    the last word. `out` has `MOST_LENGTH_BYTES` for each length, and `WORD_SLACK` bytes more than it needs. Unsigned
    numbers avoid numba's handling of negative indexes.
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
