"""Throughput against workers and partitions, both ways, on PostgreSQL, ClickHouse and ClickHouse over shards."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import polars as pl
from IPython.display import SVG, Markdown

from framehaul import servers
from framehaul.data.equality import content_fingerprint
from framehaul.data.frames import from_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError
from framehaul.harness.environment import server_versions
from framehaul.harness.measure import describe
from framehaul.harness.meter import Meter
from framehaul.harness.recording import Recording, recording
from framehaul.harness.rounds import check, in_rounds, interruptible
from framehaul.harness.verify import Expected
from framehaul.reporting import charts
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import store
from framehaul.results.store import Status
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import ClickHouseTables, PostgresTables, Tables
from framehaul.settings import Settings, load_settings
from framehaul.studies.scale_out import STUDY, moves, report, shards
from framehaul.studies.scale_out.clickhouse import ClickHouseTarget
from framehaul.studies.scale_out.cluster import Cluster, check_reachable, opened
from framehaul.studies.scale_out.partitions import Partition, frame_of, make, of_directory
from framehaul.studies.scale_out.postgres import PostgresTarget
from framehaul.studies.scale_out.targets import Target, new_run
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction

DATABASES = ("postgres", "clickhouse", "clickhouse_shards")
TECHNIQUES = {
    ("postgres", "write"): "polars_pgpq_key_last",
    ("postgres", "read"): "polars_asyncpg_copy_decoded",
    ("clickhouse", "write"): "polars_http_client_arrow_stream",
    ("clickhouse", "read"): "polars_http_client_native_decoded",
}
"""Of the fastest over one connection: several workers have one each."""
LOOPBACK_BYTES = 256 << 20


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

    database: str
    direction: Direction
    workers: int
    partitions: int

    @property
    def technique(self) -> Technique:
        """How each worker moves a partition."""
        kind: Database = "postgres" if self.database == "postgres" else "clickhouse"
        return moves.technique_of(kind, self.direction, TECHNIQUES[kind, self.direction])

    @property
    def label(self) -> str:
        """Names it for people."""
        return f"{report.PLACES[self.database]} {self.direction}, {self.workers} workers, {self.partitions} partitions"


class ScaleOut:
    """The passes of a run, ready to be shown."""

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self._metadata, self._figures = metadata, figures
        self._machine = report.Machine.of(metadata, STUDY.notebook)

    def chart(self, across: str) -> SVG:
        """Throughput and efficiency against `workers` or `partitions`; also saved as a figure."""
        figure = report.figure(self.passes, across)
        return SVG(charts.save(figure, self._figures / f"{STUDY.name}_{across}.svg"))

    def table(self) -> Markdown:
        """Every combination: throughput, speed-up over one worker, efficiency."""
        return Markdown(report.speed_table(self.passes))

    def saturation(self) -> Markdown:
        """What a pass takes of CPU and network, and which of them it waits for."""
        return Markdown(report.saturation_table(self.passes, self._machine))

    def model(self) -> Markdown:
        """What more workers would give."""
        return Markdown(report.model_text(self.passes, self._machine))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown(report.findings_text(self.passes, self._machine))

    def dask(self) -> Markdown:
        """What a Dask dataframe of each table counted, against what was sent."""
        return Markdown(report.dask_table(self._metadata["runs"][STUDY.notebook].get("dask", {})))

    def missing(self) -> Markdown:
        """What did not run, and what would make it run."""
        return Markdown(report.missing_text(self.passes))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))


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
    check(ROWS=(rows, 1), PASSES=(passes, 1), WARMUP=(warmup, 0), SEED=(seed, 0))
    for name, counts in (("workers", workers), ("partitions", partitions)):
        if not counts:
            raise ValueError(f"{name}={counts!r}: give at least one number")
        for count in counts:
            check(**{name: (count, 1)})
    with recording(STUDY.notebook, STUDY.results, Pass, "partition") as made, ExitStack() as stack:
        both = stack.enter_context(servers.running(made.settings))
        try:
            cluster = stack.enter_context(opened(made.settings, max(workers)))
        except UnavailableError as error:
            _skip(made, tasks(DATABASES, workers, partitions), rows, passes, str(error))
            made.metadata |= {"what": f"{rows:,} rows, {passes} passes", "servers": both.mode}
        else:
            home = stack.enter_context(_shared_directory(made.settings))
            check_reachable(cluster, both, home)
            haul = _Haul(made, both, cluster, table, home, rows, seed, Path(dataset) if dataset else None)
            haul.run(workers, partitions, warmup, passes)
    return load()


def rows_by(column: str, target: Target, technique: Technique, pieces: int, cluster: Cluster) -> dict[Any, int]:
    """How many rows have each value of a column, counted by workers on a Dask dataframe of the table."""
    with moves.dask_frame(target, technique, pieces) as frame:
        counts = cluster.client.compute(frame[column].value_counts()).result()
    return {value: int(count) for value, count in counts.items()}


def load() -> ScaleOut:
    """The results of the last complete run, without any server; raises ResultsError when there is none."""
    settings = load_settings()
    directory = settings.out / "results"
    passes = store.read(directory / STUDY.results, Pass)
    return ScaleOut(passes, store.read_metadata(directory), settings.out / "figures")


def tasks(databases: Sequence[str], workers: Sequence[int], partitions: Sequence[int]) -> list[Task]:
    """What each round does."""
    many = max(partitions)
    pairs = dict.fromkeys([*((count, many) for count in workers), *((max(workers), count) for count in partitions)])
    directions: tuple[Direction, ...] = ("write", "read")
    return [Task(database, direction, *pair) for database in databases for direction in directions for pair in pairs]


def _skip(made: Recording, what: Sequence[Task], rows: int, passes: int, reason: str) -> None:
    for number in range(1, passes + 1):
        for task in what:
            made.write(Pass(**_named(made, task, rows, number), status="skipped", reason=reason))


def _named(made: Recording, task: Task, rows: int, number: int) -> dict[str, Any]:
    return {"run_id": made.run_id, "technique": task.technique.name, "label": task.label, "rows": rows,
            "pass_": number, **vars(task)}  # fmt: skip


@contextmanager
def _shared_directory(settings: Settings) -> Iterator[Path]:
    """A directory for the files of a run, which goes at its end."""
    home = Path(tempfile.mkdtemp(prefix="framehaul-partitions-", dir=settings.shared_dir))
    try:
        yield home
    finally:
        shutil.rmtree(home)


class _Haul:
    """One run: its data sets, its servers, its workers."""

    def __init__(
        self, made: Recording, both: Servers, cluster: Cluster, table: Table, home: Path, rows: int, seed: int,
        dataset: Path | None,
    ) -> None:  # fmt: skip
        self._made, self._both, self._cluster, self._table = made, both, cluster, table
        self._home, self._rows, self._seed, self._dataset = home, rows, seed, dataset
        self._places: dict[str, tuple[PostgresServer | ClickHouseServer, ...]] = {
            "postgres": (both.postgres,), "clickhouse": (both.clickhouse,),
        }  # fmt: skip
        self._sets: dict[int, list[Partition]] = {}
        self._expected: dict[str, Expected] = {}
        self._reference = table.renamed(f"{table.name}_sent")
        self._wire_bytes: dict[Task, int] = {}

    def run(self, workers: Sequence[int], partitions: Sequence[int], warmup: int, passes: int) -> None:
        made, known = self._made, len(self._cluster.addresses)
        workers = sorted({min(count, known) for count in workers})
        if self._dataset is not None:
            found = of_directory(self._dataset, self._table)
            partitions, self._rows = [len(found)], sum(partition.rows for partition in found)
            self._sets = {len(found): found}
        with ExitStack() as stack:
            databases = list(DATABASES)
            try:
                self._places["clickhouse_shards"] = stack.enter_context(shards.running(made.settings))
            except UnavailableError as error:
                databases.remove("clickhouse_shards")
                _skip(made, tasks(["clickhouse_shards"], workers, partitions), self._rows, passes, str(error))
            planned = tasks(databases, workers, partitions)
            made.expect(sum(task.partitions for task in planned) * (warmup + passes))

            def work(stop: threading.Event) -> None:
                self._cluster.stop = stop
                try:
                    self._prepare(databases, partitions)
                    for number, task in in_rounds(planned, warmup=warmup, passes=passes, seed=self._seed, stop=stop):
                        self._cluster.progress = partial(made.progress, task.label)
                        found = self._tried(task, counted=number < 1)
                        if number > 0:
                            made.write(Pass(**_named(made, task, self._rows, number), **found))
                    made.metadata["dask"] = {database: self._counted(database) for database in databases}
                finally:
                    for database in databases:
                        self._drop(database)

            interruptible(work)
        made.metadata |= {
            "what": f"{self._rows:,} rows, {passes} passes, {_listed(workers)} workers, "
            f"{_listed(partitions)} partitions",
            "servers": self._both.mode, "server": server_versions(self._both), "local": self._cluster.local,
            "loopback_bytes_per_s": loopback_bytes_per_s() if self._cluster.local else None,
        }  # fmt: skip

    def _prepare(self, databases: Sequence[str], partitions: Sequence[int]) -> None:
        """Make the data sets, and on every server a table by a path that no technique uses, to compare with."""
        for count in partitions:
            if count not in self._sets:
                directory = self._home / f"{count}"
                directory.mkdir()
                self._sets[count] = make(directory, self._table, self._rows, self._seed, count)
        whole = next(iter(self._sets.values()))
        frames = [frame_of(one.path, self._table) for one in whole]
        self._fingerprint = content_fingerprint(*frames)
        self._content = pl.concat(frames)
        content = from_polars(self._content, self._table)
        for database in databases:
            self._expected[database] = Expected(self._table, content)
            self._expected[database].keep_reference(self._tables(database)[0], self._reference)
            # What the first read reads, when no write comes before it.
            target = self._target(database)
            technique = Task(database, "write", 1, 1).technique
            moves.write(target, technique, whole, self._cluster)

    def _tables(self, database: str) -> list[Tables]:
        return [
            PostgresTables(place) if isinstance(place, PostgresServer) else ClickHouseTables(place)
            for place in self._places[database]
        ]

    def _drop(self, database: str) -> None:
        """Drop the tables; over shards, what they are over as well."""
        self._tables(database)[0].drop(self._reference)
        target = self._target(database)
        if isinstance(target, ClickHouseTarget):
            target.drop()
        else:
            PostgresTables(self._both.postgres).drop(self._table)

    def _target(self, database: str, first: PostgresServer | ClickHouseServer | None = None) -> Any:
        """The table on a database, in a new run, with its first server reached in another way where one is given."""
        places = (first or self._places[database][0], *self._places[database][1:])
        if isinstance(places[0], PostgresServer):
            return PostgresTarget(places[0], self._table, new_run())
        return ClickHouseTarget(cast("tuple[ClickHouseServer, ...]", places), self._table, new_run())

    def _tried(self, task: Task, *, counted: bool) -> dict[str, Any]:
        """One pass; in the warm-up the way to the server leads through a relay that counts, where it can."""
        with ExitStack() as stack:
            relay: Relay | None = None
            first = self._places[task.database][0]
            if counted and self._cluster.local:
                first, relay = stack.enter_context(relayed(first, Relay))
            try:
                found = self._measured(task, self._target(task.database, first))
            except Exception as error:  # noqa: BLE001  whatever a worker raises is the pass's result, not the run's end
                return {"status": "failed", "reason": describe(error).replace(f"{self._home}/", "")}
            if relay is not None:
                self._wire_bytes[task] = relay.total_bytes
        return found | {"wire_bytes": self._wire_bytes.get(task)} if found["status"] == "ok" else found

    def _measured(self, task: Task, target: Target) -> dict[str, Any]:
        meters = [Meter(place.process_id) for place in self._places[task.database]]
        workers_cpu_s = self._cluster.cpu_s()
        for tables in self._tables(task.database):
            tables.quiesce()
        for meter in meters:
            meter.start()
        directory = Path(tempfile.mkdtemp(prefix="read-", dir=self._home))
        try:
            if task.direction == "write":
                partitions = self._sets[task.partitions]
                timing = moves.write(target, task.technique, partitions, self._cluster, task.workers)
            else:
                timing = moves.read(target, task.technique, task.partitions, directory, self._cluster, task.workers)
            usages = [meter.stop() for meter in meters]
            workers_cpu_s = self._cluster.cpu_s() - workers_cpu_s
            wrong = self._wrong(task, directory)
        finally:
            shutil.rmtree(directory)
        if wrong:
            return {"status": "failed", "reason": wrong}
        known = [usage.server_cpu_s for usage in usages if usage.server_cpu_s is not None]
        return {
            "status": "ok", "seconds": timing.seconds, "rows_per_s": self._rows / timing.seconds,
            "moving_s": timing.moving_s, "finishing_s": timing.finishing_s, "workers_cpu_s": workers_cpu_s,
            "coordinator_cpu_s": usages[0].client_cpu_s, "server_cpu_s": sum(known) if known else None,
        }  # fmt: skip

    def _counted(self, database: str) -> dict[str, Any]:
        """What a Dask dataframe counts, and whether that is what was sent."""
        task = Task(database, "read", 1, 1)
        column = self._table.partition_by_month_of or self._table.key[-1]
        found = rows_by(column, self._target(database), task.technique, max(self._sets), self._cluster)
        return {"rows": sum(found.values()), "values": len(found), "column": column,
                "as_sent": found == dict(self._content[column].value_counts().iter_rows())}  # fmt: skip

    def _wrong(self, task: Task, directory: Path) -> str | None:
        """What is not as it was sent, or None: every row is compared, in any order."""
        if task.direction == "write":
            return self._expected[task.database].difference_on_server(self._tables(task.database)[0])
        frames = [frame_of(path, self._table) for path in directory.glob("*.parquet")]
        if (rows := sum(map(len, frames))) != self._rows:
            return f"{rows} rows arrived instead of {self._rows}"
        same = content_fingerprint(*frames) == self._fingerprint
        return None if same else "other values arrived than were sent"


def loopback_bytes_per_s() -> float:
    """How fast bytes go from one thread of this process to another over loopback: no less than a network gives."""
    chunk = bytes(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            with socket.create_connection(listener.getsockname()) as sender:
                for _ in range(LOOPBACK_BYTES // len(chunk)):
                    sender.sendall(chunk)

        sending = threading.Thread(target=send, name="framehaul-loopback")
        sending.start()
        received, buffer = 0, bytearray(len(chunk))
        with listener.accept()[0] as receiver:
            begun = time.perf_counter()
            while count := receiver.recv_into(buffer):
                received += count
        seconds = time.perf_counter() - begun
        sending.join()
    return received / seconds


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def readme_blocks(directory: Path) -> dict[str, str]:
    """The table that the README shows, from a results directory; none when the study was not run."""
    path = directory / STUDY.results
    return {"scale-out": report.readme_table(store.read(path, Pass))} if path.exists() else {}
