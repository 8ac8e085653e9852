"""The description of a Python driver for the program that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal


@dataclass(frozen=True)
class Driver:
    """How a driver connects and fetches.

    `open` takes the server's address. `fetch` takes a connection and a shape, and returns fully decoded rows in a list
    or an Arrow table. Both are coroutines where `loop` is an event loop; with `threads` each connection has a thread of
    its own, as users of synchronous drivers do.
    """

    open: Callable[..., Any]
    fetch: Callable[..., Any]
    loop: Literal["threads", "asyncio", "uvloop"] = "threads"
    close: Callable[[Any], Any] = methodcaller("close")
