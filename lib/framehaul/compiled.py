"""What the decoders of COPY's binary format and of ClickHouse's Native format share: loops compiled by numba."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numba
import numpy as np
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


@compiled
def write_view(words: Words, start: int, length: int, views: Int32s, row: int) -> None:
    """Fill in the string view of a text that starts there.

    https://arrow.apache.org/docs/format/Columnar.html#variable-size-binary-view-layout
    """
    views[row, 0] = length
    if length > INLINE_BYTES:
        views[row, 1] = words[start]
        views[row, 2] = 0  # the first, and only, buffer behind the views
        views[row, 3] = start
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
