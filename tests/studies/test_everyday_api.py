"""Everyday calls beside the fast ones, and what promises batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from framehaul.bench import store
from framehaul.bench.children import ChildError, ended_with_the_block
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import WrongResultError
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings
from framehaul.studies.everyday_api import batches, study
from framehaul.studies.everyday_api.batches import WAYS, sums_of
from framehaul.studies.everyday_api.study import CALLED_AS_WELL, ONE_LINE, BatchedRead, changes, growth
from framehaul.studies.registry import EVERYDAY_API
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import DATABASES
from tests.conftest import WHOLE

ROWS = 20_000
"""Whose sums are past 32 bits."""


@WHOLE
def test_every_everyday_call_was_tried_and_is_right(out: Path) -> None:
    here = read_all(out / "results").filter(origin="everyday")
    assert set(here["technique"]) == {one.name for one in techniques() if one.origin == "everyday"}
    assert here.filter(pl.col("status") != "ok").select("technique", "reason").rows() == []


@WHOLE
def test_each_call_has_a_technique_on_its_terms_and_a_gain_of_rows_that_both_moved(out: Path) -> None:
    passes = read_all(out / "results")
    found = changes(passes)
    called = {tuple(row) for row in found.select("database", "direction", "technique").rows()}
    assert called == {one.key for one in techniques() if one.origin == "everyday" or one.name in CALLED_AS_WELL}
    known = {one.key: one for one in techniques()}
    for row in found.to_dicts():
        key = row["database"], row["direction"]
        call, instead = known[*key, row["technique"]], known[*key, row["instead"]]
        assert (instead.frame, instead.contract) == (call.frame, call.contract)
        here = passes.filter(database=key[0], direction=key[1])
        rows = [set(here.filter(technique=one.name)["rows"]) for one in (call, instead)]
        assert bool(rows[0] & rows[1]) == (row["gain"] is not None)


def test_one_line_makes_a_call_that_is_measured_as_well() -> None:
    known = {one.key for one in techniques()}
    for (database, direction, call), (changed, _) in ONE_LINE.items():
        assert {(database, direction, call), (database, direction, changed)} <= known


@WHOLE
def test_batches_gave_what_was_sent(out: Path) -> None:
    reads = store.read(out / "results" / EVERYDAY_API.results, BatchedRead)
    assert set(reads["way"]) == {way.name for way in WAYS}
    assert reads.filter(pl.col("status") != "ok").select("way", "reason").rows() == []
    assert reads["peak_rss_bytes"].null_count() == 0


def test_every_way_gives_the_table_frame_by_frame(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 100)
    content = generator.arrow_table(ANALYTICS_METRICS, 250, 1)
    sent = sums_of(to_polars(content, ANALYTICS_METRICS), ANALYTICS_METRICS)
    for database in DATABASES:
        tables_of(servers.of(database)).create(ANALYTICS_METRICS)
        tables_of(servers.of(database)).load(ANALYTICS_METRICS, content)

    several = set()
    for way in WAYS:
        with CLIENTS[way.client](servers.of(way.database)) as client:  # type: ignore[union-attr]  # none is asynchronous
            frames = [sums_of(frame, ANALYTICS_METRICS) for frame in way.give(client, ANALYTICS_METRICS)]
        assert {of: sum(frame[of] for frame in frames) for of in sent} == sent, way.name
        several |= {way.name} if len(frames) > 1 else set()
    # Who gives what the server sends has one piece of it, of so few rows.
    assert {way.name for way in WAYS if "cursor" in way.name or "sqlalchemy" in way.client} <= several
    for database in DATABASES:
        tables_of(servers.of(database)).drop(ANALYTICS_METRICS)


def test_sums_are_the_same_of_either_kind_of_frame() -> None:
    polars = sums_of(generator.polars_frame(ANALYTICS_METRICS, ROWS, 1), ANALYTICS_METRICS)
    pandas = sums_of(generator.pandas_frame(ANALYTICS_METRICS, ROWS, 1), ANALYTICS_METRICS)
    assert polars == pandas
    assert polars["rows"] == ROWS
    assert set(polars) > {"metric_1", "dimension_a"}


def test_other_values_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def answering(came: dict[str, int]) -> None:
        said = {"seconds": 1.0, "frames": 1, "peak_rss_bytes": 5, "came": came}
        monkeypatch.setattr(study, "answer_of", lambda *_: said)

    answering({"rows": 3, "a": 7})
    assert study._read(WAYS[0], 3, {"rows": 3, "a": 7})["rows_per_s"] == 3
    answering({"rows": 3, "a": 7})
    with pytest.raises(WrongResultError, match="other values came of: a"):
        study._read(WAYS[0], 3, {"rows": 3, "a": 8})
    answering({})
    with pytest.raises(WrongResultError, match="other values came of: rows, a"):
        study._read(WAYS[0], 3, {"rows": 3, "a": 8})


def test_a_reader_that_fails_says_why(servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    tables_of(servers.postgres).drop(ANALYTICS_METRICS)
    with ended_with_the_block(), pytest.raises(ChildError, match='relation "framehaul_analytics_metrics" does not'):
        study._read(WAYS[0], 3, {})


def reads(less: int, more: int, arrow: int = 200_000_000) -> pl.DataFrame:
    way = WAYS[0]
    made = [
        BatchedRead("run", way.database, way.name, way.label, 1000 * part, 1, 1.0, 9.0, 1, arrow * part // 5, peak)
        for part, peak in ((1, less), (5, more))
    ]
    frame = pl.DataFrame([*map(vars, made)], infer_schema_length=None).rename({"pass_": "pass"})
    return frame.cast(store.schema_of(BatchedRead))  # type: ignore[arg-type]


def test_growth_is_over_what_further_rows_take() -> None:
    base = 30_000_000
    assert growth(reads(base, base + 120_000_000))["share"].to_list() == [0.75]
    assert growth(reads(base, base))["share"].to_list() == [0]
    unknown = reads(base, base).with_columns(peak_rss_bytes=pl.lit(None, pl.Int64))
    assert growth(unknown)["share"].to_list() == [None]


def test_looking_at_what_came_is_not_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def looking(*_: object) -> dict[str, int]:
        now[0] += 100
        return {"rows": 2}

    def frames() -> Iterator[pl.DataFrame]:
        for _ in range(3):
            now[0] += 1
            yield pl.DataFrame()

    monkeypatch.setattr(batches, "sums_of", looking)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert batches.taken(frames(), ANALYTICS_METRICS) == {"seconds": 3, "frames": 3, "came": {"rows": 6}}


def test_a_frame_of_either_kind_counts_its_rows() -> None:
    empty = generator.pandas_frame(ANALYTICS_METRICS, ROWS, 1).head(0)
    assert isinstance(empty, pd.DataFrame)
    assert set(sums_of(empty, ANALYTICS_METRICS).values()) == {0}
