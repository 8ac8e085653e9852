"""The explorer: any run, wherever it is, by direction and size; two runs beside each other, told apart with intervals.

It reads results only and needs no server, but a kernel: what is in this checkout's runs stands on the results page as
well (`reports/index.html`), with filters and code. Where a notebook is executed without a reader, or shown as a page,
the view that it starts with takes the place of the controls.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import polars as pl
from IPython.display import Markdown
from matplotlib.figure import Figure

from framehaul.errors import ResultsError
from framehaul.reporting import charts, comparison
from framehaul.reporting.tables import of_techniques, where
from framehaul.reporting.versions import versions_text
from framehaul.results import committed, compare
from framehaul.results.compare import Comparison, Run
from framehaul.results.measured import in_places
from framehaul.settings import PROJECT, load_settings
from framehaul.studies.registry import read_run, studies, technique_files
from framehaul.techniques.registry import FAMILIES

PANEL = ["notebook", "database", "direction", "rows"]
"""What has bars of its own: speeds of one study, direction and size."""
VERDICT_COLOURS = {"regression": "#B00020", "improvement": "#0072B2"}
CSS = ".explorer { line-height: 1.4; } .explorer svg { max-width: 100%; height: auto; }"
NONE = "(choose a second run)"


class Explorer:
    """Controls and what they show; every control is a public widget, whose `value` may be set by a program as well."""

    def __init__(self, first: str = "", second: str = "") -> None:
        """Start with the run of this OUT, or with `first`, beside `second`: paths as `add` takes them.

        Raises ResultsError when there is no such run, or none at all.
        """
        self._paths = runs_found()
        self._quiet = False
        self._run: Run | None = None
        self._summary = pl.DataFrame()
        self._comparison: Comparison | ResultsError | None = None
        self.run = widgets.Dropdown(description="run", options=[*self._paths])
        self.other = widgets.Dropdown(description="B", options=[NONE, *self._paths])
        self.path = widgets.Text(
            description="add a run", placeholder="a directory that make all wrote, or one CSV file of its results",
            continuous_update=False, layout=widgets.Layout(width="560px"),
        )  # fmt: skip
        self.panel = widgets.Dropdown(description="of", layout=widgets.Layout(width="560px"))
        self.message, self.charts, self.compared = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.view = widgets.VBox(
            [
                widgets.HBox([self.run, self.path]), self.panel, self.message, self.charts,
                self.other, self.compared,
            ]
        )  # fmt: skip
        for path, chosen in ((first, self.run), (second, self.other)):
            if path:
                chosen.value = self.add(path)
        if not self._paths:
            raise ResultsError(
                "there are no results yet; make some first (make all), or name a directory that has some"
            )
        self._load()
        self.path.observe(self._added, "value")
        self.run.observe(lambda _: self._load(), "value")
        self.panel.observe(lambda _: self._render(), "value")
        self.other.observe(lambda _: self._compare(), "value")

    def add(self, path: str) -> str:
        """Offer one more run, and give the name that it has here; a relative path starts at the project.

        Raises ResultsError when there is no run of techniques.
        """
        location = (PROJECT / Path(path).expanduser()).resolve()
        read_run(location)
        for name, known in self._paths.items():
            if known == location:
                return name
        # Its name, not where on this machine it is.
        name = str(location.relative_to(PROJECT)) if location.is_relative_to(PROJECT) else location.name
        while name in self._paths:
            name += "'"
        self._paths[name] = location
        with self._quietly():
            for control, options in ((self.run, [*self._paths]), (self.other, [NONE, *self._paths])):
                chosen, control.options = control.value, options
                control.value = chosen or options[0]
        return name

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """Replacing a control's options chooses its first one; nothing is shown of that."""
        self._quiet, before = True, self._quiet
        try:
            yield
        finally:
            self._quiet = before

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """The controls, and for whoever cannot show them, the view that they start with."""
        bundle: dict[str, Any] = dict(self.view._repr_mimebundle_())
        return bundle | {"text/html": self.page()}

    def page(self) -> str:
        """What is chosen now, all of it at once and without controls, as HTML."""
        said = f"<p>Run: {html.escape(str(self.run.value))}. In JupyterLab, lists choose what is shown.</p>"
        return _styled("\n".join([said, self.message.value, self.charts.value, self.compared.value]))

    def versions(self) -> Markdown:
        """Where and with what the run that is chosen was made."""
        metadata = self._run.metadata if self._run else {"runs": {}}
        notebooks = [
            study.notebook for study in studies() if study.measures_techniques and study.notebook in metadata["runs"]
        ]
        if not notebooks:
            return Markdown("This run came without its environment.json: where and with what it was made is not known.")
        return Markdown(versions_text(metadata, notebooks[0]))

    def _added(self, change: dict[str, Any]) -> None:
        if not change["new"].strip():
            return
        try:
            self.run.value = self.add(change["new"].strip())
        except ResultsError as error:
            self.message.value = _problem(str(error))

    def _load(self) -> None:
        """Read the chosen run; the direction and size that were looked at stay so where the run has them."""
        if self._quiet:
            return
        self._run, self._summary = None, pl.DataFrame()
        try:
            self._run = self._read(self.run.value)
        except ResultsError as error:
            self.message.value = _problem(str(error))
            self.charts.value = self.compared.value = ""
            return
        self.message.value = ""
        self._summary = in_places(self._run.passes, sizes=True)
        found = self._summary.select(PANEL).unique().sort(PANEL, descending=[False, False, True, True]).to_dicts()
        before = self.panel.value
        with self._quietly():
            self.panel.options = [(_panel_text(one), tuple(one.values())) for one in found]
            self.panel.value = before if before in [tuple(one.values()) for one in found] else tuple(found[0].values())
        self._compare()

    def _read(self, name: str) -> Run:
        run = read_run(self._paths[name], name)
        if unknown := set(run.passes["family"]) - set(FAMILIES):
            raise ResultsError(
                f"{name} has families that this version does not know: {', '.join(sorted(unknown))}; "
                "explore it with the version that made it"
            )
        return run

    def _compare(self) -> None:
        """Compare the two runs that are chosen, where there are two."""
        if self._quiet or self._run is None:
            return
        self._comparison = None
        if self.other.value != NONE:
            try:
                self._comparison = compare.compare(self._run, self._read(self.other.value))
            except ResultsError as error:
                self._comparison = error
        self._render()

    def _render(self) -> None:
        """Show the direction and size that are chosen."""
        if self._quiet or self._run is None:
            return
        shown = self._summary.filter(**dict(zip(PANEL, self.panel.value, strict=True)))
        numbers = f"<details><summary>all numbers</summary>{of_techniques(shown)._repr_html_()}</details>"
        self.charts.value = _styled(charts.svg(charts.bars(shown)) + numbers)
        self.compared.value = _styled(self._comparison_html())

    def _comparison_html(self) -> str:
        whole = self._comparison
        if whole is None:
            return "<p>Choose a second run, B: it is compared with the run above, A.</p>"
        if isinstance(whole, ResultsError):
            return _problem(str(whole))
        shown = dataclasses.replace(whole, rows=whole.rows.filter(**dict(zip(PANEL, self.panel.value, strict=True))))
        lines = [f"A is {whole.a.name}, B is {whole.b.name}", *comparison.sums(shown)]
        if whole.changes:
            lines.append(f"changed: {', '.join(whole.changes)}")
        text = "".join(_problem(f"Warning: {warning}") for warning in whole.warnings)
        text += "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
        if shown.rows["ratio"].count():
            text += charts.svg(_ratios(shown), "ratios")
        return text + comparison.listing(shown.rows)._repr_html_()


def runs_found() -> dict[str, Path]:
    """The runs that can be found from here, by name: that of OUT, this checkout's, and those of machines."""
    out = load_settings().out
    places = {} if out == PROJECT else {f"{out.name} (OUT)": out}
    places |= {"results": PROJECT}
    places |= {str(path.relative_to(PROJECT)): path for path in sorted(committed.runs())}
    return {
        name: path for name, path in places.items()
        if any((at / file).exists() for at in (path, path / "results") for file in technique_files())
    }  # fmt: skip


def _panel_text(panel: dict[str, Any]) -> str:
    return f"{where(panel)}, {panel['rows']:,} rows, notebook {panel['notebook'][:2]}"


def _styled(content: str) -> str:
    """Charts as wide as there is room for, and lines as close as in a page."""
    return f'<div class="explorer"><style>{CSS}</style>{content}</div>'


def _problem(text: str) -> str:
    return f'<p style="color: {charts.STATUS_INK["failed"]}">{html.escape(text)}</p>'


def _ratios(shown: Comparison) -> Figure:
    """The ratio of every technique that both runs have a speed of, with its interval, as dots on a logarithmic axis."""
    rows = shown.rows.filter(pl.col("ratio").is_not_null()).to_dicts()
    with charts.panels(1, height=1.2 + 0.22 * len(rows)) as (figure, [axes]):
        for at, row in enumerate(rows):
            colour = VERDICT_COLOURS.get(row["verdict"], charts.FAINT)
            if row["ratio_low"] is not None:
                axes.plot([row["ratio_low"], row["ratio_high"]], [at, at], color=colour, linewidth=1.4)
            axes.plot(row["ratio"], at, "o", color=colour, markersize=4)
        axes.axvline(1, color=charts.INK, linewidth=0.8)
        charts.name_lines(axes, [row["label"] for row in rows], size=8)
        charts.quantities(axes.xaxis, lambda value: f"{value:.3g}x", logarithmic=True)
        axes.xaxis.set_minor_formatter(axes.xaxis.get_major_formatter())  # most lie within a decade
        reach = max(1.5, 1.15 * max(max(row["ratio"], 1 / row["ratio"]) for row in rows))
        axes.set_xlim(1 / reach, reach)
        axes.set_xlabel("rows/s of B over A, with interval; left of 1: B is slower")
        colours = VERDICT_COLOURS | {"no difference seen, or too few passes": charts.FAINT}
        charts.legend(figure, colours, loc="outside upper right", ncols=3)
    return figure
