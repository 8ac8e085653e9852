"""Draw figures from frames of medians, with fixed labels and colors; no technique is named here."""

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import polars as pl
from IPython.display import SVG
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from framehaul.reporting.tables import Row, heading_and_form, thousands
from framehaul.settings import load_settings
from framehaul.techniques import FAMILIES
from framehaul.techniques.registry import DATABASES, DRIVERS

# Readers with any color vision can distinguish these, after https://jfly.uni-koeln.de/color/
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#117733", "#999999",
    "#332288", "#44AA99", "#661100", "#999933",
)  # fmt: skip
_OF_FAMILIES = """
#0072B2 #56B4E9 #009E73 #CC79A7 #D55E00 #999999 #D55E00 #56B4E9
#E69F00 #009E73 #0072B2 #882255 #CC79A7 #117733 #332288 #dddddd
"""
FAMILY_COLORS = dict(zip(FAMILIES, _OF_FAMILIES.split(), strict=True))
"""The colors of families in the order of techniques/names.tsv; families of different databases share some."""
INK, FAINT = "#222222", "#767676"
DARK = 1.1  # a color is dark if its red, green and blue add up to less
VERDICT_COLORS = {"faster": PALETTE[0], "slower": PALETTE[1], "inconclusive": FAINT, "not measured": FAINT}
DASHES = ("-", "--", ":", "-.")
NAME_INKS = {"published": "#6a6a6a", "everyday": "#8a3ab9"}
"""The colors of techniques' names by origin; other names are black."""
INK_NAMES = {"published": "grey", "everyday": "purple"}

STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the second is as wide, for readers without the first
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "xtick.minor.pad": 5,  # numbers of minor ticks line up with those of major ticks
    "ytick.minor.pad": 5,
    "svg.fonttype": "none",  # text stays text: searchable, and small
}


CLIP = re.compile(r"\bp[0-9a-f]{10}\b")
"""The id of a clip path, a hash of all digits of its place: layout does not always round the last one alike."""


def svg(figure: Figure, name: str) -> str:
    """Return the figure as SVG; the same data gives the same bytes, and another name other ids, as a page needs."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": "framehaul"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    numbered = {found: f"{name}-{at}" for at, found in enumerate(dict.fromkeys(CLIP.findall(text)))}
    return CLIP.sub(lambda found: numbered[found[0]], text)


def shown(figure: Figure, name: str) -> SVG:
    """Save a figure as `OUT/figures/<name>.svg` and show it.

    Its text alternative is the titles of its panels, or of its legend.
    """
    text, path = svg(figure, name), load_settings().out / "figures" / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    titles = "; ".join(filter(None, (axes.get_title("left") for axes in figure.axes)))
    described = " ".join((titles or " ".join(legend.get_title().get_text() for legend in figure.legends)).split())
    return SVG(text, metadata={"alt": described or name.replace("_", " "), "figure": path.name})


def name_lines(axes: Axes, labels: Sequence[str], origins: Sequence[str] = (), size: float | None = None) -> None:
    """Name the lines of a panel from the top; `origins` decide the colors of names."""
    axes.set_yticks(range(len(labels)), labels, fontsize=size)
    for label, origin in zip(axes.get_yticklabels(), origins, strict=False):
        label.set_color(NAME_INKS.get(origin, INK))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def amount(value: float) -> str:
    """Return a round number on an axis as text: `500`, `1.5k`, `2M`, `1G`, `0.02`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


SHORT, LONG = 5, 1e5
"""Ratios of the ends of a logarithmic axis: below the first all ticks have numbers, from the second powers of ten."""


def quantities(axis: Axis, form: Callable[[float], str] = amount, *, logarithmic: bool = False) -> None:
    """Write the numbers of an axis with `form`.

    A logarithmic axis has numbers at powers of ten, and at twice and five times these, with the exceptions of `SHORT`
    and `LONG`.
    """

    def between(value: float, _: object) -> str:
        low, high = axis.get_view_interval()
        numbered = "123456789" if high < SHORT * low else "25" if high < LONG * low else ""
        return form(value) if f"{value:e}"[0] in numbered else ""

    if logarithmic:
        axis.axes.set(**{"xscale" if axis is axis.axes.xaxis else "yscale": "log"})
        axis.set_minor_formatter(between)
    axis.set_major_formatter(lambda value, _: form(value))


NOTE: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 8}


def _bar(axes: Axes, at: float, row: Row, column: str, color: str, height: float) -> None:
    """Draw the median in a column as a bar, with whiskers from `min_` to `max_`, or write why there is no median."""
    median = row[column]
    if median is None:
        skipped = row["status"] == "skipped"
        text = "skipped (the table says why)" if skipped else f"FAILED: {row.get('reason') or '':.32}"
        axes.annotate(text, (0, at), color=FAINT if skipped else "#B00020", **NOTE)
        return
    low, high = row.get(f"min_{column}", median), row.get(f"max_{column}", median)
    axes.barh(at, median, color=color, edgecolor="white", height=height)
    axes.plot([low, high], [at, at], color=INK, linewidth=1.2)
    for end in (low, high):
        axes.plot([end] * 2, [at - height / 4, at + height / 4], color=INK, linewidth=1.2)
    text = heading_and_form(column)[1](median)
    axes.annotate(f"{text} ±" if row.get("unstable") else text, (max(median, high), at), color=INK, **NOTE)


def bars(
    medians: pl.DataFrame,
    *,
    name: str,
    y: str = "label",
    x: str = "rows_per_s",
    color: str = "family",
    panel: str = "",
    columns: int = 1,
) -> SVG | None:
    """Draw medians as horizontal bars, with the slowest and the fastest pass as whiskers, and save them as `name`.

    Lines are the values of `y` in order of appearance; rows with the same value are bars side by side, distinguished by
    `color`. `panel` is a column with a panel for each value, in `columns` columns. A row that was skipped or failed has
    a text instead of a bar. The column `origin`, where there is one, decides the colors of names.
    """
    parts, colors = _parts(medians, panel), _colors(medians, color)
    counts = [Counter(part[y]) for _, part in parts]
    heights = [0.7 + 0.24 * max(1.0, max(count.values()) * 0.6) * len(count) for count in counts]

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        count, seen = Counter(part[y]), Counter[Any]()
        names, thick = [*count], 0.8 / max(count.values())
        for row in part.to_dicts():
            at = names.index(row[y]) + (seen[row[y]] - count[row[y]] / 2 + 0.5) * thick
            seen[row[y]] += 1
            _bar(axes, at, row, x, colors[row[color]], thick * 0.9)
        origins = dict(part.select(y, "origin").iter_rows()) if "origin" in part.columns else {}
        name_lines(axes, names, [origins.get(one, "") for one in names])
        axes.margins(x=0.16)
        axes.set_xlim(left=0)
        quantities(axes.xaxis)

    about = f"{heading_and_form(x)[0]}, median of passes (whiskers: slowest and fastest; ±: they vary by more than 10%)"
    height, each = 0.9 + sum(heights) / columns, heights if columns == 1 else None
    return _chart(name, parts, draw, about, colors, columns=columns, height=height, height_ratios=each)


def lines(
    medians: pl.DataFrame,
    *,
    name: str,
    x: str = "rows",
    y: str = "rows_per_s",
    color: str = "technique",
    panel: str = "",
    dash: str = "",
    log: str = "xy",
) -> SVG | None:
    """Draw `y` against `x`, a line for each value of `color` and `dash`, and save the figure as `name`.

    `panel` is a column with a panel for each value; `log` names the logarithmic axes. Columns `min_` and `max_` of `y`
    are drawn as whiskers. Values of `x` that are not numbers are in order of appearance.
    """
    parts, colors = _parts(medians, panel), _colors(medians, color)
    dashes = dict(zip(medians[dash].unique(maintain_order=True), DASHES, strict=False)) if dash else {}
    places, numeric = medians[x].unique(maintain_order=True).to_list(), medians[x].dtype.is_numeric()

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        for value, rows in part.drop_nulls(y).group_by([color, dash] if dash else [color], maintain_order=True):
            line = rows.sort(x) if numeric else rows
            at = line[x].to_list() if numeric else [places.index(one) for one in line[x]]
            style, ink = dashes[value[1]] if dash else "-", colors[value[0]]
            axes.plot(at, line[y].to_list(), style, color=ink, marker="o", markersize=3.5)
            if f"min_{y}" in line.columns:
                axes.vlines(at, line[f"min_{y}"].to_list(), line[f"max_{y}"].to_list(), ink, linewidth=0.8)
        quantities(axes.yaxis, logarithmic="y" in log)
        if numeric:
            quantities(axes.xaxis, logarithmic="x" in log)
        else:
            axes.set_xticks(range(len(places)), [str(one).replace(", ", "\n") for one in places], fontsize=8)
        if "y" not in log:
            axes.set_ylim(bottom=0)
        axes.grid(which="major", color="#eeeeee")
        axes.set_xlabel(heading_and_form(x)[0], fontsize=8)

    about = [f"{heading_and_form(y)[0]}, median of passes", *(f"{style}: {value}" for value, style in dashes.items())]
    columns, height = min(2, len(parts)), 0.9 + 3.2 * -(-len(parts) // 2)
    return _chart(name, parts, draw, "; ".join(about), colors, columns=columns, height=height)


def intervals(ratios: pl.DataFrame, *, name: str, color: str) -> SVG | None:
    """Draw the column `ratio` with `ratio_low` and `ratio_high` as lines named by `label`, and save them as `name`."""
    colors, measured = _colors(ratios, color), ratios["ratio"].count()

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        rows = part.drop_nulls("ratio").to_dicts()
        for at, row in enumerate(rows):
            ink = colors[row[color]]
            axes.plot([row["ratio_low"], row["ratio_high"]], [at, at], color=ink, linewidth=2)
            axes.scatter(row["ratio"], at, color=ink, s=36, zorder=3)
        axes.set_xscale("log", base=2)
        axes.axvline(1, color=INK, linewidth=0.8)
        name_lines(axes, [row["label"] for row in rows])
        low, high = axes.get_xlim()
        quantities(axes.xaxis, "{:g}x".format, logarithmic=high < SHORT * low)  # few powers of two are on a short axis
        axes.grid(axis="x", color="#eeeeee")
        axes.set_xlabel("ratio, logarithmic; line: range of rounds, from six rounds on a 95% interval", loc="right")

    return _chart(name, _parts(ratios), draw, color, colors, height=1.2 + 0.3 * measured)


def points(
    frame: pl.DataFrame, *, name: str, x: str, y: str, color: str, panel: str, label: str = "", log: str = ""
) -> SVG | None:
    """Draw rows as points, distinguished by `color` and, if given, named by `label`; save the figure as `name`."""
    parts, colors = _parts(frame, panel), _colors(frame, color)

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        for row in part.drop_nulls([x, y]).to_dicts():
            axes.scatter(row[x], row[y], color=colors[row[color]], s=34, zorder=3)
            if label and row[label]:
                axes.annotate(row[label], (row[x], row[y]), xytext=(5, 3), textcoords="offset points", fontsize=8)
        quantities(axes.xaxis, logarithmic="x" in log)
        quantities(axes.yaxis, logarithmic="y" in log)
        axes.grid(color="#eeeeee")
        axes.set(xlabel=heading_and_form(x)[0], ylabel=heading_and_form(y)[0])

    return _chart(name, parts, draw, color.replace("_", " "), colors, columns=len(parts), height=5)


type Draw = Callable[[Axes, pl.DataFrame], None]
type Explain = Callable[[Figure], None]
type Parts = Sequence[tuple[str, pl.DataFrame]]


def _parts(frame: pl.DataFrame, panel: str = "") -> Parts:
    """Return the title and the rows of each panel; an empty frame has no panels."""
    if frame.is_empty():
        return []
    if not panel:
        return [("", frame)]
    return [(str(DATABASES.get(about, about)), part) for (about,), part in frame.group_by(panel, maintain_order=True)]


def _chart(name: str, parts: Parts, draw: Draw, about: str, colors: Mapping[Any, str], **layout: Any) -> SVG | None:
    """Draw the panels, explain the colors if there are several, and save the figure as `name`, unless it is empty."""

    def explain(figure: Figure) -> None:
        if len(colors) <= 1:
            figure.supxlabel(about, x=0.01, ha="left", fontsize=8)
            return
        names = {str(FAMILIES.get(value) or DATABASES.get(value, value)): ink for value, ink in colors.items()}
        columns = max(1, 150 // (6 + max(map(len, names))))  # a line of a legend has 150 characters
        handles = [Patch(color=ink, label=name) for name, ink in names.items()]
        how: dict[str, Any] = {"loc": "outside lower left", "frameon": False, "alignment": "left"}
        figure.legend(handles=handles, ncols=columns, fontsize=8, title=about, **how)

    return shown(_figure(parts, draw, explain, **layout), name) if parts else None


def _figure(parts: Parts, draw: Draw, explain: Explain, height: float, columns: int = 1, **grid: Any) -> Figure:
    """Lay out the panels in a figure of a height in inches, draw and explain them."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, height), layout="constrained")
        panels = figure.subplots(-(-len(parts) // columns), columns, squeeze=False, **grid).flat
        for axes in panels[len(parts) :]:
            axes.set_axis_off()
        for axes, (about, part) in zip(panels, parts, strict=False):
            axes.set_axisbelow(True)
            draw(axes, part)
            axes.set_title(about, loc="left", fontweight="bold", fontsize=9)
        explain(figure)
    return figure


def _colors(frame: pl.DataFrame, column: str) -> dict[Any, str]:
    """Return the color of each value of a column: families and verdicts have fixed ones."""
    values = frame[column].unique(maintain_order=True).to_list()
    if fixed := {"family": FAMILY_COLORS, "verdict": VERDICT_COLORS}.get(column):
        return {value: ink for value, ink in fixed.items() if value in values}
    return {value: PALETTE[at % len(PALETTE)] for at, value in enumerate(values)}


GLANCE_INK = "#7d858f"
"""The color of text and axes, legible on a light and on a dark background."""
GLANCE: dict[str, tuple[str, str, str]] = {
    "published": ("published techniques", "#8b939c", "o"),
    "everyday": ("called without a choice", "#b07cc6", "X"),
    "beyond": ("ours, append or read", "#2f8fd0", "o"),
    "bulk_load": ("ours, bulk load", "#dd7a2b", "D"),
    "framehaul": ("framehaul.write, framehaul.read", "#3a9d5d", "^"),
    "baseline": ("the server alone", "#8b939c", "|"),
}
"""The kinds of techniques: the name, the color and the mark of each."""


def at_a_glance(summary: pl.DataFrame) -> Figure:
    """Draw every technique as a mark at its median rows/s, with a strip for each direction, on one logarithmic axis.

    The best published technique and the fastest of ours are named. The background is transparent, and all colors are
    legible on white and on black. The figure is narrow enough for a telephone.
    """
    rows = summary.filter(pl.col("median_rows_per_s").is_not_null()).with_columns(
        pl.when(contract="bulk_load", origin="beyond").then(pl.lit("bulk_load")).otherwise("origin").alias("kind")
    )
    groups = rows.partition_by("database", "direction", maintain_order=True)
    speeds, sizes = rows["median_rows_per_s"].to_list(), sorted(set(rows["rows"].to_list()))
    of_rows = f"{'up to ' if len(sizes) > 1 else ''}{sizes[-1]:,} rows" if sizes else "no rows"

    def draw(axes: Axes, _: pl.DataFrame) -> None:
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

    def explain(figure: Figure) -> None:
        figure.set_figwidth(6.4)
        figure.patch.set_alpha(0)
        kinds = [GLANCE[kind] for kind in GLANCE if kind in set(rows["kind"])]
        handles = [Line2D([], [], ls="", marker=mark, c=color, label=name, ms=7) for name, color, mark in kinds]
        figure.legend(
            handles=handles, loc="outside upper right", ncols=2, frameon=False, labelcolor=GLANCE_INK,
            handletextpad=0.2, columnspacing=1.2,
        )  # fmt: skip

    return _figure([("", rows)], draw, explain, 1.1 + 1.3 * len(groups))


def _strip(axes: Axes, at: int, group: pl.DataFrame) -> None:
    """Draw one direction: published techniques in an upper line, ours in a lower line, the server alone between."""
    lines = dict.fromkeys(GLANCE, 0.12) | {"published": -0.1, "everyday": -0.1, "baseline": 0.01}
    for kind, (_, color, mark) in GLANCE.items():
        speeds = group.filter(kind=kind)["median_rows_per_s"].to_list()
        size = 420 if mark == "|" else 46
        axes.scatter(speeds, [at + lines[kind]] * len(speeds), s=size, marker=mark, color=color, alpha=0.75, zorder=2)
    best = {  # among those that moved the most rows: few rows are faster, mostly into an index
        kind: group.filter(kind=kind).sort("rows", "median_rows_per_s", descending=True).row(0, named=True)
        for kind in ("published", "beyond", "bulk_load") if kind in set(group["kind"])
    }  # fmt: skip
    ours = sorted((row["median_rows_per_s"], kind) for kind, row in best.items() if kind != "published")
    # Two names below one line must not overlap: one ends at the mark of the slower, one begins at that of the faster.
    sides = {kind: side for (_, kind), side in zip(ours, ("right", "left"), strict=False)} if len(ours) > 1 else {}
    for kind, row in best.items():
        above = kind == "published"
        axes.annotate(
            f"{DRIVERS[row['driver']]}\n{FAMILIES[row['family']]}: {thousands(row['median_rows_per_s'])}",
            (row["median_rows_per_s"], at + (-0.19 if above else 0.2)), va="bottom" if above else "top",
            ha=sides.get(kind, "center"), fontsize=9, color=GLANCE_INK if above else GLANCE[kind][1],
        )  # fmt: skip


class Outcome(NamedTuple):
    """An outcome of a cell of an outcome map."""

    color: str
    letter: str
    meaning: str


def outcomes(
    cells: pl.DataFrame,
    *,
    name: str,
    heading: str,
    x: str,
    outcome: str,
    outcomes: Mapping[str, Outcome],
    empty: str = "not tried",
    group: str = "",
    panel: str = "",
) -> SVG | None:
    """Draw the outcome of each technique with each value of `x` as colored cells, and save the figure as `name`.

    Cells have the columns `label` and `origin`; the column `outcome` has keys of `outcomes`. Values of `x` are in order
    of appearance, those of one `group` together, with a line between groups. `panel` is a column with a map for each
    value; a single map has the techniques across if there are more values of `x`. `heading` is the title, and `empty`
    explains a place without a cell.
    """
    if cells.is_empty():
        return None
    about = dict(cells.select(x, group).iter_rows()) if group else {}
    values = cells[x].unique(maintain_order=True).to_list()
    order = [value for each in dict.fromkeys(about.values()) for value in values if about[value] == each] or values
    borders = [at for at in range(1, len(order)) if group and about[order[at]] != about[order[at - 1]]]
    parts, turned = _parts(cells, panel), not panel and len(order) > cells["label"].n_unique()

    def draw(axes: Axes, part: pl.DataFrame) -> None:
        origins = dict(part.select("label", "origin").iter_rows())
        across, down = ([*origins], order) if turned else (order, [*origins])
        for (value,), marked in part.group_by(outcome, maintain_order=True):
            places = marked.select("label", x).rows() if turned else marked.select(x, "label").rows()
            xs, ys = zip(*((across.index(one), down.index(other)) for one, other in places), strict=True)
            color, letter = outcomes[value].color, outcomes[value].letter
            # Thick lines in one collection: thousands of shapes take half a minute.
            axes.hlines(ys, [at - 0.46 for at in xs], [at + 0.46 for at in xs], color, linewidth=10)
            if letter:
                ink = INK if sum(to_rgb(color)) > DARK else "white"
                axes.scatter(xs, ys, s=32, c=ink, marker=f"$\\mathdefault{{{letter}}}$", linewidths=0, zorder=3)
        axes.set_xlim(-0.5, max(len(across), 8) - 0.5)
        axes.set_xticks(range(len(across)), across, rotation=90, fontsize=8)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        name_lines(axes, down, [] if turned else [*origins.values()], 8)
        if panel:
            axes.tick_params(top=False, labeltop=part is parts[0][1], labelbottom=part is parts[-1][1])
        else:
            axes.xaxis.tick_top()
        for label in axes.get_xticklabels()[: len(origins)] if turned else []:
            label.set_color(NAME_INKS.get(origins[label.get_text()], INK))
        for at in borders:
            (axes.axhline if turned else axes.axvline)(at - 0.5, color=INK, linewidth=1.2)

    def explain(figure: Figure) -> None:
        handles = [
            Patch(color=one.color, label=f"{one.letter}: {one.meaning}" if one.letter else one.meaning)
            for value, one in outcomes.items()
            if value in set(cells[outcome])
        ]
        handles.append(Patch(facecolor="white", edgecolor=FAINT, label=empty))
        inks = [f"in {ink}: {one}" for one, ink in INK_NAMES.items() if one in set(cells["origin"])]
        figure.legend(
            handles=handles, loc="outside upper left", ncols=3, frameon=False, fontsize=8, alignment="left",
            title=f"{heading}; names {', '.join(inks)}" if inks else heading,
            title_fontproperties={"weight": "bold", "size": 10},
        )  # fmt: skip

    lines = [len(order) if turned else part["label"].n_unique() for _, part in parts]
    words = 0.066 * max(map(len, cells["label" if turned else x]), default=0)
    height = 1.2 + 0.17 * sum(lines) + (0.4 * len(parts) + 2 * words if panel else words)
    return shown(_figure(parts, draw, explain, height=height, height_ratios=lines if panel else None), name)
