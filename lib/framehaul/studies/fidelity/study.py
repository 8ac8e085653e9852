"""The fidelity matrix: made by a run, kept as `results/fidelity.csv`, drawn as heat maps and tables."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.rounds import interruptible
from framehaul.bench.trials import chosen_techniques, trials
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Listing, Row, bullets, where, words
from framehaul.settings import Settings
from framehaul.studies.fidelity import counts, types
from framehaul.studies.fidelity.cases import CASES
from framehaul.studies.fidelity.trial import HOSTILE, Cell, expected, run_cells
from framehaul.studies.registry import FIDELITY
from framehaul.techniques.registry import DATABASES

OUTCOMES = {
    "exact": charts.Outcome("#009E73", "", "exact"),
    "loss": charts.Outcome("#D55E00", "L", "loss"),
    "error": charts.Outcome("#BBCCEE", "e", "rejected"),
}
MARK = "◆ "
"""Before the name of a case that was tried in a hostile session."""
VALUES, SESSION, FRAMES, NOT_TEXT = "values", "values, in a hostile session", "frames as users have them", "not text"
APPENDS = "appends to a table that fills a column itself"
DIMENSIONS = (VALUES, SESSION, FRAMES, APPENDS, NOT_TEXT)
ABOUT = {"values": VALUES, "frames": FRAMES, "append": APPENDS, "not text": NOT_TEXT}
TRIED: dict[str, str] = {
    **{case.name: ABOUT[case.about] for case in CASES},
    **{f"{MARK}{case.name}": SESSION for case in CASES if case.hostile},
}
"""What is asked by everything that is tried: the cases, and those in a hostile session under a name of their own."""


CELLS_PER_S = 4
"""Of the study, on a machine that does much else: it does fifty by itself."""


def run(*, tried: str = "all") -> Matrix:
    """Try techniques, as `chosen_techniques` gives them, with every case and write `results/fidelity.csv`.

    Raises ValueError for a choice that there is not, ServerError when a server cannot be had, and ResultsError when the
    file cannot be written.
    """
    chosen = chosen_techniques(tried)
    with (
        trials(FIDELITY.notebook, FIDELITY.results, Cell, "cell", chosen) as (this_run, cells),
        servers.running(this_run.settings) as both,
    ):
        this_run.expect(expected(chosen))
        this_run.metadata |= {"servers": both.mode, "server": server_versions(both), "left_out": cells.left_out}
        interruptible(lambda stop: run_cells(both, chosen, cells, stop=stop))
        this_run.metadata["what"] = f"{len(chosen) - len(cells.unavailable)} techniques, {len(CASES)} cases"
    return load(this_run.settings)


def patience(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell of the notebook may take: what is silent is given up by itself."""
    return expected(chosen_techniques(values.get("tried", "all"))) // CELLS_PER_S


def load(settings: Settings | None = None) -> Matrix:
    """The matrix of the last complete run, without any server; raises ResultsError when there is none."""
    return Matrix.load(settings)


def tried(cells: pl.DataFrame) -> pl.DataFrame:
    """The cells with `tried`: the case, marked where the session was hostile."""
    mark = pl.when(pl.col("session") == HOSTILE).then(pl.lit(MARK)).otherwise(pl.lit(""))
    return cells.with_columns(tried=mark + pl.col("case"))


def matrix_figure(cells: pl.DataFrame, database: str, direction: str) -> Figure:
    """One direction as a heat map, techniques by what is tried."""
    cells = cells.filter(database=database, direction=direction)
    order = [name for about in DIMENSIONS for name in TRIED if TRIED[name] == about]
    return charts.outcome_map(
        cells, f"{DATABASES[database]}, {direction}: fidelity ({MARK}in a hostile session)",
        "tried", order, "outcome", OUTCOMES, "the table, or the frame, cannot hold it", about=TRIED,
    )  # fmt: skip


def _paths(cells: pl.DataFrame) -> int:
    """How many techniques there are; of two directions they may have the same name."""
    return cells.select(statistics.NAMES).n_unique()


def answer_text(cells: pl.DataFrame) -> str:
    """Bullet points: of each direction, how many techniques change a value and say nothing, and what most often."""
    points = []
    for _, here in cells.group_by("database", "direction", maintain_order=True):
        lost = here.filter(outcome="loss")
        kinds = lost.group_by("why").agg(pl.col("technique").n_unique().alias("losing")).sort("why")
        worst = kinds.sort("losing", descending=True, maintain_order=True)["why"].head(1)
        most = f" Most often: {worst[0]}" if len(worst) else ""
        points.append(
            f"**{where(here.row(0, named=True))}**: {_paths(lost)} of {_paths(here)} techniques lose something and say "
            f"nothing, in {len(lost):,} of {len(here):,} cases.{most}"
        )
    return bullets(points)


def losses_table(cells: pl.DataFrame) -> Listing:
    """Every kind of loss, with how many techniques of each direction have it."""
    lost = tried(cells).filter(outcome="loss").group_by("why", maintain_order=True)
    columns = [
        words("what is lost, and why", "why"), words("cases", "tried", "; ".join),
        words("techniques", "techniques", _by_direction),
    ]  # fmt: skip
    techniques = pl.struct(statistics.NAMES).unique(maintain_order=True).alias("techniques")
    return Listing(columns, lost.agg(pl.col("tried").unique(maintain_order=True), techniques))


def _by_direction(techniques: list[Row]) -> str:
    """How many techniques of each direction there are, as `5 ClickHouse read`."""
    return ", ".join(f"{count} {what}" for what, count in collections.Counter(map(where, techniques)).items())


class Matrix(Shown):
    """The outcomes of a run."""

    study = FIDELITY
    answer = view(answer_text)
    losses = view(losses_table)
    counts = view(counts.fidelity_counts)
    types = view(types.types_table)

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        super().__init__(tried(passes), metadata, figures)

    def chart(self, database: str, direction: str) -> SVG:
        """One direction as a heat map, techniques by what is tried; also saved as a figure."""
        return self.saved(matrix_figure(self.passes, database, direction), f"{database}_{direction}")

    def types_chart(self) -> SVG:
        """All directions on one sheet, families of techniques by types; also saved as a figure."""
        return self.saved(types.types_figure(self.passes), "types")

    def versions(self) -> Markdown:
        """What this was run with, and what could not be tried."""
        left_out = self.run_metadata.get("left_out", {})
        lines = [f"- Left out: {what}: {reason}" for what, reason in left_out.items()]
        return Markdown("\n".join([super().versions().data, *lines]))


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory; raises ResultsError when the study was not run."""
    cells = tried(store.read_cells(directory / FIDELITY.results))
    return {
        "fidelity": f"{counts.fidelity_counts(cells)}\n\n{losses_table(cells)}",
        "fidelity-types": str(types.types_table(cells)),
    }
