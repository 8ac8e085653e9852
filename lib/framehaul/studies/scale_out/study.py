"""Throughput against workers and partitions, both ways, on PostgreSQL and ClickHouse."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

import polars as pl
from IPython.display import SVG, Markdown

from framehaul import servers
from framehaul.bench import store
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Meter
from framehaul.bench.passes import Pass as Ended
from framehaul.bench.passes import columns_of, right
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.bench.verify import Expected
from framehaul.data.equality import content_fingerprint
from framehaul.data.frames import from_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Listing
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import tables_of
from framehaul.settings import load_settings
from framehaul.studies.scale_out import STUDY, moves, report
from framehaul.studies.scale_out.clickhouse import ClickHouseTarget
from framehaul.studies.scale_out.cluster import Cluster, check_reachable, opened
from framehaul.studies.scale_out.partitions import Partition, frame_of, make, of_directory
from framehaul.studies.scale_out.postgres import PostgresTarget
from framehaul.studies.scale_out.targets import Target, new_run
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction

type Server = PostgresServer | ClickHouseServer

TECHNIQUES = {
    ("postgres", "write"): "polars_pgpq_key_last",
    ("postgres", "read"): "polars_asyncpg_copy_decoded",
    ("clickhouse", "write"): "polars_http_client_arrow_stream",
    ("clickhouse", "read"): "polars_http_client_native_decoded",
}
"""Of the fastest over one connection: several workers have one each."""


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
    moving_s: float | None = None
    finishing_s: float | None = None
    workers_cpu_s: float | None = None
    coordinator_cpu_s: float | None = None
    server_cpu_s: float | None = None
    wire_bytes: int | None = None
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
        return moves.technique_of(self.database, self.direction, TECHNIQUES[self.database, self.direction])

    @property
    def label(self) -> str:
        """Names it for people."""
        return f"{DATABASES[self.database]} {self.direction}, {self.workers} workers, {self.partitions} partitions"


class ScaleOut(Shown):
    """The passes of a run over several workers."""

    study = STUDY
    table = view(report.speed_table)
    missing = view(report.missing_table)

    def chart(self, across: Literal["workers", "partitions"]) -> SVG:
        """Throughput against `workers` or `partitions`; also saved as a figure."""
        return self.saved(report.figure(self.passes, across), across)

    def answer(self) -> Markdown:
        """How much faster more workers are."""
        return Markdown(report.findings_text(self.passes))

    def dask(self) -> Listing | Markdown:
        """What a Dask dataframe of each table counted, against what was sent."""
        counts = report.dask_table(self.run_metadata.get("dask", {}))
        return Markdown(counts) if isinstance(counts, str) else counts


def run(
    *, rows: int, passes: int, warmup: int, seed: int, workers: Sequence[int], partitions: Sequence[int],
    dataset: str = "", table: Table = ANALYTICS_METRICS,
) -> ScaleOut:  # fmt: skip
    """Write a data set of partitions and read it back, and write `results/scale_out.csv`.

    With every number of workers and the most partitions, and with the most workers and every number of partitions.
    `dataset` is a directory of Parquet files with the table's columns, for which `rows` and `partitions` do not count.
    Raises ValueError for a parameter that makes no sense, ClusterError when the scheduler cannot be used, ServerError
    and ResultsError for what their names say.
    """
    check(ROWS=(rows, 1))
    rounds = Rounds(passes, warmup, seed)
    _check_counts(workers=workers, partitions=partitions)
    given = of_directory(Path(dataset), table) if dataset else []
    if given:
        rows, partitions = sum(one.rows for one in given), [len(given)]
    terms = {
        "rows": rows, **vars(rounds), "workers": [*workers], "partitions": [*partitions],
        "dataset": [(one.path, (stat := one.path.stat()).st_size, stat.st_mtime_ns) for one in given],
        "scheduler": load_settings().scheduler,
    }  # fmt: skip
    with recording(STUDY.notebook, STUDY.results, Pass, "partition", terms) as this_run, ExitStack() as stack:
        record, finished = this_run.passes(partial(_row, this_run.run_id, rows))
        both = stack.enter_context(servers.running(this_run.settings))
        this_run.metadata |= {"what": f"{rows:,} rows, {passes} passes", "servers": both.mode}
        try:
            cluster = stack.enter_context(opened(this_run.settings, max(workers)))
        except UnavailableError as error:
            reason, planned = str(error), tasks(workers, partitions)
            in_rounds(planned, Rounds(passes), lambda *_: _unavailable(reason), record, finished=finished)
        else:
            shared = tempfile.TemporaryDirectory(prefix="framehaul-partitions-", dir=this_run.settings.shared_dir)
            home = Path(stack.enter_context(shared))
            check_reachable(cluster, both, home)
            there = len(cluster.addresses)
            workers = sorted({min(count, there) for count in workers})
            planned = tasks(workers, partitions)
            this_run.expect(sum(task.partitions for task in planned) * (warmup + passes))
            haul = _Haul(cluster, both, table, home, {len(given): given} if given else {})

            def progress(task: Task, _: int) -> None:
                cluster.progress = partial(this_run.progress, task.label)

            def work(stop: threading.Event) -> None:
                cluster.stop = stop
                try:
                    haul.prepare(rows, seed, partitions)
                    in_rounds(planned, rounds, haul.measured, record, stop=stop, progress=progress, finished=finished,
                              home=home)  # fmt: skip
                    this_run.metadata["dask"] = haul.counted()
                finally:
                    haul.drop()

            interruptible(work)
            listed = [", ".join(map(str, counts)) for counts in (workers, partitions)]
            this_run.metadata |= {
                "what": f"{rows:,} rows, {passes} passes, {listed[0]} workers, {listed[1]} partitions",
                "server": server_versions(both), "local": cluster.local,
            }  # fmt: skip
    return ScaleOut.load(this_run.settings)


def _check_counts(**given: Sequence[int]) -> None:
    for name, counts in given.items():
        if not counts:
            raise ValueError(f"{name}={counts!r}: give at least one number")
        for count in counts:
            check(**{name: (count, 1)})


def _row(run_id: str, rows: int, task: Task, number: int, ended: Ended[dict[str, Any]]) -> Pass:
    return Pass(
        run_id=run_id, technique=task.technique.name, label=task.label, rows=rows, pass_=number, **vars(task),
        **columns_of(ended),
    )  # fmt: skip


def _unavailable(reason: str) -> NoReturn:
    raise UnavailableError(reason)


def rows_by(column: str, target: Target, technique: Technique, pieces: int, cluster: Cluster) -> dict[Any, int]:
    """How many rows have each value of a column, counted by workers on a Dask dataframe of the table."""
    with moves.dask_frame(target, technique, pieces) as frame:
        counts = cluster.client.compute(frame[column].value_counts()).result()
    return {value: int(count) for value, count in counts.items()}


def tasks(workers: Sequence[int], partitions: Sequence[int]) -> list[Task]:
    """What each round does."""
    most = max(partitions)
    pairs = dict.fromkeys([*((count, most) for count in workers), *((max(workers), count) for count in partitions)])
    databases: tuple[Database, ...] = ("postgres", "clickhouse")
    directions: tuple[Direction, ...] = ("write", "read")
    return [Task(database, direction, *pair) for database in databases for direction in directions for pair in pairs]


def target_on(server: Server, table: Table) -> Target:
    """The table on a server, in a new run."""
    if isinstance(server, PostgresServer):
        return PostgresTarget(server, table, new_run())
    return ClickHouseTarget(server, table, new_run())


class _Haul:
    """The data sets of a run, by how many partitions they have, its servers and its workers."""

    def __init__(
        self, cluster: Cluster, both: Servers, table: Table, home: Path, sets: dict[int, list[Partition]]
    ) -> None:
        self._cluster, self._table, self._home, self._sets = cluster, table, home, sets
        self._servers: dict[Database, Server] = {"postgres": both.postgres, "clickhouse": both.clickhouse}
        self._reference = table.renamed(f"{table.name}_sent")
        self._wire_bytes: dict[Task, int] = {}

    def prepare(self, rows: int, seed: int, partitions: Sequence[int]) -> None:
        """Make the data sets, and on every server a table by a path that no technique uses, to compare with."""
        for count in partitions:
            if count not in self._sets:
                directory = self._home / f"{count}"
                directory.mkdir()
                self._sets[count] = make(directory, self._table, rows, seed, count)
        whole = next(iter(self._sets.values()))
        frames = [frame_of(one.path, self._table) for one in whole]
        self._fingerprint = content_fingerprint(*frames)
        self._content = pl.concat(frames)
        content = from_polars(self._content, self._table)
        self._expected = {database: Expected(self._table, content) for database in self._servers}
        for database, server in self._servers.items():
            self._expected[database].keep_reference(tables_of(server), self._reference)
            # What the first read reads, when no write comes before it.
            technique = Task(database, "write", 1, 1).technique
            moves.write(target_on(server, self._table), technique, whole, self._cluster)

    def drop(self) -> None:
        """Drop the tables."""
        for server in self._servers.values():
            tables_of(server).drop(self._reference)
            target_on(server, self._table).drop()

    def measured(self, task: Task, number: int) -> dict[str, Any]:
        """One pass; in the warm-up the way to the server leads through a relay that counts, where it can."""
        server = self._servers[task.database]
        counted = number < 1 and self._cluster.local
        with relayed(server, Relay) if counted else nullcontext((server, None)) as (reached, relay):
            values = self._checked(task, target_on(reached, self._table))
            if relay is not None:
                self._wire_bytes[task] = relay.total_bytes
        return values | {"wire_bytes": self._wire_bytes.get(task)}

    def _checked(self, task: Task, target: Target) -> dict[str, Any]:
        """What a pass took; raises WrongResultError unless every row is as it was sent, in any order."""
        server, cluster = self._servers[task.database], self._cluster
        meter = Meter(server.process_id)
        workers_cpu_s = cluster.cpu_s()
        tables_of(server).quiesce()
        meter.start()
        with tempfile.TemporaryDirectory(prefix="read-", dir=self._home) as name:
            directory = Path(name)
            if task.direction == "write":
                timing = moves.write(target, task.technique, self._sets[task.partitions], cluster, task.workers)
            else:
                timing = moves.read(target, task.technique, task.partitions, directory, cluster, task.workers)
            usage = meter.stop()
            workers_cpu_s = cluster.cpu_s() - workers_cpu_s
            if task.direction == "write":
                wrong = self._expected[task.database].difference_on_server(tables_of(server))
            else:
                wrong = self._wrong_in(directory)
        values = {
            "seconds": timing.seconds, "rows_per_s": len(self._content) / timing.seconds, **vars(timing),
            "workers_cpu_s": workers_cpu_s, "coordinator_cpu_s": usage.client_cpu_s,
            "server_cpu_s": usage.server_cpu_s,
        }  # fmt: skip
        return right(values, wrong)

    def _wrong_in(self, directory: Path) -> str | None:
        """What was not read as it was sent, or None."""
        frames = [frame_of(path, self._table) for path in directory.glob("*.parquet")]
        if (rows := sum(map(len, frames))) != len(self._content):
            return f"{rows} rows arrived instead of {len(self._content)}"
        same = content_fingerprint(*frames) == self._fingerprint
        return None if same else "other values arrived than were sent"

    def counted(self) -> dict[str, dict[str, Any]]:
        """What a Dask dataframe of each table counts, and whether that is what was sent."""
        column = self._table.partition_by_month_of or self._table.key[-1]
        sent = dict(self._content[column].value_counts().iter_rows())
        counted: dict[str, dict[str, Any]] = {}
        for database, server in self._servers.items():
            technique = Task(database, "read", 1, 1).technique
            counts = rows_by(column, target_on(server, self._table), technique, max(self._sets), self._cluster)
            counted[database] = {
                "rows": sum(counts.values()), "values": len(counts), "column": column, "as_sent": counts == sent
            }  # fmt: skip
        return counted


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The table that the writeup shows, from a results directory; none when the study was not run."""
    path = directory / STUDY.results
    return {"scale-out": str(report.readme_table(store.read(path, Pass)))} if path.exists() else {}
