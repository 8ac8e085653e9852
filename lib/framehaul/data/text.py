"""Validation that text is UTF-8, by loops that numba compiles.

A loop and the functions that it calls are in one file, because numba's cache notices changes only there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    type Bytes = NDArray[np.uint8]
    type Int32s = NDArray[np.int32]
    type Int64s = NDArray[np.int64]
    type Keys = NDArray[np.uint64]

INLINE_BYTES = 12
"""The longest text that is stored inside its string view."""
MOST_BYTES = (1 << 31) - 1
"""The largest offset in a view, or in an array of plain strings."""
NOT_ASCII = np.uint64(0x8080808080808080)
"""A mask of the highest bit of each byte, which is set in bytes above 127."""
EIGHT, THIRTY_TWO = np.uint64(8), np.uint64(32)
SLACK = bytes(INLINE_BYTES + 4)
"""Bytes that must follow the data, because texts are read in whole words and then masked."""
SHOWN_BYTES = 24
"""The number of bytes of invalid text that an error message shows."""

KEPT_BYTES = np.array(
    [[(1 << 8 * min(length, 8)) - 1, (1 << 8 * max(length - 8, 0)) - 1] for length in range(INLINE_BYTES + 1)],
    np.uint64,
)
"""Masks, by the length of an inline text, of its bytes in the two words that are read."""
MOST_INLINE = np.uint64(INLINE_BYTES)
WORD_SLACK = np.uint64(32)
"""Bytes after the end of a text that copying by words may overwrite."""
COMPILING = threading.RLock()


class NotTextError(ValueError):
    """An error for text that is not UTF-8; the message names column, row and remedy."""

    def __init__(self, name: str, row: int, value: bytes) -> None:
        self.row, self.value = row, value
        shown = f"{value[:SHOWN_BYTES]!r}{'...' if len(value) > SHOWN_BYTES else ''}"
        super().__init__(f"column {name}, row {row:,}: {shown} is not UTF-8; read the column as binary")


_WAITING: list[Callable[..., Any]] = []
"""Loops that no call has needed yet."""


def compiled[F: Callable[..., Any]](function: F) -> F:
    """Return the function as machine code that releases the interpreter's lock; it is compiled once per machine.

    Numba takes half a second to start, so that it is imported by the first call of any such function.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if call in _WAITING:
            if _FEW.get():
                return function(*arguments)
            _start_numba()
        return call.dispatcher(*arguments)  # type: ignore[attr-defined]

    _WAITING.append(call)
    return cast("F", call)


_FEW = ContextVar("few", default=False)
_left_bytes = [1 << 19]
"""The bytes that a process may still decode without numba, in about as long as numba takes to start."""


@contextlib.contextmanager
def few(size: int) -> Iterator[None]:
    """Run loops over this many bytes as plain Python, unless numba has started or they are too many."""
    is_few = bool(_WAITING) and size <= _left_bytes[0]
    _left_bytes[0] -= size if is_few else 0
    token = _FEW.set(is_few)
    try:
        yield
    finally:
        _FEW.reset(token)


def numba_waits() -> bool:
    """Return whether the first call of a compiled function would have to start numba, which takes half a second."""
    return bool(_WAITING)


def _start_numba() -> None:
    """Put dispatchers in the place of all functions that wait, because a loop can call only dispatchers.

    Compilation is serialised: if two threads make the first call, one may fail with a KeyError in numba 0.68.1.
    Numba's own lock covers only the compilation: https://github.com/numba/numba/issues/2517
    """
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
        waiting = {id(call): call for call in _WAITING}
        for call in waiting.values():
            call.dispatcher = dispatcher_of(inspect.unwrap(call))  # type: ignore[attr-defined]
        modules = [module for name, module in [*sys.modules.items()] if name.startswith("framehaul.")]
        for names in map(vars, modules):
            names.update({name: waiting[id(value)].dispatcher for name, value in names.items() if id(value) in waiting})  # type: ignore[attr-defined]
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
    """Return the two buffers of an array of string views for texts in the data, and the rows that are not UTF-8.

    The first buffer holds the views, the second the text outside of views. If `plain`, the buffers are the offsets and
    the text of an array of large strings.
    """
    data, rows, kept = for_reading(data), np.empty(len(starts), np.int32), np.maximum(lengths, 0).sum(dtype=np.int64)
    texts = np.empty(int(kept) + int(WORD_SLACK), np.uint8)
    places = np.empty((len(starts) + 1, 1) if plain else (len(starts), 2), np.uint64)
    suspects = view_texts(words_of_eight(data), starts, lengths, plain, places, words_of_eight(texts), rows)
    return [places, texts], rows[: keep_invalid(data, starts, lengths, rows, suspects)]


@compiled
def utf8_length(first: int, second: int, third: int, fourth: int) -> int:
    """Return the length of the UTF-8 character that starts with these bytes, 0 if there is none.

    Overlong forms, surrogates and code points beyond U+10FFFF are rejected, as in table 3-7 of
    https://www.unicode.org/versions/Unicode17.0.0/core-spec/chapter-3/#G7404
    """
    if first < 0x80:  # noqa: PLR2004  these numbers are in the table
        return 1
    if 0xC2 <= first <= 0xDF:  # noqa: PLR2004
        return 2 if second & 0xC0 == 0x80 else 0  # noqa: PLR2004
    if 0xE0 <= first <= 0xEF:  # noqa: PLR2004
        least = 0xA0 if first == 0xE0 else 0x80  # noqa: PLR2004
        most = 0x9F if first == 0xED else 0xBF  # noqa: PLR2004
        return 3 if least <= second <= most and third & 0xC0 == 0x80 else 0  # noqa: PLR2004
    if 0xF0 <= first <= 0xF4:  # noqa: PLR2004
        least = 0x90 if first == 0xF0 else 0x80  # noqa: PLR2004
        most = 0x8F if first == 0xF4 else 0xBF  # noqa: PLR2004
        return 4 if least <= second <= most and third & 0xC0 == 0x80 and fourth & 0xC0 == 0x80 else 0  # noqa: PLR2004
    return 0


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
def keep_invalid(data: Bytes, starts: Int32s, lengths: Int32s, suspects: Int32s, count: int) -> int:
    """Move the suspects whose text is not UTF-8 to the front, out of the first `count`, and return their number."""
    kept = 0
    for index in range(count):
        row = suspects[index]
        at, end = starts[row], starts[row] + lengths[row]
        while at < end:
            length = utf8_length(data[at], data[at + 1], data[at + 2], data[at + 3])  # SLACK follows the last
            if length == 0 or length > end - at:
                suspects[kept] = row
                kept += 1
                break
            at += length
    return kept
