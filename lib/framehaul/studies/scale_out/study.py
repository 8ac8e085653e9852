"""Measure writes and reads with several numbers of workers and partitions.

Workers are processes on this machine, or those of the Dask scheduler in the settings.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from framehaul.bench import store
from framehaul.bench.meter import Meter
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, Skipped, in_rounds, right
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.errors import SettingsError, UnavailableError
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings
from framehaul.studies.registry import SCALE_OUT
from framehaul.studies.scale_out import moves
from framehaul.studies.scale_out.moves import frame_of, make
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction, named

if TYPE_CHECKING:
    from distributed import Client

TECHNIQUES: dict[tuple[Database, Direction], str] = {
    ("postgres", "write"): "polars_pgpq_key_last",
    ("postgres", "read"): "polars_asyncpg_copy_decoded",
    ("clickhouse", "write"): "polars_http_client_arrow_stream",
    ("clickhouse", "read"): "polars_http_client_native_decoded",
}
"""Fast techniques over one connection, because each worker has one."""
CONNECT_SECONDS = 10
START_SECONDS = 60
"""The time in which workers have to start, and in which Dask restarts workers that died."""


@dataclass
class Cluster:
    """The workers; when a worker dies during a call, another worker repeats the call."""

    client: Client
    workers: int | None = None
    """The number of workers that `map` uses; None for all."""
    stop: threading.Event = field(default_factory=threading.Event)
    """When set, `map` raises KeyboardInterrupt after the next item."""

    def map[T, R](self, work: Callable[[T], R], items: Sequence[T], name: str) -> list[R]:
        """Call `work` with each item on the workers and return the results in order; `name` begins the keys in logs.

        The first error is raised and cancels the other calls.
        """
        from distributed import as_completed

        here = sorted(self.client.nthreads())  # `Client.scheduler_info` may lag behind
        chosen = here[: self.workers] if self.workers is not None and self.workers < len(here) else None
        # Other workers take over when all chosen workers have died.
        futures = self.client.map(work, items, key=name, workers=chosen, allow_other_workers=bool(chosen), pure=False)
        try:
            for future in as_completed(futures, loop=self.client.loop):
                future.result()
                if self.stop.is_set():
                    raise KeyboardInterrupt
            return [future.result() for future in futures]
        finally:
            self.client.cancel(futures)


@contextmanager
def opened(settings: Settings, workers: int) -> Iterator[Cluster]:
    """Start workers on this machine, or connect to the scheduler in the settings.

    Raises UnavailableError when dask.distributed is not installed, SettingsError when the scheduler cannot be used.
    """
    try:
        import cryptography  # noqa: F401
        import dask
        import distributed
    except ImportError as error:
        remedy = "uv sync --extra scale-out, or pip install 'framehaul[scale-out]'"
        raise UnavailableError(f"dask.distributed is not installed: {remedy}") from error
    if settings.scheduler:
        try:
            client = distributed.Client(settings.scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            remedy = "start one with `dask scheduler` and `dask worker`, or unset it for workers on this machine"
            raise SettingsError(f"SCHEDULER={settings.scheduler} cannot be reached ({error}); {remedy}") from error
        with client:
            check_workers(client)
            yield Cluster(client)
        return
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-workers-") as scratch,
        # No dashboard and no data over HTTP, which any account of this machine could read.
        dask.config.set({
            "distributed.scheduler.no-workers-timeout": f"{START_SECONDS}s",
            "distributed.scheduler.http.routes": [], "distributed.worker.http.routes": [],
            "temporary-directory": scratch,
        }),
        # TLS with new keys, because a scheduler runs any code that it receives and any account could connect.
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1", dashboard_address=None, security=True,
            silence_logs=logging.ERROR,  # the study handles workers that die
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"}, local_directory=scratch,
            # One core for each worker, as if it had its own machine; by default Polars and Arrow use all cores.
            env={"POLARS_MAX_THREADS": "1", "ARROW_NUM_THREADS": "1"},
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        # On a busy machine the cluster is ready before all workers have registered.
        client.wait_for_workers(workers, timeout=START_SECONDS)
        yield Cluster(client)


def check_workers(client: Client) -> None:
    """Raise SettingsError without workers, or when the versions of their packages differ from this process."""
    if not client.nthreads():
        raise SettingsError("the scheduler has no workers; start some with `dask worker`")
    with warnings.catch_warnings(record=True) as caught:  # Dask warns of versions that differ, also of its own
        warnings.simplefilter("always")
        client.get_versions(check=True, packages=("framehaul", "polars", "pyarrow"))
    if caught:
        raise SettingsError(f"install the same packages where the workers run. {caught[0].message}")


def write(target: moves.Target, technique: Technique, partitions: Sequence[moves.Partition], cluster: Cluster) -> None:
    """Replace the table by all partitions, each exactly once, or leave it unchanged.

    The staging table of the attempt whose result the scheduler returns is committed. Staging tables of other attempts,
    by workers that died or seemed dead, are dropped. Raises a worker's error, Dask's error when the workers are lost,
    and KeyboardInterrupt when `cluster.stop` was set.
    """
    try:
        target.begin()
        names = cluster.map(partial(moves.stage, target, technique), partitions, f"write-{target.new.name}")
        target.commit(dict(zip(names, partitions, strict=True)))
    finally:
        target.end()


def read(target: moves.Target, technique: Technique, pieces: int, directory: Path, cluster: Cluster) -> None:
    """Read one state of the table to `pieces` Parquet files in an empty directory; raises the errors of `write`."""
    try:
        with target.reading(pieces) as snapshot:
            into = partial(moves.fetch_into, target, technique, directory)
            cluster.map(into, [*enumerate(snapshot)], f"read-{target.new.name}")
    finally:
        target.end()


@dataclass(frozen=True)
class Result(store.Timed):
    """A pass of a direction with a number of workers and partitions; a missing number is None, never 0."""

    database: str
    direction: str
    technique: str
    label: str
    workers: int
    partitions: int
    rows: int
    server_cpu_s: float | None = None


class Task(NamedTuple):
    """The technique by which each worker moves a partition, with a number of workers and partitions."""

    technique: Technique
    label: str
    workers: int
    partitions: int


def tasks(workers: Sequence[int], partitions: Sequence[int]) -> list[Task]:
    """Return the tasks of a round: each number of workers with the most partitions, and the other way round."""
    by_workers = [(count, max(partitions)) for count in workers]
    pairs = dict.fromkeys([*by_workers, *((max(workers), count) for count in partitions)])
    every, text = [named(*path, name) for path, name in TECHNIQUES.items()], "{} {}, {} workers, {} partitions".format
    return [Task(one, text(DATABASES[one.database], one.direction, *pair), *pair) for one in every for pair in pairs]


@recorded(SCALE_OUT, Result)
def run(
    this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int, workers: list[int], partitions: list[int]
) -> None:
    """Write partitions of a table and read them back; raises SettingsError when the scheduler cannot be used."""
    both = this_run.servers()
    row = this_run.rows(Result, lambda task: (*task.technique.key, *task[1:], rows))
    try:
        cluster = this_run.entered(opened(this_run.settings, max(workers)))
    except UnavailableError as error:
        for task, number in itertools.product(tasks(workers, partitions), range(1, rounds + 1)):
            this_run.write(row(task, number, Skipped(str(error))))
        return
    cluster.stop = this_run.stop
    shared = tempfile.TemporaryDirectory(prefix="framehaul-partitions-", dir=this_run.settings.shared_dir)
    home = Path(this_run.entered(shared))
    planned = tasks(sorted({min(count, len(cluster.client.nthreads())) for count in workers}), partitions)
    sets = {count: make(home / f"{count}", TABLE, rows, seed, count) for count in {*partitions}}
    expected = Expected(TABLE, content := generator.arrow_table(TABLE, rows, seed))

    def measure(task: Task, _: int) -> dict[str, Any]:
        """Make one pass; raise WrongResultError unless exactly the rows that were sent arrived, in any order."""
        one, some = task.technique, replace(cluster, workers=task.workers)
        server = both.of(one.database)
        meter, tables, target = Meter(server.process_id), tables_of(server), moves.target_on(server, TABLE)
        tables.quiesce()
        with tempfile.TemporaryDirectory(prefix="read-", dir=home) as name:
            meter.start()
            start = time.perf_counter()
            if one.direction == "write":
                write(target, one, sets[task.partitions], some)
            else:
                read(target, one, task.partitions, Path(name), some)
            seconds, usage = time.perf_counter() - start, meter.stop()
            pieces = [frame_of(path, TABLE) for path in Path(name).glob("*.parquet")]
        arrived = tables.content(TABLE) if one.direction == "write" else pl.concat(pieces)
        values = {"seconds": seconds, "rows_per_s": rows / seconds, "server_cpu_s": usage.server_cpu_s}
        return right(values, expected.difference(arrived))

    for database in DATABASES:  # for the first reads
        this_run.entered(tables_of(both.of(database)).loaded(TABLE, content))
    log = this_run.log(row, lambda task: task.label)
    in_rounds(planned, Rounds(rounds, warmup, seed), measure, log, home)
