"""The explorer: its notebook shows a committed run."""

from typing import Any

import matplotlib as mpl
import nbformat

from framehaul.bench.study import NOTEBOOKS
from tests.conftest import REFERENCE


def test_it_shows_every_pass_of_a_run_and_the_median_of_each_technique() -> None:
    names: dict[str, Any] = {"run": str(REFERENCE)}
    with mpl.rc_context({"backend": "Agg"}):
        for cell in nbformat.read(NOTEBOOKS / "00_explorer.ipynb", 4).cells:
            if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
                exec(cell.source, names)
    passes, medians = names["passes"], names["medians"]
    assert {*passes["direction"]} == {"read", "write"}
    assert set(medians["technique"]) <= set(passes.filter(database="postgres", direction="write")["technique"])
    assert [bar.get_width() for bar in names["axes"].patches] == medians["rows_per_s"].to_list()
