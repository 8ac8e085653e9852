"""The fidelity matrix: made by a run, kept as `results/fidelity.csv`, drawn as heat maps and tables."""

from __future__ import annotations

import html
from pathlib import Path

import polars as pl
from IPython.display import HTML, SVG, Markdown

from framehaul import charts, findings, results, servers, study
from framehaul.fidelity.cases import CASES
from framehaul.fidelity.trial import Cell, run_cells
from framehaul.settings import Settings, load_settings
from framehaul.trials import Run

NOTEBOOK = "08_fidelity"
OUTCOMES = {
    "exact": charts.Outcome("#009E73", "", "exact"),
    "loss": charts.Outcome("#D55E00", "L", "loss"),
    "error": charts.Outcome("#BBCCEE", "e", "loud error"),
}


class Matrix:
    """The outcomes of a run, ready to be shown."""

    def __init__(self, directory: Path) -> None:
        self.cells = results.read_cells(directory / results.FIDELITY)
        self._facts, self._figures = results.read_facts(directory), directory.parent / "figures"

    def chart(self, database: str, direction: str) -> SVG:
        """One direction as a heat map, techniques by cases; also saved as a figure."""
        figure = charts.outcome_map(
            self.cells.filter(database=database, direction=direction),
            f"{charts.DATABASES[database]}, {direction}: what survives",
            "case", [case.name for case in CASES], "outcome", OUTCOMES, "the table, or the frame, cannot hold it",
        )  # fmt: skip
        return SVG(charts.save(figure, self._figures / f"{NOTEBOOK}_{database}_{direction}.svg"))

    def losses(self) -> Markdown:
        """Every loss with its reason, an example, and the techniques it happens to."""
        return Markdown(losses_table(self.cells))

    def support(self, database: str, direction: str) -> HTML:
        """For every technique of a direction: how much survives, what is lost and what is refused."""
        return HTML(_support_table(self.cells.filter(database=database, direction=direction)))

    def counts(self) -> Markdown:
        """How many cells came to which outcome."""
        return Markdown(findings.fidelity_counts(self.cells))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(study.trial_versions_text(self._facts, NOTEBOOK))


def run() -> Matrix:
    """Try every technique with every case and write `results/fidelity.csv`.

    Raises ServerError when a server cannot be had, and ResultsError when the file cannot be written.
    """
    settings, made = load_settings(), Run[Cell]()
    with servers.running(settings) as both, made.bar(len(made.chosen) * len(CASES), "cell"):
        versions = study.server_versions(both)
        study.interruptible(lambda stop: run_cells(both, made.chosen, made.record, made.skip, stop=stop))
    what = f"{len(made.chosen) - len(made.unavailable)} techniques, {len(CASES)} cases"
    made.keep(settings, NOTEBOOK, results.FIDELITY, {"servers": both.mode, "server": versions, "what": what})
    return load(settings)


def load(settings: Settings | None = None) -> Matrix:
    """The matrix of the last complete run, without any server; raises ResultsError when there is none."""
    settings = settings or load_settings()
    return Matrix(settings.out / "results")


def losses_table(cells: pl.DataFrame) -> str:
    """Every loss, grouped by direction and reason, as Markdown."""
    lost = cells.filter(outcome="loss")
    if lost.is_empty():
        return "Nothing was lost."
    rows = []
    for (database, direction, why), group in lost.group_by("database", "direction", "why", maintain_order=True):
        names = group["technique"].unique(maintain_order=True).to_list()
        rows.append(
            [
                f"{charts.DATABASES[str(database)]} {direction}",
                str(why),
                "; ".join(group["case"].unique(maintain_order=True).to_list()),
                group["detail"][0],
                ", ".join(f"`{name}`" for name in names),
            ]
        )
    header = ["direction", "why", "cases", "for example", "techniques"]
    return charts.markdown_table(header, rows, text_columns=5)


def readme_text(cells: pl.DataFrame) -> str:
    """How many cells came to which outcome, and every kind of loss with how many techniques have it, as Markdown."""
    lost = cells.filter(outcome="loss").group_by("why", maintain_order=True)
    rows = [
        [str(why), "; ".join(group["case"].unique(maintain_order=True)), ", ".join(_affected(group))]
        for (why,), group in lost
    ]
    kinds = charts.markdown_table(["what is lost, and why", "cases", "techniques"], rows, text_columns=3)
    return f"{findings.fidelity_counts(cells)}\n\n{kinds}"


def _affected(group: pl.DataFrame) -> list[str]:
    """How many techniques of each direction, as `5 ClickHouse read`."""
    return [
        f"{part['technique'].n_unique()} {charts.DATABASES[str(database)]} {direction}"
        for (database, direction), part in group.group_by("database", "direction", maintain_order=True)
    ]


def _support_table(cells: pl.DataFrame) -> str:
    rows = []
    for (label,), group in cells.group_by(["label"], maintain_order=True):
        lost, refused = (
            "; ".join(
                f'<span title="{html.escape(row["detail"])}">{html.escape(row["case"])}</span>'
                for row in group.filter(outcome=outcome).to_dicts()
            )
            for outcome in ("loss", "error")
        )
        count = f"{len(group.filter(outcome='exact'))} of {len(group)}"
        rows.append([html.escape(str(label)), count, lost, refused])
    return charts.text_table(["technique", "exact", "lost", "refused with an error"], rows)
