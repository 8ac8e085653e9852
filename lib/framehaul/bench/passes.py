"""What one pass of anything comes to: its values, or the reason why there are none."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from framehaul.errors import UnavailableError, WrongResultError


@dataclass(frozen=True)
class Ok[V]:
    """It ran, and what it gave is right."""

    values: V


@dataclass(frozen=True)
class Skipped:
    """It cannot run here; the reason says what would make it run."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """It raised, or what it gave is wrong."""

    reason: str


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
"""What Python's tracebacks have in them where a notebook's kernel asks for it."""

type Pass[V] = Ok[V] | Skipped | Failed


def attempt[V](
    work: Callable[[], V], home: Path | None = None, failures: tuple[type[Exception], ...] = (Exception,)
) -> Pass[V]:
    """What `work` comes to; whatever it raises of `failures` is its result, not the end of a run.

    A reason names files of the directory `home` without it, for where that lies says nothing to a reader.
    """
    try:
        return Ok(work())
    except UnavailableError as error:
        return Skipped(str(error))
    except WrongResultError as error:
        reason = str(error)
    except failures as error:
        reason = describe(error)
    return Failed(reason if home is None else reason.replace(f"{home}/", ""))


def columns_of(outcome: Pass[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of a row of results that say how a pass ended: status, reason, and its values."""
    if isinstance(outcome, Ok):
        return {**outcome.values, "status": "ok", "reason": None}
    return {"status": "skipped" if isinstance(outcome, Skipped) else "failed", "reason": outcome.reason}


def right[V](values: V, wrong: str | None) -> V:
    """The values, when nothing is `wrong` with them; else raises WrongResultError, which says what."""
    if wrong:
        raise WrongResultError(wrong)
    return values


def last_line(written: str, otherwise: str) -> str:
    """The last line that a process has written, which mostly says why it ended; `otherwise` where it wrote none."""
    return next(reversed(COLOURS.sub("", written).strip().splitlines()), otherwise)


def describe(error: BaseException) -> str:
    """One line of what went wrong, with the server's own words when it sent some; what no file can hold is escaped."""
    text: Any = str(error)
    if isinstance(error, urllib.error.HTTPError):
        text = error.read().decode(errors="replace") or text
    elif isinstance(error, httpx.HTTPStatusError):
        text = error.response.text or text
    line = " ".join(f"{type(error).__name__}: {text}".split())[:400]
    return line.encode(errors="backslashreplace").decode()  # some quote a text with half a surrogate pair


class PanicError(RuntimeError):
    """A library in Rust panicked, which in Python is an error that no `except Exception` sees."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Raises PanicError where the block ends by a panic."""
    try:
        yield
    except BaseException as error:
        # pyo3's, which it gives no name in any module: https://docs.rs/pyo3/latest/pyo3/panic/struct.PanicException.html
        if type(error).__name__ != "PanicException":
            raise
        raise PanicError(describe(error)) from error
