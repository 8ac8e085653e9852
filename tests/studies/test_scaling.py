"""Sizes, streamed moves and what is told of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.harness.verify import Expected
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings
from framehaul.studies.scaling import study as scaling
from framehaul.studies.scaling.mover import TIME
from framehaul.techniques import Technique, streaming, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.streaming import MOVES
from tests.results.test_store import passes, result

ROWS = 5000
TABLE = ANALYTICS_METRICS.renamed("framehaul_moved")


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (100_000, [10_000, 30_000, 100_000]),
        (10_000_000, [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000]),
        (300, [30, 90, 300]),
        (20_000, [2_000, 6_000, 20_000]),
        (1, [1]),
    ],
)
def test_sizes_go_up_to_the_largest(largest: int, expected: list[int]) -> None:
    assert scaling.sizes(largest) == expected


def test_compared_techniques_are_a_published_one_and_one_beyond() -> None:
    for (database, direction), names in scaling.COMPARED.items():
        known = {found.name: found.origin for found in techniques(database, direction)}  # type: ignore[arg-type]
        assert [known[name] for name in names] == ["published", "beyond"]


def test_a_file_is_read_without_being_kept(tmp_path: Path) -> None:
    file, groups = tmp_path / "rows.parquet", 12
    group = pa.table({"noise": pa.array(np.random.default_rng(1).integers(0, 2**62, 500_000))})
    with pq.ParquetWriter(file, group.schema) as writer:
        for _ in range(groups):
            writer.write_table(group)
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in streaming.read_batches(file)]
    assert max(held) < 3 * group.nbytes < file.stat().st_size


@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_moves_move_exactly_what_is_there(move: Technique, servers: Servers, tmp_path: Path) -> None:
    server = servers.of(move.database)
    tables, content, file = tables_of(server), generator.arrow_table(TABLE, ROWS, 1), tmp_path / "rows.parquet"
    sent, reference = Expected(TABLE, content), TABLE.renamed("framehaul_moved_sent")
    tables.create(TABLE)
    opened = CLIENTS[move.client](server)
    assert isinstance(opened, AbstractContextManager)
    try:
        with opened as client:
            if move.direction == "write":
                sent.keep_reference(tables, reference)
                pq.write_table(content, file)
                move.function(client, TABLE, file)
                assert sent.difference_on_server(tables) is None
            else:
                tables.load(TABLE, content)
                move.function(client, TABLE, file)
                assert sent.difference(to_polars(pq.read_table(file), TABLE)) is None
    finally:
        tables.drop(TABLE)
        tables.drop(reference)


def test_streamed_and_whole_moves_come_in_pairs() -> None:
    for streamed, whole in itertools.batched(MOVES, 2, strict=True):
        assert streamed.name.removeprefix("stream_") == whole.name.removeprefix("whole_")


def test_a_source_is_asked_for_a_batch_only_when_the_one_before_is_gone(servers: Servers) -> None:
    """What keeps memory bounded: no writer collects the batches."""
    content = generator.arrow_table(TABLE, 40_000, 1)
    alive: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in content.to_batches(max_chunksize=1000):
            # Each batch is a copy of its own, so that Arrow's pool tells how many of them somebody still holds.
            alive.append(pa.total_allocated_bytes())
            yield pa.record_batch([pa.concat_arrays([column]) for column in batch.columns], schema=batch.schema)

    for database, client, write in (
        ("postgres", "psycopg", streaming.copy_batches), ("clickhouse", "http_client", streaming.insert_batches),
    ):  # fmt: skip
        server = servers.postgres if database == "postgres" else servers.clickhouse
        tables = tables_of(server)
        tables.create(TABLE)
        alive.clear()
        opened = CLIENTS[client](server)
        assert isinstance(opened, AbstractContextManager)
        with opened as connection:
            write(connection, TABLE, batches())
        tables.drop(TABLE)
        assert len(alive) == 40
        assert max(alive[5:]) - min(alive[5:]) < content.nbytes / 4


def test_a_move_that_fails_is_told_with_its_reason(
    servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    file = tmp_path / "rows.parquet"
    with scaling._mover("stream_into_postgres", file) as mover:
        for _ in range(2):  # a process that has ended says so again for every pass that is left
            with pytest.raises(scaling.MoverError, match="No such file or directory"):  # before anything is sent
                mover.make_pass(TIME)
    pq.write_table(generator.arrow_table(ANALYTICS_METRICS, 10, 1), file)
    with (
        scaling._mover("stream_into_postgres", file) as mover,
        pytest.raises(scaling.MoverError, match='relation "framehaul_analytics_metrics" does not exist'),
    ):
        mover.make_pass(TIME)


def test_a_quantity_that_could_not_be_measured_leaves_its_panel_empty(tmp_path: Path) -> None:
    name, other = scaling.COMPARED[("clickhouse", "read")]
    frame = passes(
        *(result(name, rows=rows, peak_rss_bytes=0, wire_bytes=None) for rows in (10, 100)),
        result(other, rows=10, peak_rss_bytes=0, status="failed", seconds=None, reason="x"),
        directory=tmp_path,
    )
    figure = scaling.growth_figure(scaling.medians(frame), "clickhouse", "read")
    drawn = [bool(axes.lines) for axes in figure.axes]
    assert drawn == [True, False, True, False, False]
    assert "2k at 10 | 2k at 100 | 1.00x" in str(scaling.growth_table(scaling.medians(frame)))


def test_what_was_wrong_once_has_no_speed_at_that_size(tmp_path: Path) -> None:
    name, _ = scaling.COMPARED[("clickhouse", "read")]
    frame = passes(
        result(name, 1, rows=10), result(name, 2, rows=10, status="failed", seconds=None, reason="x"),
        result(name, 1, rows=100), result(name, 2, rows=100),
        directory=tmp_path,
    )  # fmt: skip
    assert scaling.medians(frame)["rows"].to_list() == [100]
