"""Everyday calls: one changed line, and reads in batches."""

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
from framehaul.studies.everyday_api.batches import CALLS, sums_of
from framehaul.studies.everyday_api.one_line import ONE_LINE, changes
from framehaul.studies.everyday_api.study import BatchedRead
from framehaul.studies.registry import EVERYDAY_API
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import DATABASES
from tests.conftest import REFERENCE, WHOLE

ROWS = 20_000
"""Enough rows for sums above 32 bits."""


@WHOLE
def test_every_everyday_call_was_tried_and_is_right(out: Path) -> None:
    here = read_all(out / "results").filter(origin="everyday")
    assert set(here["technique"]) == {one.name for one in techniques() if one.origin == "everyday"}
    assert here.filter(pl.col("status") != "ok").select("technique", "reason").rows() == []


def test_one_line_names_techniques_and_keeps_the_terms_of_the_call() -> None:
    known = {one.key: one for one in techniques()}
    for one in ONE_LINE.to_dicts():
        call, changed = (known[one["database"], one["direction"], one[name]] for name in ("technique", "changed"))
        assert call.contract == changed.contract


def test_the_fastest_technique_is_an_exact_append_of_the_same_frame() -> None:
    found = changes(read_all(REFERENCE))
    assert len(found) == len(ONE_LINE)
    known = {one.key: one for one in techniques()}
    for row in found.to_dicts():
        call, fastest = (known[row["database"], row["direction"], row[name]] for name in ("technique", "fastest"))
        assert (fastest.frame, fastest.contract) == (call.frame, call.contract)
        assert row["gain_of_fastest"] > 1


@WHOLE
def test_batches_gave_what_was_sent(out: Path) -> None:
    reads = store.read(out / "results" / EVERYDAY_API.results, BatchedRead)
    assert set(reads["way"]) == {call.name for call in CALLS}
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
    for call in CALLS:
        with CLIENTS[call.client](servers.of(call.database)) as client:  # type: ignore[union-attr]  # none is asynchronous
            frames = [sums_of(frame, ANALYTICS_METRICS) for frame in call.read(client, ANALYTICS_METRICS)]
        assert {of: sum(frame[of] for frame in frames) for of in sent} == sent, call.name
        several |= {call.name} if len(frames) > 1 else set()
    # Calls that return what the server sends have one piece of so few rows.
    assert {call.name for call in CALLS if "cursor" in call.name or "sqlalchemy" in call.client} <= several
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
        said = {"seconds": 1.0, "frames": 1, "peak_rss_bytes": 5, "sums": came}
        monkeypatch.setattr(study, "answer_of", lambda *_: said)

    answering({"rows": 3, "a": 7})
    assert study._read(CALLS[0], 3, {"rows": 3, "a": 7})["rows_per_s"] == 3
    answering({"rows": 3, "a": 7})
    with pytest.raises(WrongResultError, match="other values came of: a"):
        study._read(CALLS[0], 3, {"rows": 3, "a": 8})
    answering({})
    with pytest.raises(WrongResultError, match="other values came of: rows, a"):
        study._read(CALLS[0], 3, {"rows": 3, "a": 8})


def test_a_reader_that_fails_says_why(servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    tables_of(servers.postgres).drop(ANALYTICS_METRICS)
    with ended_with_the_block(), pytest.raises(ChildError, match='relation "framehaul_analytics_metrics" does not'):
        study._read(CALLS[0], 3, {})


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
    assert batches.consumed(frames(), ANALYTICS_METRICS) == {"seconds": 3, "frames": 3, "sums": {"rows": 6}}


def test_a_frame_of_either_kind_counts_its_rows() -> None:
    empty = generator.pandas_frame(ANALYTICS_METRICS, ROWS, 1).head(0)
    assert isinstance(empty, pd.DataFrame)
    assert set(sums_of(empty, ANALYTICS_METRICS).values()) == {0}
