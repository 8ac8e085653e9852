"""Random tables and rows: whatever every technique should carry arrives to the bit on every technique."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from framehaul.data.schema import Column, ColumnType
from framehaul.harness.trials import Trials
from framehaul.results import store
from framehaul.servers import Servers
from framehaul.studies.fidelity import STUDY as FIDELITY
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.trial import DEFAULT, Cell, run_cells
from framehaul.techniques import Technique, techniques

EXAMPLES = 8

# What the matrix shows to be lost somewhere is left to the matrix: no rows, \N and blanks at the edges of text, numbers
# that pandas keeps as floats beside NULL, NaN beside NULL, -0.0, dates that only one of the servers has.
VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.INT16: st.integers(-(2**15), 2**15 - 1),
    ColumnType.INT32: st.integers(-(2**31), 2**31 - 1),
    ColumnType.INT64: st.integers(-(2**53), 2**53),
    ColumnType.FLOAT64: st.floats(allow_nan=False).filter(lambda value: str(value) != "-0.0"),
    ColumnType.TEXT: st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0\\"), min_size=1, max_size=20
    ).filter(lambda text: text == text.strip()),
    ColumnType.DATE: st.dates(dt.date(1970, 1, 1), dt.date(2149, 6, 6)),
    ColumnType.UUID: st.uuids().map(UUID.__str__),
}


# Types that some paths do not carry, with the cases of the matrix that tell which do.
FURTHER: dict[ColumnType, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    ColumnType.BOOL: (st.booleans(), ("bool",)),
    ColumnType.BYTES: (st.binary(max_size=20), ("bytes",)),
    ColumnType.DECIMAL: (
        st.decimals(-(10**28) + 1, 10**28 - 1, places=10, allow_nan=False),
        ("decimal: limits of precision and scale",),
    ),
    ColumnType.TIMESTAMP: (
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2262, 1, 1)),
        ("timestamp: microseconds", "timestamp: before 1970"),
    ),
    ColumnType.TIMESTAMP_UTC: (
        st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)),
        ("timestamp: in UTC", "timestamp: microseconds"),
    ),
}


@pytest.fixture(scope="session")
def exact(out: Path) -> set[tuple[str, str, str, str]]:
    """Database, direction, technique and case of every exact cell of the matrix, in the usual session."""
    cells = store.read_cells(out / "results" / FIDELITY.results)
    usual = cells.filter(outcome="exact", session=DEFAULT)
    return set(usual.select("database", "direction", "technique", "case").iter_rows())


@st.composite
def cases(draw: st.DrawFn, values: dict[ColumnType, st.SearchStrategy[Any]]) -> Case:
    rows = draw(st.integers(1, 12))
    columns, arrays = [], []
    for at, kind in enumerate(draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=6))):
        nullable = draw(st.booleans()) and kind is not ColumnType.FLOAT64
        value = st.none() | values[kind] if nullable else values[kind]
        columns.append(Column(f"c{at}", kind, nullable))
        arrays.append(pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind.value.arrow))
    return Case("random", tuple(columns), tuple(arrays))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(t, id=f"{t.database}-{t.direction}-{t.origin}-{t.name}")
        for t in techniques()
        if t.origin != "limit"
    ],
)
def test_random_tables_arrive_to_the_bit(
    found: Technique, servers: Servers, exact: set[tuple[str, str, str, str]]
) -> None:
    cells: list[Cell] = []
    trials = Trials(cells.append)
    carried = VALUES | {
        kind: values
        for kind, (values, names) in FURTHER.items()
        if all((found.database, found.direction, found.name, name) in exact for name in names)
    }

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(cases(carried))
    def trial(case: Case) -> None:
        cells.clear()
        run_cells(servers, [found], trials, cases=(case,))
        assert [(cell.outcome, cell.detail) for cell in cells if cell.outcome != "exact"] == []

    trial()
    for reason in trials.unavailable.values():
        pytest.skip(reason)
