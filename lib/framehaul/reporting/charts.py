"""Figures and tables with fixed labels and colours, drawn from a summary; nothing here knows a technique by name."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from IPython.display import SVG
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Shape
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from framehaul.reporting.tables import Row, heading_and_form, speed_text, thousands
from framehaul.settings import load_settings
from framehaul.techniques import FAMILIES
from framehaul.techniques.registry import DATABASES, DRIVERS

# Told apart by readers with any colour vision: the first eight after https://jfly.uni-koeln.de/color/
FAMILY_COLOURS = {
    "copy_binary": "#0072B2",
    "copy_text": "#56B4E9",
    "pg_parquet": "#009E73",
    "prepared_fetch": "#CC79A7",
    "row_fetch": "#D55E00",
    "convenience": "#999999",
    "insert_rows": "#D55E00",
    "insert_text": "#56B4E9",
    "native_columnar": "#E69F00",
    "http_parquet": "#009E73",
    "http_csv": "#0072B2",
    "arrow": "#882255",
    "http_native": "#CC79A7",
    "engine": "#117733",
    "server": "#dddddd",
}
INK, FAINT = "#222222", "#767676"
NAME_INKS = {"published": "#6a6a6a", "everyday": "#8a3ab9"}
"""Of names, by origin; others are black."""
COLOURS_SAID = {"published": "grey", "everyday": "purple"}
STATUS_INK = {"ok": INK, "skipped": FAINT, "failed": "#B00020"}

MEDIANS = "median of passes (whiskers: slowest and fastest; ±: they vary by more than 10%)"
"""What is said of the bars of `bar`."""

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # measured with the first, shown with what a reader has: as wide
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "xtick.minor.pad": 5,  # the figures of short ticks stand in one line with those of long ones
    "ytick.minor.pad": 5,
    "svg.fonttype": "none",  # text stays text: searchable, and small
}


def save(figure: Figure, path: Path) -> str:
    """Write the figure as SVG and return its text."""
    text = svg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    return text


def described(figure: Figure) -> str:
    """What a figure is called, for who does not see it: its title, or those of its panels, or of its legend."""
    panels_called = "; ".join(filter(None, (axes.get_title("left") for axes in figure.axes)))
    legends = " ".join(legend.get_title().get_text() for legend in figure.legends)
    return " ".join((figure.get_suptitle() or panels_called or legends).split())


def svg(figure: Figure, salt: str = "framehaul") -> str:
    """The figure as SVG; the same data gives the same bytes.

    The names of its patterns are made from `salt`: where two figures of a page share names, the second has no hatches
    while the first is hidden.
    """
    buffer = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


@contextmanager
def panels(
    lines: int, columns: int = 1, *, height: float, width: float = 10.5, heights: Sequence[float] | None = None
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of so many panels, all drawn in one style while the block lasts; sizes are inches."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False, height_ratios=heights)
        for axes in grid.flat:
            axes.set_axisbelow(True)
        yield figure, list(grid.flat)


def title(axes: Axes, text: str, size: float | None = None) -> None:
    """What a panel is about."""
    axes.set_title(text, loc="left", fontweight="bold", fontsize=size or mpl.rcParams["axes.titlesize"])


def footnote(figure: Figure, text: str) -> None:
    """What is to be known of all panels, below them from the left: one line for each line of the text."""
    figure.supxlabel(text, x=0.01, ha="left", fontsize=8)


def name_lines(axes: Axes, labels: Sequence[str], origins: Sequence[str] = (), size: float | None = None) -> None:
    """What stands in each line, the first at the top; where origins are given, published ones are grey."""
    axes.set_yticks(range(len(labels)), labels, fontsize=size)
    for label, origin in zip(axes.get_yticklabels(), origins, strict=False):
        label.set_color(_name_ink(origin))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def amount(value: float) -> str:
    """A number on an axis, which is round already: 500, 1.5k, 2M, 1G, 0.02."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


SHORT = 5
"""A logarithmic axis is short whose upper end is less than so many times its lower one."""
LONG = 1e5
"""And long from so many times on: figures between powers of ten would run into each other."""


def quantities(axis: Axis, form: Callable[[float], str] = amount, *, logarithmic: bool = False) -> None:
    """Write an axis of amounts as a reader says them.

    On a logarithmic one 2 and 5 have their figures, too; on a short one, which may hold but one of these, all have, and
    on a long one none but powers of ten.
    """

    def between(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        said = "123456789" if high < SHORT * low else "25" if high < LONG * low else ""
        return form(value) if f"{value:e}"[0] in said else ""

    if logarithmic:
        axis.axes.set(**{"xscale" if axis is axis.axes.xaxis else "yscale": "log"})
        axis.set_minor_formatter(between)
    axis.set_major_formatter(lambda value, _: form(value))


def bar(
    axes: Axes, at: float, row: Row, of: str, colour: str, *, text: str | None = None, height: float = 0.72,
    size: float | None = None,
) -> None:  # fmt: skip
    """Draw a median as a bar, from the slowest to the fastest pass as a whisker; or say why there is none.

    `of` is the column of medians, of which there are `min_` and `max_`; `text` is written behind it, or the median,
    with ± where passes vary much.
    """
    median, stem = row[of], of.removeprefix("median_")
    if median is None:
        skipped = row["status"] == "skipped"
        text = "skipped (the table says why)" if skipped else f"FAILED: {_shorten(row.get('reason') or '', 32)}"
        note(axes, 0, at, text, STATUS_INK[row["status"]], size)
        return
    low, high = row.get(f"min_{stem}", median), row.get(f"max_{stem}", median)
    axes.barh(at, median, color=colour, edgecolor="white", height=height)
    axes.plot([low, high], [at, at], color=INK, linewidth=1.2)
    for end in (low, high):
        axes.plot([end] * 2, [at - height / 4, at + height / 4], color=INK, linewidth=1.2)
    note(axes, max(median, high), at, text or str(speed_text(row, of)), INK, size)


def note(axes: Axes, x: float, y: float, text: str, colour: str = INK, size: float | None = None) -> None:
    """Text to the right of a point, clear of whatever ends there."""
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", color=colour, fontsize=size)


def legend(of: Axes | Figure, colours: Mapping[str, str], **where: Any) -> None:
    """What each colour means; the panel's lower right corner, unless `where` says otherwise."""
    where = where or {"loc": "lower right"}
    of.legend(handles=[Patch(color=colour, label=name) for name, colour in colours.items()], frameon=False, **where)


def shown(figure: Figure, name: str) -> SVG:
    """Save a figure as `OUT/figures/<name>.svg` and show it."""
    text = save(figure, load_settings().out / "figures" / f"{name}.svg")
    return SVG(text, metadata={"alt": described(figure) or name.replace("_", " "), "figure": f"{name}.svg"})


PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#117733", "#999999",
    "#332288", "#44AA99", "#661100",
)  # fmt: skip
"""Colors that readers with any color vision can distinguish, after https://jfly.uni-koeln.de/color/."""
DASHES = ("-", "--", ":", "-.")
VERDICT_COLORS = {"faster": PALETTE[0], "slower": PALETTE[1], "inconclusive": FAINT, "not measured": FAINT}


def bars(
    medians: pl.DataFrame, *, name: str, y: str = "label", x: str = "rows_per_s", color: str = "family",
    panel: str = "", columns: int = 1,
) -> SVG:  # fmt: skip
    """Draw medians as horizontal bars, with the slowest and the fastest pass as whiskers, saved as `name`.

    Lines are the values of `y` in order of appearance; several rows of one value stand side by side, told apart by
    `color`. `panel` is a column with a panel for each value, in so many `columns`. A row that was skipped or failed
    says so. Names of published techniques are grey where there is a column `origin`.
    """
    groups, colors = _panels(medians, panel), _colors(medians, color)
    lines = [group[y].unique(maintain_order=True).to_list() for _, group in groups]
    across = -(-len(groups) // columns)
    heights = [
        0.7 + 0.24 * max(1.0, _most(group, y) * 0.6) * len(names)
        for (_, group), names in zip(groups, lines, strict=True)
    ]
    each = heights if columns == 1 else None
    with panels(across, columns, height=0.9 + sum(heights) / columns, heights=each) as (figure, drawn):
        for axes in drawn[len(groups) :]:
            axes.set_axis_off()
        for axes, (about, group), names in zip(drawn, groups, lines, strict=False):
            most = _most(group, y)
            thick = 0.8 / most
            seen = dict.fromkeys(names, 0)
            for row in group.to_dicts():
                at = names.index(row[y]) + (seen[row[y]] - (group[y] == row[y]).sum() / 2 + 0.5) * thick
                seen[row[y]] += 1
                bar(axes, at, row, x, colors[row[color]], height=thick * 0.9, text=_number(row, x), size=8)
            origins = dict(group.select(y, "origin").iter_rows()) if "origin" in group.columns else {}
            name_lines(axes, names, [origins.get(one, "") for one in names])
            axes.margins(x=0.16)
            axes.set_xlim(left=0)
            quantities(axes.xaxis)
            title(axes, about, 9)
        _legend(figure, f"{_axis(x)}, {MEDIANS}", colors)
    return shown(figure, name)


def lines(
    medians: pl.DataFrame, *, name: str, x: str = "rows", y: str = "rows_per_s", color: str = "technique",
    panel: str = "", dash: str = "", log: str = "xy", columns: int = 2,
) -> SVG:  # fmt: skip
    """Draw `y` against `x`, a line for each value of `color` and `dash`, and save the figure as `name`.

    `panel` is a column with a panel for each value, in so many `columns`; `log` names the logarithmic axes. The slowest
    and the fastest pass are whiskers where they are known. What is not numeric on x stands in order of appearance.
    """
    groups, colors = _panels(medians, panel), _colors(medians, color)
    dashes = dict(zip(medians[dash].unique(maintain_order=True) if dash else [""], DASHES, strict=False))
    columns = min(columns, len(groups))
    across = -(-len(groups) // columns)
    places = medians[x].unique(maintain_order=True).to_list()
    with panels(across, columns, height=0.9 + 3.2 * across) as (figure, drawn):
        for axes in drawn[len(groups) :]:
            axes.set_axis_off()
        for axes, (about, group) in zip(drawn, groups, strict=False):
            for value, line in group.drop_nulls(y).group_by([color, *([dash] if dash else [])], maintain_order=True):
                numeric = line[x].dtype.is_numeric()
                line = line.sort(x) if numeric else line  # noqa: PLW2901
                at = line[x].to_list() if numeric else [places.index(one) for one in line[x]]
                style = dashes[value[1]] if dash else "-"
                axes.plot(at, line[y].to_list(), style, color=colors[value[0]], marker="o", markersize=3.5)
                if f"min_{y}" in line.columns:
                    axes.vlines(
                        at, line[f"min_{y}"].to_list(), line[f"max_{y}"].to_list(), colors[value[0]], linewidth=0.8
                    )
            quantities(axes.yaxis, logarithmic="y" in log)
            if not medians[x].dtype.is_numeric():
                axes.set_xticks(range(len(places)), [str(one).replace(", ", "\n") for one in places], fontsize=8)
            else:
                quantities(axes.xaxis, logarithmic="x" in log)
            if "y" not in log:
                axes.set_ylim(bottom=0)
            axes.grid(which="major", color="#eeeeee")
            axes.set_xlabel(_axis(x), fontsize=8)
            title(axes, about, 9)
        styles = [f"{style}: {value}" for value, style in dashes.items()] if dash else []
        _legend(figure, "; ".join([f"{_axis(y)}, median of passes", *styles]), colors)
    return shown(figure, name)


def intervals(ratios: pl.DataFrame, *, name: str, y: str = "label", x: str = "ratio", color: str = "") -> SVG:
    """Draw ratios with `x_low` and `x_high` as lines, on a logarithmic axis, and save the figure as `name`."""
    rows, colors = ratios.drop_nulls(x).to_dicts(), _colors(ratios, color)
    with panels(1, height=1.2 + 0.3 * len(rows)) as (figure, [axes]):
        for at, row in enumerate(rows):
            ink = colors[row[color]] if color else PALETTE[0]
            axes.plot([row[f"{x}_low"], row[f"{x}_high"]], [at, at], color=ink, linewidth=2)
            axes.scatter(row[x], at, color=ink, s=36, zorder=3)
        axes.set_xscale("log", base=2)
        axes.axvline(1, color=INK, linewidth=0.8)
        name_lines(axes, [row[y] for row in rows])
        low, high = axes.get_xlim()
        quantities(axes.xaxis, "{:g}x".format, logarithmic=high < SHORT * low)  # few powers of two are on a short axis
        axes.grid(axis="x", color="#eeeeee")
        about = f"{_axis(x)}, logarithmic; line: range of rounds, from six rounds on a 95% interval"
        axes.set_xlabel(about, loc="right")
        _legend(figure, color, colors)
    return shown(figure, name)


def points(
    frame: pl.DataFrame, *, name: str, x: str, y: str, color: str, label: str = "", panel: str = "", log: str = ""
) -> SVG:
    """Draw rows as points, told apart by `color` and named by `label`, and save the figure as `name`."""
    groups, colors = _panels(frame, panel), _colors(frame, color)
    with panels(1, len(groups), height=5) as (figure, drawn):
        for axes, (about, group) in zip(drawn, groups, strict=True):
            for row in group.drop_nulls([x, y]).to_dicts():
                axes.scatter(row[x], row[y], color=colors[row[color]], s=34, zorder=3)
                if label and row[label]:
                    axes.annotate(row[label], (row[x], row[y]), xytext=(5, 3), textcoords="offset points", fontsize=8)
            quantities(axes.xaxis, logarithmic="x" in log)
            quantities(axes.yaxis, logarithmic="y" in log)
            axes.grid(color="#eeeeee")
            axes.set(xlabel=_axis(x), ylabel=_axis(y))
            title(axes, about, 9)
        _legend(figure, color.replace("_", " "), colors)
    return shown(figure, name)


def _panels(frame: pl.DataFrame, panel: str) -> list[tuple[str, pl.DataFrame]]:
    """Return the parts of a frame that have a panel each, with what each is called."""
    if not panel:
        return [("", frame)]
    return [(str(DATABASES.get(about, about)), part) for (about,), part in frame.group_by(panel, maintain_order=True)]


def _colors(frame: pl.DataFrame, column: str) -> dict[Any, str]:
    """Return the color of each value of a column: families and verdicts have fixed ones."""
    values = frame[column].unique(maintain_order=True).to_list() if column else []
    if column == "family":
        return {value: FAMILY_COLOURS[value] for value in FAMILIES if value in values}
    if column == "verdict":
        return {value: VERDICT_COLORS[value] for value in VERDICT_COLORS if value in values}
    return {value: PALETTE[at % len(PALETTE)] for at, value in enumerate(values)}


def _legend(figure: Figure, about: str, colors: Mapping[Any, str]) -> None:
    """Say below the panels what is drawn and, where there are several colors, what each means."""
    if len(colors) > 1:
        names = {str({**FAMILIES, **DATABASES}.get(value, value)): ink for value, ink in colors.items()}
        columns = max(1, int(LEGEND_CHARACTERS / (6 + max(map(len, names)))))
        legend(figure, names, loc="outside lower left", ncols=columns, fontsize=8, title=about, alignment="left")
    else:
        footnote(figure, about)


LEGEND_CHARACTERS = 150
"""How many characters stand in a line of a legend."""


def _most(group: pl.DataFrame, y: str) -> int:
    """Return how many rows a line has at most."""
    return int(group.group_by(y).len()["len"].max() or 1)  # type: ignore[arg-type]


def _axis(column: str) -> str:
    """Return what a column is called on an axis."""
    return heading_and_form(column)[0]


def _number(row: Row, column: str) -> str | None:
    """Return a median as it stands behind its bar; None where there is none."""
    form = heading_and_form(column)[1]
    value = row[column]
    if value is None:
        return None
    return f"{form.format(value) if isinstance(form, str) else form(value)}{' ±' if row.get('unstable') else ''}"


def families(present: Collection[str]) -> dict[str, str]:
    """What the colours of these families mean, in their fixed order."""
    return {FAMILIES[family]: FAMILY_COLOURS[family] for family in FAMILIES if family in present}


def published_against_measured(summary: pl.DataFrame) -> Figure:
    """Published beside measured mean rows/s, one panel per database and direction, on a logarithmic axis.

    The ring is larger than the dot: where they are equal, both are seen.
    """
    groups = [
        group.filter(pl.col("published_rows_per_s").is_not_null()).sort("published_rows_per_s", descending=True)
        for _, group in summary.group_by("database", "direction", maintain_order=True)
    ]
    heights = [len(group) + 2 for group in groups]
    with panels(len(groups), height=0.25 * sum(heights) + 1.2, heights=heights) as (figure, drawn):
        for axes, group in zip(drawn, groups, strict=True):
            for at, row in enumerate(group.to_dicts()):
                published, measured = row["published_rows_per_s"], row["mean_rows_per_s"]
                if measured is None:
                    note(axes, published, at, f"not measured here: {row['status']}", FAINT)
                else:
                    axes.plot([published, measured], [at, at], color="#cccccc", linewidth=2, zorder=1)
                    axes.scatter(measured, at, color=FAMILY_COLOURS[row["family"]], s=24, zorder=3)
                axes.scatter(published, at, facecolor="white", edgecolor=INK, s=52, zorder=2)
            name_lines(axes, group["label"].to_list())
            quantities(axes.xaxis, logarithmic=True)
            axes.margins(x=0.06)
            axes.grid(axis="x", which="both", color="#eeeeee")
            title(axes, f"{DATABASES[group['database'][0]]} {group['direction'][0]}")
        drawn[-1].set_xlabel("rows/s, mean of passes, logarithmic: ring = published, dot = measured here", loc="right")
        present = {family for group in groups for family in group["family"]}
        legend(figure, families(present), loc="outside lower left", ncols=5)
    return figure


GLANCE_INK = "#7d858f"
"""Text and axes that can be read on a light and on a dark background."""
GLANCE: dict[str, tuple[str, str, str]] = {
    "published": ("published techniques", "#8b939c", "o"),
    "everyday": ("called without a choice", "#b07cc6", "X"),
    "beyond": ("ours, append or read", "#2f8fd0", "o"),
    "bulk_load": ("ours, bulk load", "#dd7a2b", "D"),
    "baseline": ("the server alone", "#8b939c", "|"),
}
"""What stands for which kind of technique: its name, its colour and its mark."""


def at_a_glance(summary: pl.DataFrame) -> Figure:
    """Every technique as a mark at its median rows/s: four directions above each other on one logarithmic scale.

    The best published and the fastest of ours have their names. Nothing is drawn behind it, and its greys and colours
    can be told from white and from black. It is so narrow that it can be read on a telephone.
    """
    rows = summary.filter(pl.col("median_rows_per_s").is_not_null()).with_columns(
        pl.when(contract="bulk_load", origin="beyond").then(pl.lit("bulk_load")).otherwise("origin").alias("kind")
    )
    groups = rows.partition_by("database", "direction", maintain_order=True)
    speeds, sizes = rows["median_rows_per_s"].to_list(), sorted(set(rows["rows"].to_list()))
    of_rows = f"{'up to ' if len(sizes) > 1 else ''}{sizes[-1]:,} rows" if sizes else "no rows"
    with panels(1, width=6.4, height=1.1 + 1.3 * len(groups)) as (figure, [axes]):
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
        quantities(axes.xaxis, logarithmic=True)
        axes.set_xlim(min(speeds, default=1.0) * 0.75, max(speeds, default=1.0) * 1.25)
        for at, group in enumerate(groups):
            _strip(axes, at, group)
            if at:
                axes.axhline(at - 0.5, color=GLANCE_INK, linewidth=0.5, alpha=0.6)
        names = [f"{DATABASES[group['database'][0]]}\n{group['direction'][0]}" for group in groups]
        axes.set_yticks(range(len(groups)), names, fontsize=10.5, fontweight="bold")
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.tick_params(axis="both", which="both", colors=GLANCE_INK)
        axes.tick_params(axis="y", length=0)
        axes.spines[:].set_color(GLANCE_INK)
        axes.grid(axis="x", color=GLANCE_INK, linewidth=0.5, alpha=0.35)
        axes.set_xlabel(f"rows/s, median of passes of {of_rows} (logarithmic)", color=GLANCE_INK)
        handles = [
            Line2D([], [], linestyle="", marker=mark, color=colour, label=name, markersize=7)
            for kind, (name, colour, mark) in GLANCE.items() if kind in set(rows["kind"])
        ]  # fmt: skip
        figure.legend(
            handles=handles, loc="outside upper right", ncols=2, frameon=False, labelcolor=GLANCE_INK,
            handletextpad=0.2, columnspacing=1.2,
        )  # fmt: skip
    return figure


def _strip(axes: Axes, at: int, group: pl.DataFrame) -> None:
    """One direction: published techniques in an upper line, ours in a lower one, the server alone on both."""
    lines = {"published": -0.1, "everyday": -0.1, "beyond": 0.12, "bulk_load": 0.12, "baseline": 0.01}
    for kind, (_, colour, mark) in GLANCE.items():
        speeds = group.filter(kind=kind)["median_rows_per_s"].to_list()
        size = 420 if mark == "|" else 46
        axes.scatter(speeds, [at + lines[kind]] * len(speeds), s=size, marker=mark, color=colour, alpha=0.75, zorder=2)
    best = {  # of those that moved most: few rows are faster, into an index above all, and ratios are not of them
        kind: group.filter(kind=kind).sort("rows", "median_rows_per_s", descending=True).row(0, named=True)
        for kind in ("published", "beyond", "bulk_load") if kind in set(group["kind"])
    }  # fmt: skip
    ours = sorted((row["median_rows_per_s"], kind) for kind, row in best.items() if kind != "published")
    # Two names below one line: that of the slower one ends where its mark is, that of the faster one begins there.
    sides = {kind: side for (_, kind), side in zip(ours, ("right", "left"), strict=False)} if len(ours) > 1 else {}
    for kind, row in best.items():
        above = kind == "published"
        axes.annotate(
            f"{DRIVERS[row['driver']]}\n{FAMILIES[row['family']]}: {thousands(row['median_rows_per_s'])}",
            (row["median_rows_per_s"], at + (-0.19 if above else 0.2)), va="bottom" if above else "top",
            ha=sides.get(kind, "center"), fontsize=9, color=GLANCE_INK if above else GLANCE[kind][1],
        )  # fmt: skip


def outcomes(
    cells: pl.DataFrame, *, name: str, heading: str, x: str, outcome: str, outcomes: dict[str, Outcome],
    empty: str = "not tried", group: str = "", panel: str = "",
) -> SVG:  # fmt: skip
    """Draw the outcome of each technique with each value of `x` as colored cells, and save the figure as `name`.

    Cells have the columns `label` and `origin`; `outcome` is the column with a key of `outcomes`. Values of `x` stand
    in order of appearance, those of one `group` together, with a line between groups. `panel` is a column with a map
    for each value. `heading` is the title, and `empty` says what a place without a cell means.
    """
    about = dict(cells.select(x, group).iter_rows()) if group else {}
    values = cells[x].unique(maintain_order=True).to_list()
    order = [value for each in dict.fromkeys(about.values()) for value in values if about[value] == each] or values
    if panel:
        parts = dict(_panels(cells, panel))
        return shown(outcome_maps(parts, heading, x, order, outcome, outcomes, empty), name)
    return shown(outcome_map(cells, heading, x, order, outcome, outcomes, empty, about), name)


DARK = 1.1
"""Of red, green and blue together: a colour with less is dark."""


@dataclass(frozen=True)
class Outcome:
    """What a cell of an outcome map can be: its colour, its letter, and what that means."""

    colour: str
    letter: str
    meaning: str

    @property
    def named(self) -> str:
        """What it means, after its letter."""
        return f"{self.letter}: {self.meaning}" if self.letter else self.meaning

    @property
    def ink(self) -> str:
        """What its letter is written with: it is to be read on its colour."""
        return INK if sum(to_rgb(self.colour)) > DARK else "white"


def outcome_map(
    cells: pl.DataFrame, heading: str, across: str, order: list[str], kind: str, outcomes: dict[str, Outcome],
    empty: str, about: Mapping[str, str] | None = None,
) -> Figure:  # fmt: skip
    """A heat map of techniques and what the column `across` holds, in that order; `kind` is the outcome's column.

    What there is more of goes down the page, where there is room for it. `empty` says what a place without a cell
    means, and `about` what each thing across asks: a line stands where another question begins.
    """
    origins: dict[str, str] = dict(cells.select("label", "origin").iter_rows())
    present = set(cells[across])
    columns = [name for name in order if name in present]
    parts = [at for at in range(1, len(columns)) if about and about[columns[at]] != about[columns[at - 1]]]
    turned = len(columns) > len(origins)
    down, over = (columns, [*origins]) if turned else ([*origins], columns)
    of_down, of_over = (across, "label") if turned else ("label", across)
    longest = max(map(len, over), default=0)
    with panels(1, height=1.2 + 0.17 * len(down) + 0.066 * longest) as (figure, [axes]):
        _cells_on(axes, cells, {of_over: over, of_down: down}, kind, outcomes)
        name_lines(axes, down, size=8)
        axes.xaxis.tick_top()
        for name in (axes.get_xticklabels() if turned else axes.get_yticklabels())[: len(origins)]:
            name.set_color(_name_ink(origins[name.get_text()]))
        for at in parts:
            (axes.axhline if turned else axes.axvline)(at - 0.5, color=INK, linewidth=1.2)
        shown = set(cells[kind])
        _outcome_legend(figure, heading, outcomes, shown, empty, origins.values())
    return figure


def outcome_maps(
    parts: Mapping[str, pl.DataFrame], heading: str, across: str, order: list[str], kind: str,
    outcomes: dict[str, Outcome], empty: str,
) -> Figure:  # fmt: skip
    """Heat maps as of `outcome_map` on one sheet, a part below the other, all with the same columns."""
    present = {name for cells in parts.values() for name in cells[across]}
    columns = [name for name in order if name in present]
    lines = [cells["label"].n_unique() for cells in parts.values()]
    names = 0.066 * max(map(len, columns), default=0)
    height = 1.2 + 0.17 * sum(lines) + 0.4 * len(parts) + 2 * names
    with panels(len(parts), height=height, heights=lines) as (figure, every):
        for axes, (about, cells) in zip(every, parts.items(), strict=True):
            origins: dict[str, str] = dict(cells.select("label", "origin").iter_rows())
            _cells_on(axes, cells, {across: columns, "label": [*origins]}, kind, outcomes)
            name_lines(axes, [*origins], [*origins.values()], size=8)
            axes.tick_params(top=False, labeltop=axes is every[0], labelbottom=axes is every[-1])
            title(axes, about)
        shown = {state for cells in parts.values() for state in cells[kind]}
        every_origin = [origin for cells in parts.values() for origin in cells["origin"].unique(maintain_order=True)]
        _outcome_legend(figure, heading, outcomes, shown, empty, every_origin)
    return figure


def _cells_on(
    axes: Axes, cells: pl.DataFrame, order: Mapping[str, list[str]], kind: str, outcomes: dict[str, Outcome]
) -> None:
    """The cells of an outcome map, with the names of what is across: `order` is that, and then what goes down."""
    (across, over), (down, lines) = order.items()
    places = cells.filter(pl.col(across).is_in(over), pl.col(down).is_in(lines)).select(
        pl.col(across).replace_strict(over, range(len(over)), return_dtype=pl.Int64).alias("x"),
        pl.col(down).replace_strict(lines, range(len(lines)), return_dtype=pl.Int64).alias("y"), kind,
    )  # fmt: skip
    for (came_to,), of_it in places.group_by(kind, maintain_order=True):
        _mark(axes, of_it.select("x", "y").rows(), outcomes[came_to])
    axes.set_xlim(-0.5, max(len(over), 8) - 0.5)
    axes.set_xticks(range(len(over)), over, rotation=90, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _outcome_legend(
    figure: Figure, heading: str, outcomes: dict[str, Outcome], shown: Collection[str], empty: str,
    origins: Collection[str],
) -> None:  # fmt: skip
    """What colours and letters mean, of the outcomes that are there, below what the figure is about."""
    handles = [Patch(color=one.colour, label=one.named) for name, one in outcomes.items() if name in shown]
    handles.append(Patch(facecolor="white", edgecolor=FAINT, label=empty))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=8, alignment="left",
        title="; ".join([heading, *name_inks(origins)]), title_fontproperties={"weight": "bold", "size": 10},
    )  # fmt: skip


def _mark(axes: Axes, places: Sequence[tuple[int, int]], outcome: Outcome) -> None:
    """Cells of one outcome as one shape: a map of thousands takes half a minute of one by one."""
    cell = Shape.unit_rectangle().transformed(Affine2D().translate(-0.5, -0.5).scale(0.92, 0.88))
    shape = Shape.make_compound_path(*(cell.transformed(Affine2D().translate(*place)) for place in places))
    axes.add_artist(PathPatch(shape, facecolor=outcome.colour, linewidth=0))
    if outcome.letter:
        size = max(TextPath((0, 0), outcome.letter, size=8).get_extents().size)  # a mark is scaled by its longer side
        marker = f"$\\mathdefault{{{outcome.letter}}}$"
        across, down = zip(*places, strict=True)
        axes.scatter(across, down, s=size**2, c=outcome.ink, marker=marker, linewidths=0)


def _name_ink(origin: str) -> str:
    return NAME_INKS.get(origin, INK)


def name_inks(origins: Collection[str]) -> list[str]:
    """What the colours of names say, of those that are there: one text, or none."""
    named = [f"in {colour}: {origin}" for origin, colour in COLOURS_SAID.items() if origin in origins]
    return [f"names {', '.join(named)}"] if named else []


def _shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
