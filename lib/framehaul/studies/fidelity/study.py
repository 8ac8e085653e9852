"""The fidelity matrix: made by a run, kept as `results/fidelity.csv`, drawn as heat maps and tables."""

from __future__ import annotations

import html
from pathlib import Path

import polars as pl
from IPython.display import HTML, SVG, Markdown
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.harness.environment import server_versions
from framehaul.harness.rounds import interruptible
from framehaul.harness.trials import Run
from framehaul.reporting import charts
from framehaul.reporting.tables import markdown_table, text_table
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import statistics, store
from framehaul.servers.hostile import CLICKHOUSE_SETTINGS, POSTGRES_SETTINGS
from framehaul.settings import Settings, load_settings
from framehaul.studies.fidelity import STUDY, counts
from framehaul.studies.fidelity.cases import CASES
from framehaul.studies.fidelity.trial import DEFAULT, HOSTILE, Cell, run_cells
from framehaul.techniques.registry import DATABASES

OUTCOMES = {
    "exact": charts.Outcome("#009E73", "", "exact"),
    "loss": charts.Outcome("#D55E00", "L", "loss"),
    "error": charts.Outcome("#BBCCEE", "e", "rejected"),
}
MARK = "◆ "
"""Before the name of a case that was tried in a hostile session."""
VALUES, SESSION, FRAMES, NOT_TEXT = "values", "values, in a hostile session", "frames as users have them", "not text"
DIMENSIONS = (VALUES, SESSION, FRAMES, NOT_TEXT)
ABOUT = {"values": VALUES, "frames": FRAMES, "not text": NOT_TEXT}
TRIED: dict[str, str] = {
    **{case.name: ABOUT[case.about] for case in CASES},
    **{f"{MARK}{case.name}": SESSION for case in CASES if case.hostile},
}
"""What is asked by everything that is tried: the cases, and those in a hostile session under a name of their own."""


class Matrix:
    """The outcomes of a run, ready to be shown."""

    def __init__(self, directory: Path) -> None:
        self.cells = tried(store.read_cells(directory / STUDY.results))
        self._metadata, self._figures = store.read_metadata(directory), directory.parent / "figures"

    def chart(self, database: str, direction: str) -> SVG:
        """One direction as a heat map, techniques by what is tried; also saved as a figure."""
        cells = self.cells.filter(database=database, direction=direction)
        order = [name for about in DIMENSIONS for name in TRIED if TRIED[name] == about]
        figure = charts.outcome_map(
            cells, f"{DATABASES[database]}, {direction}: fidelity ({MARK}in a hostile session)",
            "tried", order, "outcome", OUTCOMES, "the table, or the frame, cannot hold it",
        )  # fmt: skip
        _make_room(figure, [name for name in order if name in set(cells["tried"])])
        return SVG(charts.save(figure, self._figures / f"{STUDY.name}_{database}_{direction}.svg"))

    def settings(self) -> Markdown:
        """What a session has that is called hostile here."""
        rows = [
            [DATABASES[database], f"`{name}`", f"`{value}`"]
            for database, settings in (("postgres", POSTGRES_SETTINGS), ("clickhouse", CLICKHOUSE_SETTINGS))
            for name, value in settings.items()
        ]
        return Markdown(markdown_table(["database", "setting", "value"], rows, text_columns=3))

    def dimensions(self) -> Markdown:
        """How many cells came to which outcome, by what they ask and by the origin of the technique."""
        return Markdown(dimensions_table(self.cells))

    def found(self) -> Markdown:
        """What was found where values are ordinary: in sessions, frames, and bytes that are not text."""
        return Markdown(found_text(self.cells))

    def losses(self) -> Markdown:
        """Every loss with its reason, an example, and the techniques it happens to."""
        return Markdown(losses_table(self.cells))

    def support(self, database: str, direction: str) -> HTML:
        """For every technique of a direction: how much survives, what is lost and what is refused."""
        return HTML(_support_table(self.cells.filter(database=database, direction=direction)))

    def counts(self) -> Markdown:
        """How many cells came to which outcome."""
        return Markdown(counts.fidelity_counts(self.cells))

    def versions(self) -> Markdown:
        """What this was run with."""
        left_out = self._metadata["runs"][STUDY.notebook].get("left_out", {})
        lines = [f"- Left out: {what}: {reason}" for what, reason in left_out.items()]
        return Markdown("\n".join([trial_versions_text(self._metadata, STUDY.notebook), *lines]))


def run() -> Matrix:
    """Try every technique with every case and write `results/fidelity.csv`.

    Raises ServerError when a server cannot be had, and ResultsError when the file cannot be written.
    """
    settings, made, left_out = load_settings(), Run[Cell](), dict[str, str]()
    with servers.running(settings) as both, made.bar(len(made.chosen) * len(TRIED), "cell"):
        versions = server_versions(both)
        told = made.record, made.skip, left_out.__setitem__
        interruptible(lambda stop: run_cells(both, made.chosen, *told, stop=stop))
    what = f"{len(made.chosen) - len(made.unavailable)} techniques, {len(CASES)} cases"
    metadata = {"servers": both.mode, "server": versions, "what": what, "left_out": left_out}
    made.keep(settings, STUDY.notebook, STUDY.results, metadata)
    return load(settings)


def load(settings: Settings | None = None) -> Matrix:
    """The matrix of the last complete run, without any server; raises ResultsError when there is none."""
    settings = settings or load_settings()
    return Matrix(settings.out / "results")


def tried(cells: pl.DataFrame) -> pl.DataFrame:
    """The cells with `tried`: the case, marked where the session was hostile. Older runs had one session only."""
    if "session" not in cells.columns:
        cells = cells.with_columns(session=pl.lit(DEFAULT))
    mark = pl.when(pl.col("session") == HOSTILE).then(pl.lit(MARK)).otherwise(pl.lit(""))
    return cells.with_columns(tried=mark + pl.col("case"))


def _make_room(figure: Figure, columns: list[str]) -> None:
    """As wide as the columns need to be legible, with a line where another question begins."""
    (axes,) = figure.axes
    figure.set_size_inches(max(13, 5 + 0.2 * len(columns)), figure.get_size_inches()[1])
    for at in range(1, len(columns)):
        if TRIED[columns[at]] != TRIED[columns[at - 1]]:
            axes.axvline(at - 0.5, color=charts.INK, linewidth=0.8)


def dimensions_table(cells: pl.DataFrame) -> str:
    """How many cells came to which outcome, by what they ask and by the origin of the technique, as Markdown."""
    rows = []
    for about in DIMENSIONS:
        asked = cells.filter(pl.col("tried").is_in([name for name, asks in TRIED.items() if asks == about]))
        for (origin,), group in asked.group_by("origin", maintain_order=True):
            counts = [str(group.filter(outcome=outcome).height) for outcome in OUTCOMES]
            tried_by, losing = _paths(group), _paths(group.filter(outcome="loss"))
            rows.append([about, str(origin), str(tried_by), *counts, str(losing)])
    header = ["what is tried", "origin", "techniques", "exact", "lost", "rejected", "techniques that lose"]
    return markdown_table(header, rows, text_columns=2)


def found_text(cells: pl.DataFrame) -> str:
    """For every question but that of values: who loses something without a word, as Markdown."""
    lines = []
    for about in (SESSION, FRAMES, NOT_TEXT):
        asked = cells.filter(pl.col("tried").is_in([name for name, asks in TRIED.items() if asks == about]))
        if asked.is_empty():
            lines.append(f"- **{about}**: not tried; the reason is at the end.")
            continue
        lost = asked.filter(outcome="loss")
        told = [
            f"{_paths(lost.filter(origin=origin))} of {_paths(asked.filter(origin=origin))} {origin} techniques "
            "lose something"
            for origin in asked["origin"].unique(maintain_order=True)
        ]
        beyond = lost.filter(origin="beyond")["technique"].unique(maintain_order=True)
        named = f"; beyond: {', '.join(f'`{name}`' for name in beyond)}" if len(beyond) else ""
        worst = lost.group_by("tried").len().sort("len", "tried", descending=[True, False])["tried"].head(3)
        cases = f". Most often lost: {'; '.join(worst)}" if len(worst) else ""
        lines.append(f"- **{about}**: {', '.join(told)}{named}{cases}.")
    return "\n".join(lines)


def _paths(cells: pl.DataFrame) -> int:
    """How many techniques there are; of two directions they may have the same name."""
    return cells.select(statistics.NAMES).n_unique()


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
                f"{DATABASES[str(database)]} {direction}",
                str(why),
                "; ".join(group["tried"].unique(maintain_order=True).to_list()),
                group["detail"][0],
                ", ".join(f"`{name}`" for name in names),
            ]
        )
    header = ["direction", "why", "cases", "for example", "techniques"]
    return markdown_table(header, rows, text_columns=5)


def readme_text(cells: pl.DataFrame) -> str:
    """How many cells came to which outcome, and every kind of loss with how many techniques have it, as Markdown."""
    lost = tried(cells).filter(outcome="loss").group_by("why", maintain_order=True)
    rows = [
        [str(why), "; ".join(group["tried"].unique(maintain_order=True)), ", ".join(_affected(group))]
        for (why,), group in lost
    ]
    kinds = markdown_table(["what is lost, and why", "cases", "techniques"], rows, text_columns=3)
    return f"{counts.fidelity_counts(cells)}\n\n{kinds}"


def _affected(group: pl.DataFrame) -> list[str]:
    """How many techniques of each direction, as `5 ClickHouse read`."""
    return [
        f"{part['technique'].n_unique()} {DATABASES[str(database)]} {direction}"
        for (database, direction), part in group.group_by("database", "direction", maintain_order=True)
    ]


def _support_table(cells: pl.DataFrame) -> str:
    rows = []
    for (label,), group in cells.group_by(["label"], maintain_order=True):
        lost, rejected = (
            "; ".join(
                f'<span title="{html.escape(row["detail"])}">{html.escape(row["tried"])}</span>'
                for row in group.filter(outcome=outcome).to_dicts()
            )
            for outcome in ("loss", "error")
        )
        count = f"{len(group.filter(outcome='exact'))} of {len(group)}"
        rows.append([html.escape(str(label)), count, lost, rejected])
    return text_table(["technique", "exact", "lost", "rejected"], rows)


def readme_blocks(directory: Path) -> dict[str, str]:
    """The block of the writeup, from a results directory; raises ResultsError when the study was not run."""
    return {"fidelity": readme_text(store.read_cells(directory / STUDY.results))}
