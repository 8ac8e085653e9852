"""Keep private files of servers, and wait for servers that write a log."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

from framehaul.errors import ServerError

START_SECONDS = 60


def write_private(path: Path, text: str) -> None:
    """Write `text` to the file at `path` atomically, with mode 0600 from the first byte on."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def password_in(path: Path) -> str:
    """Return the password in `path`; a missing file is created with a random password."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def end_of(log: Path) -> str:
    """Return the last ten lines of a log."""
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-10:])


def when_ready[T](name: str, log: Path, answer: Callable[[], T], is_running: Callable[[], bool] = lambda: True) -> T:
    """Return the first result of `answer` that is no connection error; raises ServerError with the end of the log."""
    deadline = time.monotonic() + START_SECONDS
    while is_running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError, psycopg.OperationalError):
            return answer()
        time.sleep(0.02)
    raise ServerError(f"{name} did not start; its log ends:\n{end_of(log)}")
