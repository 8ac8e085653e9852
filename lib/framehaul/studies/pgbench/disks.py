"""Count the operations of the disk below a directory, and limit the operations of a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from framehaul.errors import UnavailableError

CGROUPS, BLOCK_DEVICES = Path("/sys/fs/cgroup"), Path("/sys/dev/block")


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
def limited(server_id: int | None, disk: Disk | None, iops: int | None) -> Iterator[None]:
    """Limit a server and its processes to `iops` reads and `iops` writes per second; they end before the block does.

    The limit applies to operations that bypass the page cache: all reads from the disk, and direct writes.
    Raises UnavailableError with the reason if this machine does not support it. Sources:
    https://docs.kernel.org/admin-guide/cgroup-v2.html#io-interface-files,
    https://docs.kernel.org/admin-guide/cgroup-v1/blkio-controller.html#throttling-upper-limit-policy
    """
    if server_id is None or iops is None:
        yield
        return
    if disk is None:
        raise UnavailableError("a limit on IOPS takes data on a disk; put FRAMEHAUL_STATE_DIR on one")
    parent, rules = _rules(disk, iops)
    group = parent / f"framehaul-{os.getpid()}-{server_id}"
    try:
        try:
            group.mkdir()
            for name, rule in rules.items():
                (group / name).write_text(rule)
            # The main process comes first, so that the group gets the processes that it starts later.
            (group / "cgroup.procs").write_text(str(server_id))
            for child in psutil.Process(server_id).children(recursive=True):
                with suppress(ProcessLookupError):  # it has ended
                    (group / "cgroup.procs").write_text(str(child.pid))
        except OSError as error:
            refused = f"the kernel refuses a limit on IOPS for disk {disk.name} ({error.strerror})"
            raise UnavailableError(f"{refused}; run as root, outside of a container") from error
        yield
    finally:
        with suppress(OSError):  # it was not made
            group.rmdir()


def _rules(disk: Disk, iops: int) -> tuple[Path, dict[str, str]]:
    """Return the directory of groups, and the names, relative to a group, and contents of the files that limit it."""
    version_1 = CGROUPS / "blkio"
    if (version_1 / "blkio.throttle.read_iops_device").exists():
        files = [f"blkio.throttle.{direction}_iops_device" for direction in ("read", "write")]
        return version_1, dict.fromkeys(files, f"{disk.number} {iops}")
    controllers = CGROUPS / "cgroup.controllers"
    if controllers.exists() and "io" in controllers.read_text().split():
        return CGROUPS, {"../cgroup.subtree_control": "+io", "io.max": f"{disk.number} riops={iops} wiops={iops}"}
    raise UnavailableError("a limit on IOPS takes Linux with cgroups' io (or blkio) controller")
