"""The table, the answer and the figure of moves over several workers, from their passes alone."""

from __future__ import annotations

from itertools import groupby

import polars as pl
from matplotlib.figure import Figure

from framehaul.bench.ratios import ratio_of_rows, verdicts
from framehaul.bench.statistics import medians
from framehaul.reporting import charts
from framehaul.reporting.tables import Column, Listing, Row, bullets, missing, spread_text, thousands, where, words
from framehaul.techniques.registry import DATABASES

COLOURS = {"postgres": "#0072B2", "clickhouse": "#E69F00"}
KEYS = ["database", "direction", "workers", "partitions", "technique", "label", "rows"]


def of_right_passes(passes: pl.DataFrame) -> list[Row]:
    """Return the medians of each combination that was right; `faster` is its ratio to the fewest workers.

    Only combinations with the most partitions have a ratio, for the others differ in more than their workers.
    """
    rows = medians(passes, KEYS).filter(status="ok").sort("workers", "partitions").to_dicts()
    most = [row for row in rows if row["partitions"] == max(row["partitions"] for row in rows)]
    fewest = {(row["database"], row["direction"]): row for row in reversed(most)}
    compared = [
        row | {"faster": ratio_of_rows(row, base) if row in most and row is not base else None}
        for row in rows
        if (base := fewest.get((row["database"], row["direction"])))
    ]
    return sorted(compared, key=lambda row: ([*DATABASES].index(row["database"]), row["direction"] == "read"))


def speed_table(passes: pl.DataFrame) -> Listing:
    """Every combination: throughput, CPU time, speed-up over the fewest workers."""
    columns = [
        words("direction", where), Column("workers", "workers"), Column("partitions", "partitions"),
        Column("rows/s", "rows_per_s", thousands), Column("min to max", spread_text),
        Column("server's CPU s", "server_cpu_s", "{:.2f}"),
        Column("speed-up over the fewest workers", "faster"),
    ]  # fmt: skip
    return Listing(columns, of_right_passes(passes))


def findings_text(passes: pl.DataFrame) -> str:
    """For each database and direction the fastest number of workers, and how much faster it is than the fewest."""
    best = [
        max(rows, key=lambda row: row["faster"].ratio)
        for _, rows in groupby((row for row in of_right_passes(passes) if row["faster"]), where)
    ]
    said = verdicts([(row["faster"], 1) for row in best])
    return bullets(
        f"**{where(row)}**: {row['workers']} workers have {row['faster']} the rows/s of the fewest"
        f"{'' if one == 'holds' else ', which is within what passes vary'}."
        for row, one in zip(best, said, strict=True)
    ) or "Nothing was compared."  # fmt: skip


def missing_table(passes: pl.DataFrame) -> Listing | str:
    """What did not run, and what would make it run."""
    named = medians(passes, KEYS).with_columns(pl.col("database").replace_strict(DATABASES).alias("label"))
    return missing(named, "database", "direction")


def figure(passes: pl.DataFrame) -> Figure:
    """Throughput against workers with the most partitions, a panel for writes and one for reads."""
    rows = of_right_passes(passes)
    most = [row for row in rows if row["partitions"] == max(row["partitions"] for row in rows)]
    with charts.panels(1, 2, height=3.4) as (drawn, panels):
        panels[1].sharey(panels[0])
        for axes, direction in zip(panels, ("write", "read"), strict=True):
            for database, colour in COLOURS.items():
                here = [row for row in most if (row["database"], row["direction"]) == (database, direction)]
                workers, speeds = [row["workers"] for row in here], [row["rows_per_s"] for row in here]
                axes.vlines(
                    workers, [row["min_rows_per_s"] for row in here], [row["max_rows_per_s"] for row in here], colour
                )
                axes.plot(workers, speeds, color=colour, marker="o")
            charts.title(axes, f"{direction}: rows/s")
            charts.quantities(axes.yaxis)
            axes.set_xlabel("workers")
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_xticks(sorted(set(passes["workers"])))
            axes.label_outer()
        charts.legend(drawn, {DATABASES[name]: COLOURS[name] for name in COLOURS}, loc="outside upper right", ncols=2)
        charts.footnote(drawn, "medians of passes, whiskers: slowest and fastest")
    return drawn
