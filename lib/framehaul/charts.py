"""Figures and tables with fixed labels and colours, drawn from a summary; nothing here knows a technique by name."""

from __future__ import annotations

import html
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from framehaul.techniques import FAMILIES

DATABASES = {"postgres": "PostgreSQL", "clickhouse": "ClickHouse"}

# Told apart by readers with any colour vision: the first eight after https://jfly.uni-koeln.de/color/
FAMILY_COLOURS = {
    "copy_binary": "#0072B2",
    "copy_text": "#56B4E9",
    "pg_parquet": "#009E73",
    "prepared_fetch": "#CC79A7",
    "row_fetch": "#D55E00",
    "convenience": "#999999",
    "insert_text": "#56B4E9",
    "native_columnar": "#E69F00",
    "http_parquet": "#009E73",
    "http_csv": "#0072B2",
    "arrow": "#882255",
    "http_native": "#CC79A7",
    "engine": "#117733",
    "server": "#dddddd",
}
THOUSAND, MILLION = 1e3, 1e6
INK, PUBLISHED_INK, FAINT = "#222222", "#6a6a6a", "#8a8a8a"
STATUS_INK = {"ok": INK, "skipped": FAINT, "failed": "#B00020"}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "svg.fonttype": "none",  # text stays text: searchable, and small
}


def save(figure: Figure, path: Path) -> str:
    """Write the figure as SVG and return its text."""
    text = svg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    return text


def svg(figure: Figure, salt: str = "framehaul") -> str:
    """The figure as SVG; the same data gives the same bytes.

    The names of its patterns are made from `salt`: where two figures of a page share names, the second has no hatches
    while the first is hidden.
    """
    buffer = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def bars(summary: pl.DataFrame) -> Figure:
    """Median rows/s of one database and direction as horizontal bars, min-max as whiskers.

    Limits come first, apart and hatched. Names of published techniques are grey, of those beyond them black.
    Techniques that did not run, or were wrong, keep their line and say so instead of having a bar.
    """
    database, direction = summary["database"][0], summary["direction"][0]
    rows = summary.sort(pl.col("origin") != "limit", maintain_order=True).to_dicts()
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 0.8 + 0.31 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for at, row in enumerate(rows):
            median = row["median_rows_per_s"]
            if median is None:
                skipped = row["status"] == "skipped"
                word = "skipped (the table says why)" if skipped else f"FAILED: {_shorten(row['reason'], 80)}"
                _note(axes, 0, at, word, STATUS_INK[row["status"]])
                continue
            hatch = "////" if row["origin"] == "limit" else None
            axes.barh(at, median, color=FAMILY_COLOURS[row["family"]], edgecolor="white", hatch=hatch, height=0.72)
            axes.plot([row["min_rows_per_s"], row["max_rows_per_s"]], [at, at], color=INK, linewidth=1.2)
            for end in ("min_rows_per_s", "max_rows_per_s"):
                axes.plot([row[end]] * 2, [at - 0.18, at + 0.18], color=INK, linewidth=1.2)
            mark = " (unstable)" if row["unstable"] else ""
            _note(axes, max(median, row["max_rows_per_s"]), at, f"{thousands(median)}{mark}", INK)
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        for label, row in zip(axes.get_yticklabels(), rows, strict=True):
            label.set_color(PUBLISHED_INK if row["origin"] == "published" else INK)
        limits = sum(row["origin"] == "limit" for row in rows)
        if 0 < limits < len(rows):
            axes.axhline(limits - 0.5, color=FAINT, linewidth=0.8)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, _upper_limit(summary))
        axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
        axes.set_xlabel(
            "rows/s, median of passes (whiskers: slowest and fastest pass)\n"
            "names in grey: published techniques, in black: beyond them; hatched: limits"
        )
        axes.set_title(_title(summary, database, direction), loc="left", fontweight="bold")
        _family_legend(axes, [row["family"] for row in rows])
    return figure


def published_against_measured(summary: pl.DataFrame) -> Figure:
    """Published beside measured mean rows/s, one panel per database and direction, on a logarithmic axis."""
    groups = [
        group.filter(pl.col("published_rows_per_s").is_not_null()).sort("published_rows_per_s", descending=True)
        for _, group in summary.group_by("database", "direction", maintain_order=True)
    ]
    with mpl.rc_context(STYLE):
        heights = [len(group) + 2 for group in groups]
        figure = Figure(figsize=(10.5, 0.25 * sum(heights) + 0.6), layout="constrained")
        panels = figure.subplots(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
        for axes, group in zip(panels, groups, strict=True):
            for at, row in enumerate(group.to_dicts()):
                published, measured = row["published_rows_per_s"], row["mean_rows_per_s"]
                if measured is None:
                    _note(axes, published, at, f"not measured here: {row['status']}", FAINT)
                else:
                    axes.plot([published, measured], [at, at], color="#cccccc", linewidth=2, zorder=1)
                    axes.scatter(measured, at, color=FAMILY_COLOURS[row["family"]], s=38, zorder=3)
                axes.scatter(published, at, facecolor="white", edgecolor=INK, s=30, zorder=2)
            axes.set_yticks(range(len(group)), group["label"].to_list())
            axes.invert_yaxis()
            axes.tick_params(axis="y", length=0)
            axes.set_xscale("log")
            axes.margins(x=0.06)
            axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
            axes.xaxis.set_minor_formatter(lambda value, _: thousands(value) if f"{value:e}"[0] in "25" else "")
            axes.grid(axis="x", which="both", color="#eeeeee")
            axes.set_axisbelow(True)
            axes.set_title(f"{DATABASES[group['database'][0]]} {group['direction'][0]}", loc="left", fontweight="bold")
        panels[-1].set_xlabel("rows/s, mean of passes: ring = published, dot = measured here")
    return figure


@dataclass(frozen=True)
class Outcome:
    """What a cell of an outcome map can be: its colour, its letter, and what that means."""

    colour: str
    letter: str
    meaning: str


def outcome_map(
    cells: pl.DataFrame, title: str, across: str, order: list[str], kind: str, outcomes: dict[str, Outcome], empty: str
) -> Figure:
    """A heat map of techniques by what the column `across` holds, in that order; `kind` is the outcome's column.

    `empty` says what a place without a cell means.
    """
    labels = cells["label"].unique(maintain_order=True).to_list()
    found = set(cells[across])
    columns = [name for name in order if name in found]
    at = {(row["label"], row[across]): outcomes[row[kind]] for row in cells.to_dicts()}
    origins = dict(cells.select("label", "origin").iter_rows())
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 3.2 + 0.21 * len(labels)), layout="constrained")
        axes = figure.subplots()
        for y, label in enumerate(labels):
            for x, column in enumerate(columns):
                if outcome := at.get((label, column)):
                    axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, color=outcome.colour, linewidth=0))
                    axes.text(x, y, outcome.letter, ha="center", va="center", fontsize=7)
        axes.set_xlim(-0.5, max(len(columns), 8) - 0.5)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xticks(range(len(columns)), columns, rotation=55, ha="right", fontsize=8)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        for tick, label in zip(axes.get_yticklabels(), labels, strict=True):
            tick.set_color(PUBLISHED_INK if origins[label] == "published" else INK)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        shown = set(cells[kind])
        legend = [Patch(color=one.colour, label=one.meaning) for name, one in outcomes.items() if name in shown]
        legend.append(Patch(facecolor="white", edgecolor=FAINT, label=empty))
        figure.legend(handles=legend, loc="outside upper right", ncols=4, frameon=False, fontsize=8)
    return figure


def text_table(header: list[str], rows: list[list[str]]) -> str:
    """An HTML table of text, which may hold markup, left-aligned and wrapped."""
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="results"><style>{TABLE_CSS}</style><table class="texts"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def html_table(summary: pl.DataFrame) -> str:
    """The summary of one database and direction as an HTML table that scrolls sideways where it must."""
    header = ["technique", "origin", "avg s", "mean rows/s", "min", "max", "median", "ratio to best published",
              "dtypes", "client CPU s", "server CPU s", "peak RSS", "wire"]  # fmt: skip
    body: list[str] = []
    for row in summary.to_dicts():
        label = html.escape(row["label"])
        if row["median_rows_per_s"] is None:
            reason = html.escape(row["reason"] or "")
            body.append(
                f'<tr class="{row["status"]}"><th>{label}</th><td>{row["origin"]}</td>'
                f'<td colspan="11">{row["status"]}: {reason}</td></tr>'
            )
            continue
        cells = [
            row["origin"],
            f"{row['avg_s']:.4f}",
            *(f"{row[name]:,.0f}" for name in ("mean_rows_per_s", "min_rows_per_s", "max_rows_per_s")),
            f"{row['median_rows_per_s']:,.0f}{' ±' if row['unstable'] else ''}",
            ratio_text(row),
            html.escape(dtypes_text(row["dtypes"] or "")),
            _seconds(row["client_cpu_s"]),
            _seconds(row["server_cpu_s"]),
            _megabytes(row["peak_rss_bytes"]),
            _megabytes(row["wire_bytes"]),
        ]
        body.append(f"<tr><th>{label}</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in header)
    return (
        f'<div class="results"><style>{TABLE_CSS}</style><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table><p>± : coefficient of variation over 10%, read with care. "
        "Ratio: of medians, with a bootstrap 95% interval over rounds. CPU and wire bytes: medians; "
        "RSS: highest growth during a pass. An empty cell could not be measured.</p></div>"
    )


TABLE_CSS = """
.results { overflow-x: auto; } .results table { border-collapse: collapse; font-size: 11px; }
.results th, .results td { padding: 3px 8px; text-align: right; white-space: nowrap; }
.results td:nth-child(9) { white-space: normal; font-size: 10px; text-align: left; }
.results th:first-child, .results td[colspan] { text-align: left; font-weight: normal; }
.results td[colspan] { white-space: normal; }
.results .texts th, .results .texts td { text-align: left; white-space: normal; vertical-align: top; font-size: 11px; }
.results tbody tr { border-top: 1px solid #e4e4e4; } .results thead th { border-bottom: 1px solid #888; }
.results .skipped { color: #777; } .results .failed { color: #B00020; } .results p { font-size: 11px; color: #555; }
"""


def markdown_table(header: list[str], rows: list[list[str]], text_columns: int = 1) -> str:
    """A Markdown table; numbers, that is all but the first `text_columns`, are set to the right."""
    lines = [header, ["---"] * text_columns + ["---:"] * (len(header) - text_columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def dtypes_text(dtypes: str) -> str:
    """Drifted dtypes with columns that drift alike together: `source_id, metric_1: Int64; event_date: String`."""
    if ":" not in dtypes:
        return dtypes
    columns: dict[str, list[str]] = {}
    for pair in dtypes.split(";"):
        name, _, dtype = pair.rpartition(":")
        columns.setdefault(dtype, []).append(name)
    return "; ".join(f"{', '.join(names)}: {dtype}" for dtype, names in columns.items())


def ratio_text(row: dict[str, Any]) -> str:
    """A ratio with its interval, as `1.23x (1.10 to 1.31)`."""
    if row["ratio"] is None or math.isnan(row["ratio"]):
        return ""
    return f"{row['ratio']:.2f}x ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


def thousands(value: float) -> str:
    """A number of rows/s as a reader says it: 950, 42k, 1.35M."""
    if abs(value) >= MILLION:
        return f"{value / MILLION:.2f}".rstrip("0").rstrip(".") + "M"
    return f"{value / THOUSAND:.0f}k" if abs(value) >= THOUSAND else f"{value:.0f}"


def _note(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    """Text to the right of a point, clear of whatever ends there."""
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", color=colour)


def _title(summary: pl.DataFrame, database: str, direction: str) -> str:
    passes = max(summary["passes"].to_list())
    return f"{DATABASES[database]} {direction}: {summary['rows'][0]:,} rows, {passes} pass{'es' if passes != 1 else ''}"


def _upper_limit(summary: pl.DataFrame) -> float:
    """Room for the fastest bar and the number behind it."""
    return float(max(summary["max_rows_per_s"].drop_nulls().to_list(), default=1.0)) * 1.14


def _family_legend(axes: Axes, families: list[str]) -> None:
    present = [family for family in FAMILIES if family in families]
    patches = [Patch(color=FAMILY_COLOURS[family], label=FAMILIES[family]) for family in present]
    axes.legend(handles=patches, loc="lower right", frameon=False)


def _shorten(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.1f} MB"
