"""Comparing two runs: what is marked, and what is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from framehaul.bench import compare, store
from framehaul.bench.compare import KEY, Run
from framehaul.bench.store import writing
from framehaul.errors import ResultsError
from framehaul.reporting import comparison
from framehaul.studies.registry import TRANSFERS, read_run
from tests.bench.test_store import result
from tests.conftest import REFERENCE, RunsCommand

STEADY, SLOWER = (1.0, 1.01, 0.99), (2.0, 2.02, 1.98)


def write_run(out: Path, changes: Any = None, **seconds: Any) -> Path:
    """A directory as `make all` leaves it: techniques with the seconds of their passes; `changes` of some of them."""
    with writing(out / "results" / "clickhouse_read.csv") as writer:
        for name, passes in seconds.items():
            for number, taken in enumerate(passes, 1):
                writer.write(result(name, number, taken, **(changes or {}).get(name, {})))
    return out


def of(found: compare.Comparison) -> dict[str, tuple[str, str]]:
    """Verdict and why of each technique."""
    return {row["technique"]: (row["verdict"], row["why"]) for row in found.rows.to_dicts()}


def both(a: Path, b: Path, wanted: str = "") -> compare.Comparison:
    return compare.compare(read_run(a), read_run(b), wanted)


def steady(**others: Any) -> dict[str, Any]:
    return {f"steady_{number}": STEADY for number in range(12)} | others


def test_a_technique_of_half_the_speed_is_marked_and_one_of_double_too(tmp_path: Path) -> None:
    """Two passes say nothing of speed, and neither do passes that overlap, or part by less than others scatter."""
    a = write_run(tmp_path / "a", **steady(slow=STEADY, fast=STEADY, few=STEADY[:2], wide=(1.0, 1.0, 1.5)))
    others = steady(slow=SLOWER, fast=(0.5, 0.51, 0.49), few=(1.0, 9.0), wide=(1.4, 3.0, 3.0))
    b = write_run(tmp_path / "b", **others)
    found = both(a, b)
    assert {name: why for name, why in of(found).items() if "steady" not in name} == {
        "slow": ("regression", "slower"), "fast": ("improvement", "faster"), "wide": ("no difference seen", ""),
        "few": ("not compared", "too few passes: 2 and 2"),
    }  # fmt: skip
    assert (found.count("no difference seen"), found.status) == (13, 1)
    slow = found.rows.row(0, named=True)
    assert (slow["technique"], slow["ratio"]) == ("slow", pytest.approx(0.5))
    assert slow["ratio_low"] < 0.5 < slow["ratio_high"] < 1
    few = both(a, b, "few")
    assert few.status == 2
    assert "no speed could be compared" in comparison.render(few)
    noisy: dict[str, Any] = {f"noisy_{number}": (1.0, 1.3, 0.8) for number in range(12)}
    lucky = [(1.0, 1.001, 0.999), (1.1, 1.101, 1.099)]
    c, d = (write_run(tmp_path / name, **noisy, lucky=one) for name, one in zip("cd", lucky, strict=True))
    assert of(both(c, d))["lucky"] == ("no difference seen", "")


def simulated(truth: pl.DataFrame, random: np.random.Generator) -> Run:
    """A run of techniques whose speeds scatter as in the reference run, all of them as fast as there."""
    parts = []
    for number in range(1, 4):
        scatter = np.exp(truth["spread"].to_numpy() * random.standard_normal(len(truth)))
        speeds = pl.Series("rows_per_s", truth["median_rows_per_s"].to_numpy() * scatter)
        parts.append(truth.with_columns(speeds, pl.lit(number).alias("pass")))
    empty = pl.DataFrame(schema=store.SCHEMA)
    frame = pl.concat([empty, *parts], how="diagonal_relaxed").with_columns(status=pl.lit("ok"))
    return Run("simulated", frame.select(*store.SCHEMA), {"runs": {}})


@pytest.fixture(scope="module")
def truth() -> pl.DataFrame:
    """The techniques of the reference run at a million rows: their speeds, and how far their passes scattered."""
    directions, spread = [study.notebook for study in TRANSFERS], pl.element().log().std()
    found = read_run(REFERENCE).statistics.filter(pl.col("notebook").is_in(directions), rows=1_000_000)
    found = found.with_columns(spread=pl.col("rows_per_s").list.eval(spread).list.first())
    assert len(found) > 100
    return found.select(*KEY, *compare.DESCRIBED, "dtypes", "median_rows_per_s", "spread")


def test_runs_that_differ_in_nothing_rarely_mark_anything(truth: pl.DataFrame) -> None:
    random = np.random.default_rng(20260407)
    comparisons = [compare.compare(simulated(truth, random), simulated(truth, random)) for _ in range(50)]
    parted = sum(len(found.rows.filter(pl.col("max_rows_per_s_b") < pl.col("min_rows_per_s"))) for found in comparisons)
    # What parting alone would have marked: about one in twenty techniques.
    assert parted / 50 > 3
    assert sum(found.status for found in comparisons) <= 5


def test_changes_of_status_and_dtypes(tmp_path: Path) -> None:
    states = {
        "failed": {"status": "failed", "reason": "content | differs"}, "text": {"dtypes": "x:str"},
        "skipped": {"status": "skipped", "reason": "no extension"}, "object": {"dtypes": "x:object"}, "ok": {},
    }  # fmt: skip
    expected = {
        "ok failed": ("regression", "ok -> failed: content | differs"),
        "ok text": ("regression", "dtypes exact -> x:str"),
        "failed ok": ("improvement", "failed -> ok"),
        "text object": ("no difference seen", "dtypes x:str -> x:object"),
        "skipped skipped": ("not compared", "skipped in both: no extension"),
        "skipped ok": ("not compared", "skipped -> ok"),
        "ok skipped": ("not compared", "ok -> skipped: no extension"),
        "failed failed": ("not compared", "failed in both: content | differs"),
        "nothing ok": ("new", ""),
        "ok nothing": ("gone", ""),
        "ok ok": ("regression", "ok -> failed: wrong"),
    }
    runs = []
    for at in range(2):
        changes = {name: states[state] for name in expected if (state := name.split()[at]) in states}
        seconds = {name: (None,) * 3 if "status" in change else STEADY for name, change in changes.items()}
        runs.append(write_run(tmp_path / f"{at}", changes, **seconds))
    a, b = runs
    file = b / "results" / "clickhouse_read.csv"
    *others, last = file.read_text().splitlines()  # one pass of three of `ok ok`
    file.write_text("\n".join([*others, last.replace("exact,ok,", "exact,failed,wrong"), ""]))
    found = both(a, b)
    assert of(found) == expected
    assert found.status == 1
    assert of(both(b, a))["ok text"] == ("improvement", "dtypes x:str -> exact")
    markdown = comparison.render(found)
    assert r"| ok -> failed: content \| differs |" in markdown
    assert "median ratio of all: 1.00x; far from 1 the machine itself has changed" in markdown


def test_what_differs_between_the_runs_is_said(tmp_path: Path) -> None:
    def made(cpu: str, system: str, threads: str, libraries: dict[str, str], **others: Any) -> dict[str, Any]:
        run = {"started": "2026-01-01 10:00 UTC", "rows": 1000, "server": {"settings": {"max_threads": threads}}}
        machine = {"cpu": cpu, "cores": 2, "memory_gib": 8.0, "system": system}
        return {"machine": machine, "libraries": libraries, "runs": {"04_clickhouse_read": run | others}, "python": "3"}

    a, b = (write_run(tmp_path / name, one=STEADY) for name in "ab")
    assert both(a, b).warnings[0].startswith("A has no environment.json")
    before = made("one", "Linux 6", "2", {"psycopg": "3.3.1", "polars": "2.1.0"})
    after = made("another", "Linux 7", "4", {"psycopg": "3.3.2", "polars": "2.1.0", "numba": "0.68"}, seed=7)
    for out, content in ((a, before), (b, after)):
        (out / "results" / "environment.json").write_text(json.dumps(content))
    found = both(a, b)
    machine, *others = found.warnings
    assert machine == "the machine's cpu: one -> another"
    assert {*others} == {"seed: none -> 7", "server setting max_threads: 2 -> 4"}
    assert found.changes == ["the machine's system: Linux 6 -> Linux 7", "psycopg 3.3.1 -> 3.3.2", "numba none -> 0.68"]
    assert f"WARNING: {machine}" in comparison.render(found)
    assert both(a, a).warnings == both(a, a).changes == []


def test_wanted_techniques_of_the_same_size_have_all_words_in_their_names(tmp_path: Path) -> None:
    passes: dict[str, Any] = dict.fromkeys(("polars_a", "polars_b", "pandas_b", "large"), STEADY)
    sizes = {"a": 2000, "b": 4000}
    a, b = (write_run(tmp_path / name, {"large": {"rows": rows}}, **passes) for name, rows in sizes.items())
    rows = both(a, b, "large").rows.select("technique", "rows", "verdict").rows()
    assert {*rows} == {("large", 2000, "gone"), ("large", 4000, "new")}
    assert set(of(both(a, b, "_b pol"))) == {"polars_b"}


def test_a_run_is_a_directory_its_results_or_a_file_and_what_is_none_is_named_with_the_remedy(tmp_path: Path) -> None:
    out = write_run(tmp_path / "whole", one=STEADY)
    file, header = out / "results" / "clickhouse_read.csv", ",".join(store.SCHEMA)
    assert [len(read_run(path).passes) for path in (out, out / "results", file)] == [3, 3, 3]
    whole = file.read_text()
    files = {
        "foreign.csv": ("a,b\n1,2\n", "has other columns"), "nothing.csv": ("", "cannot be read"),
        "text.csv": (whole.replace(",1000,", ",x,"), "cannot be read"), "none.csv": (f"{header}\n", "holds no passes"),
        "cut.csv": (f"{whole.rstrip()[:-20]}\n", "cut off"),
    }  # fmt: skip
    for name, (content, _) in files.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "empty").mkdir()
    faults = {name: said for name, (_, said) in files.items()} | {"empty": "run make", "gone": "does not exist"}
    for name, said in faults.items():
        with pytest.raises(ResultsError, match=f"{name}.*{said}"):
            read_run(tmp_path / name)
    (out / "results" / "environment.json").write_text('{"runs": ')
    with pytest.raises(ResultsError, match=r"environment\.json cannot be read"):
        read_run(out)


def test_the_command_ends_with_0_1_or_2_and_says_why(tmp_path: Path, within: RunsCommand) -> None:
    a = write_run(tmp_path / "a", **steady(slow=STEADY))
    b = write_run(tmp_path / "b", **steady(slow=SLOWER))
    for status, said, arguments in (
        (1, "1 regression, 0 improvement, 12 no difference seen", (str(a), str(b))),
        (0, "12 in all: 0 regression", (str(a), str(b), "--techniques=steady")),
        (2, "does not exist", (str(a), str(tmp_path / "c"))),
        (2, "takes two runs", (str(a),)),
        (2, "no technique of these runs", (str(a), str(b), "--techniques=other")),
    ):
        done = within("compare", *arguments, state_dir=tmp_path / "state")
        assert (done.returncode, said in (done.stderr if status == 2 else done.stdout)) == (status, True), said
