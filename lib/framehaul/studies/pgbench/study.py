"""Run the pgbench study: data sets on every service, rounds of every test, and a check of all accounts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

from framehaul.bench import recording
from framehaul.bench.rounds import Ok, Pass, Rounds, attempt, columns_of, interruptible
from framehaul.bench.store import Status
from framehaul.settings import load_settings
from framehaul.studies.pgbench import workloads
from framehaul.studies.pgbench.bench import Bench
from framehaul.studies.pgbench.disks import limited
from framehaul.studies.pgbench.services import Service, opened
from framehaul.studies.pgbench.workloads import Test
from framehaul.studies.registry import PGBENCH

PUBLISHED_RATIOS = (
    ("cpu", "ClickHouse's NVMe over RDS gp3", 1.12),
    ("io_read", "ClickHouse's NVMe over RDS with 16,000 IOPS", 9.0),
    ("io_write", "ClickHouse's NVMe over RDS with 16,000 IOPS", 4.3),
    ("io_write", "ClickHouse's NVMe over Aurora I/O optimised", 4.5),
)
"""Published ratios of transactions per second: PostgreSQL 17, 2 cores (cpu) and 16 cores (the other tests).

https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
"""


@dataclass(frozen=True)
class Result:
    """A run of a test on a service; a missing number is None, never 0.

    `disk_iops` counts reads and writes of the disk by all processes. Pass 0 is a failed check of accounts at the end.
    """

    run_id: str
    service: str
    label: str
    test: str
    scale: int
    clients: int
    pass_: int
    tps: float | None = None
    transactions: int | None = None
    seconds: float | None = None
    latency_average_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    latency_p99_ms: float | None = None
    disk_iops: float | None = None
    status: Status = "ok"
    reason: str | None = None


type Task = tuple[Service, Test]


@recording.study(PGBENCH.notebook, Result)
def run(*, workload: str, rounds: int, seed: int, services: str = "") -> None:
    """Run the tests of a workload on every service; `services` names the examples to run, by default all.

    Raises what `services.opened` raises.
    """
    schedule, tests, settings = Rounds(rounds, seed=seed), workloads.tests(workload), load_settings()
    terms = {"workload": workload, "services": services, **vars(schedule)}
    with (
        ExitStack() as limits,  # they end after the servers
        opened(settings, tests, services) as offered,
        recording.recording(PGBENCH.notebook, PGBENCH.results, Result, "run", terms) as this_run,
        ExitStack() as data,
    ):
        tasks = [*product(offered, tests)]
        this_run.expect(len(offered) + rounds * len(tasks))
        benches: dict[str, Bench] = {}
        written: set[Task] = set()

        @cache
        def limit(service: Service) -> None:
            """Limit the disk of a service, after its data sets were created."""
            process_id = service.server.process_id if service.server else None
            limits.enter_context(limited(process_id, service.disk, service.iops))

        def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
            service, test = task
            labels = service.name, service.label, test.name, test.scale, test.clients
            return Result(this_run.run_id, *labels, number, **columns_of(outcome))

        def measure(task: Task, _: int) -> dict[str, Any]:
            service, test = task
            limit(service)
            if not test.select_only:
                written.add(task)
            return benches[service.name].run(test)

        def name(task: Task) -> str:
            return f"{task[0].name} {task[1].name}"

        def work(stop: threading.Event) -> None:
            for service in offered:
                this_run.progress(f"{service.name}: creating data")
                benches[service.name] = bench = Bench(service, settings, stop)
                data.callback(bench.clean)
                bench.create(tests)
            this_run.in_rounds(tasks, schedule, measure, row, name, stop=stop)
            for service, test in written:  # only once, because the check of a large data set takes longer than a run
                checked = attempt(partial(benches[service.name].check_accounts, test.scale))
                if not isinstance(checked, Ok):
                    this_run.write(row((service, test), 0, checked))

        interruptible(work)
        what = f"workload {workload}, {len(offered)} services, {rounds} passes"
        this_run.metadata |= {"what": what, "servers": settings.servers}


def patience(values: Mapping[str, Any]) -> int | None:
    """Return the additional timeout of the notebook's cells in seconds; None for the workloads that take hours."""
    return None if values.get("workload") in ("longer", "published") else 0
