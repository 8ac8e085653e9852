"""Throughput against workers and partitions, both ways, on PostgreSQL and ClickHouse."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import polars as pl

from framehaul import servers
from framehaul.bench import store
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Meter
from framehaul.bench.passes import Pass as Ended
from framehaul.bench.passes import columns_of, right
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError
from framehaul.reporting.shown import Shown, chart, view
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import load_settings
from framehaul.studies.registry import SCALE_OUT
from framehaul.studies.scale_out import moves, report
from framehaul.studies.scale_out.clickhouse import ClickHouseTarget
from framehaul.studies.scale_out.cluster import Cluster, opened
from framehaul.studies.scale_out.partitions import Partition, frame_of, make
from framehaul.studies.scale_out.postgres import PostgresTarget
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction, named

type Server = PostgresServer | ClickHouseServer

TABLE = ANALYTICS_METRICS
TECHNIQUES: dict[tuple[Database, Direction], str] = {
    ("postgres", "write"): "polars_pgpq_key_last",
    ("postgres", "read"): "polars_asyncpg_copy_decoded",
    ("clickhouse", "write"): "polars_http_client_arrow_stream",
    ("clickhouse", "read"): "polars_http_client_native_decoded",
}
"""Fast techniques over one connection: each worker has one connection."""


@dataclass(frozen=True)
class Pass:
    """One pass of one direction with so many workers and partitions; a missing number is None, never 0."""

    run_id: str
    database: str
    direction: str
    technique: str
    label: str
    workers: int
    partitions: int
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    server_cpu_s: float | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """What a pass does."""

    database: Database
    direction: Direction
    workers: int
    partitions: int

    @property
    def technique(self) -> Technique:
        """How each worker moves a partition."""
        return named(self.database, self.direction, TECHNIQUES[self.database, self.direction])

    @property
    def label(self) -> str:
        """The task in words."""
        return f"{DATABASES[self.database]} {self.direction}, {self.workers} workers, {self.partitions} partitions"


def tasks(workers: Sequence[int], partitions: Sequence[int]) -> list[Task]:
    """Return what each round does.

    Every number of workers is with the most partitions, and every number of partitions with the most workers.
    """
    most = max(partitions)
    pairs = dict.fromkeys([*((count, most) for count in workers), *((max(workers), count) for count in partitions)])
    return [Task(database, direction, *pair) for database, direction in TECHNIQUES for pair in pairs]


class ScaleOut(Shown):
    """The passes of a run over several workers."""

    study = SCALE_OUT
    answer = view(report.findings_text)
    table = view(report.speed_table)
    chart = chart(report.figure)
    missing = view(report.missing_table)


def run(
    *, rows: int, rounds: int, warmup: int, seed: int, workers: Sequence[int], partitions: Sequence[int]
) -> ScaleOut:
    """Write a data set of partitions and read it back, and write `results/scale_out.csv`.

    Raises ValueError for a parameter that makes no sense, ClusterError when the scheduler cannot be used, ServerError
    when a server cannot, ResultsError when the file cannot be written.
    """
    counts = {"WORKERS": workers, "PARTITIONS": partitions}
    check(ROWS=(rows, 1), **{name: (min(each, default=0), 1) for name, each in counts.items()})
    schedule = Rounds(rounds, warmup, seed)
    terms = {
        "rows": rows, **vars(schedule), "workers": [*workers], "partitions": [*partitions],
        "scheduler": load_settings().scheduler,
    }  # fmt: skip
    with recording(SCALE_OUT.notebook, SCALE_OUT.results, Pass, "pass", terms) as this_run, ExitStack() as stack:
        both = stack.enter_context(servers.running(this_run.settings))
        this_run.metadata |= {"what": f"{rows:,} rows, {rounds} passes", "servers": both.mode}
        try:
            cluster = stack.enter_context(opened(this_run.settings, max(workers)))
        except UnavailableError as error:
            record, _ = this_run.passes(partial(_row, this_run.run_id, rows))
            in_rounds(tasks(workers, partitions), Rounds(rounds), partial(_unavailable, str(error)), record)
        else:
            shared = tempfile.TemporaryDirectory(prefix="framehaul-partitions-", dir=this_run.settings.shared_dir)
            home = Path(stack.enter_context(shared))
            workers = sorted({min(count, len(cluster.addresses)) for count in workers})
            this_run.metadata |= {
                "what": f"{rows:,} rows, {rounds} rounds, {', '.join(map(str, workers))} workers",
                "server": server_versions(both),
            }  # fmt: skip
            sets = {count: make(home / f"{count}", TABLE, rows, seed, count) for count in {*partitions}}
            work = _Work(cluster, both, home, sets, Expected(TABLE, generator.arrow_table(TABLE, rows, seed)))
            interruptible(lambda stop: work.all(this_run, rows, schedule, tasks(workers, partitions), stop))
    return ScaleOut.load(this_run.settings)


def _row(run_id: str, rows: int, task: Task, number: int, ended: Ended[dict[str, Any]]) -> Pass:
    return Pass(
        run_id=run_id, technique=task.technique.name, label=task.label, rows=rows, pass_=number, **vars(task),
        **columns_of(ended),
    )  # fmt: skip


def _unavailable(reason: str, *_: object) -> NoReturn:
    raise UnavailableError(reason)


def target_on(server: Server, table: Table) -> moves.Target:
    """Return the table on a server, in a new run."""
    return PostgresTarget(server, table) if isinstance(server, PostgresServer) else ClickHouseTarget(server, table)


@dataclass(frozen=True)
class _Work:
    """The passes of a run, over the same rows in data sets of several numbers of partitions."""

    cluster: Cluster
    both: Servers
    home: Path
    sets: dict[int, list[Partition]]
    expected: Expected

    def all(
        self, this_run: Recording, rows: int, rounds: Rounds, planned: list[Task], stop: threading.Event
    ) -> None:  # fmt: skip
        """Make a table for the first read, do all rounds, and drop the tables."""
        self.cluster.stop = stop
        record, finished = this_run.passes(partial(_row, this_run.run_id, rows))
        this_run.expect(len(planned) * (rounds.warmup + rounds.passes))
        first = {task.database: task for task in planned if task.direction == "write"}
        try:
            for task in first.values():
                self._moved(task, self.home)
            in_rounds(
                planned, rounds, partial(self._measured, rows), record, stop=stop, finished=finished, home=self.home,
                progress=lambda task, _: this_run.progress(task.label),
            )  # fmt: skip
        finally:
            for database in first:
                target_on(self.both.of(database), TABLE).drop()

    def _moved(self, task: Task, directory: Path) -> float:
        """Do what a task says, and return the seconds that it took."""
        target, technique = target_on(self.both.of(task.database), TABLE), task.technique
        if task.direction == "write":
            return moves.write(target, technique, self.sets[task.partitions], self.cluster, task.workers)
        return moves.read(target, technique, task.partitions, directory, self.cluster, task.workers)

    def _measured(self, rows: int, task: Task, _: int) -> dict[str, Any]:
        """One pass; raises WrongResultError unless every row is as it was sent, in any order."""
        server = self.both.of(task.database)
        meter, tables = Meter(server.process_id), tables_of(server)
        tables.quiesce()
        with tempfile.TemporaryDirectory(prefix="read-", dir=self.home) as name:
            meter.start()
            seconds = self._moved(task, Path(name))
            usage = meter.stop()
            if task.direction == "write":
                arrived = tables.content(TABLE)
            else:
                arrived = pl.concat(frame_of(path, TABLE) for path in Path(name).glob("*.parquet"))
        values = {"seconds": seconds, "rows_per_s": rows / seconds, "server_cpu_s": usage.server_cpu_s}
        return right(values, self.expected.difference(arrived))


def writeup_blocks(directory: Path) -> dict[str, str]:
    """Return the table of the writeup, from a results directory; none when the study was not run."""
    path = directory / SCALE_OUT.results
    return {"scale-out": str(report.speed_table(store.read(path, Pass)))} if path.exists() else {}
