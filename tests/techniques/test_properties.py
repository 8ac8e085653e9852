"""Random tables and rows: whatever every technique should carry arrives to the bit on every technique."""

from __future__ import annotations

import datetime as dt
from typing import Any, get_args
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from framehaul.bench import store
from framehaul.bench.trials import Trials
from framehaul.data.schema import Column, ColumnType
from framehaul.servers import Servers
from framehaul.settings import PROJECT
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.trial import DEFAULT, Cell, run_cells
from framehaul.studies.registry import FIDELITY
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction
from tests.conftest import lacks

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0\\")
# What the matrix shows to be lost somewhere is left to the matrix: no rows, \N and blanks at the edges of text, numbers
# that pandas keeps as floats beside NULL, NaN beside NULL, -0.0, dates that only one of the servers has.
VALUES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType.INT16: st.integers(-(2**15), 2**15 - 1),
    ColumnType.INT32: st.integers(-(2**31), 2**31 - 1),
    ColumnType.INT64: st.integers(-(2**53), 2**53),
    ColumnType.FLOAT64: st.floats(allow_nan=False).filter(lambda value: str(value) != "-0.0"),
    ColumnType.TEXT: st.text(CHARACTERS, min_size=1, max_size=20).filter(lambda text: text == text.strip()),
    ColumnType.DATE: st.dates(dt.date(1970, 1, 1), dt.date(2149, 6, 6)),
    ColumnType.UUID: st.uuids().map(UUID.__str__),
}

DECIMALS = st.decimals(-(10**28) + 1, 10**28 - 1, places=10, allow_nan=False)
MOMENTS = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2262, 1, 1))
MOMENTS_IN_UTC = st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC))

# Types that some paths do not carry, with the cases of the matrix that tell which do.
FURTHER: dict[ColumnType, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    ColumnType.BOOL: (st.booleans(), ("bool", "bool: all of them false")),
    ColumnType.BYTES: (st.binary(max_size=20), ("bytes",)),
    ColumnType.DECIMAL: (DECIMALS, ("decimal: limits of precision and scale",)),
    ColumnType.TIMESTAMP: (MOMENTS, ("timestamp: microseconds", "timestamp: before 1970")),
    ColumnType.TIMESTAMP_UTC: (MOMENTS_IN_UTC, ("timestamp: in UTC", "timestamp: microseconds")),
}
KINDS = VALUES | {kind: values for kind, (values, _) in FURTHER.items()}


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[ColumnType, ...]) -> Case:
    """A table of many columns, so that a few of them have tried much."""
    rows = draw(st.integers(1, 30))
    columns, arrays = [], []
    for at, kind in enumerate(draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=12))):
        nullable = draw(st.booleans()) and kind is not ColumnType.FLOAT64
        value = st.none() | KINDS[kind] if nullable else KINDS[kind]
        columns.append(Column(f"c{at}", kind, nullable))
        arrays.append(pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind.value.arrow))
    return Case("random", tuple(columns), tuple(arrays))


def carried_by(chosen: list[Technique]) -> dict[tuple[ColumnType, ...], list[Technique]]:
    """The techniques by the types that they carry, as the cases of the committed matrix tell."""
    matrix = store.read_cells(PROJECT / "results" / FIDELITY.results).filter(outcome="exact", session=DEFAULT)
    exact = {*matrix.select("database", "direction", "technique", "case").iter_rows()}
    groups: dict[tuple[ColumnType, ...], list[Technique]] = {}
    for found in chosen:
        further = (kind for kind, (_, told) in FURTHER.items() if all((*found.key, name) in exact for name in told))
        groups.setdefault((*VALUES, *further), []).append(found)
    return groups


# The first example is always the simplest: one row of zeros.
@pytest.mark.parametrize("examples", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("database", get_args(Database))
def test_random_tables_arrive_to_the_bit(
    database: Database, direction: Direction, examples: int, servers: Servers
) -> None:
    # Everyday calls are left to the matrix, which names what each of them loses.
    chosen = [found for found in techniques(database, direction) if found.origin not in ("baseline", "everyday")]
    groups = carried_by(chosen)
    assert max(map(len, groups)) == len(KINDS), "no technique carries every type"
    cells: list[Cell] = []
    trials = Trials(cells.append)

    @seed(examples)
    @settings(max_examples=examples, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    @given(st.data())
    def trial(data: st.DataObject) -> None:
        for kinds, group in groups.items():
            cells.clear()
            run_cells(servers, group, trials, cases=(data.draw(cases(kinds)),))
            assert [(cell.technique, cell.outcome, cell.detail) for cell in cells if cell.outcome != "exact"] == []

    trial()
    assert all(lacks(found) for found in chosen if found.name in trials.unavailable)
