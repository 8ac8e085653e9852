"""Everyday calls beside the fast ones, and what promises batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

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
from framehaul.studies.everyday_api import STUDY, batches, study
from framehaul.studies.everyday_api.batches import WAYS, sums_of
from framehaul.studies.everyday_api.study import CALLED_AS_WELL, BatchedRead, changes, grown, takes_own_codecs
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import DATABASES
from framehaul.techniques.source import source
from tests.conftest import WHOLE


@WHOLE
def test_everyday_calls_are_right_and_each_has_something_to_call_instead_on_its_terms(out: Path) -> None:
    passes = read_all(out / "results")
    here = passes.filter(origin="everyday")
    assert set(here["technique"]) == {one.name for one in techniques() if one.origin == "everyday"}
    assert here.filter(pl.col("status") != "ok").select("technique", "reason").rows() == []
    found = changes(passes)
    called = {(one["database"], one["direction"], one["technique"]) for one in found}
    assert called == {one.key for one in techniques() if one.origin == "everyday" or one.name in CALLED_AS_WELL}
    assert len({one.key for one in techniques() if one.name in CALLED_AS_WELL}) == len(CALLED_AS_WELL)
    for one in found:
        there = passes.filter(database=one["database"], direction=one["direction"])
        other = there.filter(technique=one["instead"])
        assert set(other.select("frame", "contract").rows()) == {(one["frame"], one["contract"])}
        assert set(other["origin"]) <= {"published", "beyond"}
        assert one["instead"] not in CALLED_AS_WELL
        assert one["called"].startswith(f"[{one['label']}](https://")
        assert not set(one["called"].partition("](")[2]) & {" ", ",", ";", "\n"}
        both = set(other["rows"]) & set(there.filter(technique=one["technique"])["rows"])
        assert bool(both) == bool(one["gain"].logs)


def test_own_codecs_are_told_from_conversions() -> None:
    for database, direction, name, own in (
        ("clickhouse", "read", "polars_http_client_native_decoded", True),
        ("clickhouse", "read", "polars_http_client_arrow_stream", False),
        ("postgres", "write", "polars_pgpq_presorted", True),
        ("postgres", "write", "polars_pgpq_copy_binary", False),
    ):
        assert takes_own_codecs(source(database, direction, [name])) == own


@WHOLE
def test_batches_gave_what_was_sent(out: Path) -> None:
    reads = store.read(out / "results" / STUDY.results, BatchedRead)
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
            frames = [sums_of(frame, ANALYTICS_METRICS) for frame in way.frames(client, ANALYTICS_METRICS)]
        assert {of: sum(frame[of] for frame in frames) for of in sent} == sent, way.name
        several |= {way.name} if len(frames) > 1 else set()
    # Who gives what the server sends has one piece of it, of so few rows.
    assert {way.name for way in WAYS if "cursor" in way.name or "sqlalchemy" in way.client} <= several
    for database in DATABASES:
        tables_of(servers.of(database)).drop(ANALYTICS_METRICS)


def test_a_run_reads_a_tenth_of_the_rows_and_all_in_every_way(
    servers: Servers, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    monkeypatch.setattr(study, "BATCH_ROWS", 10)
    answer = {"seconds": 1.0, "rows_per_s": 9.0, "frames": 1, "peak_rss_bytes": 5}
    monkeypatch.setattr(study, "_read", lambda *_: answer)
    found = study.run(rows=1000, passes=1, seed=1)
    read = {way: sorted(of["rows"]) for (way,), of in found.passes.group_by("way")}
    assert read == {way.name: [100, 1000] for way in WAYS}
    assert set(found.passes["status"]) == {"ok"}
    assert "too few rows to say" in str(found.memory())


def test_sums_are_the_same_of_either_kind_of_frame() -> None:
    rows = 20_000  # whose sums are past 32 bits
    polars = sums_of(generator.polars_frame(ANALYTICS_METRICS, rows, 1), ANALYTICS_METRICS)
    pandas = generator.pandas_frame(ANALYTICS_METRICS, rows, 1)
    assert polars == sums_of(pandas, ANALYTICS_METRICS)
    assert polars["rows"] == rows
    assert set(polars) > {"metric_1", "dimension_a"}
    assert set(sums_of(pandas.head(0), ANALYTICS_METRICS).values()) == {0}


def test_other_values_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for came, sent, other in (
        ({"rows": 3, "a": 7}, {"rows": 3, "a": 7}, None),
        ({"rows": 3, "a": 7}, {"rows": 3, "a": 8}, "a"),
        ({}, {"rows": 3, "a": 8}, "rows, a"),
    ):
        said = {"seconds": 1.0, "frames": 1, "peak_rss_bytes": 5, "came": came}
        monkeypatch.setattr(study, "answer_of", lambda *_, said=said: said)
        if other is None:
            assert study._read(WAYS[0], 3, sent)["rows_per_s"] == 3
        else:
            with pytest.raises(WrongResultError, match=f"other values came of: {other}$"):
                study._read(WAYS[0], 3, sent)


def test_a_reader_that_fails_says_why(servers: Servers, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAMEHAUL_STATE_DIR", str(settings.state_dir))
    tables_of(servers.postgres).drop(ANALYTICS_METRICS)
    with ended_with_the_block(), pytest.raises(ChildError, match='relation "framehaul_analytics_metrics" does not'):
        study._read(WAYS[0], 3, {})


def reads(less: int | None, more: int | None, arrow: int = 200_000_000) -> pl.DataFrame:
    way = WAYS[0]
    made = [
        BatchedRead("run", way.database, way.name, way.label, 1000 * part, 1, 1.0, 9.0, 1, arrow * part // 5, peak)
        for part, peak in ((1, less), (5, more))
    ]
    return store.frame_of(BatchedRead, made)


def test_what_grows_with_the_rows_is_not_bounded() -> None:
    base = 30_000_000
    for growth, arrow, said in (
        (121_000_000, 200_000_000, "no"), (119_000_000, 200_000_000, "yes"),
        (12_100_000, 20_000_000, "too few rows to say"),  # buffers that fill up take as much
        (11_900_000, 20_000_000, "yes"), (240_000_000, 1_000_000, "too few rows to say"),
        (0, 1_000_000, "too few rows to say"),
    ):  # fmt: skip
        assert [row["bounded"] for row in grown(reads(base, base + growth, arrow))] == [said]
    unknown = reads(None, None)
    assert [row["bounded"] for row in grown(unknown)] == ["not known here"]
    assert "not known here" in str(study.memory_table(unknown))


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
