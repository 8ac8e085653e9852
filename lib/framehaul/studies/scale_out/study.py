"""Measure writes and reads of PostgreSQL and ClickHouse with several numbers of workers and partitions."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import recording
from framehaul.bench.meter import Meter
from framehaul.bench.rounds import Pass, Rounds, Skipped, check, columns_of, interruptible, right
from framehaul.bench.store import Status
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError
from framehaul.servers import PostgresServer, Server, Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.registry import SCALE_OUT
from framehaul.studies.scale_out import moves
from framehaul.studies.scale_out.cluster import Cluster, opened
from framehaul.studies.scale_out.moves import ClickHouseTarget, Partition, PostgresTarget, frame_of, make
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction, named

TABLE = ANALYTICS_METRICS
TECHNIQUES: dict[tuple[Database, Direction], str] = {
    ("postgres", "write"): "polars_pgpq_key_last",
    ("postgres", "read"): "polars_asyncpg_copy_decoded",
    ("clickhouse", "write"): "polars_http_client_arrow_stream",
    ("clickhouse", "read"): "polars_http_client_native_decoded",
}
"""Fast techniques over one connection, because each worker has one."""


@dataclass(frozen=True)
class Result:
    """A pass of a direction with a number of workers and partitions; a missing number is None, never 0."""

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
    """A direction with a number of workers and partitions."""

    database: Database
    direction: Direction
    workers: int
    partitions: int

    @property
    def technique(self) -> Technique:
        """The technique by which each worker moves a partition."""
        return named(self.database, self.direction, TECHNIQUES[self.database, self.direction])

    @property
    def label(self) -> str:
        """The task in words."""
        return f"{DATABASES[self.database]} {self.direction}, {self.workers} workers, {self.partitions} partitions"


def tasks(workers: Sequence[int], partitions: Sequence[int]) -> list[Task]:
    """Return the tasks of a round: each number of workers with the most partitions, and the other way round."""
    most = max(partitions)
    pairs = dict.fromkeys([*((count, most) for count in workers), *((max(workers), count) for count in partitions)])
    return [Task(database, direction, *pair) for database, direction in TECHNIQUES for pair in pairs]


def target_on(server: Server, table: Table) -> moves.Target:
    """Return the target of a new run for a table on a server."""
    return PostgresTarget(server, table) if isinstance(server, PostgresServer) else ClickHouseTarget(server, table)


def move(directory: Path, task: Task, both: Servers, cluster: Cluster, sets: dict[int, list[Partition]]) -> None:
    """Write one of the data sets, which are by number of partitions, or read the table into a directory."""
    target = target_on(both.of(task.database), TABLE)
    if task.direction == "write":
        moves.write(target, task.technique, sets[task.partitions], cluster, task.workers)
    else:
        moves.read(target, task.technique, task.partitions, directory, cluster, task.workers)


@recording.study(SCALE_OUT.notebook, Result)
def run(*, rows: int, rounds: int, warmup: int, seed: int, workers: list[int], partitions: list[int]) -> None:
    """Write partitions of a table and read them back, and return one row per task and pass.

    Raises SettingsError when the scheduler cannot be used.
    """
    check(ROWS=(rows, 1), WORKERS=(min(workers, default=0), 1), PARTITIONS=(min(partitions, default=0), 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, "workers": workers, "partitions": partitions}
    with recording.with_servers(SCALE_OUT, Result, schedule, **terms) as (this_run, both), ExitStack() as stack:
        this_run.metadata["what"] = f"{rows:,} rows, {rounds} rounds"

        def row(task: Task, number: int, outcome: Pass[dict[str, Any]]) -> Result:
            values = vars(task) | {"technique": task.technique.name, "label": task.label} | columns_of(outcome)
            return Result(this_run.run_id, rows=rows, pass_=number, **values)

        try:
            cluster = stack.enter_context(opened(this_run.settings, max(workers)))
        except UnavailableError as error:
            for task, number in itertools.product(tasks(workers, partitions), range(1, rounds + 1)):
                this_run.write(row(task, number, Skipped(str(error))))
            return
        shared = tempfile.TemporaryDirectory(prefix="framehaul-partitions-", dir=this_run.settings.shared_dir)
        home = Path(stack.enter_context(shared))
        planned = tasks(sorted({min(count, len(cluster.addresses)) for count in workers}), partitions)
        this_run.expect(len(planned) * (warmup + rounds))
        sets = {count: make(home / f"{count}", TABLE, rows, seed, count) for count in {*partitions}}
        expected = Expected(TABLE, generator.arrow_table(TABLE, rows, seed))

        def measure(task: Task, _: int) -> dict[str, Any]:
            """Make one pass; raise WrongResultError unless exactly the rows that were sent arrived, in any order."""
            server = both.of(task.database)
            meter, tables = Meter(server.process_id), tables_of(server)
            tables.quiesce()
            with tempfile.TemporaryDirectory(prefix="read-", dir=home) as name:
                meter.start()
                start = time.perf_counter()
                move(Path(name), task, both, cluster, sets)
                seconds, usage = time.perf_counter() - start, meter.stop()
                if task.direction == "write":
                    arrived = tables.content(TABLE)
                else:
                    arrived = pl.concat(frame_of(path, TABLE) for path in Path(name).glob("*.parquet"))
            values = {"seconds": seconds, "rows_per_s": rows / seconds, "server_cpu_s": usage.server_cpu_s}
            return right(values, expected.difference(arrived))

        def work(stop: threading.Event) -> None:
            cluster.stop = stop
            try:
                for task in {task.database: task for task in planned if task.direction == "write"}.values():
                    move(home, task, both, cluster, sets)  # the table of the first read
                this_run.in_rounds(planned, schedule, measure, row, lambda task: task.label, stop=stop, home=home)
            finally:
                for database in DATABASES:
                    tables_of(both.of(database)).drop(TABLE)

        interruptible(work)
