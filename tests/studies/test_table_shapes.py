"""Tables of other shapes: their rows, the calls of a pass, and refusals."""

import itertools
from dataclasses import replace
from typing import Any, cast

import polars as pl
import psycopg
import pytest

from framehaul.bench import measure
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.rounds import Failed, Log, Ok, Pass, Rounds, Skipped
from framehaul.data.schema import Table
from framehaul.servers import Servers
from framehaul.studies import table_shapes as study
from framehaul.studies.table_shapes import LIMITS, SHAPES, STANDARD, Shape, rows_of, within_limits
from framehaul.techniques import Technique
from framehaul.techniques.registry import named

ROWS = 30
READ, WRITE = "polars_psycopg_row_fetch", "polars_psycopg_copy_text"


def moved(chosen: list[Technique], servers: Servers, shape: Shape, rows: int, calls: int = 1) -> dict[str, Pass[Moved]]:
    outcomes: dict[str, Pass[Moved]] = {}
    measure.run(
        chosen, servers.of(chosen[0].database), shape.table, shape.content(shape.table, rows, 7), Rounds(1),
        Log(lambda one, _, outcome: outcomes.update({one.name: outcome})), PassOptions(calls=calls),
    )  # fmt: skip
    return outcomes


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
    found = rows_of(shape, "sizes", 100_000, 0.4, 7)
    assert found == [10**at for at in range(len(found))]
    assert shape.content(shape.table, found[-1], 7).nbytes < 1.3e6 * 0.4 or found == [1]


def test_calls_of_a_pass_are_all_verified(servers: Servers) -> None:
    count, reads, writes = itertools.count(), named("postgres", "read", READ), named("postgres", "write", WRITE)

    def wrong_once(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
        frame = cast("pl.DataFrame", reads.function(connection, table))
        return frame.head(3) if next(count) == 1 else frame

    def lazy_once(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
        if next(count) != 4:
            writes.function(connection, table, frame)

    tried: list[tuple[Technique, Any, str]] = [(reads, wrong_once, "3 rows"), (writes, lazy_once, "20 rows")]
    for one, function, wrong in tried:
        [outcome] = moved([replace(one, function=function)], servers, STANDARD, ROWS, calls=3).values()
        assert isinstance(outcome, Failed)
        assert f"{wrong} instead of 30" in outcome.reason


def test_a_known_limit_is_skipped_with_its_remedy_and_no_other_failure_is() -> None:
    for text, remedy in LIMITS.items():
        outcome: Pass[int] = within_limits(Failed(f"SomeError: {text} here"))
        assert outcome == Skipped(f"SomeError: {text} here" + (f"; {remedy}" if remedy else ""))
    others: list[Pass[int]] = [Failed("20 rows instead of 30"), Skipped("no such driver"), Ok(1)]
    for other in others:
        assert within_limits(other) is other


@pytest.mark.parametrize("shape", SHAPES[-2:], ids=lambda shape: shape.name)
def test_nested_types_arrive_or_are_refused_with_a_remedy(shape: Shape, servers: Servers) -> None:
    for path in study.COMPARED:
        for name, outcome in moved(study.measured_on(shape, path, ROWS), servers, shape, ROWS).items():
            assert isinstance(within_limits(outcome), Ok | Skipped), (name, outcome)
