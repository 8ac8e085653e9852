"""A comparison of two runs as Markdown, which a terminal shows as well, or CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Literal, get_args

import polars as pl

from framehaul.bench.compare import LEAST_PASSES, Comparison, Run, Verdict
from framehaul.reporting.tables import Column, Listing, Row, thousands, where, words

Format = Literal["markdown", "csv"]


def render(comparison: Comparison, form: Format = "markdown") -> str:
    """A comparison as Markdown, or its rows as CSV."""
    if form == "csv":
        return comparison.rows.write_csv()
    table = listing(comparison.rows)
    head = [
        f"- {name}: {run.name}, {_made(run)}" for name, run in (("A", comparison.a), ("B", comparison.b))
    ] + [f"- WARNING: {text}" for text in comparison.warnings]  # fmt: skip
    if comparison.changes:
        head.append(f"- changed: {', '.join(comparison.changes)}")
    return "\n".join([*head, "", str(table), "", *(f"- {line}" for line in sums(comparison))])


def listing(rows: pl.DataFrame) -> Listing:
    """The rows of a comparison."""

    def speed(run: str) -> Callable[[Row], str | None]:
        median, spread = f"median_rows_per_s{run}", (f"min_rows_per_s{run}", f"max_rows_per_s{run}")
        return lambda row: (
            None if row[median] is None
            else f"{thousands(row[median])} ({' to '.join(thousands(row[name]) for name in spread)})"
        )  # fmt: skip

    return Listing(
        [
            words("verdict", "verdict"),
            words("study", lambda row: row["notebook"][:2]),
            words("direction", where),
            words("technique", "technique"),
            Column("rows", "rows", "{:,}"),
            Column("A rows/s", speed("")),
            Column("B rows/s", speed("_b")),
            Column("B/A (interval)", _ratio),
            words("why", "why", lambda text: textwrap.shorten(text, 100, placeholder=" ...")),
        ],
        rows,
    )


def sums(comparison: Comparison) -> list[str]:
    """What all rows come to, and by which rule."""
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    lines = [f"{len(comparison.rows)} in all: {counts}"]
    if comparison.drift is not None:
        lines.append(f"median ratio of all: {comparison.drift:.2f}x; far from 1 the machine itself has changed")
    if comparison.compared:
        lines.append(
            "slower: every pass of B is below every pass of A, by more than passes scatter: of twenty comparisons in "
            "which nothing differs one marks anything; intervals are of 95%"
        )
    else:
        lines.append(f"no speed could be compared: that takes {LEAST_PASSES} passes in both runs")
    return lines


def _ratio(row: Row) -> str | None:
    if row["ratio"] is None:
        return None
    ends = f" ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})" if row["ratio_low"] is not None else ""
    return f"{row['ratio']:.2f}x{ends}"


def _made(run: Run) -> str:
    """When and where a run was made."""
    machine = run.metadata.get("machine")
    started = sorted(
        run_metadata["started"]
        for name, run_metadata in run.metadata["runs"].items()
        if name in set(run.passes["notebook"])
    )
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB" if machine else "machine not known"
    )
    return f"{started[-1] if started else 'date not known'}, {where}"
