"""The explorer of results: what any run measured, filtered; two runs beside each other; a technique's code at its bar.

It reads results only and needs no server. Where a notebook is executed without a reader, or shown as a page, the view
that it starts with takes the place of the controls.
"""

from __future__ import annotations

import dataclasses
import html
import textwrap
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
from framehaul.reporting.sources import source_html
from framehaul.reporting.tables import CLASSES, Column, Listing, dtypes_text, of_techniques, ratio_text, where, words
from framehaul.reporting.versions import versions_text
from framehaul.results import committed, compare, statistics
from framehaul.results.compare import KEY, Comparison, Run
from framehaul.settings import PROJECT, load_settings
from framehaul.studies.registry import read_run, studies, technique_files
from framehaul.techniques.registry import DATABASES, DRIVERS, FAMILIES
from framehaul.techniques.source import source

LABELS: dict[str, dict[str, str]] = {"database": DATABASES, "family": FAMILIES}
"""How a reader knows the values of a column; the others are written as they are."""
CAPTIONS = {"rows": "size"}
ORDER = {"database": [*DATABASES], "direction": ["write", "read"], "family": [*FAMILIES],
         "frame": ["pandas", "polars", "none"], "origin": ["published", "beyond", "everyday", "baseline"]}  # fmt: skip
FILTERS = {
    "database": "110px", "direction": "90px", "family": "260px", "frame": "90px", "origin": "110px", "rows": "140px",
}  # fmt: skip
"""What can be filtered by, and how wide its list is."""
PANEL = ["notebook", "database", "direction", "rows"]
"""What has bars of its own: speeds of one study, direction and size."""
VERDICT_COLOURS = {"regression": "#B00020", "improvement": "#0072B2"}
CSS = ".explorer { line-height: 1.4; } .explorer svg { max-width: 100%; height: auto; }"
NONE = "(choose a second run)"
NUMBERS = {
    "median_rows_per_s": "median rows/s", "min_rows_per_s": "slowest pass", "max_rows_per_s": "fastest pass",
    "passes": "passes", "client_cpu_s": "client CPU, s", "server_cpu_s": "server CPU, s",
    "peak_rss_bytes": "growth of memory, bytes", "wire_bytes": "bytes on the wire",
}  # fmt: skip


class Explorer:
    """Controls and what they show; every control is a public widget, whose `value` may be set by a program as well."""

    def __init__(self, first: str = "", second: str = "") -> None:
        """Start with the run of this OUT, or with `first`, beside `second`: paths as `add` takes them.

        Raises ResultsError when there is no such run, or none at all.
        """
        self._paths = runs_found()
        self._quiet = False
        self._run: Run | None = None
        self._summary: pl.DataFrame | None = None
        self._comparison: Comparison | ResultsError | None = None
        self._drawn: dict[tuple[tuple[Any, ...], ...], str] = {}
        self.run = widgets.Dropdown(description="run", options=[*self._paths])
        self.other = widgets.Dropdown(description="B", options=[NONE, *self._paths])
        self.path = widgets.Text(
            description="add a run", placeholder="a directory that make all wrote, or one CSV file of its results",
            continuous_update=False, layout=widgets.Layout(width="560px"),
        )  # fmt: skip
        self.filters = {
            name: widgets.SelectMultiple(rows=6, layout=widgets.Layout(width=width)) for name, width in FILTERS.items()
        }
        self.message = widgets.HTML()
        self.charts, self.detail, self.code, self.compared = (widgets.HTML() for _ in range(4))
        self.technique = widgets.Select(rows=9, layout=widgets.Layout(width="96%"))
        self.by = widgets.ToggleButtons(
            options=[("as measured", "raw"), ("relative to all techniques", "relative")], description="ratios",
            style={"button_width": "190px"},
        )  # fmt: skip
        half = widgets.Layout(width="50%", padding="0 12px 0 0")
        self.tabs = widgets.Tab(
            children=[
                self.charts,
                widgets.HBox(
                    [widgets.VBox([self.technique, self.detail], layout=half), widgets.VBox([self.code], layout=half)]
                ),
                widgets.VBox([widgets.HBox([self.other, self.by]), self.compared]),
            ],
            titles=("Speed", "Technique", "Two runs"),
        )  # fmt: skip
        self.view = widgets.VBox(
            [
                widgets.HBox([self.run, self.path]),
                widgets.HBox(
                    [
                        widgets.VBox([widgets.Label(CAPTIONS.get(name, name)), control])
                        for name, control in self.filters.items()
                    ]
                ),
                self.message,
                self.tabs,
            ]
        )
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
        for control in (self.other, self.by):
            control.observe(lambda _: self._compare(), "value")
        for control in (*self.filters.values(), self.technique):
            control.observe(lambda _: self._render(), "value")
        self.tabs.observe(lambda _: self._render(), "selected_index")

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
        if self._summary is None:
            return str(self.message.value)
        detail, code = self._technique_html()
        parts = [
            f"<p>Run: {html.escape(str(self.run.value))}. This is the view to start from; in JupyterLab, lists choose "
            "what is shown.</p>",
            self.message.value,
            self._charts_html(),
            '<div style="display: flex; flex-wrap: wrap; gap: 16px"><div style="flex: 1 1 420px; min-width: 0">'
            f'{detail}</div><div style="flex: 1 1 420px; min-width: 0">{code}</div></div>',
        ]
        if self.other.value != NONE:
            parts.append(self._comparison_html())
        return _styled("\n".join(parts))

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
        """Read the chosen run; what was filtered stays so where the run has it."""
        if self._quiet:
            return
        try:
            self._run = self._read(self.run.value)
        except ResultsError as error:
            self._run = self._summary = None
            self.message.value = _problem(str(error))
            for output in (self.charts, self.detail, self.code, self.compared):
                output.value = ""
            return
        self._summary, self._drawn = summaries(self._run.passes), {}
        # One direction at the most rows that its study moved: enough to begin with, and quick to draw.
        first = {name: self._summary[name][0] for name in ("notebook", "database", "direction")}
        start = {name: [first[name]] for name in ("database", "direction")}
        start["rows"] = [self._summary.filter(**first)["rows"].max()]
        with self._quietly():
            for name, control in self.filters.items():
                present = set(self._summary[name])
                values = [value for value in ORDER[name] if value in present] if name in ORDER else sorted(present)
                kept = [value for value in values if value in control.value]
                # All of a run is all of another one as well, whatever it has more of.
                unfiltered = name not in start and len(control.value) == len(control.options)
                control.options = [(_written(name, value), value) for value in values]
                control.value = values if unfiltered else kept or start.get(name, values)
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
                self._comparison = compare.compare(self._run, self._read(self.other.value), by=self.by.value)
            except ResultsError as error:
                self._comparison = error
        self._render()

    def _chosen(self) -> pl.DataFrame:
        """The rows that the filters leave."""
        assert self._summary is not None
        return _filtered(self._summary, self._wanted())

    def _wanted(self) -> dict[str, tuple[Any, ...]]:
        return {name: control.value for name, control in self.filters.items()}

    def _render(self) -> None:
        """Show what is chosen in the tab that is open."""
        if self._quiet or self._summary is None:
            return
        chosen = self._chosen()
        self.message.value = "" if len(chosen) else _problem(self._nothing())
        self._offer(chosen)
        match self.tabs.selected_index:
            case 1:
                self.detail.value, self.code.value = map(_styled, self._technique_html())
            case 2:
                self.compared.value = _styled(self._comparison_html())
            case _:
                self.charts.value = _styled(self._charts_html())

    def _nothing(self) -> str:
        chosen = "; ".join(
            f"{CAPTIONS.get(name, name)}: {', '.join(_written(name, value) for value in control.value) or 'none'}"
            for name, control in self.filters.items()
            if len(control.value) < len(control.options)
        )
        return f"Nothing in this run fits ({chosen}). Choose more in the lists; Ctrl or Cmd adds to what is chosen."

    def _offer(self, chosen: pl.DataFrame) -> None:
        """Put the techniques that are left into their list; the one that was chosen stays so where it is among them."""
        several = chosen.n_unique(PANEL) > 1
        options = [(_name(row, several), tuple(row[name] for name in KEY)) for row in chosen.to_dicts()]
        if options != list(self.technique.options):
            keys = [key for _, key in options]
            moved = chosen.filter(pl.col("origin") != "baseline").select(KEY).rows()
            before = self.technique.value
            with self._quietly():
                self.technique.options = options
                self.technique.value = before if before in keys else next(iter([*moved, *keys]), None)

    def _charts_html(self) -> str:
        return "".join(self._panel_html(panel) for _, panel in self._chosen().group_by(PANEL, maintain_order=True))

    def _panel_html(self, panel: pl.DataFrame) -> str:
        """The bars and the table of one study, direction and size; drawing takes a while, so only once."""
        rows = tuple(panel.select(KEY).rows())
        if rows not in self._drawn:
            self._drawn[rows] = (
                f"<h4>{panel['notebook'][0]}</h4>{charts.svg(charts.bars(panel))}"
                f"<details><summary>all numbers</summary>{of_techniques(panel)._repr_html_()}</details>"
            )
        return self._drawn[rows]

    def _technique_html(self) -> tuple[str, str]:
        """The bar and the numbers of a technique, and its code."""
        if self.technique.value is None or self._summary is None or self._run is None:
            return "", ""
        key = dict(zip(KEY, self.technique.value, strict=True))
        panel = self._summary.filter(**{name: key[name] for name in PANEL})
        row = panel.filter(technique=key["technique"]).row(0, named=True)
        numbers = [{"name": text, "value": row[name]} for name, text in NUMBERS.items()]
        numbers += [{"name": "class of write", "value": CLASSES[row["contract"]]}] if row["contract"] else []
        numbers += [{"name": "ratio to the best published", "value": ratio_text(row)},
                    {"name": "dtypes", "value": dtypes_text(row["dtypes"] or "")}]  # fmt: skip
        problem = "" if row["status"] == "ok" else _problem(f"{row['status']}: {row['reason']}")
        table = Listing([words("", "name"), Column("this technique", "value", _number)], numbers)
        bar = charts.svg(_beside(panel, key["technique"]), "technique")
        return bar + problem + table._repr_html_(), _code_html(row, self._run)

    def _comparison_html(self) -> str:
        whole = self._comparison
        if whole is None:
            return "<p>Choose a second run, B: it is compared with the run above, A.</p>"
        if isinstance(whole, ResultsError):
            return _problem(str(whole))
        shown = dataclasses.replace(whole, rows=_filtered(whole.rows, self._wanted()))
        lines = [f"A is {whole.a.name}, B is {whole.b.name}", *comparison.sums(shown)]
        if whole.changes:
            lines.append(f"changed: {', '.join(whole.changes)}")
        text = "".join(_problem(f"Warning: {warning}") for warning in whole.warnings)
        text += "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"
        if shown.rows["ratio"].count():
            text += charts.svg(_ratios(shown), "ratios")
        return text + comparison.listing(shown.rows)._repr_html_()


def runs_found() -> dict[str, Path]:
    """The runs that can be found from here, by name: that of OUT, this checkout's, and the reference runs."""
    out = load_settings().out
    places = {} if out == PROJECT else {f"{out.name} (OUT)": out}
    places |= {"results": PROJECT}
    places |= {str(path.relative_to(PROJECT)): path for path in sorted(committed.MACHINES.glob("*/*"))}
    return {
        name: path for name, path in places.items()
        if any((at / file).exists() for at in (path, path / "results") for file in technique_files())
    }  # fmt: skip


def summaries(passes: pl.DataFrame) -> pl.DataFrame:
    """`statistics.summary` of every study and size, with the study as `notebook`."""
    return pl.concat(
        statistics.summary(part).with_columns(notebook=pl.lit(notebook))
        for (notebook, _), part in passes.group_by("notebook", "rows", maintain_order=True)
    )


def _filtered(rows: pl.DataFrame, wanted: dict[str, tuple[Any, ...]]) -> pl.DataFrame:
    return rows.filter(*(pl.col(name).is_in(values) for name, values in wanted.items()))


def _written(column: str, value: Any) -> str:
    return f"{value:,} rows" if column == "rows" else LABELS.get(column, {}).get(value, str(value))


def _name(row: dict[str, Any], several: bool) -> str:
    """A technique in a list, with its direction, size and study where there are several of those."""
    label = f"{row['label']} ({CLASSES['bulk_load']})" if row["contract"] == "bulk_load" else str(row["label"])
    if not several:
        return label
    return f"{label} · {where(row)}, {row['rows']:,} rows, notebook {row['notebook'][:2]}"


def _number(value: float | str) -> str:
    """A number with the digits that tell; text as it is."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"  # noqa: PLR2004


def _styled(content: str) -> str:
    """Charts as wide as there is room for, and lines as close as in a page."""
    return f'<div class="explorer"><style>{CSS}</style>{content}</div>'


def _problem(text: str) -> str:
    return f'<p style="color: {charts.STATUS_INK["failed"]}">{html.escape(text)}</p>'


def _beside(panel: pl.DataFrame, technique: str) -> Figure:
    """A technique's bar with the fastest, of its own class of writes too, the best published, the server alone."""
    timed = panel.filter(pl.col("median_rows_per_s").is_not_null())
    kind = panel.filter(technique=technique)["contract"].to_list()[0]
    moving, alone = pl.col("origin") != "baseline", pl.col("origin") == "baseline"
    parts = moving, moving & pl.col("contract").eq_missing(kind), pl.col("origin") == "published", alone
    company = [timed.filter(part).head(1) for part in parts]
    names = [technique, *pl.concat(company)["technique"]]
    shown = panel.filter(pl.col("technique").is_in(names))
    figure = charts.bars(shown)
    figure.set_size_inches(7, 1.3 + 0.55 * len(shown))
    axes = figure.axes[0]
    chosen = shown.filter(technique=technique)["label"][0]
    for label in axes.get_yticklabels():
        label.set_fontweight("bold" if label.get_text() == chosen else "normal")
    axes.set_yticks(axes.get_yticks(), [textwrap.fill(label.get_text(), 36) for label in axes.get_yticklabels()])
    axes.set_xlabel("rows/s, median of passes (whiskers: slowest and fastest pass)")
    if legend := axes.get_legend():
        legend.remove()
    return figure


def _code_html(row: dict[str, Any], run: Run) -> str:
    """Who a technique is, in words, and its code as it stands in this checkout."""
    label, name, commit = (
        html.escape(str(text)) for text in (row["label"], row["technique"], run.metadata.get("commit"))
    )
    try:
        code = source(row["database"], row["direction"], {row["technique"]: row["driver"]})
    except KeyError:
        return f"<h4>{label}</h4><p>This checkout has no technique {name}; the run was made at commit {commit}.</p>"
    about = (
        f"{DRIVERS.get(row['driver'], row['driver'])}; {FAMILIES[row['family']]}; {row['origin']}. "
        f"{name} in {code.module}, as it stands in this checkout; the run was made at commit {commit}."
    )
    text = html.escape(" ".join(code.docstring.split()))
    return f"<h4>{label}</h4><p>{text}</p><p><small>{about}</small></p>{source_html(code)}"


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
        how = "" if shown.by == "raw" else ", relative to the median of all"
        axes.set_xlabel(f"rows/s of B over A{how}, with interval; left of 1: B is slower")
        colours = VERDICT_COLOURS | {"no difference seen, or too few passes": charts.FAINT}
        charts.legend(figure, colours, loc="outside upper right", ncols=3)
    return figure
