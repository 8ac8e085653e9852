"""Run programs, and build those in other languages."""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from framehaul.errors import UnavailableError, WrongResultError
from framehaul.settings import PROJECT, Settings

SOURCES = PROJECT / "drivers"
PATIENCE_SECONDS = 120
"""The time that an answer may take beyond the time of the test."""
NOT_OFFERED = 3
"""The exit status of a program whose driver cannot run here."""
TOOLS = {"go": "Go (https://go.dev/dl/)", "npm": "Node.js (https://nodejs.org)", "cargo": "Rust (https://rustup.rs)"}
"""The programs that build, and where their packages are."""
PROGRAMS = {
    "Go": ("drivers", ["go", "build", "-o", "drivers", "."]),
    # npm 11 hangs where it cannot create its cache, by default in the home directory.
    "Node": ("main.js", ["npm", "ci", "--no-progress", "--cache=.npm"]),
}
"""The program of each language's drivers, and the command that builds it."""

type Command = Callable[[Settings], list[str]]


def output_of(command: list[str], seconds: float, **options: Any) -> str:
    """Run a program and return its standard output; `options` are those of `subprocess.run`.

    Raises UnavailableError if it cannot run here, and WrongResultError if it fails or exceeds the time.
    """
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, check=False, timeout=seconds, encoding="utf8", errors="replace", **options
        )
    except subprocess.TimeoutExpired:
        raise WrongResultError(f"it did not end within {seconds:.0f} s") from None
    if done.returncode:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stderr)  # without colours, which a notebook's kernel asks for
        lines = plain.strip().splitlines() or [f"it ended with status {done.returncode} without a word"]
        reason = lines[-1][:400]
        raise UnavailableError(reason) if done.returncode == NOT_OFFERED else WrongResultError(reason)
    return done.stdout


def driver_program(language: str, settings: Settings, *, make: bool = False) -> Path:
    """Return the program of a language's drivers; raises UnavailableError if it is not built, unless `make` builds it.

    It is in a copy of the sources, next to the packages that the build fetches.
    """
    program, command = PROGRAMS[language]
    sources, target = SOURCES / language.lower(), settings.tools_dir / language.lower()
    texts = b"".join(path.read_bytes() for path in sorted(sources.glob("*.*")))
    mark, wanted = target / ".framehaul", hashlib.sha256(texts).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        if not make:
            remedy = f"make tools builds them, in about a minute, with {TOOLS[command[0]]}"
            raise UnavailableError(f"{language}'s drivers are not built. {remedy}")
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(sources, target)
        build(command, target, f"{language}'s drivers were not built")
        mark.write_text(wanted)
    return target / program


def versions() -> dict[str, str]:
    """Return the versions of Go, Node and their drivers, as far as they are installed."""
    go = "go env GOVERSION", "go/go.mod", r"^\t(\S+) (v\S+)$"
    node = "node --version", "node/package.json", r'"(pg[\w-]*)": "(.+)"'
    found = {}
    for language, (command, file, pattern) in {"Go": go, "Node": node}.items():
        if shutil.which(command.split()[0]):
            packages = re.findall(pattern, (SOURCES / file).read_text(), re.MULTILINE)
            version = version_output(*command.split()).removeprefix("go")
            found[language] = f"{version} ({', '.join(map(' '.join, packages))})"
    return found


def version_output(*command: str) -> str:
    """Return the output of a command that prints a version, or `unknown`."""
    try:
        return output_of([*command], PATIENCE_SECONDS).strip()
    except (OSError, UnavailableError, WrongResultError):
        return "unknown"


def build(command: list[str], directory: Path, failed: str) -> None:
    """Run a build with its output on standard error; raises UnavailableError without its tool, or if it fails."""
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"there is no {command[0]} on PATH. Install {TOOLS[command[0]]}, and run again")
    if subprocess.run(command, cwd=directory, stdout=sys.stderr, check=False).returncode:
        raise UnavailableError(f"{failed}: {' '.join(command[:2])} said: see above")
