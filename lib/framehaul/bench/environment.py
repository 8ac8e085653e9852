"""The environment of a run: machine, versions, commit. It contains no path, host or user name."""

from __future__ import annotations

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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from framehaul.bench.store import MADE_WITH
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.techniques.registry import DATABASES

CPU_MODEL = ["vendor_id", "cpu family", "model", "stepping"]
CPU_MODEL += ["CPU implementer", "CPU part", "CPU variant", "CPU revision"]  # on Arm
"""The lines of proc_cpuinfo(5) that identify a model of processor."""
DMI = Path("/sys/class/dmi/id")
OUTPUTS = ("results", "figures", "README.md", "docs")
"""Committed files that runs write."""
CODE = ("lib", "notebooks")
"""Directories in which an untracked file is a change of code."""


def metadata(settings: Settings) -> dict[str, Any]:
    """Return the machine, Python, the installed direct dependencies and the commit; None for what is unknown.

    It is the same for every run of one set-up.
    """
    return {
        "machine": _machine(settings),
        "python": platform.python_version(),
        "libraries": _installed(dependencies()),
        "commit": _commit(settings.out),
    }


def digest(metadata: Mapping[str, Any]) -> str:
    """Return a digest of machine, Python and libraries: runs with the same one are comparable."""
    made_with = {part: metadata[part] for part in MADE_WITH}
    return hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:12]


def _machine(settings: Settings) -> dict[str, Any]:
    cpu = _cpu()
    flags = sorted((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu": cpu.get("model name") or (platform.machine() if cpu else platform.processor() or platform.machine()),
        # On virtual machines, processors of several generations have one name.
        "cpu_model": ", ".join(f"{name} {cpu[name]}" for name in CPU_MODEL if name in cpu) or None,
        "cpu_flags": " ".join(flags) or None,
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "vendor": _line(DMI / "sys_vendor"),
        "product": _line(DMI / "product_name"),
        # It applies to loopback too: https://docs.kernel.org/networking/ip-sysctl.html
        "tcp_congestion_control": _line(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "out_filesystem": _filesystem(settings.out),
        "state_dir_filesystem": _filesystem(settings.state_dir),
    }


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def dependencies() -> list[str]:
    """Return the names of the project's dependencies, extras included, without versions."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    lines = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    return sorted(re.split(r"[\[<>=!~ ;]", line, maxsplit=1)[0] for line in lines)


def _installed(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _cpu() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo; nothing on systems without it."""
    first = (_line(Path("/proc/cpuinfo")) or "").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _line(path: Path) -> str | None:
    """Return the text of a file of the kernel; None when it is missing, empty or not readable."""
    try:
        return path.read_text().strip() or None
    except (OSError, ValueError):
        return None


def _filesystem(directory: Path) -> str | None:
    """Return the type of the file system of a directory that may not exist yet."""
    parent = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists()).resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if parent.is_relative_to(one.mountpoint)]
    # When several are mounted on one directory, the last is visible.
    mount = max(reversed(mounts), key=lambda one: len(Path(one.mountpoint).parts), default=None)
    return mount.fstype if mount else None


def _commit(out: Path) -> str | None:
    """Return the commit that is checked out, with `-dirty` when code differs from it; None outside a checkout.

    Committed files that a run writes do not count, because earlier notebooks of the run have written them.
    """
    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    outputs = [*OUTPUTS]
    if out.resolve().is_relative_to(PROJECT):
        outputs += [str(out.resolve().relative_to(PROJECT) / name) for name in ("results", "figures")]
    ours = [f":(exclude,literal){path}" for path in dict.fromkeys(outputs)]
    changed = git("diff", "--name-only", "HEAD", "--", ".", *ours)
    added = git("ls-files", "--others", "--exclude-standard", "--", *CODE)
    return commit if changed == "" and added == "" else f"{commit}-dirty"


def git(*arguments: str) -> str | None:
    """Return the output of git; None when it fails or is not installed."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def server_versions(both: Servers) -> dict[str, str]:
    """Return the version of each server, by the database's name."""
    return {name: tables_of(both.of(name)).metadata()["version"] for name in DATABASES}
