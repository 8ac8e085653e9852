"""Render a comparison of two runs as Markdown, which is legible in a terminal too, or as CSV."""

from __future__ import annotations

import textwrap
from typing import Literal, get_args

from framehaul.bench.compare import LEAST_PASSES, Comparison, Run, Verdict
from framehaul.reporting.tables import Row, machines_text, markdown_table, thousands
from framehaul.techniques.registry import DATABASES

Format = Literal["markdown", "csv"]
HEADER = ("verdict", "study", "direction", "technique", "rows", "A rows/s", "B rows/s", "B/A (interval)", "why")
NUMERIC = [name in ("rows", "A rows/s", "B rows/s", "B/A (interval)") for name in HEADER]


def render(comparison: Comparison, form: Format = "markdown") -> str:
    """Return a comparison as Markdown, or its rows as CSV."""
    if form == "csv":
        return comparison.rows.write_csv()
    head = [f"- {name}: {run.name}, {_made(run)}" for name, run in (("A", comparison.a), ("B", comparison.b))]
    head += [f"- WARNING: {text}" for text in comparison.warnings]
    if comparison.changes:
        head.append(f"- changed: {', '.join(comparison.changes)}")
    table = markdown_table(HEADER, map(_cells, comparison.rows.to_dicts()), NUMERIC)
    return "\n".join([*head, "", table, "", *(f"- {line}" for line in _totals(comparison))])


def _cells(row: Row) -> list[str]:
    direction, why = f"{DATABASES[row['database']]} {row['direction']}", row["why"] or ""
    names = [row["verdict"], row["notebook"][:2], direction, row["technique"], f"{row['rows']:,}"]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}x"
    if row["ratio_low"] is not None:
        ratio += f" ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"
    return [*names, _speed(row, ""), _speed(row, "_b"), ratio, textwrap.shorten(why, 100, placeholder=" ...")]


def _speed(row: Row, run: str) -> str:
    median, slowest, fastest = (row[f"{name}_rows_per_s{run}"] for name in ("median", "min", "max"))
    return "" if median is None else f"{thousands(median)} ({thousands(slowest)} to {thousands(fastest)})"


def _totals(comparison: Comparison) -> list[str]:
    """Return the numbers of verdicts, and the rule behind them."""
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    lines = [f"{len(comparison.rows)} in all: {counts}"]
    if comparison.drift is not None:
        lines.append(f"median ratio of all: {comparison.drift:.2f}x; far from 1 the machine itself has changed")
    if comparison.compared:
        lines.append(
            "slower: every pass of B is below every pass of A, by more than passes scatter. Of twenty comparisons of "
            "equal runs, one marks anything. Intervals are of 95%"
        )
    else:
        lines.append(f"no speed could be compared: that takes {LEAST_PASSES} passes in both runs")
    return lines


def _made(run: Run) -> str:
    """Return the date and the machine of a run."""
    notebooks = {*run.passes["notebook"]} & {*run.metadata["runs"]}
    runs = [run.metadata["runs"][name] for name in sorted(notebooks)]
    started = max((one["started"] for one in runs), default="date not known")
    return f"{started}, machine: {machines_text(run.metadata, runs) or 'unknown'}"
