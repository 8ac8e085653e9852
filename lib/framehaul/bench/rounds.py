"""The loop of every study: rounds in which every task runs once, in a shuffled, seeded order, and their outcomes."""

import gc
import random
import threading
import urllib.error
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from framehaul.bench.meter import settle
from framehaul.errors import UnavailableError, WrongResultError


@dataclass(frozen=True)
class Ok[V]:
    """A pass that ran and whose result is right."""

    values: V


@dataclass(frozen=True)
class Skipped:
    """A pass that cannot run here; the reason has the remedy."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """A pass that raised an error, or whose result is wrong."""

    reason: str


type Pass[V] = Ok[V] | Skipped | Failed


def attempt[V](work: Callable[[], V], home: Path | None = None) -> Pass[V]:
    """Return the outcome of `work`; paths of files in the directory `home` are shortened in reasons."""
    try:
        return Ok(work())
    except UnavailableError as error:
        return Skipped(str(error))
    except Exception as error:  # noqa: BLE001  any error is the outcome of a pass
        reason = str(error) if isinstance(error, WrongResultError) else describe(error)
    return Failed(reason if home is None else reason.replace(f"{home}/", ""))


def value_of[V](outcome: Pass[V]) -> V:
    """Return the values of a pass; raise the error for which there are none."""
    if isinstance(outcome, Ok):
        return outcome.values
    raise (UnavailableError if isinstance(outcome, Skipped) else WrongResultError)(outcome.reason)


def columns_of(outcome: Pass[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of a row of results that follow from an outcome: values, status, reason."""
    if isinstance(outcome, Ok):
        return {**outcome.values, "status": "ok", "reason": None}
    return {"status": "skipped" if isinstance(outcome, Skipped) else "failed", "reason": outcome.reason}


def right[V](values: V, wrong: str | None) -> V:
    """Return the values; raise WrongResultError with the text `wrong` unless it is empty."""
    if wrong:
        raise WrongResultError(wrong)
    return values


def describe(error: BaseException) -> str:
    """Return an error in one line, with the server's response if it sent one; text that is not UTF-8 is escaped."""
    text: Any = str(error)
    if isinstance(error, urllib.error.HTTPError):
        text = error.read().decode(errors="replace") or text
    elif isinstance(error, httpx.HTTPStatusError):
        text = error.response.text or text
    line = " ".join(f"{type(error).__name__}: {text}".split())[:400]
    return line.encode(errors="backslashreplace").decode()  # errors may quote half a surrogate pair


class PanicError(RuntimeError):
    """A panic of a library in Rust, whose own error `except Exception` does not catch."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Raise PanicError when the block panics."""
    try:
        yield
    except BaseException as error:
        # pyo3's exception is in no module: https://docs.rs/pyo3/latest/pyo3/panic/struct.PanicException.html
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(describe(error)) from error


@dataclass(frozen=True)
class Rounds:
    """The numbers of rounds and of discarded warm-ups before them, and the seed of the order within each round."""

    passes: int
    warmup: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Log[T, V]:
    """Callbacks that a run reports tasks, numbers of passes and outcomes to, and the event that stops it."""

    record: Callable[[T, int, Pass[V]], None]
    finished: Callable[[T, int], bool] = lambda *_: False
    """Return true for a pass that an interrupted run has recorded."""
    progress: Callable[[T, int], object] = lambda *_: None
    """Show the pass that begins; an error ends the run."""
    expect: Callable[[int], object] = lambda _: None
    """Take the number of passes of a loop that begins."""
    stop: threading.Event | None = None

    def left(self, tasks: Sequence[T], rounds: Rounds) -> list[T]:
        """Return the tasks with passes that an interrupted run has not recorded."""
        return [task for task in tasks if not all(self.finished(task, at + 1) for at in range(rounds.passes))]


def in_rounds[T: Hashable, V](
    tasks: Sequence[T], rounds: Rounds, measure: Callable[[T, int], V], log: Log[T, V], home: Path | None = None
) -> None:
    """Measure every task once in each round, and record every pass; `attempt` turns errors into outcomes.

    Warm-ups have numbers below 1 and are not recorded. A skipped task is not measured again. Passes that an interrupted
    run has finished are left out, and a task without further passes has no warm-up. Raises KeyboardInterrupt between
    two tasks after `log.stop` was set.
    """
    left = {*log.left(tasks, rounds)}
    skipped: dict[T, Skipped] = {}
    log.expect(len(tasks) * (rounds.warmup + rounds.passes))
    settle()
    try:
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
    finally:
        gc.unfreeze()


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
