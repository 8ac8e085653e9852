"""Figures and tables with fixed labels and colours, drawn from a summary; nothing here knows a technique by name."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from framehaul.reporting.tables import thousands
from framehaul.techniques import FAMILIES
from framehaul.techniques.registry import DATABASES

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
