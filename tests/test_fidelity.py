"""The matrix has three outcomes and no other, and what it says of itself is true."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from framehaul import results
from framehaul.fidelity import CASES
from framehaul.fidelity.cases import Case
from framehaul.fidelity.losses import LOSSES, UNEXPLAINED
from framehaul.fidelity.trial import Cell, difference_of, run_cells
from framehaul.servers import Servers
from framehaul.tables import tables_of
from framehaul.techniques import Technique, techniques

REFUSED_BEYOND = ("NULL where none is allowed", "one beyond", "date: 0001", "date: 2149-06-07")


@pytest.fixture(scope="session")
def cells(out: Path) -> list[Cell]:
    """Every technique with every case, as the notebook found them."""
    return [Cell(**row) for row in results.read_cells(out / "results" / results.FIDELITY).to_dicts()]


def test_every_loss_is_explained(cells: list[Cell]) -> None:
    unexplained = [
        f"{cell.database} {cell.direction} {cell.technique}: {cell.case}: {cell.detail}"
        for cell in cells
        if cell.outcome == "loss" and cell.why == UNEXPLAINED
    ]
    assert unexplained == []


def test_no_explanation_is_left_over(cells: list[Cell]) -> None:
    used = {cell.why for cell in cells}
    assert [loss.why for loss in LOSSES if loss.why not in used] == []


def test_every_error_says_something(cells: list[Cell]) -> None:
    assert all(re.search(r"\w+: \S", cell.detail) for cell in cells if cell.outcome == "error")


def test_techniques_beyond_refuse_what_servers_would_change(cells: list[Cell]) -> None:
    lost = [
        (cell.technique, cell.case)
        for cell in cells
        if cell.origin == "beyond" and cell.direction == "write" and cell.outcome == "loss"
        and any(name in cell.case for name in REFUSED_BEYOND)
    ]  # fmt: skip
    assert lost == []


def test_ordinary_cases_are_exact_everywhere(cells: list[Cell]) -> None:
    ordinary = ("text: quotes, backslash, comma", "text: emoji, combining characters", "awkward column names")
    wrong = [
        (cell.technique, cell.case, cell.detail) for cell in cells if cell.case in ordinary and cell.outcome != "exact"
    ]
    assert wrong == []


def test_tables_are_gone_afterwards(servers: Servers, cells: list[Cell]) -> None:
    assert cells
    for database in ("postgres", "clickhouse"):
        tables = tables_of(servers.of(database))
        for case in CASES:
            with pytest.raises(Exception, match=r"(?i)not exist|unknown"):
                tables.content(case.table)


@pytest.mark.parametrize("kind", ["polars", "pandas"])
@pytest.mark.parametrize("case", [case for case in CASES if not case.doubled], ids=lambda case: case.name)
def test_frames_hold_what_is_sent(case: Case, kind: str) -> None:
    difference = difference_of(case, case.frame(kind))
    pandas_cannot = kind == "pandas" and case.name == "float: NaN against NULL"
    assert (difference is not None) == pandas_cannot, difference


def test_a_path_that_changes_data_is_found(servers: Servers) -> None:
    honest = next(t for t in techniques("postgres", "read") if t.name == "polars_psycopg_row_fetch")

    def lying(connection: object, table: object) -> pl.DataFrame:
        frame: pl.DataFrame = honest.function(connection, table)
        return frame.with_columns(pl.lit("x").alias("value"))

    liar = Technique(
        lying, honest.database, honest.direction, honest.frame, honest.driver, honest.client, honest.family,
        honest.label, honest.origin,
    )  # fmt: skip
    found: list[Cell] = []
    case = next(case for case in CASES if case.name == "text: NULL and empty")
    run_cells(servers, [liar], found.append, lambda _technique, _reason: None, cases=(case,))
    assert [(cell.outcome, cell.detail) for cell in found] == [("loss", "'' became 'x'")]
