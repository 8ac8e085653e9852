"""Run the faults study: every technique with every fault, a crash of both servers, and a sustained load."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import polars as pl

from framehaul.bench import recording, store
from framehaul.bench.environment import server_versions
from framehaul.bench.rounds import check, interruptible
from framehaul.bench.trials import chosen_techniques, trials
from framehaul.settings import load_settings
from framehaul.studies.faults.breakable import BOTH, breakable
from framehaul.studies.faults.held import hold_load, survives_a_crash
from framehaul.studies.faults.trial import FAULTS, Cell, run_cells
from framehaul.studies.registry import FAULTS_STUDY
from framehaul.techniques import Technique

CELL_SECONDS = 4
"""The maximum time of a cell on a busy machine."""


@recording.study(FAULTS_STUDY.notebook, read=store.read_cells)
def run(*, hold: int, tried: str = "all") -> None:
    """Try every fault with the techniques that `chosen_techniques` returns for `tried`, then load servers for `hold` s.

    The servers are always separate embedded ones, because they are killed. Raises ValueError for an invalid time or
    choice, ServerError if servers cannot be started, and ResultsError if the file cannot be written.
    """
    check(HOLD=(hold, 1))
    chosen = chosen_techniques(tried)
    with (
        trials(FAULTS_STUDY.notebook, FAULTS_STUDY.results, Cell, "trial", chosen) as (this_run, cells),
        breakable(this_run.settings.postgres_extensions) as broken,
    ):
        this_run.expect(_expected(chosen))

        def work(stop: threading.Event) -> None:
            run_cells(broken, chosen, cells, stop)
            this_run.metadata["recovery"] = survives_a_crash(broken)
            with ThreadPoolExecutor(len(BOTH)) as pool:
                loads = pool.map(lambda database: hold_load(broken, database, hold, stop), BOTH)
                this_run.metadata["held"] = list(loads)

        interruptible(work)
        this_run.metadata |= {"servers": "embedded", "server": server_versions(broken.servers)}
        this_run.metadata["what"] = f"{len(chosen)} techniques, {len(FAULTS)} faults"


def load_results() -> pl.DataFrame:
    """Return the results of the load and of the crash in the last run, one row per database.

    `lost_in_crash` counts rows that were acknowledged before both servers were killed and not restored by recovery.
    """
    metadata = store.read_metadata(load_settings().out / "results")["runs"][FAULTS_STUDY.notebook]
    lost = {database: before - after for database, (before, after) in metadata["recovery"].items()}
    return pl.DataFrame(metadata["held"]).with_columns(lost_in_crash=pl.col("database").replace_strict(lost))


def _expected(chosen: Sequence[Technique]) -> int:
    return sum(fault.direction == technique.direction for fault in FAULTS for technique in chosen)


def patience(values: Mapping[str, Any]) -> int:
    """Return the additional timeout of the notebook's cells in seconds: servers restart, and the load takes time."""
    return int(values.get("hold", 0)) + CELL_SECONDS * _expected(chosen_techniques(values.get("tried", "all")))
