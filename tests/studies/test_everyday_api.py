"""Everyday calls: one changed line, and reads in batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul.bench import store
from framehaul.data import generator
from framehaul.data.frames import to_pandas
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.errors import WrongResultError
from framehaul.servers import Servers
from framehaul.studies.everyday_api import batches
from framehaul.studies.everyday_api.batches import CALLS, BatchedRead, sums_of
from framehaul.studies.everyday_api.one_line import ONE_LINE, changes
from framehaul.studies.registry import EVERYDAY_API
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import techniques
from framehaul.techniques.clients import CLIENTS
from tests.conftest import REFERENCE, WHOLE, table_on

ROWS = 20_000
"""Enough rows for sums above 32 bits."""


@WHOLE
def test_every_call_was_tried_and_is_right(out: Path) -> None:
    here = read_all(out / "results").filter(origin="everyday")
    assert set(here["technique"]) == {one.name for one in techniques() if one.origin == "everyday"}
    assert here.filter(pl.col("status") != "ok").select("technique", "reason").rows() == []
    reads = store.read(out / "results" / EVERYDAY_API.results, BatchedRead)
    assert set(reads["way"]) == {call.name for call in CALLS}
    assert reads.filter(pl.col("status") != "ok").select("way", "reason").rows() == []
    assert reads["peak_rss_bytes"].null_count() == 0


def test_a_changed_line_keeps_the_terms_and_the_fastest_technique_is_an_exact_append_of_the_same_frame() -> None:
    found, known = changes(read_all(REFERENCE)), {one.key: one for one in techniques()}
    assert len(found) == len(ONE_LINE)
    for row in found.to_dicts():
        names = ("technique", "changed", "fastest")
        call, changed, fastest = (known[row["database"], row["direction"], row[name]] for name in names)
        assert (fastest.frame, fastest.contract, changed.contract) == (call.frame, call.contract, call.contract)
        assert row["gain_of_fastest"] > 1


def test_every_way_gives_the_table_frame_by_frame(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 100)
    sent = sums_of(generator.polars_frame(TABLE, 250, 1), TABLE)
    content, several = generator.arrow_table(TABLE, 250, 1), set()
    with table_on(servers.postgres, TABLE, content), table_on(servers.clickhouse, TABLE, content):
        for call in CALLS:
            client_of: Any = CLIENTS[call.client]
            with client_of(servers.of(call.database)) as client:
                frames = [sums_of(frame, TABLE) for frame in call.read(client, TABLE)]
            assert {of: sum(frame[of] for frame in frames) for of in sent} == sent, call.name
            several |= {call.name} if len(frames) > 1 else set()
    # Calls that return what the server sends have one piece of so few rows.
    assert {call.name for call in CALLS if "cursor" in call.name or "sqlalchemy" in call.client} <= several


def test_sums_are_the_same_of_either_kind_of_frame() -> None:
    polars, pandas = generator.polars_frame(TABLE, ROWS, 1), to_pandas(generator.arrow_table(TABLE, ROWS, 1), TABLE)
    assert sums_of(polars, TABLE) == sums_of(pandas, TABLE)
    assert sums_of(pandas, TABLE)["rows"] == ROWS
    assert set(sums_of(pandas.head(0), TABLE).values()) == {0}
    assert set(sums_of(polars, TABLE)) > {"metric_1", "dimension_a"}


@pytest.mark.parametrize(
    ("came", "wrong"), [({"rows": 3, "a": 7}, ""), ({"rows": 3, "a": 8}, "a$"), ({}, "rows, a")], ids=str
)
def test_other_values_are_a_failure(came: dict[str, int], wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"seconds": 1.0, "frames": 1, "peak_rss_bytes": 5, "sums": came}
    monkeypatch.setattr(batches, "answer_of", lambda *_: said)
    sent = {"rows": 3, "a": 7}
    if wrong:
        with pytest.raises(WrongResultError, match=f"other values came of: {wrong}"):
            batches._read(CALLS[0], 3, sent)
    else:
        assert batches._read(CALLS[0], 3, sent)["rows_per_s"] == 3


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
    assert batches.consumed(frames(), TABLE) == {"seconds": 3, "frames": 3, "sums": {"rows": 6}}
