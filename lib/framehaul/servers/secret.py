"""Random passwords in files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write `text` to `path` with mode 0600 from the first byte on, replacing the file whole."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def password_in(path: Path) -> str:
    """The password kept in `path`; a new random one when there is no such file."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()
