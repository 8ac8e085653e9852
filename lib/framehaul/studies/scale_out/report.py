"""Tables and figures of moves over several workers, from their passes alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import matplotlib as mpl
import polars as pl
from matplotlib.figure import Figure

from framehaul.reporting import charts
from framehaul.reporting.tables import markdown_table, missing_table, ratio_text, thousands
from framehaul.results.statistics import medians, never_wrong, ratio
from framehaul.studies.scale_out.model import BUSY, Cost, Fit, fitted
from framehaul.techniques.registry import DATABASES

PLACES = {**DATABASES, "clickhouse_shards": "ClickHouse, two shards"}
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
        made = metadata["runs"][notebook]
        return cls(metadata["machine"]["cores"], made.get("loopback_bytes_per_s"), made.get("local", True))


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row for each combination, with medians over passes."""
    return medians(passes, KEYS)


def sweeps(passes: pl.DataFrame) -> Iterator[tuple[str, str, pl.DataFrame]]:
    """The good medians of each database and direction, in order of workers and partitions."""
    good = summary(passes).filter(status="ok")
    for database in PLACES:
        for direction in ("write", "read"):
            here = good.filter(database=database, direction=direction).sort("workers", "partitions")
            if not here.is_empty():
                yield database, direction, here


def across_workers(here: pl.DataFrame) -> pl.DataFrame:
    """Of a sweep, the rows of every number of workers with the most partitions."""
    return here.filter(pl.col("partitions") == pl.col("partitions").max())


def across_partitions(here: pl.DataFrame) -> pl.DataFrame:
    """Of a sweep, the rows of every number of partitions with the most workers."""
    return here.filter(pl.col("workers") == pl.col("workers").max())


def speed_table(passes: pl.DataFrame) -> str:
    """Every combination, as Markdown: throughput, speed-up over the fewest workers, efficiency."""
    rows = []
    for database, direction, here in sweeps(passes):
        fewest = across_workers(here).row(0, named=True)
        for row in here.to_dicts():
            cells = ["", ""]
            if row["partitions"] == fewest["partitions"] and row["workers"] != fewest["workers"]:
                found = speed_up(passes, row, fewest)
                share = found["ratio"] * fewest["workers"] / row["workers"]
                cells = [ratio_text(found), f"{share:.0%}"]
            rows.append(
                [
                    f"{PLACES[database]} {direction}", str(row["workers"]), str(row["partitions"]),
                    f"{row['seconds']:.2f}{' ±' if row['unstable'] else ''}", thousands(row["rows_per_s"]),
                    f"{thousands(row['min_rows_per_s'])} to {thousands(row['max_rows_per_s'])}", *cells,
                ]
            )  # fmt: skip
    header = ["direction", "workers", "partitions", "seconds", "rows/s", "min to max",
              "speed-up over the fewest workers (95% interval)", "efficiency"]  # fmt: skip
    return markdown_table(header, rows)


def speed_up(passes: pl.DataFrame, row: dict[str, Any], over: dict[str, Any]) -> dict[str, float]:
    """rows/s of a combination over another's, of one database and direction."""

    def of(one: dict[str, Any]) -> pl.DataFrame:
        return passes.filter(
            (pl.col("label") == one["label"]) & (pl.col("workers") == one["workers"])
            & (pl.col("partitions") == one["partitions"])
        )  # fmt: skip

    return ratio(of(row), of(over))


def cost(row: dict[str, Any], machine: Machine) -> Cost:
    """What the passes of a combination took, medians."""
    return Cost(
        rows=row["rows"], seconds=row["seconds"], finishing_s=row["finishing_s"], workers=row["workers"],
        cores=machine.cores, workers_cpu_s=row["workers_cpu_s"], coordinator_cpu_s=row["coordinator_cpu_s"],
        server_cpu_s=row["server_cpu_s"], wire_bytes=row["wire_bytes"], wire_bytes_per_s=machine.wire_bytes_per_s,
    )  # fmt: skip


def saturation_table(passes: pl.DataFrame, machine: Machine) -> str:
    """What was in use, of what there is, and what a pass waits for, as Markdown."""
    rows = []
    for database, direction, here in sweeps(passes):
        for row in across_workers(here).to_dicts():
            found = cost(row, machine)
            shares = found.shares
            rows.append(
                [
                    f"{PLACES[database]} {direction}", str(row["workers"]), f"{row['workers_cpu_s']:.2f}",
                    "" if row["server_cpu_s"] is None else f"{row['server_cpu_s']:.2f}",
                    f"{row['coordinator_cpu_s']:.2f}", f"{shares['cores']:.0%}", f"{shares['workers']:.0%}",
                    f"{shares['network']:.1%}" if "network" in shares else "", f"{shares['end']:.0%}", found.verdict,
                ]
            )  # fmt: skip
    header = ["direction", "workers", "workers' CPU s", "server's CPU s", "coordinator's CPU s",
              "all cores in use", "workers in use", "network in use", "common end", "saturated"]  # fmt: skip
    return markdown_table(header, rows)


def law(passes: pl.DataFrame, here: pl.DataFrame) -> Fit | str:
    """The law fitted to the passes of a sweep over workers, or why there is none."""
    labels = across_workers(here)["label"].to_list()
    found = never_wrong(passes.filter(pl.col("label").is_in(labels)), ["label"])
    return fitted(found["workers"].to_list(), found["pass"].to_list(), found["rows_per_s"].to_list())


def model_text(passes: pl.DataFrame, machine: Machine) -> str:
    """What the law and the bound say of more workers, as Markdown, with how far that reaches past what was measured."""
    rows, sentences = [], []
    for database, direction, here in sweeps(passes):
        where = f"{PLACES[database]} {direction}"
        found, workers = law(passes, here), across_workers(here)
        costs = [cost(row, machine) for row in workers.to_dicts()]
        for count in PREDICTED:
            told = "no law"
            if isinstance(found, Fit):
                middle, low, high = found.at(count)
                told = f"{thousands(middle)} ({thousands(low)} to {thousands(high)})"
                told += " extrapolated" if count > max(found.measured) else ""
            rows.append(
                [
                    where,
                    str(count),
                    told,
                    f"at most {thousands(max(one.bound_rows_per_s(count) for one in costs))}",
                ]
            )
        if isinstance(found, str):
            sentences.append(f"- **{where}**: no law is fitted: {found}.")
            continue
        text = (
            f"- **{where}**: {found.kind}, {thousands(found.law.alone_rows_per_s)} rows/s alone, "
            f"waiting {found.law.waiting:.3f}, talking {found.law.talking:.4f}"
        )
        most = found.best_workers
        text += (
            "; more workers never make it slower." if most is None else f"; fastest with {max(1.0, most):.1f} workers."
        )
        if machine.local and costs[-1].shares["cores"] >= BUSY:
            text += " All cores of this machine are in use: the law tells of this machine, not of more of them."
        sentences.append(text)
    header = ["direction", "N", "N workers here, rows/s (95% interval)", "N machines, bound"]
    return "\n\n".join([markdown_table(header, rows), "\n".join(sentences)])


def findings_text(passes: pl.DataFrame, machine: Machine) -> str:
    """One line for each database and direction: the fastest number of workers, what it gains, and what it waits for."""
    lines = []
    for database, direction, here in sweeps(passes):
        workers, partitions = across_workers(here), across_partitions(here)
        fewest, best = workers.row(0, named=True), workers.sort("rows_per_s").row(-1, named=True)
        line = f"- **{PLACES[database]} {direction}**: "
        if best["workers"] == fewest["workers"]:
            line += f"no number of workers is faster than {fewest['workers']}"
        else:
            found = speed_up(passes, best, fewest)
            clear = "" if found["ratio_low"] > 1 else ", which is within what passes vary"
            line += (
                f"fastest with {best['workers']} workers, {ratio_text(found)} of {fewest['workers']}{clear}, "
                f"efficiency {found['ratio'] * fewest['workers'] / best['workers']:.0%}"
            )
        line += f"; saturated there: {cost(best, machine).verdict}."
        if len(partitions) > 1:
            cut = partitions.sort("rows_per_s").row(-1, named=True)
            line += f" Fastest cut with {cut['workers']} workers: {cut['partitions']} partitions."
        lines.append(line)
    return "\n".join(lines) or "Nothing ran."


def dask_table(counted: dict[str, dict[str, Any]]) -> str:
    """What Dask dataframes counted, as Markdown."""
    rows = [
        [PLACES[database], f"{found['rows']:,}", f"{found['values']:,}", "yes" if found["as_sent"] else "NO"]
        for database in PLACES
        if (found := counted.get(database))
    ]
    column = next((found["column"] for found in counted.values()), "")
    header = ["table", "rows", f"values of `{column}`", "as many of each as were sent"]
    return markdown_table(header, rows) if rows else "No Dask dataframe was made."


def missing_text(passes: pl.DataFrame) -> str:
    """What was skipped or failed, as Markdown; a sentence when there is nothing."""
    named = summary(passes).with_columns(pl.col("database").replace_strict(PLACES).alias("label"))
    return missing_table(named, "database", "direction")


def readme_table(passes: pl.DataFrame) -> str:
    """The fewest workers and the best number of them, for each database and direction, as Markdown."""
    rows = []
    for database, direction, here in sweeps(passes):
        workers = across_workers(here)
        fewest, best = workers.row(0, named=True), workers.sort("rows_per_s").row(-1, named=True)
        same = best["workers"] == fewest["workers"]
        rows.append(
            [
                f"{PLACES[database]} {direction}", thousands(fewest["rows_per_s"]),
                thousands(best["rows_per_s"]), str(best["workers"]),
                "" if same else ratio_text(speed_up(passes, best, fewest)),
            ]
        )  # fmt: skip
    header = ["direction", "one worker, rows/s", "best, rows/s", "workers", "speed-up (95% interval)"]
    return markdown_table(header, rows)


def figure(passes: pl.DataFrame, across: str) -> Figure:
    """Throughput, and below it efficiency or seconds of the common end, against workers or partitions."""
    with mpl.rc_context(charts.STYLE):
        made = Figure(figsize=(10.5, 6.4), layout="constrained")
        panels = made.subplots(2, 2, sharex=True, sharey="row", squeeze=False)
        for column, direction in enumerate(("write", "read")):
            above, below = panels[0][column], panels[1][column]
            for database, found, here in sweeps(passes):
                if found != direction:
                    continue
                rows = across_workers(here) if across == "workers" else across_partitions(here)
                rows = rows.sort(across)
                x, y = rows[across].to_list(), rows["rows_per_s"].to_list()
                around = [
                    (rows["rows_per_s"] - rows["min_rows_per_s"]).to_list(),
                    (rows["max_rows_per_s"] - rows["rows_per_s"]).to_list(),
                ]
                above.errorbar(x, y, around, color=COLOURS[database], marker="o", capsize=3, label=PLACES[database])
                if across == "workers":
                    first = rows.row(0, named=True)
                    share = rows["rows_per_s"] / first["rows_per_s"] * first["workers"] / rows["workers"]
                    below.plot(x, share.to_list(), color=COLOURS[database], marker="o")
                    if isinstance(fit := law(passes, here), Fit):
                        many = [at / 10 for at in range(10, 10 * max(x) + 1)]
                        curve = fit.law.rows_per_s(pl.Series(many).to_numpy())
                        above.plot(many, curve.tolist(), color=COLOURS[database], linestyle=":", linewidth=1)
                else:
                    below.plot(x, rows["finishing_s"].to_list(), color=COLOURS[database], marker="o")
            above.set_title(f"{direction}: rows/s", loc="left", fontweight="bold")
            word = "efficiency (speed-up over workers)" if across == "workers" else "seconds of the common end"
            below.set_title(f"{direction}: {word}", loc="left", fontweight="bold")
            for axes in (above, below):
                axes.grid(axis="y", color="#eeeeee")
                axes.set_axisbelow(True)
                axes.xaxis.get_major_locator().set_params(integer=True)
            above.yaxis.set_major_formatter(lambda value, _: thousands(value))
            below.set_xlabel(across)
        for axes in panels[:, 0]:  # those beside them have the same scale
            axes.set_ylim(bottom=0)
        handles, labels = panels[0][0].get_legend_handles_labels()
        if handles:
            made.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)
        law_text = "; dotted: fitted law" if across == "workers" else ""
        made.supxlabel(f"medians of passes, whiskers: slowest and fastest{law_text}", fontsize=8, x=0.01, ha="left")
    return made
