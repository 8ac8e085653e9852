"""Everyday calls: one changed line, and reads in batches."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul.data import generator
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.servers import Servers
from framehaul.studies import everyday_api
from framehaul.studies.everyday_api import CALLS, changes, sums_of
from framehaul.studies.transfers import ONE_LINE, read_all
from framehaul.techniques import techniques
from framehaul.techniques.clients import CLIENTS
from tests.conftest import table_on

ROWS = 20_000
"""Enough rows for sums above 32 bits."""


def test_a_changed_line_keeps_the_terms_and_the_fastest_technique_is_an_exact_append_of_the_same_frame(
    committed: Path,
) -> None:
    found, known = changes(read_all(committed)), {one.key: one for one in techniques()}
    assert found["technique"].n_unique() == len(ONE_LINE)
    for row in found.to_dicts():
        call, changed = (known[row["database"], row["direction"], row[name]] for name in ("technique", "changed"))
        assert changed.contract == call.contract
        assert min(row["gain"], row["gain_of_framehaul"]) > 1


def test_every_way_gives_the_table_frame_by_frame(servers: Servers) -> None:
    content, several = generator.arrow_table(TABLE, ROWS, 1), set()
    sent = sums_of(to_polars(content, TABLE))
    with table_on(servers.postgres, TABLE, content), table_on(servers.clickhouse, TABLE, content):
        for call in CALLS:
            client_of: Any = CLIENTS[call.client]
            with client_of(servers.of(call.database)) as client:
                frames = [sums_of(frame) for frame in call.batches(client)]
            assert {of: sum(frame[of] for frame in frames) for of in sent} == sent, call.name
            several |= {call.name} if len(frames) > 1 else set()
    # Calls that return what the server sends have one piece of so few rows.
    assert {call.name for call in CALLS if "cursor" in call.name or "sqlalchemy" in call.client} <= several
    nothing = sums_of(to_pandas(generator.arrow_table(TABLE, 0, 1), TABLE))
    assert (sent["rows"], *nothing.values()) == (ROWS, *[0] * len(sent))


@pytest.mark.usefixtures("servers", "own_out")
@pytest.mark.parametrize("wrong", ["", "metric_1"])
def test_other_values_are_a_failure(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everyday_api, "CALLS", CALLS[-1:])
    monkeypatch.setattr(everyday_api, "sums_of", lambda frame: sums_of(frame) | ({wrong: 7} if wrong else {}))
    [row] = everyday_api.run(rows=30, rounds=1, seed=1).to_dicts()
    assert (row["peak_rss_bytes"] is None) == bool(wrong)
    assert (row["status"], row["reason"]) == (("failed", f"other values came of: {wrong}") if wrong else ("ok", None))


def test_looking_at_what_came_is_not_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def looking(*_: object) -> dict[str, int]:
        now[0] += 100
        return {"rows": 2}

    def frames() -> Iterator[pl.DataFrame]:
        for _ in range(3):
            now[0] += 1
            yield pl.DataFrame()

    monkeypatch.setattr(everyday_api, "sums_of", looking)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert everyday_api.consumed(frames()) == {"seconds": 3, "frames": 3, "sums": {"rows": 6}}
