"""Every service set up once, then rounds of every test on each, and a check of all accounts at the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from framehaul.bench.passes import Failed, Ok, Pass, Skipped, attempt, columns_of
from framehaul.bench.recording import Recording, recording
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


@dataclass(frozen=True)
class Result:
    """One run of one test on one service; a missing number is None, never 0.

    `disk_iops` counts reads and writes of the disk, whichever process asked for them. Pass 0 is the check at the end.
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


@dataclass(frozen=True)
class Task:
    """A test on a service."""

    service: Service
    test: Test

    def __str__(self) -> str:
        return f"{self.service.name} {self.test.name}"


def measure(*, workload: str, rounds: int, seed: int, services: str) -> None:
    """Run the tests of a workload on every service, or on those named, and write `results/pgbench.csv`.

    Raises ValueError for a parameter that makes no sense, SettingsError for a malformed setting, ServerError when the
    server of other notebooks cannot be had, ResultsError when the file cannot be written.
    """
    schedule, tests, settings = Rounds(rounds, seed=seed), workloads.tests(workload), load_settings()
    terms = {
        "workload": workload, "services": services, **vars(schedule),
        "pgbench": settings.pgbench,
        "addresses": {name: [one.host, one.port, one.database] for name, one in named(settings).items()},
    }  # fmt: skip
    with (
        opened(settings, tests, services) as offered,
        recording(PGBENCH.notebook, PGBENCH.results, Result, "run", terms) as recorder,
    ):
        runs = _Runs(recorder, offered, tests)
        interruptible(lambda stop: runs.all(schedule, stop))
        recorder.metadata |= {
            "what": f"workload {workload}, {len(offered)} services, {rounds} passes", "servers": settings.servers,
            "services": runs.metadata, "left": runs.left,
            "unavailable": {f"{name}, scale {scale:,}": one.reason for (name, scale), one in runs.trouble.items()},
        }  # fmt: skip


class _Runs:
    def __init__(self, recorder: Recording, services: Sequence[Service], tests: Sequence[Test]) -> None:
        self._recorder, self._services, self._tests = recorder, services, tests
        self._benches: dict[str, Bench] = {}
        self._unchecked: set[Task] = set()
        """Tests that have changed accounts."""
        self.trouble: dict[tuple[str, int], Skipped | Failed] = {}
        """Why a service is not measured with the data set of a scale."""
        self.metadata: dict[str, dict[str, Any]] = {}
        self.left: list[str] = []
        """What could not be cleaned up."""

    def all(self, rounds: Rounds, stop: threading.Event) -> None:
        """Set up, run all rounds, check what they left, clean up; an interrupted run is checked, too."""
        tasks = [Task(service, test) for service in self._services for test in self._tests]
        self._recorder.expect(len(self._services) + rounds.passes * len(tasks))
        record, finished = self._recorder.passes(self._row)
        with ExitStack() as limits:
            try:
                for service in self._services:
                    if stop.is_set():
                        raise KeyboardInterrupt
                    self._recorder.progress(f"{service.name}: making data")
                    self._set_up(service, stop, limits)
                in_rounds(
                    tasks, rounds, self._run, record, stop=stop, finished=finished,
                    progress=lambda task, _: self._recorder.progress(str(task)),
                )  # fmt: skip
            finally:
                for task in self._unchecked:  # once: on a large data set it takes longer than a run
                    outcome = attempt(partial(self._benches[task.service.name].check_accounts, task.test.scale))
                    if not isinstance(outcome, Ok):
                        record(task, 0, outcome)
                self.left += [left for bench in self._benches.values() if (left := bench.clean())]

    def _set_up(self, service: Service, stop: threading.Event, limits: ExitStack) -> None:
        """Make the data sets, then limit the disk; what cannot be done is trouble of the service, and others go on."""

        def make(test: Test) -> None:
            if service.name not in self._benches:
                self._benches[service.name] = Bench(service, self._recorder.settings, stop)
                self.metadata[service.name] = self._benches[service.name].metadata()
            self._benches[service.name].initialise(test)

        def limit() -> None:
            if service.iops is not None and service.server is not None and service.server.process_id is not None:
                limits.enter_context(limited(service.server.process_id, service.disk, service.iops))

        outcomes: dict[int, Pass[None]] = {}
        for test in self._tests:
            if test.scale not in outcomes:
                outcomes[test.scale] = attempt(partial(make, test))
        limit_set = attempt(limit)
        for scale, made in outcomes.items():
            outcome = made if isinstance(limit_set, Ok) else limit_set
            if not isinstance(outcome, Ok):
                self.trouble[service.name, scale] = outcome

    def _run(self, task: Task, _: int) -> dict[str, Any]:
        if trouble := self.trouble.get((task.service.name, task.test.scale)):
            raise (UnavailableError if isinstance(trouble, Skipped) else WrongResultError)(trouble.reason)
        if not task.test.select_only:
            self._unchecked.add(task)
        return self._benches[task.service.name].run(task.test)

    def _row(self, task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
        service, test = task.service, task.test
        return Result(
            self._recorder.run_id, service.name, service.label, test.name, test.scale, test.clients, number,
            **columns_of(outcome),
        )  # fmt: skip
