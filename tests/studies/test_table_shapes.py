"""Tables of other shapes: what is measured, and what is said of it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import psycopg
import pytest

from framehaul.bench import measure, store
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Failed, Ok, Pass, Skipped
from framehaul.bench.rounds import Rounds
from framehaul.data.schema import Table
from framehaul.servers import Servers
from framehaul.studies.table_shapes import STUDY, study
from framehaul.studies.table_shapes.limits import LIMITS, within_limits
from framehaul.studies.table_shapes.passes import Row
from framehaul.studies.table_shapes.shapes import SHAPES, STANDARD, Shape, sizes
from framehaul.techniques import Technique
from framehaul.techniques.registry import named
from tests.conftest import WHOLE, values_of

ROWS = 30
BY_NAME = {shape.name: shape for shape in SHAPES}


def moved(chosen: list[Technique], servers: Servers, shape: Shape, rows: int, calls: int = 1) -> dict[str, Pass[Moved]]:
    """What came of one pass of each."""
    outcomes: dict[str, Pass[Moved]] = {}
    measure.run(
        chosen, servers.of(chosen[0].database), shape.table, shape.content(shape.table, rows, 7), Rounds(1),
        lambda one, _, outcome: outcomes.update({one.name: outcome}), calls=calls,
    )  # fmt: skip
    return outcomes


def test_shapes_are_what_their_names_say() -> None:
    assert [len(BY_NAME[name].table.columns) for name in ("hits", "narrow")] == [105, 500]
    texts, nulls = (BY_NAME[name].content(BY_NAME[name].table, 1_000, 7) for name in ("texts", "nulls"))
    assert len({*texts["question"].to_pylist()}) == 1_000
    shares = [column.null_count / 1_000 for column in nulls.columns]
    assert 0.7 < min(shares[1:]) < max(shares) < 0.9
    assert study.rows_of(STANDARD, "few", 100_000, 4, 7) == [1, 100, 10_000]
    assert study.rows_of(BY_NAME["texts"], "few", 100_000, 4, 7) == [1_000]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_rows_of_a_shape_are_valid_unique_and_the_same_for_the_same_seed(shape: Shape) -> None:
    rows = 300
    content = shape.content(shape.table, rows, 7)
    content.validate(full=True)
    assert content.schema == shape.table.arrow_schema
    assert content.equals(shape.content(shape.table, rows, 7))
    assert not content.equals(shape.content(shape.table, rows, 8))
    assert content.select(shape.table.key).group_by(shape.table.key).aggregate([]).num_rows == rows
    assert shape.content(shape.table, 0, 7).num_rows == 0


@pytest.mark.parametrize("name", ["integers", "texts", "nested"])
def test_sizes_are_powers_of_ten_that_a_frame_holds(name: str) -> None:
    shape = BY_NAME[name]
    assert sizes(shape, 9, 1000, 7) == [1]
    assert sizes(shape, 1_000, 1000, 7) == [1, 10, 100, 1_000]
    found = sizes(shape, 10**6, 0.4, 7)
    assert found == [10**at for at in range(len(found))]
    small, large = (shape.content(shape.table, size, 7).nbytes for size in (found[-1], 10 * found[-1]))
    assert small < 1.3e6 * 0.4
    assert large > 0.7e6 * 0.4


def test_calls_of_a_pass_are_all_verified(servers: Servers) -> None:
    """A read that is wrong but once, and a write that leaves one call out."""
    reads = named("postgres", "read", "polars_psycopg_row_fetch")
    writes = named("postgres", "write", "polars_psycopg_copy_text")
    read, written = itertools.count(), itertools.count()

    def wrong_once(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
        frame = cast("pl.DataFrame", reads.function(connection, table))
        return frame.head(3) if next(read) == 1 else frame

    def lazy(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        if next(written) != 1:
            writes.function(connection, table, frame)

    for bad, rows in ((replace(reads, function=wrong_once), 3), (replace(writes, function=lazy), 20)):
        [outcome] = moved([bad], servers, STANDARD, ROWS, calls=3).values()
        assert isinstance(outcome, Failed)
        assert f"{rows} rows instead of 30" in outcome.reason


def test_a_known_limit_is_skipped_with_its_remedy_and_no_other_failure_is() -> None:
    for text, remedy in LIMITS.items():
        outcome: Pass[int] = within_limits(Failed(f"SomeError: it is said that {text} here"))
        assert isinstance(outcome, Skipped)
        assert outcome.reason.endswith(remedy)
    other: Pass[int] = Failed("20 rows instead of 30")
    assert within_limits(other) is other


@pytest.mark.parametrize("name", ["nested", "structs"])
def test_nested_types_arrive_or_are_refused_with_a_remedy(name: str, servers: Servers) -> None:
    shape = BY_NAME[name]
    for path in study.COMPARED:
        for one, outcome in moved(study.measured_on(shape, path, ROWS, 1), servers, shape, ROWS).items():
            assert isinstance(within_limits(outcome), Ok | Skipped), (one, outcome)


@WHOLE
def test_results_are_those_of_the_plan(out: Path) -> None:
    given = values_of(out, STUDY)
    passes = store.read(out / "results" / STUDY.results, Row)
    planned = {
        (shape.name, size, one.name, number)
        for shape in study.SHAPES_OF[given["points"]]
        for size in study.rows_of(shape, given["points"], given["rows"], given["megabytes"], given["seed"])
        for path in study.COMPARED
        for one in study.measured_on(shape, path, size, study.calls_of(path[1], size))
        for number in range(1, given["passes"] + 1)
    }
    assert set(passes.select("shape", "rows", "technique", "pass").rows()) == planned
    good = passes.filter(status="ok")
    assert set(passes["status"]) <= {"ok", "skipped"}
    assert (good["p50_s"] <= good["p99_s"]).all()
    assert np.allclose(good["rows"] * good["calls"] / good["seconds"], good["rows_per_s"])
    assert good.filter(pl.col("calls") > 1)["peak_rss_bytes"].null_count() == len(good.filter(pl.col("calls") > 1))
    assert all(study.writeup_blocks(out / "results").values())


def noisy(speed: float) -> list[float]:
    return [speed * one for one in (1.0, 1.01, 0.99)]


def of(speeds: dict[tuple[str, str, int], list[float]]) -> pl.DataFrame:
    """Passes of PostgreSQL writes, in rows/s by round."""
    rows = [
        Row(
            run_id="r", notebook="n", database="postgres", direction="write", technique=name, label=name.upper(),
            origin="everyday" if name == "e" else "beyond", family="arrow", driver="adbc", frame="polars", rows=size,
            pass_=number, seconds=size / speed, rows_per_s=speed, bytes_per_s=speed, p50_s=1 / speed, p99_s=2 / speed,
            dtypes="exact", connections=1, contract="append", shape=shape, calls=1,
        )
        for (name, shape, size), every in speeds.items() for number, speed in enumerate(every, 1)
    ]  # fmt: skip
    frame = pl.DataFrame([*map(vars, rows)], infer_schema_length=None).rename({"pass_": "pass"})
    return frame.cast(cast("Any", store.schema_of(Row)))


def test_the_fastest_is_an_exact_append_and_names_who_is_tied() -> None:
    speeds = {
        ("p", "standard", 1): noisy(100), ("b", "standard", 1): noisy(50), ("e", "standard", 1): noisy(900),
        ("p", "standard", 100): [90.0, 400, 20], ("b", "standard", 100): [100.0, 10, 300],
        ("bulk", "standard", 100): noisy(900), ("b", "texts", 10): noisy(7), ("drifted", "texts", 10): noisy(70),
    }  # fmt: skip
    passes = of(speeds).with_columns(
        contract=pl.when(technique=pl.lit("bulk")).then(pl.lit("bulk_load")).otherwise("contract"),
        dtypes=pl.when(technique=pl.lit("drifted")).then(pl.lit("c:Date:String")).otherwise("dtypes"),
    )
    assert [one[2:6] for one in study.rows_table(passes).cells()] == [
        ["1", "`e`", "", "900"], ["100", "`b`", "p", "100"],
    ]  # fmt: skip
    assert [one[1:4] for one in study.fastest_table(passes).cells()] == [
        ["the standard 13 columns", "100", "`b`"], ["2 long texts", "10", "`b`"],
    ]  # fmt: skip
    assert study.answer_text(passes) == "- **PostgreSQL write**: `b` is the fastest, or tied with it, on 2 of 2 tables."


def test_a_run_that_moved_nothing_has_pages_and_figures() -> None:
    passes = of({("p", "standard", 1): noisy(10)}).with_columns(
        pl.lit("skipped").alias("status"), pl.lit("no such server").alias("reason"),
        pl.lit(None, pl.Float64).alias("rows_per_s"), pl.lit(None, pl.Float64).alias("p50_s"),
    )  # fmt: skip
    assert study.answer_text(passes) == "Nothing was moved."
    assert study.rows_table(passes).rows == study.fastest_table(passes).rows == []
    assert "no such server" in str(study.refused_table(passes))
    assert study.small_figure(passes).axes
