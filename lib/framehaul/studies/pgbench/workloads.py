"""The tests: what pgbench is asked to do, as published, and scaled to the machine at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from framehaul.bench.environment import cores

BYTES_PER_SCALE = 15 * 2**20
"""What a unit of pgbench's scale takes: 100,000 accounts with their index."""
PAGES_PER_SCALE = BYTES_PER_SCALE // 8192
LOG = "transactions"
"""What names of pgbench's logs begin with."""


@dataclass(frozen=True)
class Test:
    """One of pgbench's built-in scripts against a data set of a scale."""

    name: str
    label: str
    scale: int
    clients: int
    threads: int
    seconds: int
    select_only: bool
    warm_up_length: tuple[str, ...] = ()
    """How long pgbench reads with one client before each run, to bring the data into memory; empty: not at all."""
    sampling_rate: float = 1.0
    """The part of all transactions that is logged: at tens of thousands a second, some are enough for percentiles."""

    def initialisation(self) -> list[str]:
        """What pgbench is told to make the data set."""
        return ["-i", "-s", str(self.scale)]

    def warm_up(self) -> list[str]:
        """What it is told before each run, where a test wants that."""
        return ["-c", "1", *self.warm_up_length, "-S", "-M", "prepared"]

    def options(self) -> list[str]:
        """What it is told for the test itself."""
        return [
            "-c", str(self.clients), "-j", str(min(self.threads, self.clients)), "-T", str(self.seconds),
            *(["-S"] if self.select_only else []), "-M", "prepared", "-P", "30",
        ]  # fmt: skip

    def logging(self) -> list[str]:
        """What it is told so that it logs each transaction, or some of them, into the directory that it runs in."""
        sampling = [f"--sampling-rate={self.sampling_rate}"] if self.sampling_rate < 1 else []
        return ["-l", f"--log-prefix={LOG}", *sampling]

    @property
    def data_bytes(self) -> int:
        """About what the data set takes."""
        return self.scale * BYTES_PER_SCALE


# The published tests, option by option: https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
PUBLISHED = (
    Test("cpu", "CPU bound: the data fits into memory", 136, 32, 16, 300, True, ("-T", "60"), sampling_rate=0.01),
    Test("io_read", "I/O bound, reading", 34_247, 256, 16, 600, True, sampling_rate=0.01),
    Test("io_write", "I/O bound, reading and writing", 34_247, 256, 16, 600, False, sampling_rate=0.01),
)
PUBLISHED_CLIENTS_PER_CORE = 16
"""32 clients for the published 2 cores, 256 for its 16."""
PUBLISHED_IOPS_PER_CORE = 1_000
"""16,000 provisioned for 16 cores."""
PUBLISHED_DATA_OVER_MEMORY = 500 / 64
"""500 GB of data, 64 GB of memory."""

MEMORY_PART, LEAST_SCALE, MOST_CLIENTS = 128, 12, 256
READS_PER_PAGE = 4
"""So many random reads for each page leave two pages in a hundred out, which a test reads in its first moments."""
WORKLOADS = ("smallest", "scaled", "longer", "published")
LONGER_SECONDS = 30


def tests(workload: str) -> tuple[Test, ...]:
    """The tests of a workload, for this machine; raises ValueError, naming it, for one that does not exist.

    `smallest` shows whether services answer, before a run of hours: one test that reads, one that writes; `longer` is
    `scaled` with more seconds a test.
    """
    if workload not in WORKLOADS:
        raise ValueError(f"WORKLOAD={workload!r}: choose from {', '.join(WORKLOADS)}")
    if workload == "published":
        return PUBLISHED
    small = scaled(psutil.virtual_memory().total, cores())
    if workload == "scaled":
        return small
    if workload == "longer":
        return tuple(replace(test, seconds=LONGER_SECONDS) for test in small)
    return tuple(
        replace(test, scale=1, clients=2, threads=2, warm_up_length=test.warm_up_length and ("-t", "1"))
        for test in (small[0], small[-1])
    )


def commands(workload: str) -> str:
    """What is run for each test of a workload on this machine, as in a shell; the database's address follows."""
    lines = []
    for test in tests(workload):
        lines += [f"# {test.label}", f"pgbench {' '.join(test.initialisation())}"]
        lines += [f"pgbench {' '.join(test.warm_up())}"] if test.warm_up_length else []
        lines += [f"pgbench {' '.join([*test.options(), *test.logging()])}"]
    return "\n".join(lines)


def scaled(memory_bytes: int, available_cores: int) -> tuple[Test, ...]:
    """The published tests at a second each, data in proportion to memory: one pass over all examples takes a minute.

    The large data set takes a 128th of the memory, the small one a twelfth of that. Clients per core are as published.
    """
    clients = min(PUBLISHED_CLIENTS_PER_CORE * available_cores, MOST_CLIENTS)
    large = max(LEAST_SCALE, memory_bytes // MEMORY_PART // BYTES_PER_SCALE)
    cpu, *io = (
        replace(test, clients=clients, threads=available_cores, seconds=1, sampling_rate=1.0) for test in PUBLISHED
    )
    small = large // LEAST_SCALE
    return (
        replace(cpu, scale=small, warm_up_length=("-t", str(small * PAGES_PER_SCALE * READS_PER_PAGE))),
        *(replace(test, scale=large) for test in io),
    )
