"""Render a comparison of two runs as Markdown, which is legible in a terminal too."""

import textwrap
from functools import partial
from typing import get_args

import polars as pl

from framehaul.bench.compare import LEAST_PASSES, Comparison, Run, Verdict
from framehaul.reporting import tables
from framehaul.techniques.registry import DATABASES

TITLES = {"a_rows_per_s": "A rows/s", "b_rows_per_s": "B rows/s", "ratio": "B/A (interval)"}


def render(comparison: Comparison) -> str:
    """Return a comparison as Markdown."""
    head = [f"- {name}: {run.name}, {_made(run)}" for name, run in (("A", comparison.a), ("B", comparison.b))]
    head += [f"- WARNING: {text}" for text in comparison.warnings]
    head += [f"- changed: {', '.join(comparison.changes)}"] if comparison.changes else []
    speeds = {
        f"{run}_rows_per_s{end}": f"{name}_rows_per_s{suffix}"
        for run, suffix in (("a", ""), ("b", "_b"))
        for name, end in (("median", ""), ("min", "_low"), ("max", "_high"))
    }
    direction = pl.format("{} {}", pl.col("database").replace_strict(DATABASES), "direction")
    why = pl.col("why").map_elements(partial(textwrap.shorten, width=100, placeholder=" ..."), pl.String)
    table = comparison.rows.with_columns(study=pl.col("notebook").str.head(2), direction=direction, why=why, **speeds)
    table = table.select("verdict", "study", "direction", "technique", "rows", *speeds, "^ratio.*$", "why")
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    foot = [f"- {len(comparison.rows)} in all: {counts}"]
    if comparison.drift is not None:
        foot.append(f"- median ratio of all: {comparison.drift:.2f}x; far from 1 the machine itself has changed")
    foot.append(
        "- slower: every pass of B is below every pass of A, by more than passes scatter. Of twenty comparisons of "
        "equal runs, one marks anything. Intervals are of 95%"
        if comparison.compared
        else f"- no speed could be compared: that takes {LEAST_PASSES} passes in both runs"
    )
    return "\n".join([*head, "", str(tables.show(table, titles=TITLES)), "", *foot])


def _made(run: Run) -> str:
    """Return the date and the machine of a run."""
    runs = [run.metadata["runs"][name] for name in sorted({*run.passes["notebook"]} & {*run.metadata["runs"]})]
    started = max((one["started"] for one in runs), default="date not known")
    return f"{started}, machine: {tables.machines_text(run.metadata, runs) or 'unknown'}"
