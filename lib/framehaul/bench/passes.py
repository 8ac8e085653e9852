"""The outcome of one pass: its values, or the reason why there are none."""

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


def last_line(written: str, otherwise: str) -> str:
    """Return the last line of a process's output, which usually has its error; `otherwise` without output."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)  # without colours, which a notebook's kernel asks for
    return next(reversed(plain.strip().splitlines()), otherwise)


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
