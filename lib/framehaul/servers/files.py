"""Write files that only their owner can read, store random passwords in them, and read the end of logs."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


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
