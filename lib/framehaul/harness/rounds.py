"""Rounds: every task once in each, in a shuffled, seeded order, until somebody interrupts them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from framehaul.errors import UnavailableError
from framehaul.harness import measure


def check(**given: tuple[int, int]) -> None:
    """Raises ValueError, naming it, for a value that is no whole number or below the least that makes sense."""
    for name, (value, least) in given.items():
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")


def in_rounds[T](
    tasks: Sequence[T], *, warmup: int, passes: int, seed: int, stop: threading.Event
) -> Iterator[tuple[int, T]]:
    """Every task once in each round, in a shuffled order, with the number of its pass; below 1 it is a warm-up.

    Raises KeyboardInterrupt after `stop` was set, between two tasks.
    """
    for number in range(1 - warmup, passes + 1):
        for task in random.Random(f"{seed}/{number}").sample(tasks, len(tasks)):
            if stop.is_set():
                raise KeyboardInterrupt
            yield number, task


def outcome_of(error: Exception, directory: Path | None = None) -> dict[str, Any]:
    """The status and the reason of a pass that ended with an error: whatever it raises is its result.

    The reason says which file of `directory` it was, and not where on this machine.
    """
    if isinstance(error, UnavailableError):
        return {"status": "skipped", "reason": str(error)}
    reason = measure.describe(error)
    return {"status": "failed", "reason": reason if directory is None else reason.replace(f"{directory}/", "")}


def interruptible(work: Any) -> None:
    """Run `work(stop)` in a thread of its own: a notebook's main thread already runs an event loop.

    An interrupt (the notebook's stop button, Ctrl-C) ends the work between two passes.
    """
    stop = threading.Event()
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            work(stop)
        except BaseException as error:  # noqa: BLE001  raised again in the main thread
            failure.append(error)

    thread = threading.Thread(target=guarded, name="framehaul-measure")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        stop.set()
        thread.join()
        raise
    if failure:
        raise failure[0]
