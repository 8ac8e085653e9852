"""The notebooks there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from framehaul.errors import SettingsError
from framehaul.settings import PROJECT
from framehaul.studies.drivers import study as drivers
from framehaul.studies.drivers.runner import Measurement
from framehaul.studies.json_parquet import rounds
from framehaul.studies.json_parquet import study as json_parquet
from framehaul.studies.parquet import files
from framehaul.studies.parquet import study as parquet
from framehaul.studies.pgbench import rounds as pgbench
from framehaul.studies.scale_out import study as scale_out
from framehaul.studies.warehouse import study as warehouse

NOTEBOOKS = PROJECT / "notebooks"
READ_RESULTS = ("00_explorer", "05_summary", "07_levers")
"""Notebooks that read the results of others and need no server."""
ON_DEMAND = {"00_explorer", "20_your_dataframe"}
"""Notebooks that run only when they are asked for."""

STUDIES: dict[str, tuple[type[Any], str]] = {
    drivers.POSTGRES_NOTEBOOK: (Measurement, "driver"),
    drivers.CLICKHOUSE_NOTEBOOK: (Measurement, "driver"),
    warehouse.NOTEBOOK: (warehouse.Pass, "route"),
    parquet.NOTEBOOK: (files.Pass, "trial"),
    json_parquet.NOTEBOOK: (rounds.Pass, "converter"),
    pgbench.NOTEBOOK: (pgbench.Pass, "service"),
    scale_out.NOTEBOOK: (scale_out.Pass, "label"),
}
"""The notebooks whose passes are not those of techniques: what a pass is, and the column that says who ran."""


def all_notebooks() -> list[Path]:
    """Every notebook there is, by number."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def chosen_notebooks(numbers: str) -> list[Path]:
    """The notebooks with these numbers (`01 02`), or all but those ON_DEMAND; they come in the order they run in.

    Raises SettingsError for a number that no notebook has.
    """
    known = {path.name.partition("_")[0]: path for path in all_notebooks()}
    wanted = numbers.replace(",", " ").split()
    for number in wanted:
        if number not in known:
            raise SettingsError(f"NOTEBOOKS: there is no notebook {number!r}; choose from {' '.join(known)}")
    chosen = [known[number] for number in wanted] or [path for path in known.values() if path.stem not in ON_DEMAND]
    # What only reads results comes after all that make some.
    return sorted(chosen, key=lambda path: (path.stem in READ_RESULTS, path.name))
