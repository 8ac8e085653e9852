"""What the study shows: tables, figures and sentences, all from its files of results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import polars as pl
from IPython.display import Code, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from framehaul.bench import ratios, statistics, store
from framehaul.bench.ratios import Ratio, tied, verdicts
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import UNSTABLE, Column, Listing, bullets, missing, speed_text, spread_text, words
from framehaul.settings import Settings
from framehaul.studies.pgbench import STUDY, workloads
from framehaul.studies.pgbench.runs import Result, measure
from framehaul.studies.pgbench.workloads import PUBLISHED

LABELS = {test.name: test.label for test in PUBLISHED}
COLOURS = ("#0072B2", "#009E73", "#56B4E9", "#E69F00", "#D55E00", "#CC79A7", "#882255", "#999999", "#117733", "#222222")
PUBLISHED_TPS = {
    ("cpu", "ClickHouse's NVMe over RDS gp3"): (36_500, None, 1.12),
    ("io_read", "ClickHouse's NVMe over RDS with 16,000 IOPS"): (84_800, 9_400, 9.0),
    ("io_write", "ClickHouse's NVMe over RDS with 16,000 IOPS"): (19_800, 4_600, 4.3),
    ("io_write", "ClickHouse's NVMe over Aurora I/O optimised"): (19_800, 4_400, 4.5),
}
"""Transactions a second of both, where given, and their ratio: PostgreSQL 17, 2 cores (cpu) and 16 (the others).

https://clickhouse.com/docs/cloud/managed-postgres/benchmarks
"""
UNLIMITED, LIMITED = "small_buffers", "limited_iops"
"""The examples that differ as the published services do: in what the disk may do."""


SHOWN_SETTINGS = ("shared_buffers", "synchronous_commit", "max_wal_size", "checkpoint_timeout")
TPS = "{:,.0f}"
PLACE = [words("test", "test", LABELS.__getitem__), words("service", "service")]


def commands(workload: str) -> Code:
    """What is run for each test of a workload on this machine, as in a shell."""
    return Code(workloads.commands(workload), language="bash")


def run(*, workload: str, passes: int, seed: int, services: str = "") -> Pgbench:
    """Run the tests of a workload on every service, or on those named, and write `results/pgbench.csv`.

    Raises what `runs.measure` raises.
    """
    measure(workload=workload, passes=passes, seed=seed, services=services)
    return load()


def in_order(passes: pl.DataFrame, services: Sequence[str]) -> pl.DataFrame:
    """Passes test by test, in each the services in the order in which they were named; of each as they were run."""
    places = [
        pl.col(column).replace_strict({name: at for at, name in enumerate(names)})
        for column, names in (("test", list(LABELS)), ("service", services))
    ]
    return passes.sort(places, maintain_order=True)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes = store.read(directory / STUDY.results, Result)
    passes = in_order(passes, store.read_metadata(directory)["runs"][STUDY.notebook]["order"])
    return {"pgbench": str(speeds_table(passes)), "pgbench-published": str(published_table(passes))}


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per service, test and number of clients, as `statistics.medians` makes it."""
    return statistics.medians(passes, ["service", "label", "test", "scale", "clients"], speed="tps")


def _main(passes: pl.DataFrame) -> pl.DataFrame:
    """The passes of each test with its own number of clients, which is the largest: without the sweep."""
    return passes.filter(pl.col("clients") == pl.col("clients").max().over("test"))


def _timed(passes: pl.DataFrame) -> pl.DataFrame:
    """`summary` of what ran, and was right, of each test with its own number of clients."""
    return summary(_main(passes)).drop_nulls("tps")


def ratio(passes: pl.DataFrame, test: str, service: str, base: str) -> Ratio:
    """Transactions a second of a service over another's in a test with its own number of clients."""
    here = _main(passes).filter(test=test)
    return ratios.ratio(here.filter(service=service), here.filter(service=base), "tps")


def _base(passes: pl.DataFrame) -> str:
    """The service that others are compared with: the first that ran."""
    services = passes.filter((pl.col("status") == "ok").any().over("service"))["service"]
    return str(next(iter(services), passes["service"][0]))


def services_table(passes: pl.DataFrame, known: dict[str, Any]) -> Listing:
    """What was compared, and how long its data took to make."""

    def settings_text(settings: Mapping[str, str]) -> str:
        return ", ".join(f"{name} {settings[name]}" for name in SHOWN_SETTINGS if name in settings)

    rows = [{"service": name, "label": label, **known["services"].get(name, {})}
            for name, label in passes.select("service", "label").unique(maintain_order=True).rows()]  # fmt: skip
    columns = [
        words("service", "service"), words("what", "label"),
        words("version", "version", lambda version: " ".join(version.split()[:2])),
        words("settings", "settings", settings_text), Column("data made in", "initialised_s", "{:.1f} s"),
    ]  # fmt: skip
    return Listing(columns, rows)


def speeds_table(passes: pl.DataFrame) -> Listing:
    """Every service in every test: transactions a second, latencies, and the ratio to the first."""
    base = _base(passes)
    latencies = {
        "latency ms: average": "average",
        "p50": "p50",
        "p95": "p95",
        "p99": "p99",
        "p99.9": "p999",
        "max": "max",
    }
    columns = [
        *PLACE, words("clients", "clients"), Column("TPS", "tps", TPS),
        UNSTABLE,
        Column("slowest to fastest pass", lambda row: spread_text(row, "tps", TPS.format)),
        Column(f"over {base}", lambda row: ratio(passes, row["test"], row["service"], base)),
        *(Column(title, f"latency_{name}_ms", "{:.2f}") for title, name in latencies.items()),
    ]  # fmt: skip
    return Listing(columns, summary(_main(passes)))


def server_table(passes: pl.DataFrame) -> Listing:
    """What the tests took of server and disk."""
    columns = [
        *PLACE, Column("busy cores: server", "server_cores", "{:.2f}"), Column("pgbench", "client_cores", "{:.2f}"),
        Column("PostgreSQL's reads/s", "reads_per_s", "{:,.0f}"), Column("writes/s", "writes_per_s", "{:,.0f}"),
        Column("the disk's reads/s", "disk_reads_per_s", "{:,.0f}"), Column("writes/s", "disk_writes_per_s", "{:,.0f}"),
        Column("found in shared_buffers", "cache_hit_ratio", "{:.1%}"),
        Column("WAL bytes per transaction", "wal_bytes_per_transaction", "{:,.0f}"),
    ]  # fmt: skip
    cores = {f"{side}_cores": pl.col(f"{side}_cpu_s") / pl.col("seconds") for side in ("server", "client")}
    return Listing(columns, _timed(passes).with_columns(**cores))


def published_table(passes: pl.DataFrame) -> Listing:
    """The published ratios, beside that of unlimited and limited IOPS here."""
    here = {(row["test"], row["service"]): row["tps"] for row in _timed(passes).to_dicts()}
    rows = [
        {"test": test, "what": what, "published": published, "times": times,
         "here": [here.get((test, service)) for service in (UNLIMITED, LIMITED)]}
        for (test, what), (*published, times) in PUBLISHED_TPS.items()
    ]  # fmt: skip
    columns = [
        PLACE[0], words("published", "what"),
        Column("TPS", "published", lambda both: " to ".join(TPS.format(tps) for tps in both if tps)),
        Column("ratio", "times", "{:.2f}x"),
        Column(
            f"here: {UNLIMITED} to {LIMITED}, TPS", "here",
            lambda both: " to ".join(map(TPS.format, both)) if all(both) else "not measured",
        ),
        Column("ratio", lambda row: ratio(passes, row["test"], UNLIMITED, LIMITED)),
    ]  # fmt: skip
    return Listing(columns, rows)


def answer_text(passes: pl.DataFrame) -> str:
    """Say per test which service is the fastest, and what the limit on IOPS costs."""
    base, timed, points = _base(passes), _timed(passes), []
    freed = {test: ratio(passes, test, UNLIMITED, LIMITED) for test in _names(passes, "test")}
    said = dict(zip(freed, verdicts([(one, 1) for one in freed.values()]), strict=True))
    for test, ratio_of_limit in freed.items():
        rows = timed.filter(test=test).sort("tps", descending=True, maintain_order=True).to_dicts()
        if not rows:
            points.append(f"**{LABELS[test]}**: ran on no service.")
            continue
        best = rows[0]
        over = f", {ratio(passes, test, best['service'], base)} of {base}" if best["service"] != base else ""
        near = ", ".join(row["service"] for row in tied(rows))
        iops = f" Without the limit on IOPS: {ratio_of_limit}." if said[test] == "holds" else ""
        points.append(
            f"**{LABELS[test]}**: most transactions on {best['service']}, {best['tps']:,.0f} TPS (median){over}"
            f"{f'; statistically tied: {near}' if near else ''}.{iops}"
        )
    return bullets(points)


def _names(passes: pl.DataFrame, column: str) -> list[str]:
    """Services, or tests, in their order."""
    return passes[column].unique(maintain_order=True).to_list()


def _colours(passes: pl.DataFrame) -> dict[str, str]:
    """Of each service."""
    return dict(zip(_names(passes, "service"), itertools.cycle(COLOURS), strict=False))


@contextmanager
def _panels(tests: Sequence[str], height: float) -> Iterator[tuple[Figure, dict[str, Axes]]]:
    """A panel for each test."""
    with charts.panels(len(tests), height=0.6 + height * len(tests)) as (figure, panels):
        for test, axes in zip(tests, panels, strict=True):
            charts.title(axes, LABELS[test])
        yield figure, dict(zip(tests, panels, strict=True))


def bars_figure(passes: pl.DataFrame) -> Figure:
    """Transactions a second, a panel for each test."""
    colours, rows = _colours(passes), summary(_main(passes))
    with _panels(_names(passes, "test"), 0.5 + 0.32 * len(colours)) as (figure, panels):
        for test, axes in panels.items():
            services = rows.filter(test=test).to_dicts()
            for at, row in enumerate(services):
                text = speed_text(row, "tps", TPS.format)
                charts.bar(axes, at, row, "tps", colours[row["service"]], text=text, height=0.7)
            charts.name_lines(axes, [row["service"] for row in services])
            axes.margins(x=0.1)
            axes.set_xlim(left=0)
            charts.quantities(axes.xaxis)
        charts.footnote(figure, f"transactions a second, {charts.MEDIANS}")
    return figure


def _lines(
    passes: pl.DataFrame, draw: Callable[[Axes, str, str, str], object], x: str, y: str = "TPS",
    tests: Sequence[str] = (), height: float = 1.9,
) -> Figure:  # fmt: skip
    """A panel for each test with a line for each service; `draw` gets the panel, test, service and its colour."""
    colours = _colours(passes)
    with _panels(tests or _names(passes, "test"), height) as (figure, panels):
        for test, axes in panels.items():
            for service, colour in colours.items():
                draw(axes, test, service, colour)
            axes.set_ylim(bottom=0)
            axes.set_ylabel(y)
        figure.axes[-1].set_xlabel(x)
        charts.legend(figure, colours, loc="outside lower center", ncols=min(6, len(colours)))
    return figure


def clients_figure(passes: pl.DataFrame) -> Figure:
    """Transactions a second against clients."""
    rows = summary(passes).filter(status="ok")
    several = rows.filter(pl.col("clients").n_unique().over("test") > 1)
    tests = _names(several if len(several) else rows, "test")
    services = _names(passes, "service")

    def draw(axes: Axes, test: str, service: str, colour: str) -> None:
        here = rows.filter(test=test, service=service).sort("clients")
        # A little beside each other: else the lines of one number of clients would hide each other.
        clients = (here["clients"] * 1.03 ** (services.index(service) - len(services) // 2)).to_list()
        axes.plot(clients, here["tps"].to_list(), color=colour, marker="o", markersize=4, linewidth=1.6)
        axes.vlines(clients, here["min_tps"].to_list(), here["max_tps"].to_list(), color=colour, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted(set(rows.filter(test=test)["clients"])))
        charts.quantities(axes.xaxis, "{:g}".format)
        charts.quantities(axes.yaxis)

    x = "clients, logarithmic; median of passes, upright lines from the slowest to the fastest"
    return _lines(passes, draw, x, tests=tests, height=2.8)


class Pgbench(Shown):
    """The passes of a run, ready to be shown."""

    study = STUDY
    answer = view(answer_text)
    table = view(speeds_table)
    clients = chart(clients_figure, "clients")
    chart = chart(bars_figure)
    of_server = view(server_table)
    published = view(published_table)

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """As `Shown.load`."""
        shown = super().load(settings)
        shown.passes = in_order(shown.passes, shown.run_metadata["order"])
        return shown

    def services(self) -> Listing:
        """What was compared."""
        return services_table(self.passes, self.run_metadata)

    def missing(self) -> Markdown:
        """What did not run, what is wrong, and what is left behind."""
        return Markdown(
            f"{missing(summary(_main(self.passes)), 'service', 'test')}\n\n{bullets(self.run_metadata['left'])}"
        )


load = Pgbench.load


def patience(values: Mapping[str, Any]) -> int | None:
    """For how many seconds more a cell may take: longer tests take hours, those published most of them to make data."""
    return None if values.get("workload") in ("longer", "published") else 0
