"""The environment of a run: machine, versions, commit. It contains no path, host or user name."""

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from framehaul.bench.store import MADE_WITH
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.techniques.registry import DATABASES

MODEL = ["vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant", "CPU revision"]
"""The lines of proc_cpuinfo(5) that identify a model of processor; the last four are Arm's."""
OUTPUTS = ("results", "figures", "README.md", "docs")
"""Committed files that runs write."""


def metadata(settings: Settings) -> dict[str, Any]:
    """Return machine, Python, installed direct dependencies and commit, which are the same for runs of one set-up."""
    lines = (line.partition(":") for line in _text("/proc/cpuinfo").partition("\n\n")[0].splitlines())
    cpu = {name.strip(): value.strip() for name, _, value in lines}
    machine = {
        "cpu": cpu.get("model name") or (platform.machine() if cpu else platform.processor() or platform.machine()),
        # On virtual machines, processors of several generations have one name.
        "cpu_model": ", ".join(f"{name} {cpu[name]}" for name in MODEL if name in cpu) or None,
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        # It applies to loopback too: https://docs.kernel.org/networking/ip-sysctl.html
        "tcp_congestion_control": _text("/proc/sys/net/ipv4/tcp_congestion_control") or None,
        "state_dir_filesystem": _filesystem(settings.state_dir),
    }
    libraries = {}
    for name in dependencies():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            libraries[name] = importlib.metadata.version(name)
    return {"machine": machine, "python": platform.python_version(), "libraries": libraries, "commit": _commit()}


def digest(metadata: Mapping[str, Any]) -> str:
    """Return a digest of machine, Python and libraries: runs with the same one are comparable."""
    made_with = {part: metadata[part] for part in MADE_WITH}
    return hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:12]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def dependencies() -> list[str]:
    """Return the names of the project's dependencies, extras included, without versions."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    return sorted(re.split(r"[\[<>=!~ ;]", line, maxsplit=1)[0] for line in lines)


def _text(path: str) -> str:
    """Return the text of a file of the kernel; nothing when it is missing or not readable."""
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError):
        return ""


def _filesystem(directory: Path) -> str | None:
    """Return the type of the file system of a directory that may not exist yet."""
    parent = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists()).resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if parent.is_relative_to(one.mountpoint)]
    # When several are mounted on one directory, the last is visible.
    mount = max(reversed(mounts), key=lambda one: len(Path(one.mountpoint).parts), default=None)
    return mount.fstype if mount else None


def _commit() -> str | None:
    """Return the commit that is checked out, with `-dirty` when code differs from it; None outside a checkout.

    Committed files that a run writes do not count, because earlier notebooks of the run have written them.
    """
    commit = git("rev-parse", "--short=12", "HEAD")
    changed = git("diff", "--name-only", "HEAD", "--", ".", *(f":(exclude){path}" for path in OUTPUTS))
    added = git("ls-files", "--others", "--exclude-standard", "--", "lib", "notebooks")
    return commit and (commit if changed == added == "" else f"{commit}-dirty")


def git(*arguments: str) -> str | None:
    """Return the output of git; None when it fails or is not installed."""
    command = ["git", "--no-optional-locks", *arguments]
    try:
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def server_versions(both: Servers) -> dict[str, str]:
    """Return the version of each server, by the database's name."""
    return {name: tables_of(both.of(name)).metadata()["version"] for name in DATABASES}
