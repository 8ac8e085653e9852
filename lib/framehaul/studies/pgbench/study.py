"""What the study shows: tables, figures and sentences, all from its files of results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import polars as pl
from IPython.display import Markdown
from matplotlib.figure import Figure

from framehaul.bench import ratios, statistics, store
from framehaul.bench.ratios import Ratio
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import (
    Column,
    Listing,
    bullets,
    fastest_of_each,
    missing,
    speed_text,
    spread_text,
    words,
)
from framehaul.settings import Settings
from framehaul.studies.pgbench.runs import Result, measure
from framehaul.studies.pgbench.workloads import PUBLISHED
from framehaul.studies.registry import PGBENCH

LABELS = {test.name: test.label for test in PUBLISHED}
PUBLISHED_RATIOS = (
    ("cpu", "ClickHouse's NVMe over RDS gp3", 1.12),
    ("io_read", "ClickHouse's NVMe over RDS with 16,000 IOPS", 9.0),
    ("io_write", "ClickHouse's NVMe over RDS with 16,000 IOPS", 4.3),
    ("io_write", "ClickHouse's NVMe over Aurora I/O optimised", 4.5),
)
"""Of transactions a second: PostgreSQL 17, 2 cores (cpu) and 16 (the others).

https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
"""
UNLIMITED, LIMITED = "small_buffers", "limited_iops"
"""The examples that differ as the published services do: in what the disk may do."""
COLOUR, TPS = "#0072B2", "{:,.0f}"
PLACE = [words("test", "test", LABELS.__getitem__), words("service", "service")]


def run(*, workload: str, rounds: int, seed: int, services: str = "") -> Pgbench:
    """Run the tests of a workload on every service, or on those named, and write `results/pgbench.csv`.

    Raises what `runs.measure` raises.
    """
    measure(workload=workload, rounds=rounds, seed=seed, services=services)
    return Pgbench.load()


def in_order(passes: pl.DataFrame) -> pl.DataFrame:
    """Return passes test by test, in each the service `default` first and the others by name."""
    places = pl.col("test").replace_strict({name: at for at, name in enumerate(LABELS)})
    return passes.sort(places, pl.col("service") != "default", "service", maintain_order=True)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes = in_order(store.read(directory / PGBENCH.results, Result))
    return {"pgbench": str(speeds_table(passes)), "pgbench-published": str(published_table(passes))}


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per service and test, as `statistics.medians` makes it."""
    return statistics.medians(passes, ["service", "label", "test", "scale", "clients"], speed="tps")


def ratio(passes: pl.DataFrame, test: str, service: str, base: str) -> Ratio:
    """Transactions a second of a service over another's in a test."""
    here = passes.filter(test=test)
    return ratios.ratio(here.filter(service=service), here.filter(service=base), "tps")


def _base(passes: pl.DataFrame) -> str:
    """The service that others are compared with: the first that ran."""
    services = passes.filter((pl.col("status") == "ok").any().over("service"))["service"]
    return str(next(iter(services), passes["service"][0]))


def services_table(passes: pl.DataFrame) -> Listing:
    """What was compared."""
    named = passes.select("service", "label").unique(maintain_order=True)
    return Listing([words("service", "service"), words("what", "label")], named)


def speeds_table(passes: pl.DataFrame) -> Listing:
    """Every service in every test: transactions a second, the ratio to the first, latencies, and IOPS of the disk."""
    base = _base(passes)
    columns = [
        *PLACE, Column("TPS", "tps", TPS),
        Column("slowest to fastest pass", lambda row: spread_text(row, "tps", TPS.format)),
        Column(f"over {base}", lambda row: ratio(passes, row["test"], row["service"], base)),
        Column("latency ms: p50", "latency_p50_ms", "{:.2f}"), Column("p99", "latency_p99_ms", "{:.2f}"),
        Column("the disk's IOPS", "disk_iops", "{:,.0f}"),
    ]  # fmt: skip
    return Listing(columns, summary(passes))


def published_table(passes: pl.DataFrame) -> Listing:
    """The published ratios, beside that of unlimited and limited IOPS here."""
    columns = [
        PLACE[0], words("published", "what"), Column("ratio", "times", "{:.2f}x"),
        Column(
            f"here: {UNLIMITED} over {LIMITED}",
            lambda row: str(ratio(passes, row["test"], UNLIMITED, LIMITED)) or "not measured",
        ),
    ]  # fmt: skip
    return Listing(columns, [{"test": test, "what": what, "times": times} for test, what, times in PUBLISHED_RATIOS])


def answer(passes: pl.DataFrame) -> Listing:
    """The fastest service of each test."""
    ran = summary(passes).drop_nulls("tps").sort("tps", descending=True, maintain_order=True)
    groups = {LABELS[test]: ran.filter(test=test) for test in _names(passes, "test")}
    return fastest_of_each(groups, Column("TPS (median)", "tps", TPS), "service")


def _names(passes: pl.DataFrame, column: str) -> list[str]:
    """Services, or tests, in their order."""
    return passes[column].unique(maintain_order=True).to_list()


def bars_figure(passes: pl.DataFrame) -> Figure:
    """Transactions a second, a panel for each test."""
    rows, tests = summary(passes), _names(passes, "test")
    height = 0.6 + (0.5 + 0.32 * passes["service"].n_unique()) * len(tests)
    with charts.panels(len(tests), height=height) as (figure, panels):
        for test, axes in zip(tests, panels, strict=True):
            charts.title(axes, LABELS[test])
            services = rows.filter(test=test).to_dicts()
            for at, row in enumerate(services):
                text = speed_text(row, "tps", TPS.format)
                charts.bar(axes, at, row, "tps", COLOUR, text=text, height=0.7)
            charts.name_lines(axes, [row["service"] for row in services])
            axes.margins(x=0.1)
            axes.set_xlim(left=0)
            charts.quantities(axes.xaxis)
        charts.footnote(figure, f"transactions a second, {charts.MEDIANS}")
    return figure


class Pgbench(Shown):
    """The passes of a run, ready to be shown."""

    study = PGBENCH
    answer = view(answer)
    table = view(speeds_table)
    chart = chart(bars_figure)
    published = view(published_table)

    services = view(services_table)

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """As `Shown.load`."""
        shown = super().load(settings)
        shown.passes = in_order(shown.passes)
        return shown

    def missing(self) -> Markdown:
        """What did not run, what is wrong, and what is left behind."""
        return Markdown(f"{missing(summary(self.passes), 'service', 'test')}\n\n{bullets(self.run_metadata['left'])}")


def patience(values: Mapping[str, Any]) -> int | None:
    """For how many seconds more a cell may take: longer tests take hours, those published most of them to make data."""
    return None if values.get("workload") in ("longer", "published") else 0
