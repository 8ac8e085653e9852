"""A comparison of two runs as text, Markdown or CSV."""

from __future__ import annotations

import textwrap
from typing import Any, Literal, get_args

import polars as pl

from framehaul.reporting.tables import markdown_table, ratio_text, thousands
from framehaul.results.compare import FAMILY_LEVEL, LEAST_PASSES, Comparison, Run, Verdict
from framehaul.techniques.registry import DATABASES

Format = Literal["text", "markdown", "csv"]


def render(found: Comparison, form: Format = "text") -> str:
    """A comparison as text for a terminal, as Markdown, or its rows as CSV."""
    if form == "csv":
        return found.found.write_csv()
    header, rows = cells(found.found)
    table = markdown_table(header, rows, text_columns=TEXT_COLUMNS) if form == "markdown" else _aligned(header, rows)
    mark = "- " if form == "markdown" else "  "
    head = [
        f"{mark}{name}: {run.name}, {_made(run)}" for name, run in (("A", found.a), ("B", found.b))
    ] + [f"{mark}WARNING: {text}" for text in found.warnings]  # fmt: skip
    if found.changes:
        head.append(f"{mark}changed: {', '.join(found.changes)}")
    return "\n".join([*head, "", table, "", *(f"{mark}{line}" for line in sums(found))])


TEXT_COLUMNS = 4


def cells(found: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table; the first `TEXT_COLUMNS` are text, the rest but the last are numbers."""
    header = ["verdict", "study", "direction", "technique", "rows", "A rows/s", "B rows/s", "B/A (interval)"]
    rows = [
        [
            row["verdict"], row["notebook"][:2], f"{DATABASES[row['database']]} {row['direction']}", row["technique"],
            f"{row['rows']:,}", _speed(row, ""), _speed(row, "_b"), _ratio(row),
            "" if row["relative"] is None else f"{row['relative']:.2f}x",
            textwrap.shorten(row["why"], 100, placeholder=" ..."),
        ]
        for row in found.to_dicts()
    ]  # fmt: skip
    return [*header, "relative", "why"], rows


def sums(found: Comparison) -> list[str]:
    """What all rows come to, and by which rule."""
    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    lines = [f"{len(found.found)} in all: {counts}"]
    if found.drift is not None:
        lines.append(
            f"median ratio of the {found.shared} that both have a speed of: {found.drift:.2f}x"
            + (
                ": ratios are relative to it"
                if found.by == "relative"
                else "; the column relative is the ratio over it"
            )
        )
    if found.compared:
        lines.append(
            f"slower: every pass of B below every pass of A, and the ratio's interval below 1. The intervals of all "
            f"{found.compared} hold together at {FAMILY_LEVEL:.0%}"
        )
    else:
        lines.append(f"no speed could be compared: that takes {LEAST_PASSES} passes in both runs")
    return lines


def _speed(row: dict[str, Any], run: str) -> str:
    if row[f"median_rows_per_s{run}"] is None:
        return ""
    low, high = row[f"min_rows_per_s{run}"], row[f"max_rows_per_s{run}"]
    return f"{thousands(row[f'median_rows_per_s{run}'])} ({thousands(low)} to {thousands(high)})"


def _ratio(row: dict[str, Any]) -> str:
    if row["ratio_low"] is None:
        return "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
    return ratio_text(row)


def _made(run: Run) -> str:
    """When and where a run was made."""
    machine = run.metadata.get("machine")
    started = sorted(
        made["started"] for name, made in run.metadata["runs"].items() if name in set(run.passes["notebook"])
    )
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB" if machine else "machine not known"
    )
    return f"{started[-1] if started else 'date not known'}, {where}"


def _aligned(header: list[str], rows: list[list[str]]) -> str:
    """Columns set apart by two spaces, those of numbers to the right."""
    lines = [header, *rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]
    numbers = range(TEXT_COLUMNS, len(header) - 1)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in numbers else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
