"""The loop of every study: rounds in which every task runs once, in a shuffled, seeded order."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from framehaul.bench.meter import settle, settled
from framehaul.bench.passes import Pass, Skipped, attempt


def check(**given: tuple[int, int]) -> None:
    """Raise ValueError, naming the parameter, for a value that is no integer or below its minimum."""
    for name, (value, least) in given.items():
        if type(value) is not int or value < least:
            raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")


@dataclass(frozen=True)
class Rounds:
    """The numbers of rounds and warm-ups; raises ValueError, naming the parameter, when one is out of range."""

    passes: int
    warmup: int = 0
    """Discarded rounds before the others."""
    seed: int = 0
    """Seed of the order within each round."""

    def __post_init__(self) -> None:
        check(ROUNDS=(self.passes, 1), WARMUP=(self.warmup, 0), SEED=(self.seed, 0))


@dataclass(frozen=True)
class Log[T, V]:
    """Callbacks that a run reports to, and the event that stops it."""

    record: Callable[[T, int, Pass[V]], None]
    """Record a task, the number of its pass, from 1 on, and its outcome."""
    finished: Callable[[T, int], bool] = lambda *_: False
    """Return true for a pass that an interrupted run has recorded."""
    progress: Callable[[T, int], object] = lambda *_: None
    """Show the pass that begins; an error ends the run."""
    stop: threading.Event | None = None


def in_rounds[T: Hashable, V](
    tasks: Sequence[T], rounds: Rounds, measure: Callable[[T, int], V], log: Log[T, V], home: Path | None = None
) -> None:
    """Measure every task once in each round, and record every pass; `attempt` turns errors into outcomes.

    Warm-ups have numbers below 1 and are not recorded. A skipped task is not measured again. Passes that an interrupted
    run has finished are left out, and a task without further passes has no warm-up. Raises KeyboardInterrupt between
    two tasks after `log.stop` was set.
    """
    left = {task for task in tasks if not all(log.finished(task, at + 1) for at in range(rounds.passes))}
    skipped: dict[T, Skipped] = {}
    with settled():
        for number in range(1 - rounds.warmup, rounds.passes + 1):
            for task in random.Random(f"{rounds.seed}/{number}").sample(tasks, len(tasks)):
                if log.stop and log.stop.is_set():
                    raise KeyboardInterrupt
                log.progress(task, number)
                if task not in left or (number > 0 and log.finished(task, number)):
                    continue
                outcome: Pass[V] = skipped.get(task) or attempt(partial(measure, task, number), home)
                if isinstance(outcome, Skipped):
                    skipped[task] = outcome
                if number > 0:
                    log.record(task, number, outcome)
                settle()  # tasks import modules when they run


def interruptible(work: Callable[[threading.Event], object]) -> None:
    """Run `work(stop)` in another thread, because a notebook's main thread already runs an event loop.

    An interrupt (the notebook's stop button, Ctrl-C) ends the work between two passes. Errors of `work` are raised.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(1, "framehaul-measure") as pool:
        try:
            pool.submit(work, stop).result()
        except KeyboardInterrupt:
            stop.set()
            raise
