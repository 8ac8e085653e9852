"""Nanoseconds in two columns, and back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.nanoseconds import (
    split_arrow,
    split_pandas,
    split_polars,
    split_table,
    whole_pandas,
    whole_polars,
    whole_table,
)
from framehaul.data.schema import Column, ColumnType, Table, timestamp_types
from framehaul.harness.verify import Expected, dtype_drift
from framehaul.results.store import EXACT

FIRST, LAST = -(2**63) + 1 + 999, 2**63 - 1
"""Of nanoseconds; the last thousand before 1677-09-21 00:12:43.145225 have no microsecond that is not later."""
WHOLE = Table(
    "moments",
    (
        Column("id", ColumnType.INT64),
        Column("at", ColumnType.TIMESTAMP_NS, nullable=True),
        Column("seen", ColumnType.TIMESTAMP_UTC, exactly=timestamp_types("ns", "Europe/Berlin")),
        Column("micro", ColumnType.TIMESTAMP, nullable=True),
    ),
    ("seen", "id"),
    sort=("at",),
)
SPLIT = split_table(WHOLE, {"at", "seen"})


def moments(at: list[int | None], seen: list[int]) -> pa.Table:
    arrays = [
        pa.array(range(len(at))), pa.array(at, pa.timestamp("ns")), pa.array(seen, pa.timestamp("ns", "Europe/Berlin")),
        pa.array([None] * len(at), pa.timestamp("us")),
    ]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=WHOLE.arrow_schema)


def test_a_table_has_two_columns_for_one_and_knows_it() -> None:
    assert SPLIT.column_names == ["id", "at", "at_nanoseconds", "seen", "seen_nanoseconds", "micro"]
    assert (SPLIT.key, SPLIT.sort) == (("seen", "seen_nanoseconds", "id"), ("at", "at_nanoseconds"))
    assert [column.types.postgres for column in SPLIT.columns[1:5]] == [
        "timestamp", "smallint", "timestamp with time zone", "smallint"
    ]  # fmt: skip
    assert SPLIT.columns[3].types.arrow == pa.timestamp("us", "Europe/Berlin")
    assert whole_table(SPLIT) == WHOLE
    assert split_table(WHOLE, set()) == WHOLE


@settings(max_examples=50)
@given(st.lists(st.tuples(st.none() | st.integers(FIRST, LAST), st.integers(FIRST, LAST)), min_size=1, max_size=9))
def test_any_moment_comes_back_in_both_libraries(rows: list[tuple[int | None, int]]) -> None:
    content = moments([at for at, _ in rows], [seen for _, seen in rows])
    halves = Expected(SPLIT, split_arrow(content, SPLIT))
    ways: tuple[tuple[Any, Callable[..., Any], Callable[..., Any]], ...] = (
        (to_polars(content, WHOLE), split_polars, whole_polars),
        (to_pandas(content, WHOLE), split_pandas, whole_pandas),
    )
    for frame, split, whole in ways:
        found = split(frame, SPLIT)
        assert halves.difference(found) is None
        assert dtype_drift(found, SPLIT) == EXACT
        back = whole(found, SPLIT)
        assert back.equals(frame)
        assert dtype_drift(back, WHOLE) == EXACT


def test_what_is_left_over_is_never_negative() -> None:
    content = split_arrow(moments([-1, -1000, -1001, 1999, None], [0, 1, 2, 3, 4]), SPLIT)
    assert content["at"].cast(pa.int64()).to_pylist() == [-1, -1, -2, 1, None]
    assert content["at_nanoseconds"].to_pylist() == [999, 0, 999, 999, None]


def test_a_year_that_has_no_nanoseconds_is_an_error_and_no_other_year() -> None:
    late = split_polars(to_polars(moments([1], [1]), WHOLE), SPLIT).with_columns(at=dt.datetime(2300, 1, 1))
    with pytest.raises(pl.exceptions.InvalidOperationError, match="failed"):
        whole_polars(late, SPLIT)
    frame = split_pandas(to_pandas(moments([1], [1]), WHOLE), SPLIT)
    frame["at"] = pd.Series([dt.datetime(2300, 1, 1)], dtype="datetime64[us]")
    with pytest.raises(pd.errors.OutOfBoundsDatetime):
        whole_pandas(frame, SPLIT)
