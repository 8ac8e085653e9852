"""Random tables and rows: what every technique carries arrives to the bit on every technique."""

import datetime as dt
from typing import Any, get_args
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from framehaul.bench.trials import Trials
from framehaul.data.schema import Column, ColumnType
from framehaul.servers import Servers
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.trial import Cell, run_cells
from framehaul.techniques import techniques
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


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A table of many columns, so that a few of them have tried much."""
    rows = draw(st.integers(1, 30))
    columns, arrays = [], []
    for at, kind in enumerate(draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=12))):
        nullable = draw(st.booleans()) and kind is not ColumnType.FLOAT64
        value = st.none() | VALUES[kind] if nullable else VALUES[kind]
        columns.append(Column(f"c{at}", kind, nullable))
        arrays.append(pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind.value.arrow))
    return Case("random", tuple(columns), tuple(arrays))


# The first example is always the simplest: one row of zeros.
@pytest.mark.parametrize("direction", get_args(Direction))
@pytest.mark.parametrize("database", get_args(Database))
def test_random_tables_arrive_to_the_bit(database: Database, direction: Direction, servers: Servers) -> None:
    # Everyday calls are left to the matrix, which names what each of them loses.
    chosen = [found for found in techniques(database, direction) if found.origin not in ("baseline", "everyday")]
    cells: list[Cell] = []
    trials = Trials(cells.append)

    @seed(2)
    @settings(max_examples=2, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
    @given(cases())
    def trial(case: Case) -> None:
        cells.clear()
        run_cells(servers, chosen, trials, cases=(case,))
        assert [(cell.technique, cell.outcome, cell.detail) for cell in cells if cell.outcome != "exact"] == []

    trial()
    assert all(lacks(found) for found in chosen if found.name in trials.unavailable)
