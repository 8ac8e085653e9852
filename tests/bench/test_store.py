"""Results files and what is derived from them."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul.bench import statistics, store
from framehaul.bench.store import Result, writing
from framehaul.errors import ResultsError

FILE = "clickhouse_read.csv"


def result(technique: str = "polars_urllib_csv", number: int = 1, seconds: float | None = 0.5, **more: Any) -> Result:
    values: dict[str, Any] = {
        "run_id": "r", "notebook": "04_clickhouse_read", "database": "clickhouse", "direction": "read",
        "technique": technique, "label": technique.upper(), "origin": "published", "family": "http_csv",
        "driver": "urllib", "frame": "polars", "connections": 1, "contract": None, "rows": 1000, "pass_": number,
        "seconds": seconds, "rows_per_s": 1000 / seconds if seconds else None, "client_cpu_s": 0.1,
        "peak_rss_bytes": 5, "dtypes": "exact",
    }  # fmt: skip
    return Result(**(values | more))


def passes(*rows: Result, directory: Path) -> pl.DataFrame:
    with writing(directory / FILE) as writer:
        for row in rows:
            writer.write(row)
    return store.read(directory / FILE)


def summary(*rows: Result, directory: Path) -> dict[str, dict[str, Any]]:
    """The summary of passes, by technique."""
    return {row["technique"]: row for row in statistics.summary(passes(*rows, directory=directory)).to_dicts()}


def test_what_cannot_be_written_or_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a directory should be")
    with pytest.raises(ResultsError, match="choose a writable OUT"), writing(tmp_path / "results" / "x.csv"):
        pass
    with pytest.raises(ResultsError, match="make all"):
        store.read(tmp_path / FILE)


def test_what_failed_as_a_run_was_killed_is_measured_again(tmp_path: Path) -> None:
    """Its servers may end before it: an INSERT that was under way once stayed a failure of its technique."""
    bad: dict[str, Any] = {"seconds": None, "status": "failed", "reason": 'closed, "really"\nclosed'}
    rows = [result("a"), result("b", **bad), result("c"), result("d", 1, **bad), result("d", 2, **bad)]
    with pytest.raises(KeyboardInterrupt), writing(tmp_path / FILE) as writer:
        for one in rows:
            writer.write(one)
        raise KeyboardInterrupt
    with writing(tmp_path / FILE) as writer:
        assert [writer.has(one) for one in rows] == [True] * 3 + [False] * 2
        writer.write(result("d"))
    frame = store.read(tmp_path / FILE)
    assert frame["technique"].to_list() == ["a", "b", "c", "d"]
    assert frame["reason"].to_list() == [None, bad["reason"], None, None]
    assert frame["seconds"].to_list() == [0.5, None, 0.5, 0.5]


def test_summary_has_the_published_statistics_and_a_technique_that_failed_once_has_no_speed(tmp_path: Path) -> None:
    found = summary(
        *(result("good", number, seconds) for number, seconds in ((1, 0.5), (2, 1.0), (3, 2.0))),
        result("bad", 1, 0.1), result("bad", 2, None, status="failed", reason="content differs in x"),
        directory=tmp_path,
    )  # fmt: skip
    good, bad = found["good"], found["bad"]
    assert [*found] == ["good", "bad"]
    assert (good["passes"], good["unstable"]) == (3, True)
    assert good["mean_rows_per_s"] == pytest.approx((2000 + 1000 + 500) / 3)
    assert (good["min_rows_per_s"], good["median_rows_per_s"], good["max_rows_per_s"]) == (500, 1000, 2000)
    assert (bad["status"], bad["median_rows_per_s"], bad["ratio"]) == ("failed", None, None)
    assert bad["reason"] == "content differs in x"


def test_of_a_race_those_with_the_most_rows_come_first_and_ratios_are_of_the_same_rows(tmp_path: Path) -> None:
    found = summary(
        result("early", 1, 0.1, rows=100, rows_per_s=9000.0), result("base", 1, 0.1, rows=100, rows_per_s=1000.0),
        result("leader", 1, 0.1, rows=100, rows_per_s=4000.0, origin="beyond"),
        *(result("base", number, 1.0) for number in (1, 2)),
        *(result("leader", number, 0.5, origin="beyond") for number in (1, 2)),
        directory=tmp_path,
    )  # fmt: skip
    assert [(name, row["rows"], row["passes"]) for name, row in found.items()] == [
        ("leader", 1000, 2), ("base", 1000, 2), ("early", 100, 1)
    ]  # fmt: skip
    assert [row["ratio"] for row in found.values()] == pytest.approx([2.0, 1.0, 9.0])
