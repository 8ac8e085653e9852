"""Count the operations of the disk below a directory, and limit the operations of a server."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from framehaul.errors import UnavailableError

CGROUPS, BLOCK_DEVICES = Path("/sys/fs/cgroup"), Path("/sys/dev/block")
LEAVING_SECONDS = 10
"""The time in which a server may still start processes in a group that is being removed."""


@dataclass(frozen=True)
class Disk:
    """A whole disk; `number` is `major:minor`."""

    name: str
    number: str

    def operations(self) -> int:
        """Return the reads and writes since the machine started, of all processes."""
        counters = psutil.disk_io_counters(perdisk=True)[self.name]
        return int(counters.read_count + counters.write_count)


def disk_of(directory: Path) -> Disk | None:
    """Return the disk of a directory, or None if it is unknown or there is none (tmpfs, overlay)."""
    device = directory.stat().st_dev
    block = BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}"
    if not block.exists():
        return None
    block = block.resolve()
    if (block / "partition").exists():
        block = block.parent
    return Disk(block.name, (block / "dev").read_text().strip())


@contextmanager
def limited(server_id: int, disk: Disk | None, iops: int) -> Iterator[None]:
    """Limit a server and its processes to `iops` reads and `iops` writes per second while the block lasts.

    The limit applies to operations that bypass the page cache: all reads from the disk, and direct writes.
    Raises UnavailableError with the reason if this machine does not support it. Sources:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#io-interface-files,
    https://docs.kernel.org/admin-guide/cgroup-v1/blkio-controller.html#throttling-upper-limit-policy
    """
    if disk is None:
        raise UnavailableError("a limit on IOPS takes data on a disk; put FRAMEHAUL_STATE_DIR on one")
    parent, rules = _rules(disk, iops)
    group = parent / f"framehaul-{os.getpid()}-{server_id}"
    try:
        try:
            group.mkdir()
            for name, rule in rules.items():
                (group / name).write_text(rule)
            _enter(group, psutil.Process(server_id))
        except OSError as error:
            raise UnavailableError(
                f"the kernel refuses a limit on IOPS for disk {disk.name} ({error.strerror}); run as root"
            ) from error
        yield
    finally:
        if group.exists():
            _leave(group, parent)


def _leave(group: Path, parent: Path) -> None:
    """Move the processes of a group to its parent, again while processes are forked, and remove the group."""
    deadline = time.monotonic() + LEAVING_SECONDS
    while True:
        for process_id in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has ended
                (parent / "cgroup.procs").write_text(process_id)
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _rules(disk: Disk, iops: int) -> tuple[Path, dict[str, str]]:
    """Return the directory of groups, and the names and contents of the files that limit a group."""
    version_1 = CGROUPS / "blkio"
    if (version_1 / "blkio.throttle.read_iops_device").exists():
        files = [f"blkio.throttle.{direction}_iops_device" for direction in ("read", "write")]
        return version_1, dict.fromkeys(files, f"{disk.number} {iops}")
    controllers = CGROUPS / "cgroup.controllers"
    if controllers.exists() and "io" in controllers.read_text().split():
        try:
            (CGROUPS / "cgroup.subtree_control").write_text("+io")
        except OSError as error:
            raise UnavailableError(
                f"a limit on IOPS takes cgroups' io controller, which is refused here ({error.strerror}); run as root, "
                "outside of a container"
            ) from error
        return CGROUPS, {"io.max": f"{disk.number} riops={iops} wiops={iops}"}
    raise UnavailableError("a limit on IOPS takes Linux with cgroups' io (or blkio) controller")


def _enter(group: Path, server: psutil.Process) -> None:
    """Move a server into a group, its main process first, so that the group gets the processes it starts later."""
    (group / "cgroup.procs").write_text(str(server.pid))
    for child in server.children(recursive=True):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            (group / "cgroup.procs").write_text(str(child.pid))
