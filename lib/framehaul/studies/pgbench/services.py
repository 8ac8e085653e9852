"""The services to compare: the user's servers, and configurations of the embedded server, one with a slow disk."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from framehaul.bench.environment import cores
from framehaul.errors import SettingsError, UnavailableError
from framehaul.servers import PostgresServer, parse_postgres_dsn
from framehaul.servers.local import EmbeddedPostgres, choose_port
from framehaul.settings import Settings
from framehaul.studies.pgbench.workloads import BYTES_PER_SCALE, Test

SERVICES = "FRAMEHAUL_PGBENCH_SERVICES"
NAME = re.compile(r"[a-z][a-z0-9_-]*")
IOPS_PER_CORE, DATA_OVER_MEMORY = 1_000, 500 / 64
"""The published tests have 16 cores, 16,000 provisioned IOPS, 64 GB of memory and 500 GB of data."""
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Service:
    """A named server, or an embedded server with a configuration, limited to `iops` reads and as many writes."""

    name: str
    label: str
    server: PostgresServer | None = None
    iops: int | None = None
    configuration: Mapping[str, str] = field(default_factory=dict, hash=False)


def examples(memory_bytes: int, available_cores: int, data_bytes: int) -> list[Service]:
    """Return the configurations to compare on a machine of this size, with a data set of this size.

    `small_buffers` and `limited_iops` have the published ratio of memory to data, 64 GB to 500 GB. A data set larger
    than this machine's memory takes too long to create. Therefore their memory is only shared_buffers: direct I/O
    bypasses the page cache (https://www.postgresql.org/docs/18/runtime-config-developer.html#GUC-DEBUG-IO-DIRECT).
    """
    small_kib = round(data_bytes / DATA_OVER_MEMORY / 1024)
    small = {"shared_buffers": f"{small_kib}kB", "debug_io_direct": "data,wal"}
    label = f"shared_buffers of {small_kib / 1024:.0f} MiB and no page cache (direct I/O)"
    iops, mib = IOPS_PER_CORE * available_cores, memory_bytes // 2**20
    # https://www.postgresql.org/docs/18/runtime-config-resource.html: a quarter of the memory is a good start.
    memory = {"shared_buffers": f"{mib // 4}MB", "effective_cache_size": f"{mib * 3 // 4}MB"}
    tuned = {**memory, "max_wal_size": "4GB", "checkpoint_timeout": "15min", "random_page_cost": "1.1"}
    # https://www.postgresql.org/docs/18/wal-async-commit.html
    unsafe = "defaults with synchronous_commit=off: a crash loses the last commits that a client was told of"
    return [
        Service("default", "PostgreSQL's defaults"),
        Service("tuned", "tuned: a quarter of the memory for shared_buffers, rare checkpoints", configuration=tuned),
        Service("async_commit", unsafe, configuration={"synchronous_commit": "off"}),
        Service("small_buffers", label, configuration=small),
        Service("limited_iops", f"{label}, {iops:,} IOPS", iops=iops, configuration=small),
    ]


def chosen(settings: Settings, tests: Sequence[Test], wanted: str, shared: PostgresServer | None) -> list[Service]:
    """Return the examples named in `wanted`, or all, and the services of the settings; `shared` replaces the examples.

    Raises ValueError for an unknown example, and for a malformed setting SettingsError or ServerError, whose messages
    have no password.
    """
    known = examples(psutil.virtual_memory().total, cores(), BYTES_PER_SCALE * max(test.scale for test in tests))
    names = [example.name for example in known]
    if unknown := [name for name in wanted.split() if name not in names]:
        raise ValueError(f"services: there is no example {unknown[0]!r}; known: {', '.join(names)}")
    found = [example for example in known if example.name in (wanted.split() or names)]
    if shared:
        found = [Service(settings.servers, f"the server of SERVERS={settings.servers}", shared)]
    for at, pair in enumerate((settings.pgbench_services or "").split(), 1):
        name, _, dsn = pair.partition("=")
        # Messages have only the name: the rest may contain a password.
        if not NAME.fullmatch(name) or not dsn:
            raise SettingsError(f"{SERVICES}: pair {at} is not name=value, with a name of a-z, 0-9, _ and -")
        if name in [*names, *(one.name for one in found)]:
            raise SettingsError(f"{SERVICES}: {name} is the name of another service; choose another name")
        found.append(Service(name, name, parse_postgres_dsn(f"{SERVICES}: that of {name}", dsn)))
    return found


@contextmanager
def started(service: Service, home: Path) -> Iterator[PostgresServer]:
    """Yield the server of a service; an embedded server has its data below `home` and is stopped at the end."""
    configuration = {"max_connections": "276", **service.configuration}  # the published tests have 256 clients
    process = EmbeddedPostgres(home / service.name, choose_port(), configuration=configuration)
    try:
        yield service.server or process.start()
    finally:
        process.stop()


def data_of(server: PostgresServer) -> Path | None:
    """Return the directory of an embedded server's data, in which its main process works."""
    return Path(psutil.Process(server.process_id).cwd()) if server.process_id else None


def disk_of(server: PostgresServer) -> Path | None:
    """Return the directory in /sys of the whole disk of an embedded server, or None without a disk (tmpfs, overlay)."""
    if (data := data_of(server)) is None:
        return None
    device = data.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    disk = block.parent if (block / "partition").exists() else block
    return disk if disk.exists() else None


def operations(disk: Path | None) -> int:
    """Return the reads and writes of a disk since the machine started, of all processes."""
    counters = (disk / "stat").read_text().split() if disk else [0] * 5
    return int(counters[0]) + int(counters[4])  # https://docs.kernel.org/block/stat.html


@contextmanager
def limited(server_id: int | None, disk: Path | None, iops: int | None) -> Iterator[None]:
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
    number, version_1 = (disk / "dev").read_text().strip(), CGROUPS / "blkio"
    controllers = CGROUPS / "cgroup.controllers"
    # The directory of groups, and the files that limit a group.
    parent, rules = CGROUPS, {"../cgroup.subtree_control": "+io", "io.max": f"{number} riops={iops} wiops={iops}"}
    if (version_1 / "blkio.throttle.read_iops_device").exists():
        files = ("blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device")
        parent, rules = version_1, dict.fromkeys(files, f"{number} {iops}")
    elif not controllers.exists() or "io" not in controllers.read_text().split():
        raise UnavailableError("a limit on IOPS takes Linux with cgroups' io (or blkio) controller")
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
