"""Cells are kept as they come, and are in the order of the techniques in the end."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from framehaul.bench import store
from framehaul.bench.recording import which
from framehaul.bench.trials import Tried, all_techniques, chosen_techniques, trials

NOTEBOOK, FILE = "99_outcomes", "outcomes.csv"
FIRST, SECOND = all_techniques()[:2]
DETAIL = 'a, "b"\r\nc\u2028'


@dataclass(frozen=True)
class Cell(Tried):
    fault: str
    detail: str = ""


CELLS = [Cell(**which(technique), fault=fault) for technique in (FIRST, SECOND) for fault in ("x", "y")]


@pytest.fixture
def outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the complete run, which is not there yet."""
    monkeypatch.setenv("FRAMEHAUL_OUT", str(tmp_path))
    return tmp_path / "results" / FILE


def run(cells: list[Cell], *, interrupt: bool = False) -> list[Cell]:
    """What was tried, of these cells."""
    with trials(NOTEBOOK, FILE, Cell, "cell", all_techniques()) as (_, kept):
        tried = [cell for cell in cells if not kept.finished(cell)]
        for cell in tried:
            kept.record(replace(cell, detail=DETAIL))
        if interrupt:
            raise KeyboardInterrupt
        kept.skip(SECOND, "it is not there")
    return tried


def test_an_interrupted_run_goes_on_and_its_cells_are_in_the_order_of_the_techniques(outcomes: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run([CELLS[2], CELLS[0]], interrupt=True)
    assert not outcomes.exists()
    assert run(CELLS[::-1]) == [CELLS[3], CELLS[1]]
    assert not [*outcomes.parent.glob("*partial*")]
    found = [Cell(**row) for row in store.read_cells(outcomes).to_dicts()]
    assert found == [replace(cell, detail=DETAIL) for cell in CELLS]
    name = f"{SECOND.database} {SECOND.direction} {SECOND.name}"
    assert store.read_metadata(outcomes.parent)["runs"][NOTEBOOK]["unavailable"] == {name: "it is not there"}


def test_ten_days_try_every_technique_and_each_day_the_fewest() -> None:
    first = dt.date(2026, 11, 27)
    days = [{*chosen_techniques("tenth", today=first + dt.timedelta(at))} for at in range(10)]
    assert set.union(*days) == {*all_techniques()}
    assert all(day >= {*chosen_techniques("fewest")} for day in days)
    assert max(map(len, days)) <= len(all_techniques()) / 10 + 1 + len(chosen_techniques("fewest"))
