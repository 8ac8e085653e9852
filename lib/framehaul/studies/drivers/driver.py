"""Describe a Python driver to the program that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal


@dataclass(frozen=True)
class Driver:
    """The functions with which a driver connects, fetches and closes.

    `open` takes the server's address. `fetch` takes a connection and a shape, and returns fully decoded rows in a list
    or an Arrow table. Both are coroutines if `loop` is an event loop. With `threads` each connection has a thread.
    """

    open: Callable[..., Any]
    fetch: Callable[..., Any]
    loop: Literal["threads", "asyncio", "uvloop"] = "threads"
    close: Callable[[Any], Any] = methodcaller("close")
