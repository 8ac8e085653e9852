"""Run the fidelity study: every technique with every case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from framehaul import servers
from framehaul.bench import recording, store
from framehaul.bench.environment import server_versions
from framehaul.bench.rounds import interruptible
from framehaul.bench.trials import chosen_techniques, trials
from framehaul.studies.fidelity.cases import CASES
from framehaul.studies.fidelity.trial import Cell, expected, run_cells
from framehaul.studies.registry import FIDELITY

CELLS_PER_S = 4
"""The minimum speed of the study on a busy machine; an idle machine tries fifty cells per second."""


@recording.study(FIDELITY.notebook, read=store.read_cells)
def run(*, tried: str = "all") -> None:
    """Try the techniques that `chosen_techniques` returns for `tried` with every case, and record one row per case.

    Raises ValueError for an unknown choice, ServerError when a server cannot be started, and ResultsError when the file
    cannot be written.
    """
    chosen = chosen_techniques(tried)
    with (
        trials(FIDELITY.notebook, FIDELITY.results, Cell, "cell", chosen) as (this_run, cells),
        servers.running(this_run.settings) as both,
    ):
        this_run.expect(expected(chosen))
        this_run.metadata |= {"servers": both.mode, "server": server_versions(both)}
        interruptible(lambda stop: run_cells(both, chosen, cells, stop=stop))
        this_run.metadata["what"] = f"{len(chosen) - len(cells.unavailable)} techniques, {len(CASES)} cases"
        cells.unavailable |= cells.left_out


def patience(values: Mapping[str, Any]) -> int:
    """Return the additional timeout of the notebook's cells in seconds."""
    return expected(chosen_techniques(values.get("tried", "all"))) // CELLS_PER_S
