"""Every service set up and checked once, then rounds of every test on each, with a row for every pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from framehaul.harness.recording import Recording, recording
from framehaul.harness.rounds import check, in_rounds, interruptible, outcome_of
from framehaul.results import store
from framehaul.results.store import Status
from framehaul.servers.tables import PostgresTables
from framehaul.settings import load_settings
from framehaul.studies.pgbench import STUDY, presets
from framehaul.studies.pgbench.bench import Bench
from framehaul.studies.pgbench.disks import limited
from framehaul.studies.pgbench.presets import Test
from framehaul.studies.pgbench.services import Service, opened

SPREAD = "pgbench_spread.csv"
"""How the transactions of each pass are spread over latency and time."""


@dataclass(frozen=True)
class Pass:
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
    price_per_hour: float | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Spread:
    """How many transactions of a pass took up to so many ms (`latency_ms`), or ended by so many seconds (`second`)."""

    run_id: str
    service: str
    test: str
    clients: int
    pass_: int
    kind: str
    up_to: float
    transactions: float


@dataclass(frozen=True)
class Task:
    """A test on a service with so many clients."""

    service: Service
    test: Test
    clients: int


def measure(*, preset: str, passes: int, seed: int, services: str) -> None:
    """Run the tests of a preset on every service, or on those named, and write `results/pgbench.csv`.

    Raises ValueError for a parameter that makes no sense, SettingsError for a malformed setting, ServerError when the
    server of other notebooks cannot be had, ResultsError when the file cannot be written.
    """
    check(PASSES=(passes, 1))
    tests = presets.tests(preset)
    settings = load_settings()
    with (
        opened(settings, tests, services) as found,
        recording(STUDY.notebook, STUDY.results, Pass, "run") as made,
        store.Writer(settings.out / "results" / SPREAD, Spread) as spread,
    ):
        rounds = _Rounds(made, spread, found, tests)
        interruptible(lambda stop: rounds.all(passes=passes, seed=seed, stop=stop))
        made.metadata |= {
            "what": f"preset {preset}, {len(found)} services, {passes} passes", "servers": settings.servers,
            "order": [service.name for service in found], "services": rounds.metadata,
            "unavailable": {
                name if scale is None else f"{name}, scale {scale:,}": trouble["reason"]
                for (name, scale), trouble in rounds.trouble.items()
            },
            "left": rounds.left,
        }  # fmt: skip


class _Rounds:
    def __init__(
        self, made: Recording, spread: store.Writer, services: Sequence[Service], tests: Sequence[Test]
    ) -> None:
        self._made, self._spread, self._services, self._tests = made, spread, services, tests
        self._benches: dict[str, Bench] = {}
        self.trouble: dict[tuple[str, int | None], dict[str, Any]] = {}
        """Why a service is not measured, at all (None) or with the data set of a scale."""
        self.metadata: dict[str, dict[str, Any]] = {}
        self.left: list[str] = []
        """What could not be cleaned up."""

    def all(self, *, passes: int, seed: int, stop: threading.Event) -> None:
        """Set up, run all rounds, check at the end, clean up."""
        tasks = [
            Task(service, test, clients)
            for service in self._services
            for test in self._tests
            for clients in (*test.sweep, test.clients)
        ]
        self._made.expect(len(self._services) + passes * len(tasks))
        with ExitStack() as limits:
            try:
                for service in self._services:
                    if stop.is_set():
                        raise KeyboardInterrupt
                    self._made.progress(f"{service.name}: making data")
                    self._attempt(service, None, partial(self._set_up, service, stop, limits))
                for number, task in in_rounds(tasks, warmup=0, passes=passes, seed=seed, stop=stop):
                    self._made.progress(f"{task.service.name} {task.test.name} {task.clients}")
                    self._run(task, number)
                for service in self._services:
                    self._check(service)
            finally:
                self.left += [left for bench in self._benches.values() if (left := bench.clean())]

    def _set_up(self, service: Service, stop: threading.Event, limits: ExitStack) -> None:
        bench = self._benches[service.name] = Bench(service, self._made.settings, stop)
        begun = time.perf_counter()
        for test in {test.scale: test for test in self._tests}.values():
            self._attempt(service, test.scale, partial(bench.initialise, test))
        assert service.server is not None
        known = PostgresTables(service.server).metadata()
        self.metadata[service.name] = known | {"initialised_s": round(time.perf_counter() - begun, 1)}
        if service.iops is not None:
            assert service.server.process_id is not None
            limits.enter_context(limited(service.server.process_id, service.disk, service.iops))

    def _attempt(self, service: Service, scale: int | None, work: Callable[[], None]) -> None:
        """Whatever goes wrong with one service, or one data set, while it is set up is its trouble; others go on."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  said in its rows
            self.trouble[service.name, scale] = outcome_of(error)

    def _trouble_of(self, service: Service, test: Test) -> dict[str, Any] | None:
        return self.trouble.get((service.name, None)) or self.trouble.get((service.name, test.scale))

    def _run(self, task: Task, number: int) -> None:
        service = task.service
        if trouble := self._trouble_of(service, task.test):
            self._write(task, number, **trouble)
            return
        try:
            done = self._benches[service.name].run(task.test, task.clients)
        except Exception as error:  # noqa: BLE001  whatever a run raises is its result, not the study's end
            self._write(task, number, **outcome_of(error))
            return
        self._write(task, number, **done.figures)
        for found in done.bins:
            place = (self._made.run_id, service.name, task.test.name, task.clients, number)
            self._spread.write(Spread(*place, found.kind, found.up_to, found.transactions))

    def _check(self, service: Service) -> None:
        """All accounts, once: on a large data set that takes longer than a run."""
        for test in self._tests:
            if not test.select_only and not self._trouble_of(service, test):
                try:
                    self._benches[service.name].check_accounts(test.scale)
                except Exception as error:  # noqa: BLE001  as above
                    self._write(Task(service, test, test.clients), 0, **outcome_of(error))

    def _write(self, task: Task, number: int, **found: Any) -> None:
        service, test = task.service, task.test
        self._made.write(
            Pass(
                self._made.run_id, service.name, service.label, test.name, test.scale, task.clients, number,
                price_per_hour=service.price_per_hour, **found,
            )
        )  # fmt: skip
