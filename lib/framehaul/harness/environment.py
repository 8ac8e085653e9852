"""Where and with what a run was made: machine, versions, commit. Nothing in it names a path, a host or a user."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT
from framehaul.techniques.registry import DATABASES


def metadata() -> dict[str, Any]:
    """Machine, operating system, Python, the project's direct dependencies that are installed, and the commit."""
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": cores(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "python": platform.python_version(),
        "libraries": _installed(dependencies()),
        "commit": _commit(),
    }


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def dependencies() -> list[str]:
    """Names in the project's lists of dependencies, those of its extras too, without versions."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    return sorted(re.split(r"[\[<>=!~ ;]", line, maxsplit=1)[0] for line in lines)


def _installed(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _commit() -> str | None:
    """The commit that is checked out, with `-dirty` when code differs from it; None outside a checkout."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"],
            cwd=PROJECT, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def server_versions(both: Servers) -> dict[str, str]:
    """The version of each server, by the database's name."""
    return {name: tables_of(both.of(name)).metadata()["version"] for name in DATABASES}
