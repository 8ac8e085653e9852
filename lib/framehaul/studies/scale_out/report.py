"""Tables and figures of moves over several workers, from their passes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl
from matplotlib.figure import Figure

from framehaul.bench.ratios import Ratio, ratio, verdicts
from framehaul.bench.statistics import medians
from framehaul.reporting import charts
from framehaul.reporting.tables import Column, Listing, Row, bullets, missing, spread_text, thousands, words
from framehaul.techniques.registry import DATABASES

COLOURS = {"postgres": "#0072B2", "clickhouse": "#E69F00"}
KEYS = ["database", "direction", "workers", "partitions", "technique", "label", "rows"]


@dataclass(frozen=True)
class Sweep:
    """One database and direction: its passes, and the good medians of its combinations."""

    database: str
    direction: str
    passes: pl.DataFrame
    medians: pl.DataFrame

    @property
    def name(self) -> str:
        """As people call it."""
        return f"{DATABASES[self.database]} {self.direction}"

    def across(self, what: Literal["workers", "partitions"]) -> pl.DataFrame:
        """Every number of workers with the most partitions, or the other way round."""
        other = "partitions" if what == "workers" else "workers"
        return self.medians.filter(pl.col(other) == pl.col(other).max()).sort(what)

    @property
    def fewest(self) -> Row:
        """With the fewest workers, and the most partitions."""
        return self.across("workers").row(0, named=True)

    @property
    def best(self) -> Row:
        """With the number of workers that is fastest, and the most partitions."""
        return self.across("workers").sort("rows_per_s").row(-1, named=True)

    def speed_up(self, row: Row) -> Ratio:
        """rows/s of a combination over those of the fewest workers."""
        return ratio(self.passes.filter(label=row["label"]), self.passes.filter(label=self.fewest["label"]))


def sweeps(passes: pl.DataFrame) -> Iterator[Sweep]:
    """Each database and direction that has good medians."""
    good = medians(passes, KEYS).filter(status="ok").sort("workers", "partitions")
    for database in DATABASES:
        for direction in ("write", "read"):
            here = {"database": database, "direction": direction}
            if len(combinations := good.filter(**here)):
                yield Sweep(database, direction, passes.filter(**here), combinations)


def where(row: Row) -> str:
    """The database and direction of a row."""
    return f"{DATABASES[row['database']]} {row['direction']}"


def speed_table(passes: pl.DataFrame) -> Listing:
    """Every combination: throughput, CPU time, speed-up over the fewest workers."""
    rows: list[Row] = []
    for sweep in sweeps(passes):
        others = set(sweep.across("workers")["label"]) - {sweep.fewest["label"]}
        rows += [
            row | {"faster": sweep.speed_up(row) if row["label"] in others else None}
            for row in sweep.medians.to_dicts()
        ]
    columns = [
        words("direction", where), Column("workers", "workers"), Column("partitions", "partitions"),
        Column("rows/s", "rows_per_s", thousands), Column("min to max", spread_text),
        Column("workers' CPU s", "workers_cpu_s", "{:.2f}"), Column("server's CPU s", "server_cpu_s", "{:.2f}"),
        Column("speed-up over the fewest workers", "faster"),
    ]  # fmt: skip
    return Listing(columns, rows)


def findings_text(passes: pl.DataFrame) -> str:
    """For each database and direction the fastest number of workers, and how much faster it is than the fewest."""
    shown = [*sweeps(passes)]
    said = verdicts([(sweep.speed_up(sweep.best), 1) for sweep in shown])
    return (
        bullets(
            f"**{sweep.name}**: {_finding(sweep, clear=one == 'holds')}."
            for sweep, one in zip(shown, said, strict=True)
        )
        or "Nothing ran."
    )


def _finding(sweep: Sweep, *, clear: bool) -> str:
    fewest, best = sweep.fewest["workers"], sweep.best["workers"]
    if best == fewest:
        return f"no number of workers is faster than {fewest}"
    vague = "" if clear else ", which is within what passes vary"
    return f"fastest with {best} workers, {sweep.speed_up(sweep.best)} of {fewest}{vague}"


def dask_table(counted: dict[str, dict[str, Any]]) -> Listing | str:
    """What Dask dataframes counted; a sentence when there was none."""
    rows = [counted[database] | {"database": database} for database in DATABASES if database in counted]
    if not rows:
        return "No Dask dataframe was made."
    columns = [
        words("table", lambda row: DATABASES[row["database"]]), Column("rows", "rows", "{:,}"),
        Column(f"values of `{rows[0]['column']}`", "values", "{:,}"),
        Column("as many of each as were sent", lambda row: "yes" if row["as_sent"] else "NO"),
    ]  # fmt: skip
    return Listing(columns, rows)


def missing_table(passes: pl.DataFrame) -> Listing | str:
    """What did not run, and what would make it run."""
    named = medians(passes, KEYS).with_columns(pl.col("database").replace_strict(DATABASES).alias("label"))
    return missing(named, "database", "direction")


def readme_table(passes: pl.DataFrame) -> Listing:
    """The fewest workers and the best number of them, for each database and direction."""
    rows: list[Row] = [{"sweep": sweep, "fewest": sweep.fewest, "best": sweep.best} for sweep in sweeps(passes)]

    def faster(row: Row) -> Ratio | None:
        return None if row["best"] == row["fewest"] else row["sweep"].speed_up(row["best"])

    columns = [
        words("direction", lambda row: row["sweep"].name),
        Column("one worker, rows/s", lambda row: row["fewest"]["rows_per_s"], thousands),
        Column("best, rows/s", lambda row: row["best"]["rows_per_s"], thousands),
        Column("workers", lambda row: row["best"]["workers"]),
        Column("speed-up", faster),
    ]
    return Listing(columns, rows)


def figure(passes: pl.DataFrame, across: Literal["workers", "partitions"]) -> Figure:
    """Throughput against workers or partitions, writes beside reads."""
    shown = [*sweeps(passes)]
    with charts.panels(1, 2, height=3.4) as (drawn, panels):
        panels[1].sharey(panels[0])
        for axes, direction in zip(panels, ("write", "read"), strict=True):
            for sweep in shown:
                if sweep.direction == direction:
                    rows, speed = sweep.across(across), sweep.across(across)["rows_per_s"]
                    around = [
                        (speed - rows["min_rows_per_s"]).to_list(), (rows["max_rows_per_s"] - speed).to_list(),
                    ]  # fmt: skip
                    colour = COLOURS[sweep.database]
                    axes.errorbar(rows[across].to_list(), speed.to_list(), around, color=colour, marker="o", capsize=3)
            charts.title(axes, f"{direction}: rows/s")
            charts.quantities(axes.yaxis)
            axes.set_xlabel(across)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_xticks(sorted(set(passes[across])))
            axes.label_outer()
        colours = {DATABASES[sweep.database]: COLOURS[sweep.database] for sweep in shown}
        charts.legend(drawn, colours, loc="outside upper right", ncols=2)
        charts.footnote(drawn, "medians of passes, whiskers: slowest and fastest")
    return drawn
