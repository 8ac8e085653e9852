"""What the program needs to know of a Python driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Literal

NOT_OFFERED = 3
"""The exit code of a program whose driver cannot run here."""

type Loop = Literal["threads", "asyncio", "uvloop"]


class NotOfferedError(RuntimeError):
    """A driver cannot run here; the message says what to use instead."""


@dataclass(frozen=True)
class Driver:
    """How a driver is opened, and how it fetches.

    `open` gets the server's address; `fetch` gets what it gave, and the shape, and gives rows that are decoded whole,
    in a list or an Arrow table. Both are coroutines where `loop` is an event loop; with `threads`, each
    connection gets a thread of its own, as users of synchronous drivers do.
    """

    open: Callable[..., Any]
    fetch: Callable[..., Any]
    loop: Loop = "threads"
    close: Callable[[Any], Any] = methodcaller("close")


def loop_factory(name: Loop) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the event loop; raises NotOfferedError where there is no uvloop."""
    if name != "uvloop":
        return None
    try:
        import uvloop
    except ImportError:
        raise NotOfferedError("uvloop does not run on this system; the driver itself does, under asyncio") from None
    return uvloop.new_event_loop
