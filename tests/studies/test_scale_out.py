"""Partitions over several workers: every row arrives once, whatever dies, and readers see all of them or none."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import polars as pl
import psutil
import pytest

from framehaul.bench import store
from framehaul.bench.measure import called, opened
from framehaul.bench.store import read_metadata
from framehaul.data.equality import content_fingerprint
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import ServerError, SettingsError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings, load_settings
from framehaul.studies.scale_out import STUDY, moves, report, study
from framehaul.studies.scale_out import cluster as workers
from framehaul.studies.scale_out.cluster import Cluster, ClusterError
from framehaul.studies.scale_out.partitions import Partition, frame_of, make
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction
from tests.conftest import WHOLE, numbers_of, values_of

TABLE = ANALYTICS_METRICS.renamed("framehaul_scaled")
ROWS, PARTITIONS, FEW = 8000, 4, 9
HELD_AFTER_BYTES = 60_000
"""Of some three hundred thousand that a partition has."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with workers.opened(Settings(), 2) as found:
        yield found


@pytest.fixture(scope="module")
def victims() -> Iterator[Cluster]:
    """A worker for each that the tests below take away, and one: whether and when they come back does not matter."""
    with workers.opened(Settings(), 6) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Partition]:
    return make(tmp_path_factory.mktemp("files") / "made", TABLE, ROWS, 1, PARTITIONS)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[Partition]:
    """Few rows in more files, not all of which have any."""
    found = make(tmp_path_factory.mktemp("others") / "made", TABLE, FEW, 2, 2 * FEW)
    assert {0, 1} <= {one.rows for one in found}
    return found


@dataclasses.dataclass(frozen=True)
class Place:
    """A database as the tests ask it."""

    name: Database
    server: PostgresServer | ClickHouseServer

    def target(self, through: PostgresServer | ClickHouseServer | None = None) -> moves.Target:
        return study.target_on(through or self.server, TABLE)

    def technique(self, direction: Direction) -> Technique:
        return study.Task(self.name, direction, 1, 1).technique

    def run(self, query: str) -> str:
        """The value that a query returns, if it returns one, as text."""
        if isinstance(self.server, PostgresServer):
            return "".join(str(row[0]) for row in PostgresTables(self.server).run(query))
        return ClickHouseTables(self.server).run(query, mutations_sync=2).decode().strip()

    def tables(self) -> set[str]:
        """Ours that are there, but for the table that readers see and what that is made of."""
        if isinstance(self.server, PostgresServer):
            found = PostgresTables(self.server).run(
                "SELECT relname FROM pg_class WHERE relname LIKE 'framehaul_scaled_%' AND relkind IN ('r', 'p', 'v') "
                "AND NOT relispartition"
            )
            return {row[0] for row in found}
        return set(self.run("SHOW TABLES LIKE 'framehaul_scaled_%'").split())

    def count(self) -> int:
        return int(self.run(f"SELECT count(*) FROM {TABLE.name}"))


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Place]:
    found = Place(request.param, servers.postgres if request.param == "postgres" else servers.clickhouse)
    yield found
    found.target().drop()
    assert found.tables() == set()


@pytest.fixture
def postgres(servers: Servers) -> Iterator[Place]:
    found = Place("postgres", servers.postgres)
    yield found
    found.target().drop()


def fingerprint(paths: list[Path]) -> int:
    return content_fingerprint(*(frame_of(path, TABLE) for path in paths))


def sent(files: list[Partition]) -> int:
    return fingerprint([one.path for one in files])


def write(place: Place, files: list[Partition], cluster: Cluster, **more: Any) -> None:
    moves.write(place.target(**more), place.technique("write"), files, cluster)


def read(place: Place, directory: Path, cluster: Cluster, pieces: int = 3, **more: Any) -> int:
    """Reads all of it, and gives the fingerprint of what came."""
    directory.mkdir()
    moves.read(place.target(**more), place.technique("read"), pieces, directory, cluster)
    paths = sorted(directory.iterdir())
    assert [path.name for path in paths] == [f"part-{number:05}.parquet" for number in range(pieces)]
    return fingerprint(paths)


class Holding(Relay):
    """Stops one connection, once, when so much has gone through it one way, until it is let go."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self.from_client = True
        self.held, self.go_on = threading.Event(), threading.Event()
        self._here = threading.local()
        self._once = threading.Lock()
        self.process_id = 0

    def __exit__(self, *error: Any) -> None:
        self.go_on.set()  # a test that failed meanwhile ends
        super().__exit__(*error)

    def _forward(self, source: Any, sink: Any, *, from_client: bool = False) -> None:
        self._here.bytes, self._here.port = 0, (source if from_client else sink).getpeername()[1]
        super()._forward(source, sink, from_client=from_client)

    def _ends(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The ports of the connection of this thread, as its client has them."""
        return [((self._here.port,), (port,)) for port in self.ports]

    def _lets_through(self, count: int, *, from_client: bool) -> bool:
        self._here.bytes += count
        full = self._here.bytes > HELD_AFTER_BYTES and from_client == self.from_client
        if full and self._once.acquire(blocking=False):
            self.process_id = next(
                found.pid
                for found in psutil.net_connections("tcp")
                if found.pid and (found.laddr[1:], found.raddr[1:]) in self._ends()
            )
            self.held.set()
            self.go_on.wait()
        return True


class Working(threading.Thread):
    """Does something while the test looks on; `end` raises what it raised."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work, self._error = work, None
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:  # noqa: BLE001  raised in the thread of the test
            self._error = error  # type: ignore[assignment]

    def until(self, event: threading.Event) -> None:
        """Wait for what it brings about; raises what it raised when it ended before that."""
        while not event.wait(0.1):
            if not self.is_alive():
                self.end()
                pytest.fail("it ended, and what was waited for has not happened")

    def end(self) -> object:
        self.join()
        if self._error is not None:
            raise self._error
        return self.result


def test_a_data_set_has_the_same_rows_however_it_is_cut(tmp_path: Path) -> None:
    found = set()
    for count in (1, 3, 8):
        files = make(tmp_path / str(count), TABLE, 500, 7, count)
        assert len(files) == count
        assert sum(one.rows for one in files) == 500
        cuts = [one.range for one in files]
        assert cuts[0].low is cuts[-1].high is None
        assert [cut.high for cut in cuts[:-1]] == [cut.low for cut in cuts[1:]]
        for one in files:
            dates = frame_of(one.path, TABLE)["event_date"]
            assert one.range.low is None or cast("dt.date", dates.min()) >= one.range.low
            assert one.range.high is None or cast("dt.date", dates.max()) < one.range.high
        found.add(sent(files))
    assert len(found) == 1


def test_there_and_back_and_again(
    place: Place, cluster: Cluster, files: list[Partition], others: list[Partition], tmp_path: Path
) -> None:
    for number, data in enumerate((files, others, files)):
        write(place, data, cluster)
        assert place.tables() == set()
        assert read(place, tmp_path / str(number), cluster) == sent(data)
        assert place.tables() == set()
    assert read(place, tmp_path / "many", cluster, pieces=20) == sent(data)


def test_a_dask_dataframe_has_every_row(place: Place, cluster: Cluster, files: list[Partition]) -> None:
    write(place, files, cluster)
    with moves.dask_frame(place.target(), place.technique("read"), 3) as frame:
        found = cluster.client.compute(frame["source_id"].value_counts()).result().to_dict()
    whole = pl.concat([frame_of(one.path, TABLE) for one in files])
    assert found == dict(whole["source_id"].value_counts().iter_rows())


def test_readers_see_what_was_there_or_all_of_it(
    place: Place, cluster: Cluster, files: list[Partition], others: list[Partition]
) -> None:
    write(place, others, cluster)
    seen: set[int] = set()
    working = Working(lambda: write(place, files, cluster))
    while working.is_alive():
        seen.add(place.count())
    working.end()
    seen.add(place.count())
    assert seen == {FEW, ROWS}


def test_what_a_write_still_asks_for_is_cancelled_when_it_ends(
    servers: Servers, cluster: Cluster, files: list[Partition]
) -> None:
    place = Place("clickhouse", servers.clickhouse)
    write(place, files, cluster)
    target, tables = place.target(), ClickHouseTables(servers.clickhouse)
    try:
        target.begin()
        slowly = f"SELECT sum(sleepEachRow(1)) FROM numbers(60) /* {target.table.name}_{target.run}_staged */"
        working = Working(lambda: tables.run(slowly, max_block_size=1))
        asked = (
            "SELECT count() FROM system.processes WHERE query LIKE '%sleepEachRow%_staged%' AND query_id != queryID()"
        )
        while working.is_alive() and not int(tables.run(asked)):
            pass
        target.end()
        with pytest.raises(ServerError, match="QUERY_WAS_CANCELLED"):
            working.end()
    finally:
        target.end()
        target.drop()


def test_a_read_is_of_one_moment(place: Place, servers: Servers, cluster: Cluster, files: list[Partition]) -> None:
    write(place, files, cluster)
    target, technique = place.target(), place.technique("read")
    try:
        with target.reading(3) as pieces:
            first = moves.fetch(target, technique, pieces[0])
            if place.name == "postgres":
                PostgresTables(servers.postgres).run(f"DELETE FROM {TABLE.name} WHERE metric_1 % 2 = 0")
            else:
                place.run(f"ALTER TABLE {TABLE.name} DELETE WHERE metric_1 % 2 = 0")
            rest = [moves.fetch(target, technique, piece) for piece in pieces[1:]]
    finally:
        target.end()
    assert place.count() < ROWS
    assert content_fingerprint(first, *rest) == sent(files)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["write", "read"])
def test_a_worker_that_is_killed_in_a_partition_loses_and_doubles_nothing(
    place: Place,
    direction: Direction,
    victims: Cluster,
    files: list[Partition],
    others: list[Partition],
    tmp_path: Path,
) -> None:
    cluster = victims
    write(place, others if direction == "write" else files, cluster)
    with relayed(place.server, Holding) as (through, relay):
        assert relay is not None
        relay.from_client = direction == "write"
        if direction == "write":
            working = Working(lambda: write(place, files, cluster, through=through))
        else:
            working = Working(lambda: read(place, tmp_path / "killed", cluster, through=through))
        working.until(relay.held)
        assert relay.process_id in cluster.client.run(os.getpid).values()
        if direction == "write":
            assert place.count() == FEW
        os.kill(relay.process_id, signal.SIGKILL)
        relay.go_on.set()
        found = working.end()
    if direction == "read":
        assert found == sent(files)
    assert place.count() == ROWS
    assert read(place, tmp_path / "after", cluster) == sent(files)


async def give_up(address: str, dask_scheduler: Any = None) -> None:
    await dask_scheduler.remove_worker(address, stimulus_id="test")


@pytest.mark.slow
def test_a_worker_that_is_only_thought_dead_adds_nothing(
    postgres: Place, victims: Cluster, files: list[Partition], tmp_path: Path
) -> None:
    place, cluster = postgres, victims
    with relayed(place.server, Holding) as (through, relay):
        assert relay is not None
        working = Working(lambda: write(place, files, cluster, through=through))
        working.until(relay.held)
        address = next(at for at, pid in cluster.client.run(os.getpid).items() if pid == relay.process_id)
        stopped = psutil.Process(relay.process_id)
        stopped.suspend()
        try:
            cluster.client.run_on_scheduler(give_up, address)
            working.end()
        finally:
            stopped.resume()
        relay.go_on.set()
        assert read(place, tmp_path / "after", cluster) == sent(files)
        psutil.wait_procs([stopped])
    assert place.count() == ROWS
    assert place.tables() == set()


def test_an_attempt_that_goes_on_after_another_one_was_taken_counts_for_nothing(
    place: Place, cluster: Cluster, files: list[Partition], tmp_path: Path
) -> None:
    """The slow attempt begins before the partition is done by another, and writes on after the swap."""
    target, technique = place.target(), place.technique("write")
    begun, go_on = threading.Event(), threading.Event()

    async def slow(client: Any, table: Any, frame: pl.DataFrame) -> None:
        await called(technique, client, table, frame[:100])
        begun.set()
        go_on.wait()
        async with opened(technique, target.for_workers) as another:
            await called(technique, another, table, frame[100:])

    target.begin()
    late = Working(lambda: moves.stage(target, dataclasses.replace(technique, function=slow), files[0]))
    begun.wait()
    target.commit([moves.stage(target, technique, one) for one in files])
    target.end()
    go_on.set()
    with pytest.raises(Exception, match=r"(?i)exist|terminat|closed|no primary key"):
        late.end()
    assert place.count() == ROWS
    assert place.tables() == set()
    assert read(place, tmp_path / "after", cluster) == sent(files)


def test_a_partition_that_cannot_be_written_leaves_the_table_as_it_was(
    place: Place, cluster: Cluster, files: list[Partition], others: list[Partition], tmp_path: Path
) -> None:
    write(place, others, cluster)
    short = [*files[:-1], dataclasses.replace(files[-1], rows=files[-1].rows + 1)]
    with pytest.raises(moves.MoveError, match=f"of partition {files[-1].number} arrived instead of"):
        write(place, short, cluster)
    assert place.count() == FEW
    assert place.tables() == set()
    assert read(place, tmp_path / "after", cluster) == sent(others)


def test_an_interrupt_leaves_the_table_as_it_was(
    place: Place, cluster: Cluster, files: list[Partition], others: list[Partition]
) -> None:
    write(place, others, cluster)
    with relayed(place.server, Holding) as (through, relay):
        assert relay is not None
        working = Working(lambda: write(place, files, cluster, through=through))
        working.until(relay.held)
        cluster.stop.set()
        relay.go_on.set()
        try:
            with pytest.raises(KeyboardInterrupt):
                working.end()
        finally:
            cluster.stop = threading.Event()
    assert place.count() == FEW
    assert place.tables() == set()


def test_a_table_that_is_not_ours_stays(place: Place, cluster: Cluster, files: list[Partition]) -> None:
    key = "" if place.name == "postgres" else " ENGINE = MergeTree ORDER BY mine"
    place.run(f"CREATE TABLE {TABLE.name} (mine integer){key}")
    try:
        with pytest.raises(ServerError, match="framehaul did not make"):
            write(place, files, cluster)
        assert place.count() == 0
        assert place.tables() == set()
    finally:
        place.run(f"DROP TABLE {TABLE.name}")


def test_no_password_is_told(place: Place, cluster: Cluster, files: list[Partition]) -> None:
    target = place.target()
    secret = place.server.password
    work = partial(moves.stage, target, place.technique("write"))
    assert secret not in repr(work) + repr(pickle.loads(pickle.dumps(target)))
    with pytest.raises(Exception, match=r"(?i)exist|no metadata"):
        cluster.map(work, files[:1], "stage-of-no-run")
    logs = str(cluster.client.get_worker_logs()) + str(cluster.client.get_scheduler_logs())
    assert "stage-of-no-run" in logs
    assert secret not in logs


@pytest.mark.slow
def test_a_scheduler_elsewhere_is_used_by_its_address(servers: Servers, files: list[Partition], tmp_path: Path) -> None:
    import distributed

    with distributed.LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        local_directory=str(tmp_path),
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
    ) as other:
        settings = load_settings({"FRAMEHAUL_SCHEDULER": other.scheduler_address}, None)
        with workers.opened(settings, 4) as cluster:
            assert len(cluster.addresses) == 1
            place = Place("postgres", servers.postgres)
            write(place, files, cluster)
            assert place.count() == ROWS
            place.target().drop()


def test_a_scheduler_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="SCHEDULER='here' is not the address"):
        load_settings({"FRAMEHAUL_SCHEDULER": "here"}, None)
    settings = load_settings({"FRAMEHAUL_SCHEDULER": "tcp://127.0.0.1:1"}, None)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ClusterError, match=r"tcp://127\.0\.0\.1:1 cannot be reached"),
    ):
        patch.setattr(workers, "CONNECT_SECONDS", 1)
        with workers.opened(settings, 1):
            pass


def test_workers_with_other_packages_are_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    workers.check_workers(cluster.client)
    monkeypatch.setattr("distributed.versions._version_cached", lambda name: "0.0.1" if name == "polars" else "1")
    with pytest.raises(ClusterError, match=r"polars +\| +0\.0\.1"):
        workers.check_workers(cluster.client)


@pytest.fixture
def small_run(servers: Servers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run within this process leaves its results."""
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return tmp_path


@WHOLE
def test_a_run_measures_every_combination(out: Path, tmp_path: Path) -> None:
    passes, values = store.read(out / "results" / "scale_out.csv", study.Pass), values_of(out, STUDY)
    workers, partitions = values["workers"], values["partitions"]
    pairs = {(one, max(partitions)) for one in workers} | {(max(workers), one) for one in partitions}
    expected = {
        (database, direction, *pair, number)
        for database in DATABASES for direction in ("write", "read")
        for pair in pairs for number in numbers_of(out)
    }  # fmt: skip
    assert set(passes.select("database", "direction", "workers", "partitions", "pass").rows()) == expected
    assert len(passes) == len(expected)
    assert set(passes["status"]) == {"ok"}, passes["reason"].to_list()
    for row in passes.to_dicts():
        assert row["rows_per_s"] == pytest.approx(300 / row["seconds"])
        assert row["server_cpu_s"] is not None
    found = study.ScaleOut(passes, read_metadata(out / "results"), tmp_path)
    assert "ClickHouse write" in str(found.table())
    assert found.missing().data == "Everything ran."
    assert "PostgreSQL write" in study.writeup_blocks(out / "results")["scale-out"]


def test_without_dask_every_pass_is_skipped(small_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    found = study.run(rows=600, passes=2, warmup=1, seed=5, workers=[1, 2], partitions=[2, 3])
    assert set(found.passes.select("status", "reason").rows()) == {
        (
            "skipped",
            "dask.distributed is not installed: uv sync --extra scale-out, or pip install 'framehaul[scale-out]'",
        )
    }
    assert len(found.passes) == 2 * 2 * 3 * len(DATABASES)
    assert found.table().cells() == []
    assert "not installed" in str(found.missing())
    report.figure(found.passes)


def test_a_speed_up_is_over_the_fewest_workers_with_as_many_partitions() -> None:
    combinations = {(1, 4): 100.0, (2, 4): 180.0, (2, 2): 300.0}
    passes = pl.DataFrame(
        [
            {
                "database": "postgres", "direction": "write", "technique": "t", "label": f"{pair}", "workers": pair[0],
                "partitions": pair[1], "rows": 10, "pass": number, "rows_per_s": speed, "status": "ok", "reason": None,
            }
            for pair, speed in combinations.items()
            for number in (1, 2, 3)
        ]
    )  # fmt: skip
    faster = {(row["workers"], row["partitions"]): str(row["faster"]) for row in report.of_right_passes(passes)}
    assert faster == {(1, 4): "None", (2, 2): "None", (2, 4): "1.80x (1.80 to 1.80 in 3 rounds)"}
    assert "PostgreSQL write**: 2 workers have 1.80x" in report.findings_text(passes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": 0}, "ROWS=0"), ({"passes": 0}, "PASSES=0"), ({"warmup": -1}, "WARMUP=-1"),
        ({"workers": []}, "WORKERS=0"), ({"workers": [1, 0]}, "WORKERS=0"), ({"partitions": ["2"]}, "PARTITIONS='2'"),
    ],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_named(change: dict[str, Any], said: str, small_run: Path) -> None:
    given: dict[str, Any] = {"rows": 10, "passes": 1, "warmup": 0, "seed": 1, "workers": [1], "partitions": [1]}
    with pytest.raises(ValueError, match=said):
        study.run(**(given | change))
    assert not (small_run / "results").exists()
