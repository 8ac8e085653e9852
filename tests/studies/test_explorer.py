"""The explorer: its notebook shows a committed run, and says what to do where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import nbformat
import pytest

from framehaul.bench.study import NOTEBOOKS
from framehaul.errors import ResultsError
from tests.conftest import REFERENCE

CELLS = [
    cell.source
    for cell in nbformat.read(NOTEBOOKS / "00_explorer.ipynb", 4).cells
    if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", [])
]


def executed(run: Path) -> dict[str, Any]:
    """The names that the cells leave."""
    names: dict[str, Any] = {"run": str(run)}
    with mpl.rc_context({"backend": "Agg"}):
        for source in CELLS:
            exec(source, names)
    return names


def test_it_shows_every_pass_of_a_run_and_the_median_of_each_technique() -> None:
    names = executed(REFERENCE)
    passes, medians = names["passes"], names["medians"]
    assert {*passes["direction"]} == {"read", "write"}
    assert set(medians["technique"]) <= set(passes.filter(database="postgres", direction="write")["technique"])
    assert [bar.get_width() for bar in names["axes"].patches] == medians["rows_per_s"].to_list()


def test_without_results_it_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="make all"):
        executed(tmp_path)
