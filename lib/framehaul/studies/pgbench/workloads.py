"""Define the tests: pgbench's options as published, and scaled to this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from framehaul.bench.environment import cores

BYTES_PER_SCALE = 15 * 2**20
"""The size of a unit of pgbench's scale, which is 100,000 accounts with their index."""
PAGES_PER_SCALE = BYTES_PER_SCALE // 8192
LOG = "transactions"
"""The prefix of pgbench's log files."""


@dataclass(frozen=True)
class Test:
    """A built-in script of pgbench with a data set of a scale.

    Before each run one client reads for `warm_up_length`, if given, to bring the data into memory. `sampling_rate` is
    the share of transactions that pgbench logs, because percentiles do not need tens of thousands per second.
    """

    name: str
    label: str
    scale: int
    clients: int
    threads: int
    seconds: int
    select_only: bool
    warm_up_length: tuple[str, ...] = ()
    sampling_rate: float = 1.0

    def initialisation(self) -> list[str]:
        """Return the arguments that create the data set."""
        return ["-i", "-s", str(self.scale)]

    def warm_up(self) -> list[str]:
        """Return the arguments of the warm-up before each run, or nothing for a test without warm-up."""
        return ["-c", "1", *self.warm_up_length, "-S", "-M", "prepared"] if self.warm_up_length else []

    def options(self) -> list[str]:
        """Return the arguments of the run, which logs transactions into its working directory."""
        return [
            "-c", str(self.clients), "-j", str(min(self.threads, self.clients)), "-T", str(self.seconds),
            *(["-S"] if self.select_only else []), "-M", "prepared", "-P", "30", "-l", f"--log-prefix={LOG}",
            *([f"--sampling-rate={self.sampling_rate}"] if self.sampling_rate < 1 else []),
        ]  # fmt: skip

    @property
    def data_bytes(self) -> int:
        """The approximate size of the data set."""
        return self.scale * BYTES_PER_SCALE


# The published tests, option by option: https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
PUBLISHED = (
    Test("cpu", "CPU bound: the data fits into memory", 136, 32, 16, 300, True, ("-T", "60"), sampling_rate=0.01),
    Test("io_read", "I/O bound, reading", 34_247, 256, 16, 600, True, sampling_rate=0.01),
    Test("io_write", "I/O bound, reading and writing", 34_247, 256, 16, 600, False, sampling_rate=0.01),
)
PUBLISHED_CLIENTS_PER_CORE = 16
"""The published tests have 32 clients for 2 cores and 256 for 16."""
PUBLISHED_IOPS_PER_CORE = 1_000
"""The published tests have 16,000 provisioned IOPS for 16 cores."""
PUBLISHED_DATA_OVER_MEMORY = 500 / 64
"""The published tests have 500 GB of data and 64 GB of memory."""

MEMORY_PART, LEAST_SCALE, MOST_CLIENTS = 128, 12, 256
READS_PER_PAGE = 4
"""Four random reads per page miss two pages in a hundred, which a test reads right at its start."""
WORKLOADS = ("smallest", "scaled", "longer", "published")
LONGER_SECONDS = 30


def tests(workload: str) -> tuple[Test, ...]:
    """Return the tests of a workload for this machine; raises ValueError for an unknown workload.

    `smallest` has a test that reads and a test that writes, to show whether services answer. `longer` is `scaled` with
    more seconds per test.
    """
    if workload not in WORKLOADS:
        raise ValueError(f"WORKLOAD={workload!r}: choose from {', '.join(WORKLOADS)}")
    if workload == "published":
        return PUBLISHED
    small = scaled(psutil.virtual_memory().total, cores())
    if workload == "smallest":
        tiny = [replace(test, scale=1, clients=2, threads=2) for test in (small[0], small[-1])]
        return replace(tiny[0], warm_up_length=("-t", "1")), tiny[1]
    return tuple(replace(test, seconds=LONGER_SECONDS) for test in small) if workload == "longer" else small


def commands(workload: str) -> str:
    """Return the commands of a workload's tests on this machine, without the database's address at their end."""
    lines = []
    for test in tests(workload):
        steps = [test.initialisation(), test.warm_up(), test.options()]
        lines += [f"# {test.label}", *(f"pgbench {' '.join(step)}" for step in steps if step)]
    return "\n".join(lines)


def scaled(memory_bytes: int, available_cores: int) -> tuple[Test, ...]:
    """Return the published tests at a second each, with data in proportion to memory and clients to cores.

    The large data set takes a 128th of the memory, and the small data set a twelfth of the large one.
    """
    clients = min(PUBLISHED_CLIENTS_PER_CORE * available_cores, MOST_CLIENTS)
    large = max(LEAST_SCALE, memory_bytes // MEMORY_PART // BYTES_PER_SCALE)
    cpu, *io = (
        replace(test, clients=clients, threads=available_cores, seconds=1, sampling_rate=1.0) for test in PUBLISHED
    )
    small = large // LEAST_SCALE
    warm_up = ("-t", str(small * PAGES_PER_SCALE * READS_PER_PAGE))
    return replace(cpu, scale=small, warm_up_length=warm_up), *(replace(test, scale=large) for test in io)
