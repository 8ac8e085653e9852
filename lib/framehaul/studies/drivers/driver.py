"""What the programs need to know of a Python driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal

type Loop = Literal["threads", "asyncio", "uvloop"]


class NotOfferedError(RuntimeError):
    """A driver has no such operation; the message says what to use instead."""


def _not_offered(*_: object) -> None:
    raise NotOfferedError("only fetching is compared here")


@dataclass(frozen=True)
class Driver:
    """How a driver is opened, and what it does with each kind of shape.

    `open` gets the server's address. The others get what it gave, and the shape; `fetch` gives rows that are decoded
    whole, in a list or an Arrow table. All are coroutines where `loop` is an event loop; with `threads`, each
    connection gets a thread of its own, as users of synchronous drivers do.
    """

    open: Callable[..., Any]
    fetch: Callable[..., Any]
    copy: Callable[..., Any] = _not_offered
    insert: Callable[..., Any] = _not_offered
    loop: Loop = "threads"
    close: Callable[[Any], Any] = methodcaller("close")
