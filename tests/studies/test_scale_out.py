"""Partitions over several workers: every row arrives once, whatever dies, and readers see all of them or none."""

import dataclasses
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import polars as pl
import pytest

from framehaul.bench.measure import called, opened
from framehaul.data.equality import content_fingerprint
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import ServerError, SettingsError, WrongResultError
from framehaul.servers import Server, Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings, load_settings
from framehaul.studies.scale_out import moves, study
from framehaul.studies.scale_out.moves import Partition, frame_of, make
from framehaul.studies.scale_out.study import Cluster
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Database, Direction, named

TABLE = ANALYTICS_METRICS.renamed("framehaul_scaled")
ROWS, PARTITIONS, FEW = 8000, 4, 2
OURS = {
    "postgres": "SELECT relname FROM pg_class WHERE starts_with(relname, 'framehaul_scaled_') "
                "AND relkind IN ('r', 'p', 'v') AND NOT relispartition",
    "clickhouse": "SELECT name FROM system.tables WHERE startsWith(name, 'framehaul_scaled_')",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with study.opened(Settings(), 2) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Partition]:
    return make(tmp_path_factory.mktemp("files") / "made", TABLE, ROWS, 1, PARTITIONS)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[Partition]:
    """Fewer rows than files, some of which are empty."""
    return make(tmp_path_factory.mktemp("others") / "made", TABLE, FEW, 2, 2 * FEW)


@dataclasses.dataclass(frozen=True)
class Place:
    """A database as the tests ask it, and the workers that write and read its table."""

    name: Database
    server: Server
    cluster: Cluster

    def target(self) -> moves.Target:
        return moves.target_on(self.server, TABLE)

    def technique(self, direction: Direction) -> Technique:
        return named(self.name, direction, study.TECHNIQUES[self.name, direction])

    def write(self, files: list[Partition], technique: Technique | None = None) -> None:
        study.write(self.target(), technique or self.technique("write"), files, self.cluster)

    def read(self, directory: Path, pieces: int = 3, technique: Technique | None = None) -> int:
        """Reads all of it, and gives the fingerprint of what came."""
        directory.mkdir()
        study.read(self.target(), technique or self.technique("read"), pieces, directory, self.cluster)
        paths = sorted(directory.glob("*.parquet"))
        assert [path.name for path in paths] == [f"part-{number:05}.parquet" for number in range(pieces)]
        return content_fingerprint(*(frame_of(path, TABLE) for path in paths))

    def count(self) -> int:
        return int(tables_of(self.server).rows(f"SELECT count(*) FROM {TABLE.name}")[0][0])


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, servers: Servers, cluster: Cluster) -> Iterator[Place]:
    found = Place(request.param, servers.of(request.param), cluster)
    yield found
    # The table that readers see has another name, and its partitions are no tables of their own.
    tables = tables_of(found.server)
    left = tables.rows(OURS[found.name])
    tables.drop(TABLE.name)
    assert left == tables.rows(OURS[found.name]) == []


def sent(files: list[Partition]) -> int:
    return content_fingerprint(*(frame_of(path, TABLE) for path, _ in files))


def held_once(technique: Technique, directory: Path) -> Technique:
    """The technique, of which the first call, once it has written some rows, leaves its process id and never ends."""

    async def held(client: Any, table: Any, *frame: pl.DataFrame) -> Any:
        try:
            (directory / "held").touch(exist_ok=False)
        except FileExistsError:
            return await called(technique, client, table, *frame)
        await called(technique, client, table, *(one[:100] for one in frame))
        (directory / "id").write_text(f"{os.getpid()}\n")
        return threading.Event().wait()

    return dataclasses.replace(technique, function=held)


def test_there_and_back_and_again_and_readers_see_what_was_there_or_all_of_it(
    place: Place, files: list[Partition], others: list[Partition], tmp_path: Path
) -> None:
    for number, data in enumerate((files, others)):
        place.write(data)
        assert place.read(tmp_path / str(number)) == sent(data)
    seen = {place.count()}
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(place.write, files)
        while not written.done():
            seen.add(place.count())
        written.result()
    assert {*seen, place.count()} == {FEW, ROWS}
    assert place.read(tmp_path / "many", pieces=7) == sent(files)


def test_a_read_and_a_dask_dataframe_are_of_one_moment(place: Place, files: list[Partition]) -> None:
    place.write(files)
    target, technique = place.target(), place.technique("read")

    def fetched(piece: moves.Piece) -> pl.DataFrame:
        frame: pl.DataFrame = moves.moved(target, technique, piece[1], begin=piece[0])
        return frame

    try:
        with target.reading(3) as pieces:
            first = fetched(pieces[0])
            tables_of(place.server).run(f"DELETE FROM {TABLE.name} WHERE metric_1 % 2 = 0")
            rest = [fetched(piece) for piece in pieces[1:]]
            frame = dd.from_map(lambda piece: fetched(piece).to_pandas(), pieces)
            counts = place.cluster.client.compute(frame["source_id"].value_counts()).result().to_dict()
    finally:
        target.end()
    assert place.count() < ROWS
    assert content_fingerprint(first, *rest) == sent(files)
    whole = pl.concat([frame_of(path, TABLE) for path, _ in files])
    assert counts == dict(whole["source_id"].value_counts().iter_rows())


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["write", "read"])
def test_a_worker_that_is_killed_in_a_partition_loses_and_doubles_nothing(
    place: Place, direction: Direction, files: list[Partition], others: list[Partition], tmp_path: Path
) -> None:
    place.write(others if direction == "write" else files)
    technique = held_once(place.technique(direction), tmp_path)
    moving: Any = partial(place.write, files) if direction == "write" else partial(place.read, tmp_path / "killed")
    with ThreadPoolExecutor(1) as pool:
        moved = pool.submit(moving, technique=technique)
        while not (tmp_path / "id").exists() or not (tmp_path / "id").read_text().endswith("\n"):
            assert not moved.done(), moved.result()
            time.sleep(0.05)
        victim = int((tmp_path / "id").read_text())
        assert victim in place.cluster.client.run(os.getpid).values()
        assert place.count() == (FEW if direction == "write" else ROWS)
        os.kill(victim, signal.SIGKILL)
        assert moved.result() == (None if direction == "write" else sent(files))
    assert place.count() == ROWS
    assert place.read(tmp_path / "after") == sent(files)


def test_an_attempt_that_goes_on_after_another_one_was_taken_counts_for_nothing(
    place: Place, files: list[Partition], tmp_path: Path
) -> None:
    """The slow attempt begins before the partition is done by another, and writes on after the swap."""
    target, technique = place.target(), place.technique("write")
    begun, go_on = threading.Event(), threading.Event()

    async def slow(client: Any, table: Any, frame: pl.DataFrame) -> None:
        await called(technique, client, table, frame[:100])
        begun.set()
        go_on.wait()
        async with opened(technique, target.server) as another:
            await called(technique, another, table, frame[100:])

    target.begin()
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(moves.stage, target, dataclasses.replace(technique, function=slow), files[0])
        begun.wait()
        target.commit({moves.stage(target, technique, one): one for one in files})
        target.end()
        go_on.set()
        with pytest.raises(Exception, match=r"(?i)exist|terminat|closed|no primary key"):
            late.result()
    assert place.count() == ROWS
    assert place.read(tmp_path / "after") == sent(files)


@pytest.mark.parametrize("error", [WrongResultError, KeyboardInterrupt])
def test_a_write_that_fails_or_is_interrupted_leaves_the_table_as_it_was(
    place: Place, files: list[Partition], others: list[Partition], error: type[BaseException], tmp_path: Path
) -> None:
    technique = place.technique("write")

    async def shortened(client: Any, table: Any, frame: pl.DataFrame) -> None:
        await called(technique, client, table, frame[1:])

    place.write(others)
    interrupted = error is KeyboardInterrupt
    if interrupted:
        place.cluster.stop.set()
    with pytest.raises(error, match=None if interrupted else r"rows of part-0000\d.parquet arrived instead of"):
        place.write(files, technique if interrupted else dataclasses.replace(technique, function=shortened))
    place.cluster.stop.clear()
    assert place.read(tmp_path / "after") == sent(others)


def test_a_table_that_is_not_ours_stays(place: Place, files: list[Partition]) -> None:
    key = "" if place.name == "postgres" else " ENGINE = MergeTree ORDER BY mine"
    tables_of(place.server).run(f"CREATE TABLE {TABLE.name} (mine integer){key}")
    try:
        with pytest.raises(ServerError, match="framehaul did not make"):
            place.write(files)
        assert place.count() == 0
    finally:
        tables_of(place.server).run(f"DROP TABLE {TABLE.name}")


def test_no_password_is_told(place: Place, files: list[Partition]) -> None:
    target = place.target()
    secret = place.server.password
    work = partial(moves.stage, target, place.technique("write"))
    assert secret not in repr(work) + repr(pickle.loads(pickle.dumps(target)))
    with pytest.raises(Exception, match=r"(?i)exist|no metadata"):
        place.cluster.map(work, files[:1], "stage-of-no-run")
    logs = str(place.cluster.client.get_worker_logs()) + str(place.cluster.client.get_scheduler_logs())
    assert "stage-of-no-run" in logs
    assert secret not in logs


@pytest.mark.slow
def test_a_scheduler_elsewhere_is_used_by_its_address(servers: Servers, files: list[Partition], tmp_path: Path) -> None:
    import distributed

    with distributed.LocalCluster(
        n_workers=1, host="127.0.0.1", dashboard_address=None, local_directory=str(tmp_path),
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
    ) as other:  # fmt: skip
        settings = load_settings({"FRAMEHAUL_SCHEDULER": other.scheduler_address}, None)
        with study.opened(settings, 4) as cluster:
            assert len(cluster.client.nthreads()) == 1
            place = Place("postgres", servers.postgres, cluster)
            place.write(files)
            assert place.count() == ROWS
            tables_of(place.server).drop(TABLE.name)


def test_a_scheduler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "CONNECT_SECONDS", 1)
    settings = load_settings({"FRAMEHAUL_SCHEDULER": "tcp://127.0.0.1:1"}, None)
    with pytest.raises(SettingsError, match=r"tcp://127\.0\.0\.1:1 cannot be reached"), study.opened(settings, 1):
        pass


def test_workers_with_other_packages_are_named(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    study.check_workers(cluster.client)
    monkeypatch.setattr("distributed.versions._version_cached", lambda name: "0.0.1" if name == "polars" else "1")
    with pytest.raises(SettingsError, match=r"polars +\| +0\.0\.1"):
        study.check_workers(cluster.client)


@pytest.mark.usefixtures("servers", "own_out")
def test_without_dask_every_combination_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    found = study.run(rows=600, rounds=2, warmup=1, seed=5, workers=[1, 2], partitions=[2, 3])
    every = product(study.TECHNIQUES, [(1, 3), (2, 3), (2, 2)], [1, 2])
    names = "database", "direction", "workers", "partitions", "pass"
    assert sorted(found.select(names).rows()) == sorted((*path, *pair, number) for path, pair, number in every)
    assert set(found["status"]) == {"skipped"}
    assert "dask.distributed is not installed: uv sync --extra scale-out" in found["reason"][0]
