"""Count the time of a run by part: on the clock, or around it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

type Part = Literal["clock", "warm-up", "memory", "compilation", "verification", "reset", "preparation"]


class Times:
    """Seconds by part; time within nested blocks counts once, for the inner part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def spent(self, part: Part) -> Iterator[None]:
        """Count the time of the block for a part; one thread at a time enters blocks."""
        self._count()
        self._open.append(part)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def move(self, part: Part, to: Part, seconds: float) -> None:
        """Move seconds from one part to another."""
        self.seconds[part] = self.seconds.get(part, 0) - seconds
        self.seconds[to] = self.seconds.get(to, 0) + seconds

    def _count(self) -> None:
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] = self.seconds.get(self._open[-1], 0) + now - self._since
        self._since = now
