"""Where and with what a run was made: machine, versions, commit. Nothing in it names a path, a host or a user."""

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

from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.techniques.registry import DATABASES

CPU_MODEL = (
    "vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant", "CPU revision"
)  # fmt: skip
"""What tells one model of processor from another, by proc_cpuinfo(5); Arm's names are the last four."""
DMI = Path("/sys/class/dmi/id")
OUTPUTS = ("results", "figures", "README.md", "docs")
"""What runs write into the project that is committed."""
CODE = ("lib", "notebooks")
"""Where a file counts that was not committed yet."""


def metadata(settings: Settings) -> dict[str, Any]:
    """Machine, operating system, Python, the project's direct dependencies that are installed, and the commit.

    It is the same for every run of one set-up; what is different each time, `load` says. What cannot be told is None.
    """
    return {
        "machine": _machine(settings),
        "python": platform.python_version(),
        "libraries": _installed(dependencies()),
        "commit": _commit(settings.out),
    }


def digest(metadata: Mapping[str, Any]) -> str:
    """Of machine, Python and libraries: what was made with the same was made in one place with one set of them."""
    made_with = {part: metadata[part] for part in ("machine", "python", "libraries")}
    return hashlib.sha256(json.dumps(made_with, sort_keys=True).encode()).hexdigest()[:12]


def load() -> dict[str, Any]:
    """How busy the machine is: the load averages of 1, 5 and 15 minutes, with this project's own part in them."""
    try:
        averages = [round(one, 2) for one in os.getloadavg()]
    except OSError:
        return {"load_average": None}
    return {"load_average": averages}


def _machine(settings: Settings) -> dict[str, Any]:
    cpu = _cpu()
    flags = sorted((cpu.get("flags") or cpu.get("Features") or "").split())
    return {
        "cpu": cpu.get("model name") or (platform.machine() if cpu else platform.processor() or platform.machine()),
        # Processors of several generations give themselves one name on virtual machines.
        "cpu_model": ", ".join(f"{name} {cpu[name]}" for name in CPU_MODEL if name in cpu) or None,
        "cpu_flags": " ".join(flags) or None,
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "vendor": _line(DMI / "sys_vendor"),
        "product": _line(DMI / "product_name"),
        # Over loopback, too: https://docs.kernel.org/networking/ip-sysctl.html
        "tcp_congestion_control": _line(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
        "out_filesystem": _filesystem(settings.out),
        "state_dir_filesystem": _filesystem(settings.state_dir),
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


def _cpu() -> dict[str, str]:
    """What the kernel says of the first processor; empty where it says nothing, as on other systems than Linux."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except (OSError, ValueError):
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _line(path: Path) -> str | None:
    """The text of a file of the kernel's; None where it has none, or does not show it to us."""
    try:
        return path.read_text().strip() or None
    except (OSError, ValueError):
        return None


def _filesystem(directory: Path) -> str | None:
    """The file system that a directory is on, or will be."""
    there = next(one for one in (directory.absolute(), *directory.absolute().parents) if one.exists()).resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if there.is_relative_to(one.mountpoint)]
    # Of several that are mounted one over the other, the last is what is seen.
    mount = max(reversed(mounts), key=lambda one: len(Path(one.mountpoint).parts), default=None)
    return mount.fstype if mount else None


def _commit(out: Path) -> str | None:
    """The commit that is checked out, with `-dirty` when code differs from it; None outside a checkout.

    What a run writes may be committed and is no code, else each notebook would find what the one before it wrote.
    """
    commit = git("rev-parse", "--short=12", "HEAD")
    if not commit:
        return None
    outputs = [*OUTPUTS]
    if out.resolve().is_relative_to(PROJECT):
        outputs += [str(out.resolve().relative_to(PROJECT) / name) for name in ("results", "figures")]
    ours = [f":(exclude,literal){path}" for path in dict.fromkeys(outputs)]
    changed = git("diff", "--relative", "--name-only", "-z", "HEAD", "--", ".", *ours)
    if changed is not None:
        changed = "".join(name for name in changed.split("\0") if not _says_only_else(name))
    added = git("ls-files", "--others", "--exclude-standard", "--", *CODE)
    return commit if changed == "" and added == "" else f"{commit}-dirty"


def _says_only_else(name: str) -> bool:
    """Whether a changed file is a notebook with the code that is committed: a run writes its answer into its text."""
    if not name.endswith(".ipynb") or not (PROJECT / name).exists():
        return False
    try:
        texts = git("show", f"HEAD:./{name}"), (PROJECT / name).read_text("utf8")
        now, then = (
            [cell["source"] for cell in json.loads(text or "")["cells"] if cell["cell_type"] == "code"]
            for text in texts
        )
    except (ValueError, KeyError, TypeError):
        return False
    return now == then


def git(*arguments: str) -> str | None:
    """What git says; None where it fails, or is not there."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def server_versions(both: Servers) -> dict[str, str]:
    """The version of each server, by the database's name."""
    return {name: tables_of(both.of(name)).metadata()["version"] for name in DATABASES}
