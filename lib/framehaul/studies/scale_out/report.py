"""Tables and figures of moves over several workers, from their passes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from framehaul.reporting import charts
from framehaul.reporting.tables import Column, Listing, Row, bullets, missing, speed_text, spread_text, thousands, words
from framehaul.results.ratios import Ratio, ratio, verdicts
from framehaul.results.statistics import medians, never_wrong
from framehaul.studies.scale_out.model import BUSY, Cost, Fit, fitted
from framehaul.techniques.registry import DATABASES

PLACES = {**DATABASES, "clickhouse_shards": "two shards of ClickHouse"}
COLOURS = {"postgres": "#0072B2", "clickhouse": "#E69F00", "clickhouse_shards": "#009E73"}
KEYS = ["database", "direction", "workers", "partitions", "technique", "label", "rows"]
PREDICTED = (2, 4, 8, 16)
"""Numbers of machines that the models are asked about."""


@dataclass(frozen=True)
class Machine:
    """Where a run was made: what its models need to know of it."""

    cores: int
    wire_bytes_per_s: float | None
    local: bool

    @classmethod
    def of(cls, metadata: dict[str, Any], notebook: str) -> Self:
        """As the record of the run tells it."""
        run = metadata["runs"][notebook]
        return cls(metadata["machine"]["cores"], run.get("loopback_bytes_per_s"), run.get("local", True))

    def cost(self, row: Row) -> Cost:
        """What the passes of a combination took, medians."""
        measured = {field.name: row[field.name] for field in fields(Cost) if field.name in row}
        return Cost(**measured, cores=self.cores, wire_bytes_per_s=self.wire_bytes_per_s)


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
        return f"{PLACES[self.database]} {self.direction}"

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

    def efficiency(self, row: Row) -> float:
        """Its speed-up divided by how many times as many workers there are."""
        return self.speed_up(row).ratio * float(self.fewest["workers"]) / float(row["workers"])

    @property
    def law(self) -> Fit | str:
        """The law fitted to the passes across workers, or why there is none."""
        labels = self.across("workers")["label"].to_list()
        good = never_wrong(self.passes.filter(pl.col("label").is_in(labels)), ["label"])
        return fitted(good["workers"].to_list(), good["pass"].to_list(), good["rows_per_s"].to_list())


def sweeps(passes: pl.DataFrame) -> Iterator[Sweep]:
    """Each database and direction that has good medians."""
    good = medians(passes, KEYS).filter(status="ok").sort("workers", "partitions")
    for database in PLACES:
        for direction in ("write", "read"):
            here = {"database": database, "direction": direction}
            if len(combinations := good.filter(**here)):
                yield Sweep(database, direction, passes.filter(**here), combinations)


def where(row: Row) -> str:
    """The database and direction of a row."""
    return f"{PLACES[row['database']]} {row['direction']}"


def speed_table(passes: pl.DataFrame) -> Listing:
    """Every combination: throughput, speed-up over the fewest workers, efficiency."""
    rows: list[Row] = []
    for sweep in sweeps(passes):
        others = set(sweep.across("workers")["label"]) - {sweep.fewest["label"]}
        for row in sweep.medians.to_dicts():
            compared = row["label"] in others
            rows.append(row | {"faster": sweep.speed_up(row) if compared else None,
                               "efficiency": sweep.efficiency(row) if compared else None})  # fmt: skip
    columns = [
        words("direction", where), Column("workers", "workers"), Column("partitions", "partitions"),
        Column("seconds", lambda row: speed_text(row, "seconds", "{:.2f}".format)),
        Column("rows/s", "rows_per_s", thousands), Column("min to max", spread_text),
        Column("speed-up over the fewest workers", "faster"),
        Column("efficiency", "efficiency", "{:.0%}"),
    ]  # fmt: skip
    return Listing(columns, rows)


def saturation_table(passes: pl.DataFrame, machine: Machine) -> Listing:
    """What was in use, of what there is, and what a pass waits for."""

    def share(title: str, of: str, form: str = "{:.0%}") -> Column:
        return Column(title, lambda row: machine.cost(row).shares.get(of), form)

    columns = [
        words("direction", where), Column("workers", "workers"), Column("workers' CPU s", "workers_cpu_s", "{:.2f}"),
        Column("server's CPU s", "server_cpu_s", "{:.2f}"),
        Column("coordinator's CPU s", "coordinator_cpu_s", "{:.2f}"),
        share("all cores in use", "cores"), share("workers in use", "workers"),
        share("network in use", "network", "{:.1%}"), share("common end", "end"),
        Column("saturated", lambda row: machine.cost(row).verdict),
    ]  # fmt: skip
    return Listing(columns, [row for sweep in sweeps(passes) for row in sweep.across("workers").to_dicts()])


def model_table(passes: pl.DataFrame, machine: Machine) -> Listing:
    """What the law and the bound say of more workers, and where that reaches past what was measured."""
    rows: list[Row] = []
    for sweep in sweeps(passes):
        law, costs = sweep.law, [machine.cost(row) for row in sweep.across("workers").to_dicts()]
        for count in PREDICTED:
            predicted = "no law"
            if isinstance(law, Fit):
                middle, low, high = map(thousands, law.at(count))
                predicted = f"{middle} ({low} to {high}){' extrapolated' if count > max(law.measured) else ''}"
            bound = max(cost.bound_rows_per_s(count) for cost in costs)
            rows.append({"direction": sweep.name, "machines": count, "predicted": predicted, "bound": bound})
    columns = [
        words("direction", "direction"), Column("N", "machines"),
        Column("N workers here, rows/s (range of resampled rounds)", "predicted"),
        Column("N machines, bound", "bound", lambda bound: f"at most {thousands(bound)}"),
    ]  # fmt: skip
    return Listing(columns, rows)


def laws_text(passes: pl.DataFrame, machine: Machine) -> str:
    """The law of each database and direction, or why none is fitted."""
    return bullets(f"**{sweep.name}**: {_law_sentence(sweep, machine)}" for sweep in sweeps(passes))


def _law_sentence(sweep: Sweep, machine: Machine) -> str:
    fit = sweep.law
    if isinstance(fit, str):
        return f"no law is fitted: {fit}."
    most, law = fit.best_workers, fit.law
    more = "more workers never make it slower" if most is None else f"fastest with {max(1.0, most):.1f} workers"
    busy = machine.local and machine.cost(sweep.across("workers").row(-1, named=True)).shares["cores"] >= BUSY
    local = " All cores of this machine are in use: the law tells of this machine, not of more of them." if busy else ""
    return (
        f"{fit.kind}, {thousands(law.alone_rows_per_s)} rows/s alone, contention {law.contention:.3f}, "
        f"coherency {law.coherency:.4f}; {more}.{local}"
    )


def findings_text(passes: pl.DataFrame, machine: Machine) -> str:
    """For each database and direction the fastest number of workers, what it gains, and what it waits for."""
    shown = [*sweeps(passes)]
    said = verdicts([(sweep.speed_up(sweep.best), 1) for sweep in shown])
    return (
        bullets(
            f"**{sweep.name}**: {_finding(sweep, machine, clear=one == 'holds')}"
            for sweep, one in zip(shown, said, strict=True)
        )
        or "Nothing ran."
    )


def _finding(sweep: Sweep, machine: Machine, *, clear: bool) -> str:
    fewest, best, partitions = sweep.fewest, sweep.best, sweep.across("partitions")
    fastest = f"no number of workers is faster than {fewest['workers']}"
    if best["workers"] != fewest["workers"]:
        faster = sweep.speed_up(best)
        vague = "" if clear else ", which is within what passes vary"
        fastest = (
            f"fastest with {best['workers']} workers, {faster} of {fewest['workers']}{vague}, "
            f"efficiency {sweep.efficiency(best):.0%}"
        )
    finding = f"{fastest}; saturated there: {machine.cost(best).verdict}."
    if len(partitions) > 1:
        cut = partitions.sort("rows_per_s").row(-1, named=True)
        finding += f" Fastest cut with {cut['workers']} workers: {cut['partitions']} partitions."
    return finding


def dask_table(counted: dict[str, dict[str, Any]]) -> Listing | str:
    """What Dask dataframes counted; a sentence when there was none."""
    rows = [counted[database] | {"database": database} for database in PLACES if database in counted]
    if not rows:
        return "No Dask dataframe was made."
    columns = [
        words("table", lambda row: PLACES[row["database"]]), Column("rows", "rows", "{:,}"),
        Column(f"values of `{rows[0]['column']}`", "values", "{:,}"),
        Column("as many of each as were sent", lambda row: "yes" if row["as_sent"] else "NO"),
    ]  # fmt: skip
    return Listing(columns, rows)


def missing_table(passes: pl.DataFrame) -> Listing | str:
    """What did not run, and what would make it run."""
    named = medians(passes, KEYS).with_columns(pl.col("database").replace_strict(PLACES).alias("label"))
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
    """Throughput, and below it efficiency or seconds of the common end, against workers or partitions."""
    below = "efficiency (speed-up over workers)" if across == "workers" else "seconds of the common end"
    shown = [*sweeps(passes)]
    with charts.panels(2, 2, height=6.4) as (drawn, panels):
        for left, right in zip(panels[::2], panels[1::2], strict=True):
            right.sharey(left)
        for upper, lower, direction in zip(panels[:2], panels[2:], ("write", "read"), strict=True):
            lower.sharex(upper)
            for sweep in shown:
                if sweep.direction == direction:
                    _draw(upper, lower, sweep, across)
            charts.title(upper, f"{direction}: rows/s")
            charts.title(lower, f"{direction}: {below}")
            charts.quantities(upper.yaxis)
            lower.set_xlabel(across)
        for axes in panels:
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_xticks(sorted(set(passes[across])))
            axes.label_outer()
        colours = {PLACES[sweep.database]: COLOURS[sweep.database] for sweep in shown}
        charts.legend(drawn, colours, loc="outside upper right", ncols=3)
        law = "; dotted: fitted law" if across == "workers" else ""
        charts.footnote(drawn, f"medians of passes, whiskers: slowest and fastest{law}")
    return drawn


def _draw(upper: Axes, lower: Axes, sweep: Sweep, across: Literal["workers", "partitions"]) -> None:
    """One database in the two panels of a direction."""
    rows, colour = sweep.across(across), COLOURS[sweep.database]
    x, speed = rows[across].to_list(), rows["rows_per_s"]
    around = [(speed - rows["min_rows_per_s"]).to_list(), (rows["max_rows_per_s"] - speed).to_list()]
    upper.errorbar(x, speed.to_list(), around, color=colour, marker="o", capsize=3)
    below = rows["finishing_s"]
    if across == "workers":
        below = speed / speed[0] * rows["workers"][0] / rows["workers"]
        if isinstance(fit := sweep.law, Fit):
            many = np.arange(1, max(x) + 0.05, 0.1)
            upper.plot(many, fit.law.rows_per_s(many), color=colour, linestyle=":", linewidth=1)
    lower.plot(x, below.to_list(), color=colour, marker="o")
