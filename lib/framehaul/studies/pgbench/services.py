"""Open the services to compare: the user's servers, and configurations of the embedded server as examples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from framehaul import servers
from framehaul.bench.environment import cores
from framehaul.errors import ServerError, SettingsError
from framehaul.servers import PostgresServer, parse_postgres_dsn
from framehaul.servers.embedded import home_of_a_run
from framehaul.servers.local import EmbeddedPostgres, choose_port
from framehaul.settings import Settings
from framehaul.studies.pgbench.disks import Disk, disk_of
from framehaul.studies.pgbench.workloads import PUBLISHED_DATA_OVER_MEMORY, PUBLISHED_IOPS_PER_CORE, Test

SERVICES = "FRAMEHAUL_PGBENCH_SERVICES"
NAME = re.compile(r"[a-z][a-z0-9_-]*")
SPARE_CONNECTIONS = 20


@dataclass(frozen=True)
class Service:
    """A PostgreSQL server with a name."""

    name: str
    label: str
    server: PostgresServer | None = None
    """None if the service could not be started."""
    disk: Disk | None = None
    """The disk of the data, if known."""
    data: Path | None = None
    iops: int | None = None
    """The limit of reads, and of writes, per second."""
    trouble: str | None = None
    """The reason why there is no server."""
    configuration: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The settings of an example."""


def examples(memory_bytes: int, available_cores: int, data_bytes: int) -> list[Service]:
    """Return the configurations to compare on a machine of this size, with a data set of this size.

    `small_buffers` and `limited_iops` have the published ratio of memory to data, 64 GB to 500 GB. A data set larger
    than this machine's memory takes too long to create. Therefore their memory is only shared_buffers: direct I/O
    bypasses the page cache (https://www.postgresql.org/docs/18/runtime-config-developer.html#GUC-DEBUG-IO-DIRECT).
    """
    small_kib = round(data_bytes / PUBLISHED_DATA_OVER_MEMORY / 1024)
    small = {"shared_buffers": f"{small_kib}kB", "debug_io_direct": "data,wal"}
    label = f"shared_buffers of {small_kib / 1024:.0f} MiB and no page cache (direct I/O)"
    iops = PUBLISHED_IOPS_PER_CORE * available_cores
    mib = memory_bytes // 2**20
    tuned = {
        "shared_buffers": f"{mib // 4}MB", "effective_cache_size": f"{mib * 3 // 4}MB", "max_wal_size": "4GB",
        "checkpoint_timeout": "15min", "random_page_cost": "1.1",
    }  # fmt: skip
    unsafe = "defaults with synchronous_commit=off: a crash loses the last commits that a client was told of"
    return [
        Service("default", "PostgreSQL's defaults"),
        # https://www.postgresql.org/docs/18/runtime-config-resource.html: a quarter of the memory is a good start.
        Service("tuned", "tuned: a quarter of the memory for shared_buffers, rare checkpoints", configuration=tuned),
        # https://www.postgresql.org/docs/18/wal-async-commit.html
        Service("async_commit", unsafe, configuration={"synchronous_commit": "off"}),
        Service("small_buffers", label, configuration=small),
        Service("limited_iops", f"{label}, {iops:,} IOPS", iops=iops, configuration=small),
    ]


def named(settings: Settings) -> list[Service]:
    """Return the services of the settings; raises SettingsError, without a password, for a malformed pair."""
    services = []
    for at, pair in enumerate((settings.pgbench_services or "").split(), 1):
        name, _, dsn = pair.partition("=")
        # Messages have only the name: the rest may contain a password.
        if not NAME.fullmatch(name) or not dsn:
            raise SettingsError(f"{SERVICES}: pair {at} is not name=value, with a name of a-z, 0-9, _ and -")
        try:
            services.append(Service(name, name, parse_postgres_dsn(f"{SERVICES}: that of {name}", dsn)))
        except ServerError as error:
            raise SettingsError(str(error)) from None
    return services


@contextmanager
def opened(settings: Settings, tests: Sequence[Test], wanted: str = "") -> Iterator[list[Service]]:
    """Start the examples named in `wanted`, or all, and yield them with the services of the settings.

    With SERVERS=docker or external, that server replaces the examples. Embedded servers are stopped at the end, and
    their data is removed. Raises ValueError for an unknown example, SettingsError for a malformed setting, and
    ServerError if the server of the other notebooks is not available.
    """
    given = named(settings)
    configured = examples(psutil.virtual_memory().total, cores(), max(test.data_bytes for test in tests))
    names = [example.name for example in configured]
    if unknown := [name for name in wanted.split() if name not in names]:
        raise ValueError(f"services: there is no example {unknown[0]!r}; known: {', '.join(names)}")
    taken = [*names, settings.servers]
    for service in given:
        if service.name in taken:
            raise SettingsError(f"{SERVICES}: {service.name} is the name of another service; choose another name")
        taken.append(service.name)
    with ExitStack() as stack:
        if settings.servers != "embedded":
            server = stack.enter_context(servers.running(settings)).postgres
            yield [Service(settings.servers, f"the server of SERVERS={settings.servers}", server), *given]
            return
        home = stack.enter_context(home_of_a_run(settings.state_dir, "pgbench"))
        connections = max(test.clients for test in tests) + SPARE_CONNECTIONS
        chosen = [example for example in configured if example.name in (wanted.split() or names)]
        with ThreadPoolExecutor() as pool:  # each takes a second to start, and uses one core
            starting = [_embedded(home, example, connections) for example in chosen]
            started = [*pool.map(stack.enter_context, starting)]
        yield [*started, *given]


@contextmanager
def _embedded(home: Path, service: Service, connections: int) -> Iterator[Service]:
    directory = home / service.name
    directory.mkdir(mode=0o711)
    configuration = {"max_connections": str(connections), **service.configuration}
    process = EmbeddedPostgres(directory, choose_port(), configuration=configuration)
    try:
        try:
            service = replace(service, server=process.start(), disk=disk_of(process.data), data=process.data)
        except ServerError as error:
            service = replace(service, trouble=str(error).replace(str(directory), ""))
        yield service
    finally:
        process.stop()
