"""Bytes that are called text are proven to be UTF-8, by loops that numba compiles.

What a loop calls stands in its own file: numba notices a change only there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import numba
import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    type Bytes = NDArray[np.uint8]
    type Int32s = NDArray[np.int32]
    type Int64s = NDArray[np.int64]
    type Keys = NDArray[np.uint64]

INLINE_BYTES = 12
"""Text up to this length is held by a string view itself."""
MOST_BYTES = (1 << 31) - 1
"""As far as an offset in a view, or in an array of plain strings, reaches."""
NOT_ASCII = np.uint64(0x8080808080808080)
"""The bits that only bytes above 127 have."""
EIGHT, SIXTEEN, TWENTY_FOUR, THIRTY_TWO = np.uint64(8), np.uint64(16), np.uint64(24), np.uint64(32)
STRIDE = 64
"""Rows stepped over at once on the way to the next that is not ASCII."""
SLACK = bytes(INLINE_BYTES + 4)
"""What data must be followed by: a view is filled in by reading so far, and cutting off what is not text."""
SHOWN_BYTES = 24
"""Of text that is not UTF-8, in what is said of it."""

KEPT_BYTES = np.array(
    [
        [(1 << 8 * min(max(length - 8 * word, 0), 8 - 4 * word)) - 1 for word in range(2)]
        for length in range(INLINE_BYTES + 1)
    ],
    np.uint64,
)
"""Of the two words that a text in a view is read by: the bytes that belong to one of so many bytes."""
MOST_INLINE = np.uint64(INLINE_BYTES)
WORD_SLACK = np.uint64(32)
"""How far whoever copies text by words may write behind it."""


COMPILING = threading.RLock()


class NotTextError(ValueError):
    """A text is not UTF-8; the message says which, and how it can be read."""

    def __init__(self, name: str, row: int, value: bytes) -> None:
        shown = f"{value[:SHOWN_BYTES]!r}{'...' if len(value) > SHOWN_BYTES else ''}"
        super().__init__(f"column {name}, row {row:,}: {shown} is not UTF-8; read the column as binary")


def compiled[F: Callable[..., Any]](function: F) -> F:
    """The function as machine code that does not hold the interpreter's lock; compiled once per machine.

    One at a time: of two threads that call for the first time, one may fail in numba's compiler (0.68.1, a KeyError).
    Its own lock is around the compiling alone: https://github.com/numba/numba/issues/2517
    """
    dispatcher: Any = numba.njit(nogil=True, cache=True)(function)
    compile_for = dispatcher._compile_for_args

    def one_at_a_time(*arguments: Any) -> Any:
        with COMPILING:
            return compile_for(*arguments)

    dispatcher._compile_for_args = one_at_a_time
    return cast("F", dispatcher)


def for_reading[A: NDArray[Any]](array: A) -> A:
    """The same array as one that is not written to: loops are compiled for each kind of array that they are given."""
    seen = array.view()
    seen.flags.writeable = False
    return seen


NO_WORDS = as_strided(np.zeros(16, np.uint8)[:8].view(np.uint64), (2,), (1,))
"""What nobody looks at, of the kind that words are of."""


def words_of_eight(data: Bytes) -> Keys:
    """The eight bytes from each byte on as one number; what is written there is written to the data."""
    if len(data) <= 7:  # noqa: PLR2004  there is not one word
        return NO_WORDS if data.flags.writeable else for_reading(NO_WORDS)
    return as_strided(data[:8].view(np.uint64), (len(data) - 7,), (1,))


def views_of(data: Bytes, starts: Int32s, lengths: Int32s) -> tuple[list[Any], Int32s]:
    """The two buffers of an array of string views, of the texts in the data; and the rows that are not UTF-8.

    The first buffer holds the views, the second the text that is not in them.
    """
    data = for_reading(data)
    views, kept = np.empty((len(starts), 2), np.uint64), int(np.maximum(lengths, 0).sum(dtype=np.int64))
    texts, rows = np.empty(kept + int(WORD_SLACK), np.uint8), np.empty(len(starts), np.int32)
    suspects = view_texts(words_of_eight(data), starts, lengths, views, words_of_eight(texts), rows)
    return [views, texts], rows[: keep_invalid(data, starts, lengths, rows, suspects)]


def joined(data: Bytes, starts: Int32s, lengths: Int32s) -> tuple[list[Any], Int32s]:
    """The two buffers of an array of strings with large offsets, of the texts in the data; and rows as `views_of`."""
    data = for_reading(data)
    kept = int(np.maximum(lengths, 0).sum(dtype=np.int64))
    offsets, texts = np.empty(len(starts) + 1, np.int64), np.empty(kept + int(WORD_SLACK), np.uint8)
    rows = np.empty(len(starts), np.int32)
    suspects = join_texts(words_of_eight(data), starts, lengths, offsets, words_of_eight(texts), rows)
    return [offsets, texts], rows[: keep_invalid(data, starts, lengths, rows, suspects)]


def first_invalid_text(data: Bytes, offsets: Int32s | Int64s) -> int:
    """The first row of an Arrow array of strings, whose offsets are in place, that is not UTF-8; -1 where all are."""
    return find_invalid_text(data, words_of_eight(data), offsets)


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
def view_texts(words: Keys, starts: Int32s, lengths: Int32s, views: Keys, text_words: Keys, suspects: Int32s) -> int:
    """Fill in the string view of each text; those that are too long for it are copied to a buffer, one after the other.

    `words` and `text_words` are data and buffer at every byte, eight bytes each; what a word has too much is written
    over by the next. A length of -1 is NULL. All in one loop: a function called from it with arrays would count
    references for every text, which takes six times as long.
    https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout

    Gives how many rows have bytes above 127, or seem to, and notes them: only those can be anything but UTF-8.
    """
    free, count = np.uint64(0), 0
    for row in range(len(starts)):
        at, length = np.uint64(starts[row]), np.uint64(max(lengths[row], 0))
        first, second = words[at], words[at + EIGHT]
        if length > MOST_INLINE:
            views[row, 0] = length | (first << THIRTY_TWO)
            views[row, 1] = free << THIRTY_TWO  # of the first, and only, buffer behind the views
            text_words[free], text_words[free + EIGHT] = first, second
            first |= second
            done = np.uint64(16)
            while done < length:
                text_words[free + done] = words[at + done]
                first |= words[at + done]  # of the last word some bytes are no longer of this text: see "seem to"
                done += EIGHT
            free += length
        else:
            first, second = first & KEPT_BYTES[length, 0], second & KEPT_BYTES[length, 1]
            views[row, 0] = length | (first << THIRTY_TWO)
            views[row, 1] = (first >> THIRTY_TWO) | (second << THIRTY_TWO)
            first |= second
        if first & NOT_ASCII:
            suspects[count] = row
            count += 1
    return count


@compiled
def join_texts(
    words: Keys, starts: Int32s, lengths: Int32s, offsets: Int64s, text_words: Keys, suspects: Int32s
) -> int:
    """Copy texts to a buffer, one after the other, and note where each begins and the last one ends.

    `words` and `text_words` are data and buffer at every byte, and a length of -1 is NULL, as in `view_texts`, which
    says what is given.
    """
    free, count = np.uint64(0), 0
    for row in range(len(starts)):
        at, length = np.uint64(starts[row]), np.uint64(max(lengths[row], 0))
        offsets[row] = free
        first, second = words[at], words[at + EIGHT]
        text_words[free], text_words[free + EIGHT] = first, second
        first |= second
        done = SIXTEEN
        while done < length:
            text_words[free + done] = words[at + done]
            first |= words[at + done]
            done += EIGHT
        free += length
        if first & NOT_ASCII:
            suspects[count] = row
            count += 1
    offsets[len(starts)] = free
    return count


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
            and (words[here] | words[here + EIGHT] | words[here + SIXTEEN] | words[here + TWENTY_FOUR]) & NOT_ASCII == 0
        ):
            at += 32
            continue
        if following > 7 and words[here] & NOT_ASCII == 0:  # noqa: PLR2004  bytes of a word
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
