"""Every service set up once, then rounds of every test on each, and a check of all accounts at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from framehaul.bench.passes import Failed, Ok, Pass, Skipped, attempt, columns_of
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers.tables import PostgresTables
from framehaul.settings import load_settings
from framehaul.studies.pgbench import STUDY, workloads
from framehaul.studies.pgbench.bench import Bench
from framehaul.studies.pgbench.disks import limited
from framehaul.studies.pgbench.services import Service, named, opened
from framehaul.studies.pgbench.workloads import Test


@dataclass(frozen=True)
class Result:
    """One run of one test on one service; a missing number is None, never 0.

    Reads and writes are those that PostgreSQL asked for (`reads_per_s`), of which the page cache may answer some, and
    those of the disk (`disk_reads_per_s`), by whomever. Pass 0 is the check at the end.
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
    connect_ms: float | None = None
    latency_average_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p95_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_p999_ms: float | None = None
    latency_max_ms: float | None = None
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    reads_per_s: float | None = None
    writes_per_s: float | None = None
    disk_reads_per_s: float | None = None
    disk_writes_per_s: float | None = None
    cache_hit_ratio: float | None = None
    wal_bytes_per_transaction: float | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """A test on a service with so many clients."""

    service: Service
    test: Test
    clients: int

    def __str__(self) -> str:
        return f"{self.service.name} {self.test.name} {self.clients}"


def measure(*, workload: str, passes: int, seed: int, services: str) -> None:
    """Run the tests of a workload on every service, or on those named, and write `results/pgbench.csv`.

    Raises ValueError for a parameter that makes no sense, SettingsError for a malformed setting, ServerError when the
    server of other notebooks cannot be had, ResultsError when the file cannot be written.
    """
    rounds, tests, settings = Rounds(passes, seed=seed), workloads.tests(workload), load_settings()
    terms = {
        "workload": workload, "services": services, **vars(rounds),
        "pgbench": settings.pgbench,
        "addresses": {name: [one.host, one.port, one.database] for name, one in named(settings).items()},
    }  # fmt: skip
    with (
        opened(settings, tests, services) as offered,
        recording(STUDY.notebook, STUDY.results, Result, "run", terms) as recorder,
    ):
        runs = _Runs(recorder, offered, tests)
        interruptible(lambda stop: runs.all(rounds, stop))
        recorder.metadata |= {
            "what": f"workload {workload}, {len(offered)} services, {passes} passes", "servers": settings.servers,
            "order": [service.name for service in offered], "services": runs.metadata,
            "unavailable": {
                name if scale is None else f"{name}, scale {scale:,}": trouble.reason
                for (name, scale), trouble in runs.trouble.items()
            },
            "left": runs.left,
        }  # fmt: skip


class _Runs:
    def __init__(self, recorder: Recording, services: Sequence[Service], tests: Sequence[Test]) -> None:
        self._recorder, self._services, self._tests = recorder, services, tests
        self._benches: dict[str, Bench] = {}
        self._unchecked: dict[tuple[str, str], Task] = {}
        """Tests that have changed accounts, by service and name."""
        self.trouble: dict[tuple[str, int | None], Skipped | Failed] = {}
        """Why a service is not measured, at all (None) or with the data set of a scale."""
        self.metadata: dict[str, dict[str, Any]] = {}
        self.left: list[str] = []
        """What could not be cleaned up."""

    def all(self, rounds: Rounds, stop: threading.Event) -> None:
        """Set up, run all rounds, check what they left, clean up; an interrupted run is checked, too."""
        tasks = [
            Task(service, test, clients)
            for service in self._services
            for test in self._tests
            for clients in (*test.sweep, test.clients)
        ]
        self._recorder.expect(len(self._services) + rounds.passes * len(tasks))
        _, finished = self._recorder.passes(self._row)
        with ExitStack() as limits:
            try:
                for service in self._services:
                    if stop.is_set():
                        raise KeyboardInterrupt
                    self._recorder.progress(f"{service.name}: making data")
                    self._attempt(service, None, partial(self._set_up, service, stop, limits))
                in_rounds(
                    tasks, rounds, self._run, self._record, stop=stop, finished=finished,
                    progress=lambda task, _: self._recorder.progress(str(task)),
                )  # fmt: skip
            finally:
                for task in self._unchecked.values():
                    self._check(task)
                self.left += [left for bench in self._benches.values() if (left := bench.clean())]

    def _set_up(self, service: Service, stop: threading.Event, limits: ExitStack) -> None:
        bench = self._benches[service.name] = Bench(service, self._recorder.settings, stop)
        start = time.perf_counter()
        for test in {test.scale: test for test in self._tests}.values():
            self._attempt(service, test.scale, partial(bench.initialise, test))
        assert service.server is not None
        known = PostgresTables(service.server).metadata()
        self.metadata[service.name] = known | {"initialised_s": round(time.perf_counter() - start, 1)}
        if service.iops is not None:
            assert service.server.process_id is not None
            limits.enter_context(limited(service.server.process_id, service.disk, service.iops))

    def _attempt(self, service: Service, scale: int | None, work: Callable[[], None]) -> None:
        """Whatever goes wrong with one service, or one data set, while it is set up is its trouble; others go on."""
        outcome = attempt(work)
        if not isinstance(outcome, Ok):
            self.trouble[service.name, scale] = outcome

    def _run(self, task: Task, _: int) -> dict[str, Any]:
        name = task.service.name
        if trouble := self.trouble.get((name, None)) or self.trouble.get((name, task.test.scale)):
            raise (UnavailableError if isinstance(trouble, Skipped) else WrongResultError)(trouble.reason)
        if not task.test.select_only:
            self._unchecked[name, task.test.name] = Task(task.service, task.test, task.test.clients)
        return self._benches[name].run(task.test, task.clients)

    def _record(self, task: Task, number: int, outcome: Pass[dict[str, Any]]) -> None:
        self._recorder.write(self._row(task, number, outcome))

    def _check(self, task: Task) -> None:
        """All accounts, once: on a large data set that takes longer than a run."""
        outcome = attempt(partial(self._benches[task.service.name].check_accounts, task.test.scale))
        if not isinstance(outcome, Ok):
            self._recorder.write(self._row(task, 0, outcome))

    def _row(self, task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
        service, test = task.service, task.test
        return Result(
            self._recorder.run_id, service.name, service.label, test.name, test.scale, task.clients, number,
            **columns_of(outcome),
        )  # fmt: skip
