"""Define the tests: pgbench's options as published, and scaled to this machine."""

from dataclasses import dataclass, replace

import psutil

from framehaul.bench.environment import cores

BYTES_PER_SCALE = 15 * 2**20
"""The size of a unit of pgbench's scale, which is 100,000 accounts with their index."""


@dataclass(frozen=True)
class Test:
    """A built-in script of pgbench with a data set of a scale.

    `warm_up` has the arguments of a run before each pass, which brings the data into memory. The published tests log
    one transaction in a hundred, because percentiles do not need tens of thousands per second.
    """

    name: str
    label: str
    scale: int
    clients: int
    threads: int
    seconds: int
    select_only: bool
    warm_up: str = ""

    @property
    def options(self) -> str:
        """The arguments of the run, which logs transactions into its working directory."""
        load = f"-c {self.clients} -j {self.threads} -T {self.seconds}{' -S' * self.select_only}"
        sampled = " --sampling-rate=0.01" if self in PUBLISHED else ""
        return f"{load} -M prepared -P 30 -l --log-prefix=transactions{sampled}"


# The published tests, option by option: https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
PUBLISHED = (
    Test("cpu", "CPU bound: the data fits into memory", 136, 32, 16, 300, True, "-c 1 -T 60 -S -M prepared"),
    Test("io_read", "I/O bound, reading", 34_247, 256, 16, 600, True),
    Test("io_write", "I/O bound, reading and writing", 34_247, 256, 16, 600, False),
)
CLIENTS_PER_CORE, MOST_CLIENTS = 16, 256
"""The published tests have 32 clients for 2 cores and 256 for 16."""
MEMORY_PART, LEAST_SCALE = 128, 12
READS_PER_SCALE = 4 * BYTES_PER_SCALE // 8192
"""Four random reads per page miss two pages in a hundred, which a test reads right at its start."""


def tests(workload: str) -> tuple[Test, ...]:
    """Return the tests of a workload for this machine; `smallest` has a test that reads and a test that writes."""
    small = scaled(psutil.virtual_memory().total, cores())
    return {
        "smallest": tuple(replace(test, scale=1, clients=2, threads=2, warm_up="") for test in (small[0], small[-1])),
        "scaled": small,
        "published": PUBLISHED,
    }[workload]


def commands(workload: str) -> str:
    """Return the commands of a workload's tests on this machine, without the database's address at their end."""
    lines = []
    for test in tests(workload):
        warm_up = [f"pgbench {test.warm_up}"] if test.warm_up else []
        lines += [f"# {test.label}", f"pgbench -i -s {test.scale}", *warm_up, f"pgbench {test.options}"]
    return "\n".join(lines)


def scaled(memory_bytes: int, available_cores: int) -> tuple[Test, ...]:
    """Return the published tests at a second each, with data in proportion to memory and clients to cores.

    The large data set takes a 128th of the memory, and the small data set a twelfth of the large one.
    """
    large = max(LEAST_SCALE, memory_bytes // MEMORY_PART // BYTES_PER_SCALE)
    small, clients = large // LEAST_SCALE, min(CLIENTS_PER_CORE * available_cores, MOST_CLIENTS)
    cpu, *io = (replace(test, scale=large, clients=clients, threads=available_cores, seconds=1) for test in PUBLISHED)
    return replace(cpu, scale=small, warm_up=f"-c 1 -t {small * READS_PER_SCALE} -S -M prepared"), *io
