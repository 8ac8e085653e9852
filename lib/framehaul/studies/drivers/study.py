"""The studies of drivers: run, kept as one row per pass, drawn and summarised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from framehaul import servers
from framehaul.harness.environment import server_versions
from framehaul.harness.recording import recording
from framehaul.harness.rounds import check, interruptible
from framehaul.reporting import charts
from framehaul.reporting.study import Study
from framehaul.reporting.tables import markdown_table, missing_table, ratio_text, thousands
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import store
from framehaul.results.statistics import medians, never_wrong
from framehaul.results.statistics import ratio as ratio_of
from framehaul.servers import Servers
from framehaul.settings import load_settings
from framehaul.studies.drivers import CLICKHOUSE, POSTGRES, STUDIES, catalog
from framehaul.studies.drivers.runner import ClickHouseGround, Ground, Load, Measurement, PostgresGround, Task, rounds
from framehaul.studies.drivers.shapes import (
    CLICKHOUSE_TABLES,
    POSTGRES_SHAPES,
    POSTGRES_TABLES,
    PUBLISHED_SHAPES,
    PUBLISHED_TABLE,
)

LANGUAGE_COLOURS = {"Python": "#0072B2", "Go": "#009E73", "Node": "#E69F00"}
OVERALL = "overall"
"""The geometric mean of the published shapes, as a shape of its own."""
POSTGRES_BASE, CLICKHOUSE_BASE = "asyncpg_uvloop", "connect_async"
"""The fastest of the published figures: the one that ratios are over."""


@dataclass(frozen=True)
class Claim:
    """What the article of 2016 said, as a ratio of rows/s over `shape`; `bound` is the least it said."""

    said: str
    shape: str
    left: str
    right: str
    bound: float


CLAIMS = (
    Claim("at least 3x aiopg with its DictCursor", OVERALL, POSTGRES_BASE, "aiopg_dict", 3),
    Claim("at least 3x aiopg", OVERALL, POSTGRES_BASE, "aiopg", 3),
    Claim("at least 3x psycopg2 (here with threads, DictCursor)", OVERALL, POSTGRES_BASE, "psycopg2_dict", 3),
    Claim("at least 3x psycopg2 (here with threads)", OVERALL, POSTGRES_BASE, "psycopg2", 3),
    Claim("faster than Node's pg", OVERALL, POSTGRES_BASE, "node_pg", 1),
    Claim("faster than Node's pg-native", OVERALL, POSTGRES_BASE, "node_pg_native", 1),
    Claim("faster than Go's drivers: lib/pq, arrays left as text", OVERALL, POSTGRES_BASE, "go_pq_undecoded", 1),
    Claim("the same against lib/pq, arrays decoded", OVERALL, POSTGRES_BASE, "go_pq", 1),
    Claim("the same against pgx", OVERALL, POSTGRES_BASE, "go_pgx", 1),
    Claim("arrays: slower than lib/pq, which left them as text", "arrays", "go_pq_undecoded", POSTGRES_BASE, 1),
    Claim("arrays: the same against lib/pq that decodes them", "arrays", "go_pq", POSTGRES_BASE, 1),
    Claim("aiopg's DictCursor costs much against its tuples", OVERALL, "aiopg", "aiopg_dict", 1),
)
ONE_QUERY_SECONDS = 1e-9
"""A window in which each connection has the time for the one query that it begins with."""
PUBLISHED_ROWS_PER_S = 1_000_000
"""Of the titular benchmark: wide rows of pg_type through asyncpg, one client thread, eight connections, in 2016."""

# Rows/s of https://github.com/DarkStussy/aiochlite/tree/master/benchmarks: 100,000 rows, 5 rounds, ClickHouse 25.8.
PUBLISHED_CLIENTS = {
    "connect_async": 230_761, "aiochlite_tuples": 216_801, "aiochlite_rows": 191_834, "aiochclient": 64_153,
}  # fmt: skip


class Drivers:
    """The passes of a study of drivers, ready to be shown."""

    def __init__(self, study: Study, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self.study, self._metadata, self._figures = study, metadata, figures

    def overall(self) -> Markdown:
        """All drivers by the geometric mean of the published shapes, with the rows/s of each shape."""
        return Markdown(overall_table(self.passes))

    def shapes(self) -> Markdown:
        """What is asked."""
        rows = [[shape.label, f"`{shape.sql}`" if shape.sql else _stored_text(shape)] for shape in POSTGRES_SHAPES]
        return Markdown(markdown_table(["shape", "query"], rows, text_columns=2))

    def tables(self) -> Markdown:
        """What is fetched."""
        rows = [[table.label, f"`{table.columns}`"] for table in CLICKHOUSE_TABLES]
        return Markdown(markdown_table(["table", "columns"], rows, text_columns=2))

    def chart(self) -> SVG:
        """Rows/s of every driver, a panel for each shape; also saved as a figure."""
        return self._saved(shapes_figure(self.passes), "")

    def latency_chart(self) -> SVG:
        """Latencies of every driver, a panel for each shape; also saved as a figure."""
        return self._saved(latency_figure(self.passes), "_latency")

    def concurrency_chart(self) -> SVG:
        """Rows/s against the number of queries at once; also saved as a figure."""
        return self._saved(concurrency_figure(self.passes), "_concurrency")

    def latency(self, shape: str) -> Markdown:
        """Latencies and CPU time of one shape."""
        return Markdown(latency_table(self.passes, shape))

    def clients(self) -> Markdown:
        """What a query takes each client: ms, rows/s, microseconds per row, for each table."""
        return Markdown(clients_table(self.passes))

    def concurrency(self) -> Markdown:
        """Rows/s against the number of queries at once."""
        return Markdown(concurrency_table(self.passes))

    def fastest(self) -> Markdown:
        """The fastest of each shape, and who spends least CPU and has the shortest tail."""
        return Markdown(fastest_table(self.passes))

    def claims(self) -> Markdown:
        """What was published about asyncpg, beside what was measured."""
        return Markdown(claims_table(self.passes))

    def published_clients(self) -> Markdown:
        """What was published about aiochlite, beside what was measured."""
        return Markdown(published_clients_table(self.passes))

    def missing(self) -> Markdown:
        """What did not run, and what would make it run."""
        return Markdown(missing_table(summary(self.passes), "driver", "shape"))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, self.study.notebook))

    def _saved(self, figure: Figure, suffix: str) -> SVG:
        return SVG(charts.save(figure, self._figures / f"{self.study.name}{suffix}.svg"))


def run_postgres(
    *, passes: int, seed: int, connections: int, duration: float, warmup_duration: float, rate: float
) -> Drivers:
    """Measure every PostgreSQL driver with every shape and write `results/postgres_drivers.csv`.

    Durations are seconds, `rate` is queries/s, 0 for a closed loop. Raises ValueError for a parameter that makes no
    sense, ServerError when the server cannot be had, ResultsError when the file cannot be written.
    """
    load = Load(connections, duration, warmup_duration, rate)
    tasks = [Task(contender, shape, load) for contender in catalog.POSTGRES for shape in POSTGRES_SHAPES]
    loop = f"{rate:g} queries/s" if rate else "closed loop"
    what = f"{connections} connections, {loop}, {duration:g} s after {warmup_duration:g} s of warm-up, {passes} passes"
    return _run(
        POSTGRES, tasks, lambda both: PostgresGround(both.postgres).made(),
        warmup=0, passes=passes, seed=seed, what=what,
    )  # fmt: skip


def run_clickhouse(*, rows: int, passes: int, warmup: int, seed: int, concurrency: list[int]) -> Drivers:
    """Measure every ClickHouse client and write `results/clickhouse_clients.csv`.

    Each table alone, and the published one with `concurrency` queries at once, which together fetch the same rows.
    Raises what `run_postgres` raises.
    """
    check(ROWS=(rows, 1), PASSES=(passes, 1), WARMUP=(warmup, 0))
    tasks = [
        Task(contender, table.shape(max(1, rows // at_once)), Load(at_once, ONE_QUERY_SECONDS, 0, 0))
        for contender in catalog.CLICKHOUSE
        for table in CLICKHOUSE_TABLES
        for at_once in (concurrency if table.name == PUBLISHED_TABLE else concurrency[:1])
    ]
    return _run(
        CLICKHOUSE, tasks, lambda both: ClickHouseGround(both.clickhouse, rows).made(),
        warmup=warmup, passes=passes, seed=seed, what=f"{rows:,} rows, {passes} passes",
    )  # fmt: skip


def load(study: Study) -> Drivers:
    """The results of a notebook's last complete run, without any server; raises ResultsError when there is none."""
    settings = load_settings()
    directory = settings.out / "results"
    passes = store.read(directory / study.results, Measurement)
    return Drivers(study, passes, store.read_metadata(directory), settings.out / "figures")


def readme_blocks(directory: Path) -> dict[str, str]:
    """The tables that the README shows, from a results directory; raises ResultsError when a study was not run."""
    postgres, clickhouse = (store.read(directory / study.results, Measurement) for study in STUDIES)
    return {
        "drivers": overall_table(postgres), "drivers-claims": claims_table(postgres),
        "clients": speeds_table(clickhouse), "clients-published": published_clients_table(clickhouse),
    }  # fmt: skip


def _run(
    study: Study, tasks: list[Task], ground_of: Callable[[Servers], AbstractContextManager[Ground]], *,
    warmup: int, passes: int, seed: int, what: str,
) -> Drivers:  # fmt: skip
    check(PASSES=(passes, 1))
    with (
        recording(study.notebook, study.results, Measurement, "task") as made,
        servers.running(made.settings) as both,
        ground_of(both) as ground,
    ):
        made.expect(len(tasks) * (warmup + passes))

        def record(task: Task, number: int, found: dict[str, Any]) -> None:
            contender = task.contender
            made.write(
                Measurement(
                    run_id=made.run_id, driver=contender.name, label=contender.label, language=contender.language,
                    origin=contender.origin, shape=task.shape.name, connections=task.load.connections,
                    rate=task.load.rate, pass_=number, **found,
                )
            )  # fmt: skip

        def work(stop: threading.Event) -> None:
            rounds(tasks, ground, made.settings, warmup=warmup, passes=passes, seed=seed, record=record,
                   progress=made.progress, stop=stop)  # fmt: skip

        interruptible(work)
        made.metadata |= {
            "what": what, "servers": both.mode, "server": server_versions(both),
            "toolchains": catalog.versions() if study == POSTGRES else {},
        }  # fmt: skip
    return load(study)


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per driver, shape and number of connections, as `statistics.medians` makes it."""
    return medians(passes, ["driver", "label", "language", "origin", "shape", "connections"])


def with_overall(passes: pl.DataFrame) -> pl.DataFrame:
    """The passes with client CPU per row, per query and per second, and the geometric means of the published shapes.

    The means are those of a driver that did all of these shapes in a pass, and none of them wrong in any; they stand
    there as a shape of their own.
    """
    cpu = pl.col("client_cpu_s")
    passes = passes.with_columns(
        (cpu / pl.col("rows")).alias("client_cpu_s_per_row"), (cpu / pl.col("queries")).alias("client_cpu_s_per_query"),
        (cpu / pl.col("seconds")).alias("client_cores"),
    )  # fmt: skip
    means = (
        never_wrong(passes.filter(pl.col("shape").is_in(PUBLISHED_SHAPES)), ["driver"])
        .group_by("driver", "label", "language", "origin", "connections", "pass", maintain_order=True)
        .agg(
            pl.col("^(queries|rows)_per_s|client_c.*_per_.*|client_cores|latency_.*$").log().mean().exp(),
            pl.col("shape").len().alias("shapes"), pl.col("unserved").sum(),
        )
        .filter(pl.col("shapes") == len(PUBLISHED_SHAPES))
        .with_columns(pl.lit(OVERALL).alias("shape"), pl.lit("ok").alias("status"))
    )  # fmt: skip
    return pl.concat([passes, means.drop("shapes")], how="diagonal")


def ratio(passes: pl.DataFrame, shape: str, left: str, right: str) -> dict[str, float]:
    """The ratio of rows/s of two drivers with a shape."""
    here = passes.filter(shape=shape)
    return ratio_of(here.filter(driver=left), here.filter(driver=right))


def overall_table(passes: pl.DataFrame) -> str:
    """The drivers, fastest first, as Markdown."""
    everything = with_overall(passes)
    found = summary(everything)
    shapes = [shape for shape in POSTGRES_SHAPES if shape.name in set(found["shape"])]
    rows = []
    for driver in _order(found):
        mine = {row["shape"]: row for row in found.filter(driver=driver).to_dicts()}
        overall = mine.get(OVERALL)
        rows.append(
            [
                next(iter(mine.values()))["label"],
                "" if overall is None else _speed(overall),
                ratio_text(ratio(everything, OVERALL, driver, POSTGRES_BASE)),
                "" if overall is None else f"{overall['client_cpu_s_per_row'] * 1e6:.2f}",
                "" if overall is None else f"{overall['client_cores']:.2f}",
                *(_speed(mine[shape.name]) for shape in shapes),
            ]
        )
    header = ["driver", "rows/s, geometric mean of the published four", "ratio to asyncpg under uvloop (95% interval)",
              "client CPU, µs per row", "client cores busy", *(shape.label for shape in shapes)]  # fmt: skip
    return markdown_table(header, rows)


def fastest_table(passes: pl.DataFrame) -> str:
    """For each shape the fastest driver, that of Python, the least CPU per row and the lowest p99, as Markdown."""
    everything = with_overall(passes)
    found = summary(everything).filter(status="ok")
    labels = {OVERALL: "geometric mean of the published four"} | {shape.name: shape.label for shape in POSTGRES_SHAPES}
    rows = []
    for shape, label in labels.items():
        here = found.filter(shape=shape).sort("rows_per_s", descending=True)
        if here.is_empty():
            continue
        first, mine = here.row(0, named=True), here.filter(language="Python").row(0, named=True)
        thrifty = here.sort("client_cpu_s_per_row").row(0, named=True)
        quick = here.sort("latency_p99_ms").row(0, named=True)
        rows.append(
            [
                label,
                f"{first['label']}: {_speed(first)}",
                f"{mine['label']}: {_speed(mine)}",
                ratio_text(ratio(everything, shape, mine["driver"], POSTGRES_BASE)),
                f"{thrifty['label']}: {thrifty['client_cpu_s_per_row'] * 1e6:.2f} µs",
                f"{quick['label']}: {quick['latency_p99_ms']:.2f} ms",
            ]
        )
    header = ["shape", "fastest, rows/s", "fastest of Python, rows/s", "that over asyncpg, uvloop (95% interval)",
              "least client CPU per row", "shortest p99"]  # fmt: skip
    return markdown_table(header, rows, text_columns=6)


def latency_table(passes: pl.DataFrame, shape: str) -> str:
    """Latencies of one shape, lowest median first, as Markdown."""
    columns = ("mean", "std", "min", "p50", "p90", "p99", "p999", "p9999", "max")
    found = summary(with_overall(passes)).filter(shape=shape, status="ok").sort("latency_p50_ms", maintain_order=True)
    rows = [
        [
            row["label"],
            f"{row['queries_per_s']:,.0f}",
            *(_milliseconds(row[f"latency_{name}_ms"]) for name in columns),
            f"{row['unserved']:,.0f}",
            f"{row['client_cpu_s_per_query'] * 1e6:,.0f}",
        ]
        for row in found.to_dicts()
    ]
    header = ["driver", "queries/s", *(f"{name} ms" for name in columns), "missed arrivals", "client CPU, µs per query"]
    return markdown_table(header, rows)


def claims_table(passes: pl.DataFrame) -> str:
    """The article's claims, each with the measured ratio and what it comes to, as Markdown."""
    everything = with_overall(passes)
    titular = summary(passes).filter(driver=POSTGRES_BASE, shape="pg_type").row(0, named=True)
    speed = titular["rows_per_s"]
    rows = [
        [
            "asyncpg moves 1M rows/s (all of pg_type)", "1M rows/s",
            "" if speed is None else f"{thousands(speed)} rows/s "
            f"({thousands(titular['min_rows_per_s'])} to {thousands(titular['max_rows_per_s'])})",
            _verdict(titular["min_rows_per_s"], titular["max_rows_per_s"], PUBLISHED_ROWS_PER_S),
        ]
    ]  # fmt: skip
    for claim in CLAIMS:
        found = ratio(everything, claim.shape, claim.left, claim.right)
        rows.append(
            [claim.said, f"over {claim.bound:g}x", ratio_text(found),
             _verdict(found["ratio_low"], found["ratio_high"], claim.bound)]
        )  # fmt: skip
    return markdown_table(["claim of 2016", "published", "measured (95% interval)", "today"], rows, text_columns=4)


def clients_table(passes: pl.DataFrame) -> str:
    """What a query takes each ClickHouse client, table by table, as Markdown."""
    one = passes.filter(connections=passes["connections"].min())
    found = summary(one)
    rows = []
    for table in CLICKHOUSE_TABLES:
        here = found.filter(shape=table.name).sort("rows_per_s", descending=True, nulls_last=True, maintain_order=True)
        for row in here.to_dicts():
            if row["rows_per_s"] is None:
                rows.append([table.label, row["label"], row["status"], "", "", "", "", ""])
                continue
            rows.append(
                [
                    table.label,
                    row["label"],
                    f"{row['seconds'] * 1e3:,.1f}",
                    f"{row['rows_per_s']:,.0f}{' ±' if row['unstable'] else ''}",
                    f"{row['seconds'] / row['rows'] * 1e6:.2f}",
                    ratio_text(ratio(one, table.name, row["driver"], CLICKHOUSE_BASE)),
                    f"{row['client_cpu_s'] / row['rows'] * 1e6:.2f}",
                    "" if row["peak_rss_bytes"] is None else f"{row['peak_rss_bytes'] / 1e6:.0f} MB",
                ]
            )
    header = ["table", "client", "ms", "rows/s", "µs per row", "ratio to clickhouse-connect async (95% interval)",
              "client CPU, µs per row", "peak RSS growth"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def speeds_table(passes: pl.DataFrame) -> str:
    """Rows/s of each ClickHouse client on each table, fastest first, as Markdown."""
    one = passes.filter(connections=passes["connections"].min())
    found = summary(one)
    rows = [
        [found.filter(driver=driver)["label"][0],
         *(_speed(found.filter(driver=driver, shape=table.name).row(0, named=True)) for table in CLICKHOUSE_TABLES)]
        for driver in _order(found)
    ]  # fmt: skip
    return markdown_table(["client", *(f"{table.label}, rows/s" for table in CLICKHOUSE_TABLES)], rows)


def concurrency_table(passes: pl.DataFrame) -> str:
    """Rows/s of the published table against the number of queries at once, as Markdown."""
    here = passes.filter(shape=PUBLISHED_TABLE)
    found = summary(here)
    counts = sorted(set(here["connections"]))
    rows = []
    for driver in _order(found.filter(connections=counts[0])):
        mine = {row["connections"]: row for row in found.filter(driver=driver).to_dicts()}
        one, most = (here.filter(driver=driver, connections=count) for count in (counts[0], counts[-1]))
        rows.append(
            [
                mine[counts[0]]["label"],
                *(_speed(mine[count]) for count in counts),
                ratio_text(ratio_of(most, one)),
            ]
        )
    header = ["client", *(f"{count} at once, rows/s" for count in counts),
              f"{counts[-1]} over {counts[0]} (95% interval)"]  # fmt: skip
    return markdown_table(header, rows)


def published_clients_table(passes: pl.DataFrame) -> str:
    """Published and measured ratios to clickhouse-connect, as Markdown."""
    one = passes.filter(connections=passes["connections"].min(), shape=PUBLISHED_TABLE)
    found = {row["driver"]: row for row in summary(one).to_dicts()}
    rows = [
        [
            found[driver]["label"],
            f"{published:,}",
            _speed(found[driver]),
            f"{published / PUBLISHED_CLIENTS[CLICKHOUSE_BASE]:.2f}x",
            ratio_text(ratio(one, PUBLISHED_TABLE, driver, CLICKHOUSE_BASE)),
        ]
        for driver, published in PUBLISHED_CLIENTS.items()
    ]
    header = ["client", "published rows/s", "measured rows/s", "published, over clickhouse-connect async",
              "measured (95% interval)"]  # fmt: skip
    return markdown_table(header, rows)


def shapes_figure(passes: pl.DataFrame) -> Figure:
    """Median rows/s as bars, slowest to fastest pass as whiskers: a panel for each shape, the same order in all."""
    found = summary(with_overall(passes).filter(connections=passes["connections"].min()))
    return _panels(
        found,
        _bar,
        "rows/s, median of passes (whiskers: slowest and fastest pass; ±: they vary by more than 10%)",
        thousands,
    )


def latency_figure(passes: pl.DataFrame) -> Figure:
    """From median to 99th percentile as a line, on a logarithmic axis; the largest latency as a faint dot."""
    found = summary(with_overall(passes))
    legend = "latency in ms, logarithmic: dot = median, line to the 99th percentile, ring = largest"
    return _panels(found, _range, legend, lambda value: f"{value:g}", scale="log")


def concurrency_figure(passes: pl.DataFrame) -> Figure:
    """Rows/s against queries at once, a line for each client."""
    found = summary(passes.filter(shape=PUBLISHED_TABLE))
    counts = sorted(set(found["connections"]))
    drivers = _order(found.filter(connections=counts[0]))
    colours = mpl.colormaps["tab10"]
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(10.5, 4.6), layout="constrained")
        axes = figure.subplots()
        for at, driver in enumerate(drivers):
            mine = found.filter(driver=driver, status="ok").sort("connections")
            if not mine.is_empty():
                axes.plot(range(len(mine)), mine["rows_per_s"].to_list(), marker="o", color=colours(at % 10),
                          label=mine["label"][0])  # fmt: skip
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set_ylim(0)
        axes.yaxis.set_major_formatter(lambda value, _: thousands(value))
        axes.grid(axis="y", color="#eeeeee")
        axes.set_xlabel("queries at once (together they fetch the same rows)")
        axes.set_ylabel("rows/s, all of them together")
        axes.set_title("Rows/s against queries at once", loc="left", fontweight="bold")
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _panels(
    found: pl.DataFrame, draw: Callable[[Axes, int, dict[str, Any]], None], legend: str,
    tick: Callable[[float], str], scale: str = "linear",
) -> Figure:  # fmt: skip
    """A panel for each shape, with a line for each driver, in one order."""
    labels = {OVERALL: "geometric mean of the published four"} | {
        shape.name: shape.label for shape in (*CLICKHOUSE_TABLES, *POSTGRES_SHAPES)
    }
    shapes = [name for name in labels if name in set(found["shape"])]
    drivers = _order(found)
    named = {row["driver"]: row for row in found.to_dicts()}
    columns = 2 if len(shapes) > len(CLICKHOUSE_TABLES) else len(shapes)
    lines = -(-len(shapes) // columns)
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(12, 0.9 + lines * (0.7 + 0.19 * len(drivers))), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False)
        for axes in panels.flat[len(shapes) :]:
            axes.set_axis_off()
        for at, (axes, shape) in enumerate(zip(panels.flat, shapes, strict=False)):
            axes.set_xscale(scale)
            for y, driver in enumerate(drivers):
                row = next(iter(found.filter(driver=driver, shape=shape).to_dicts()), None)
                if row is not None and row["status"] == "ok":
                    draw(axes, y, row)
                elif row is not None:
                    axes.text(0.01, y, row["status"], transform=axes.get_yaxis_transform(), va="center",
                              color=charts.STATUS_INK[row["status"]], fontsize=7)  # fmt: skip
            axes.set_yticks(
                range(len(drivers)), [named[name]["label"] for name in drivers] if at % columns == 0 else []
            )
            for label, name in zip(axes.get_yticklabels(), drivers, strict=False):
                label.set_color(charts.PUBLISHED_INK if named[name]["origin"] == "published" else charts.INK)
            axes.set_ylim(len(drivers) - 0.4, -0.6)
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.12)
            axes.xaxis.set_major_formatter(lambda value, _: tick(value))
            axes.xaxis.set_minor_formatter(lambda value, _: tick(value) if f"{value:e}"[0] in "25" else "")
            axes.tick_params(axis="x", which="both", labelsize=7)
            axes.grid(axis="x", color="#eeeeee")
            axes.set_axisbelow(True)
            axes.set_title(labels[shape], loc="left", fontsize=9, fontweight="bold")
        present = set(found["language"])
        patches = [Patch(color=colour, label=name) for name, colour in LANGUAGE_COLOURS.items() if name in present]
        if len(patches) > 1:
            figure.legend(handles=patches, loc="outside lower right", ncols=3, frameon=False)
        figure.supxlabel(f"{legend}; names in grey: published", fontsize=8, x=0.01, ha="left")
    return figure


def _bar(axes: Axes, y: int, row: dict[str, Any]) -> None:
    axes.barh(y, row["rows_per_s"], color=LANGUAGE_COLOURS[row["language"]], height=0.72)
    axes.plot([row["min_rows_per_s"], row["max_rows_per_s"]], [y, y], color=charts.INK, linewidth=1)
    axes.annotate(
        _speed(row), (row["max_rows_per_s"], y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7
    )


def _range(axes: Axes, y: int, row: dict[str, Any]) -> None:
    colour = LANGUAGE_COLOURS[row["language"]]
    axes.plot([row["latency_p50_ms"], row["latency_p99_ms"]], [y, y], color=colour, linewidth=2)
    axes.scatter(row["latency_p50_ms"], y, color=colour, s=22, zorder=3)
    axes.scatter(row["latency_max_ms"], y, facecolor="white", edgecolor=charts.FAINT, s=14, zorder=2)


def _order(found: pl.DataFrame) -> list[str]:
    """The drivers, fastest first: by the geometric mean where there is one, else over what there is."""
    speeds = found.filter(shape=OVERALL) if OVERALL in set(found["shape"]) else found
    mean = speeds.group_by("driver", maintain_order=True).agg(pl.col("rows_per_s").log().mean())
    ordered = mean.sort("rows_per_s", descending=True, nulls_last=True, maintain_order=True)["driver"].to_list()
    return [*ordered, *(name for name in found["driver"].unique(maintain_order=True) if name not in ordered)]


def _stored_text(shape: Any) -> str:
    return f"{shape.count:,} rows into `{', '.join(POSTGRES_TABLES[shape.table][0].split(' (')[1:])}"[:-1] + "`"


def _speed(row: dict[str, Any]) -> str:
    """Its rows/s, marked where they vary much over passes; or why there are none."""
    if row["rows_per_s"] is None:
        return str(row["status"])
    return f"{thousands(row['rows_per_s'])}{' ±' if row['unstable'] else ''}"


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"  # noqa: PLR2004


def _verdict(low: float | None, high: float | None, bound: float) -> str:
    """What an interval says of a bound; never more than it shows."""
    if low is None or high is None or np.isnan(low):
        return "not measured"
    return "holds" if low >= bound else "does not hold" if high < bound else "inconclusive"


def patience(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell may take: every driver answers every shape for so long."""
    tests = len(catalog.POSTGRES) * len(POSTGRES_SHAPES) * int(values.get("passes", 1))
    seconds = float(values.get("duration", 0)) + float(values.get("warmup_duration", 0))
    return 3 * round(tests * seconds)
