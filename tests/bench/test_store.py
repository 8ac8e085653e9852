"""Results files and what is derived from them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from framehaul.bench import statistics, store
from framehaul.bench.store import Result, Writer, columns_of
from framehaul.errors import ResultsError
from framehaul.studies.transfers.study import read_all


def result(
    technique: str = "polars_urllib_csv", number: int = 1, seconds: float | None = 0.5, **changes: Any
) -> Result:
    values: dict[str, Any] = {
        "run_id": "r", "notebook": "04_clickhouse_read", "database": "clickhouse", "direction": "read",
        "technique": technique, "label": technique.upper(), "origin": "published", "family": "http_csv",
        "driver": "urllib", "frame": "polars", "connections": 1, "contract": None, "rows": 1000, "pass_": number,
        "seconds": seconds,
        "rows_per_s": 1000 / seconds if seconds else None, "client_cpu_s": 0.1, "server_cpu_s": None,
        "peak_rss_bytes": 5, "wire_bytes": None, "dtypes": "exact", "status": "ok", "reason": None,
    }  # fmt: skip
    return Result(**(values | changes))


def passes(*rows: Result, directory: Path) -> pl.DataFrame:
    with Writer(directory / "clickhouse_read.csv") as writer:
        for row in rows:
            writer.write(row)
    return store.read(directory / "clickhouse_read.csv")


def test_missing_numbers_are_empty_and_come_back_as_null(tmp_path: Path) -> None:
    frame = passes(result(seconds=None, status="failed", reason='it said "no", twice\nreally'), directory=tmp_path)
    assert frame.columns == columns_of(Result)
    assert frame.select("seconds", "server_cpu_s", "wire_bytes").null_count().row(0) == (1, 1, 1)
    assert frame["reason"].to_list() == ['it said "no", twice\nreally']


def test_an_interrupted_run_keeps_what_it_finished_and_the_earlier_results(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse_read.csv"
    passes(result("polars_urllib_csv"), directory=tmp_path)
    with pytest.raises(KeyboardInterrupt), Writer(path) as writer:
        for number in (1, 2, 3):
            writer.write(result("pandas_urllib_csv", number))
            assert len(path.with_suffix(".partial.csv").read_text().splitlines()) == number + 1
        raise KeyboardInterrupt
    assert store.read(path)["technique"].to_list() == ["polars_urllib_csv"]
    assert len(read_all(tmp_path)) == 1


def test_what_cannot_be_written_or_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a directory should be")
    with pytest.raises(ResultsError, match="choose a writable OUT"), Writer(tmp_path / "results" / "x.csv"):
        pass
    with pytest.raises(ResultsError, match="NOTEBOOKS=clickhouse_read"):
        store.read(tmp_path / "clickhouse_read.csv")
    (tmp_path / "clickhouse_read.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ResultsError, match="other columns"):
        store.read(tmp_path / "clickhouse_read.csv")


def without(path: Path, columns: int, *, first: int = 0) -> Path:
    """A results file without so many columns at its end, or at its beginning."""
    with path.open(newline="") as file:
        rows = [row[first : len(row) - columns] for row in csv.reader(file)]
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    return path


def test_columns_that_came_later_are_empty_in_files_that_lack_them_and_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "clickhouse_read.csv"
    for columns in (1, 4):
        whole = passes(result(client_system_s=0.5, minor_faults=7), result(number=2), directory=tmp_path)
        lacking, found = whole.columns[-columns:], store.read(without(path, columns))
        assert found.schema == whole.schema
        assert found.drop(lacking).equals(whole.drop(lacking))
        assert found.select(lacking).null_count().row(0) == (2,) * columns
    for columns, first in ((5, 0), (0, 1), (4, 1)):  # the contract has no default
        passes(result(), directory=tmp_path)
        with pytest.raises(ResultsError, match="other columns"):
            store.read(without(path, columns, first=first))


@pytest.mark.parametrize("ends", [0, 2])
def test_what_failed_as_a_run_was_killed_is_measured_again(ends: int, tmp_path: Path) -> None:
    """Its servers may end before it: an INSERT that was under way once stayed a failure of its technique."""
    path, terms = tmp_path / "clickhouse_read.csv", {"rows": 1}
    bad: dict[str, Any] = {"seconds": None, "status": "failed", "reason": 'closed, "really"\nclosed'}
    with pytest.raises(KeyboardInterrupt), Writer(path, terms=terms) as writer:
        for one in (result("a"), result("b", **bad), result("c")):
            writer.write(one)
        for number in range(ends):
            writer.write(result("d", number, **bad))
        raise KeyboardInterrupt
    with Writer(path, terms=terms) as writer:
        assert len(writer.finished) == 3
        assert store.identity(result("b", **bad)) in writer.finished
        writer.write(result("d"))
    frame = store.read(path)
    assert frame["technique"].to_list() == ["a", "b", "c", "d"]
    assert frame["reason"].to_list() == [None, bad["reason"], None, None]


def test_summary_has_the_published_statistics(tmp_path: Path) -> None:
    frame = passes(*(result(number=n, seconds=s) for n, s in ((1, 0.5), (2, 1.0), (3, 2.0))), directory=tmp_path)
    row = statistics.summary(frame).row(0, named=True)
    assert row["passes"] == 3
    assert row["avg_s"] == pytest.approx(3.5 / 3)
    assert row["mean_rows_per_s"] == pytest.approx((2000 + 1000 + 500) / 3)
    assert (row["min_rows_per_s"], row["median_rows_per_s"], row["max_rows_per_s"]) == (500, 1000, 2000)
    assert row["unstable"]


def test_a_technique_that_failed_once_has_no_speed(tmp_path: Path) -> None:
    frame = passes(
        result("good", 1, 1.0), result("good", 2, 1.0),
        result("bad", 1, 0.1), result("bad", 2, None, status="failed", reason="content differs in x"),
        directory=tmp_path,
    )  # fmt: skip
    summary = statistics.summary(frame)
    assert summary["technique"].to_list() == ["good", "bad"]
    bad = summary.row(1, named=True)
    assert (bad["status"], bad["median_rows_per_s"], bad["ratio"]) == ("failed", None, None)
    assert bad["reason"] == "content differs in x"


def test_ratio_is_to_the_fastest_published_technique_and_pairs_rounds(tmp_path: Path) -> None:
    # The machine halves its speed in round 2: the ratio within each round stays 2.
    frame = passes(
        *(result("base", n, s) for n, s in ((1, 1.0), (2, 2.0), (3, 1.0))),
        *(result("new", n, s / 2, origin="beyond") for n, s in ((1, 1.0), (2, 2.0), (3, 1.0))),
        directory=tmp_path,
    )
    ratios = {row["technique"]: row for row in statistics.summary(frame).to_dicts()}
    assert ratios["base"]["ratio"] == 1
    assert ratios["new"]["ratio"] == pytest.approx(2)
    assert ratios["new"]["ratio_low"] == pytest.approx(2)
    assert ratios["new"]["ratio_high"] == pytest.approx(2)


def test_of_a_race_those_with_the_most_rows_come_first_and_ratios_are_of_the_same_rows(tmp_path: Path) -> None:
    frame = passes(
        result("early", 1, 0.1, rows=100, rows_per_s=9000.0), result("base", 1, 0.1, rows=100, rows_per_s=1000.0),
        result("leader", 1, 0.1, rows=100, rows_per_s=4000.0, origin="beyond"),
        *(result("base", n, 1.0) for n in (1, 2)),
        *(result("leader", n, 0.5, origin="beyond") for n in (1, 2)),
        directory=tmp_path,
    )  # fmt: skip
    summary = statistics.summary(frame)
    assert summary.select("technique", "rows", "passes").rows() == [
        ("leader", 1000, 2), ("base", 1000, 2), ("early", 100, 1)
    ]  # fmt: skip
    assert summary["ratio"].to_list() == pytest.approx([2.0, 1.0, 9.0])
