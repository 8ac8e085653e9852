"""Run the pgbench study: data sets on every service, rounds of every test, and a check of all accounts."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from framehaul.bench import recording
from framehaul.bench.passes import Ok, Pass, Skipped, attempt, columns_of
from framehaul.bench.rounds import Rounds, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.settings import load_settings
from framehaul.studies.pgbench import workloads
from framehaul.studies.pgbench.bench import Bench
from framehaul.studies.pgbench.disks import limited
from framehaul.studies.pgbench.services import Service, named, opened
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

    Raises ValueError for an invalid parameter, SettingsError for a malformed setting, ServerError if the server of the
    other notebooks is not available, and ResultsError if the results cannot be written.
    """
    schedule, tests, settings = Rounds(rounds, seed=seed), workloads.tests(workload), load_settings()
    terms = {
        "workload": workload, "services": services, **vars(schedule), "pgbench": settings.pgbench,
        "addresses": {name: [server.host, server.port, server.database] for name, server in named(settings).items()},
    }  # fmt: skip
    with (
        opened(settings, tests, services) as offered,
        recording.recording(PGBENCH.notebook, PGBENCH.results, Result, "run", terms) as this_run,
        ExitStack() as limits,
    ):
        tasks = [(service, test) for service in offered for test in tests]
        this_run.expect(len(offered) + rounds * len(tasks))
        record, finished = this_run.passes(partial(_row, this_run.run_id))
        benches: dict[str, Bench] = {}
        ready: dict[tuple[str, int], Pass[None]] = {}
        written: set[Task] = set()

        def measure(task: Task, _: int) -> dict[str, Any]:
            service, test = task
            if not isinstance(data := ready[service.name, test.scale], Ok):
                raise (UnavailableError if isinstance(data, Skipped) else WrongResultError)(data.reason)
            if not test.select_only:
                written.add(task)
            return benches[service.name].run(test)

        def work(stop: threading.Event) -> None:
            for service in offered:
                this_run.progress(f"{service.name}: creating data")
                benches[service.name] = bench = Bench(service, settings, stop)
                ready.update({(service.name, scale): data for scale, data in _set_up(bench, tests, limits).items()})
            in_rounds(
                tasks, schedule, measure, record, stop=stop, finished=finished,
                progress=lambda task, _: this_run.progress(f"{task[0].name} {task[1].name}"),
            )  # fmt: skip
            for service, test in written:  # only once, because the check of a large data set takes longer than a run
                checked = attempt(partial(benches[service.name].check_accounts, test.scale))
                if not isinstance(checked, Ok):
                    record((service, test), 0, checked)

        try:
            interruptible(work)
        finally:
            left = [message for bench in benches.values() if (message := bench.clean())]
            for message in left:
                this_run.say(message)
        described = {name: attempt(bench.metadata) for name, bench in benches.items()}
        this_run.metadata |= {
            "what": f"workload {workload}, {len(offered)} services, {rounds} passes", "servers": settings.servers,
            "services": {name: each.values for name, each in described.items() if isinstance(each, Ok)}, "left": left,
        }  # fmt: skip


def _set_up(bench: Bench, tests: Sequence[Test], limits: ExitStack) -> dict[int, Pass[None]]:
    """Create the data sets of a service, then limit its disk, and return the outcome by scale."""
    service = bench.service

    def limit() -> None:
        if service.iops is not None and service.server is not None and service.server.process_id is not None:
            limits.enter_context(limited(service.server.process_id, service.disk, service.iops))

    by_scale = {test.scale: test for test in tests}
    created = {scale: attempt(partial(bench.initialise, test)) for scale, test in by_scale.items()}
    limit_set = attempt(limit)
    return created if isinstance(limit_set, Ok) else dict.fromkeys(created, limit_set)


def _row(run_id: str, task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
    service, test = task
    return Result(
        run_id, service.name, service.label, test.name, test.scale, test.clients, number, **columns_of(outcome)
    )


def patience(values: Mapping[str, Any]) -> int | None:
    """Return the additional timeout of the notebook's cells in seconds; None for the workloads that take hours."""
    return None if values.get("workload") in ("longer", "published") else 0
