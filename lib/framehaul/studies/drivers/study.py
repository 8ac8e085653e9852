"""The studies of drivers: run, kept as one row per pass, drawn and summarised."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import ratios, store
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of
from framehaul.bench.ratios import Ratio, verdicts
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.statistics import medians, never_wrong
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import (
    UNSTABLE,
    Column,
    Listing,
    Row,
    bullets,
    rivals_text,
    speed_text,
    spread_text,
    thousands,
    words,
)  # fmt: skip
from framehaul.servers import Servers
from framehaul.studies.drivers import CLICKHOUSE, POSTGRES, STUDIES, catalog, runner
from framehaul.studies.drivers.runner import ClickHouseGround, Ground, Load, Measurement, PostgresGround, Task
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, PUBLISHED_SHAPES, PUBLISHED_TABLE

LANGUAGE_COLOURS = {"Python": "#0072B2", "Go": "#009E73", "Node": "#E69F00"}
OVERALL = "overall"
"""The geometric mean of the published shapes, as a shape of its own."""
LABELS = {OVERALL: "geometric mean of the published four"} | {
    shape.name: shape.label for shape in (*CLICKHOUSE_TABLES, *POSTGRES_SHAPES)
}
POSTGRES_BASE, CLICKHOUSE_BASE = "asyncpg_uvloop", "connect_async"
"""The fastest of the published figures: the one that ratios are over."""


@dataclass(frozen=True)
class Claim:
    """What the article of 2016 claimed, as a ratio of rows/s over `shape`, and the least that it claimed."""

    text: str
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


def ratio(passes: pl.DataFrame, shape: str, left: str, right: str) -> Ratio:
    """The ratio of rows/s of two drivers with a shape."""
    here = passes.filter(shape=shape)
    return ratios.ratio(here.filter(driver=left), here.filter(driver=right))


def overall_table(passes: pl.DataFrame) -> Listing:
    """All drivers by the geometric mean of the published shapes, with the rows/s of each shape."""
    passes = with_overall(passes)
    figures = summary(passes)
    present = set(figures["shape"])
    columns = [
        words("driver", "label"),
        _speed(f"rows/s, {LABELS[OVERALL]}", OVERALL),
        Column("ratio to asyncpg under uvloop",
               lambda row: ratio(passes, OVERALL, row["driver"], POSTGRES_BASE)),
        Column("client CPU, µs per row", lambda row: _microseconds(row.get(OVERALL)), "{:.2f}"),
        Column("client cores busy", lambda row: row[OVERALL]["client_cores"] if OVERALL in row else None, "{:.2f}"),
        *(_speed(shape.label, shape.name) for shape in POSTGRES_SHAPES if shape.name in present),
    ]  # fmt: skip
    return Listing(columns, _by_driver(figures, "shape"))


def fastest_table(passes: pl.DataFrame) -> Listing:
    """The fastest of each shape, the fastest of Python, who spends least CPU per row, and who has the lowest p99."""
    passes = with_overall(passes)
    figures = summary(passes).filter(status="ok")
    rows = []
    for shape, label in LABELS.items():
        here = figures.filter(shape=shape).sort("rows_per_s", descending=True)
        if not here.is_empty():
            first, python = here.row(0, named=True), here.filter(language="Python").row(0, named=True)
            rows.append({
                "label": label, "first": first, "python": python,
                "ratio": ratio(passes, shape, python["driver"], POSTGRES_BASE),
                "thrifty": here.sort("client_cpu_s_per_row").row(0, named=True),
                "quick": here.sort("latency_p99_ms").row(0, named=True),
            })  # fmt: skip

    def speed(row: Row) -> str:
        return f"{row['label']}: {speed_text(row)}"

    columns = [
        words("shape", "label"),
        words("fastest, rows/s", "first", speed),
        words("fastest of Python, rows/s", "python", speed),
        words("that over asyncpg, uvloop", "ratio"),
        words("least client CPU per row", "thrifty", lambda row: f"{row['label']}: {_microseconds(row):.2f} µs"),
        words("shortest p99", "quick", lambda row: f"{row['label']}: {row['latency_p99_ms']:.2f} ms"),
    ]
    return Listing(columns, rows)


def claims_table(passes: pl.DataFrame) -> Listing:
    """What was published about asyncpg, beside what was measured."""
    titular = summary(passes).filter(driver=POSTGRES_BASE, shape="pg_type").row(0, named=True)
    speed = titular["rows_per_s"]
    first = {
        "claim": "asyncpg moves 1M rows/s (all of pg_type)", "published": "1M rows/s",
        "measured": None if speed is None else f"{thousands(speed)} rows/s ({spread_text(titular)})",
    }  # fmt: skip
    passes = with_overall(passes)
    measured = {claim: ratio(passes, claim.shape, claim.left, claim.right) for claim in CLAIMS}
    others: list[dict[str, Any]] = [
        {"claim": claim.text, "published": f"over {claim.bound:g}x", "measured": value}
        for claim, value in measured.items()
    ]
    speeds = Ratio(tuple(math.log(one["speed"]) for one in titular["rounds"] or ()))
    bounds = [(speeds, PUBLISHED_ROWS_PER_S), *((value, claim.bound) for claim, value in measured.items())]
    claims = zip([first, *others], verdicts(bounds), strict=True)
    columns = [
        words("claim of 2016", "claim"), words("published", "published"),
        words("measured", "measured"), words("today", "today"),
    ]  # fmt: skip
    return Listing(columns, [claim | {"today": today} for claim, today in claims])


def postgres_answer(passes: pl.DataFrame) -> str:
    """Bullet points: the fastest over all shapes, and what became of the claims of 2016."""
    figures = summary(with_overall(passes)).filter(shape=OVERALL, status="ok").sort("rows_per_s", descending=True)
    today = collections.Counter(row["today"] for row in claims_table(passes).rows)
    kept = ", ".join(f"{word}: {count}" for word, count in sorted(today.items()))
    return bullets([*_fastest_text(figures, LABELS[OVERALL]), f"{today.total()} claims of 2016, today: {kept}."])


def clients_answer(passes: pl.DataFrame) -> str:
    """Bullet points: the fastest client for each table."""
    figures = summary(_least_connections(passes)).filter(status="ok").sort("rows_per_s", descending=True)
    points = (_fastest_text(figures.filter(shape=table.name), table.label) for table in CLICKHOUSE_TABLES)
    return bullets(itertools.chain.from_iterable(points))


def _fastest_text(figures: pl.DataFrame, what: str) -> Iterator[str]:
    """Who is fastest, and who is not told apart; nothing where nobody ran."""
    if not figures.is_empty():
        ranked = figures.to_dicts()
        near = rivals_text(ranked)
        yield (
            f"**{what}**: {ranked[0]['label']}, {thousands(ranked[0]['rows_per_s'])} rows/s"
            f"{f'; not told apart from it: {near}' if near else ''}."
        )


def latency_table(passes: pl.DataFrame, shape: str) -> Listing:
    """Latencies and CPU time of one shape, lowest median first."""
    figures = summary(with_overall(passes)).filter(shape=shape, status="ok")
    percentiles = ("mean", "std", "min", "p50", "p90", "p99", "p999", "p9999", "max")
    columns = [
        words("driver", "label"),
        Column("queries/s", "queries_per_s", "{:,.0f}"),
        *(Column(f"{name} ms", f"latency_{name}_ms", "{:,.2f}") for name in percentiles),
        Column("missed arrivals", "unserved", "{:,.0f}"),
        Column("client CPU, µs per query", lambda row: row["client_cpu_s_per_query"] * 1e6, "{:,.0f}"),
    ]
    return Listing(columns, figures.sort("latency_p50_ms", maintain_order=True))


def clients_table(passes: pl.DataFrame) -> Listing:
    """What a query takes each client: ms, rows/s, microseconds per row, for each table."""
    passes = _least_connections(passes)
    figures = summary(passes).sort("rows_per_s", descending=True, nulls_last=True, maintain_order=True)
    columns = [
        words("table", lambda row: LABELS[row["shape"]]),
        words("client", "label"),
        Column("ms", lambda row: row["seconds"] * 1e3, "{:,.1f}"),
        Column("rows/s", "rows_per_s", "{:,.0f}"),
        UNSTABLE,
        Column("µs per row", lambda row: row["seconds"] / row["rows"] * 1e6, "{:.2f}"),
        Column("ratio to clickhouse-connect async",
               lambda row: ratio(passes, row["shape"], row["driver"], CLICKHOUSE_BASE)),
        Column("client CPU, µs per row", lambda row: row["client_cpu_s"] / row["rows"] * 1e6, "{:.2f}"),
        Column("peak RSS growth", "peak_rss_bytes", tables.megabytes),
    ]  # fmt: skip
    return Listing(columns, pl.concat(figures.filter(shape=table.name) for table in CLICKHOUSE_TABLES))


def speeds_table(passes: pl.DataFrame) -> Listing:
    """Rows/s of each ClickHouse client on each table, fastest first."""
    columns = [words("client", "label"), *(_speed(f"{one.label}, rows/s", one.name) for one in CLICKHOUSE_TABLES)]
    return Listing(columns, _by_driver(summary(_least_connections(passes)), "shape"))


def concurrency_table(passes: pl.DataFrame) -> Listing:
    """Rows/s of the published table against the number of queries at once."""
    passes = passes.filter(shape=PUBLISHED_TABLE)
    counts = sorted(set(passes["connections"]))

    def most_over_one(row: Row) -> Ratio:
        one, most = (passes.filter(driver=row["driver"], connections=count) for count in (counts[0], counts[-1]))
        return ratios.ratio(most, one)

    columns = [
        words("client", "label"),
        *(_speed(f"{count} at once, rows/s", count) for count in counts),
        Column(f"{counts[-1]} over {counts[0]}", most_over_one),
    ]
    return Listing(columns, _by_driver(summary(passes), "connections"))


def published_clients_table(passes: pl.DataFrame) -> Listing:
    """What was published about aiochlite, beside what was measured."""
    passes = _least_connections(passes.filter(shape=PUBLISHED_TABLE))
    measured = {row["driver"]: row for row in _by_driver(summary(passes), "shape")}
    columns = [
        words("client", "label"),
        Column("published rows/s", lambda row: PUBLISHED_CLIENTS[row["driver"]], "{:,}"),
        _speed("measured rows/s", PUBLISHED_TABLE),
        Column("published, over clickhouse-connect async",
               lambda row: PUBLISHED_CLIENTS[row["driver"]] / PUBLISHED_CLIENTS[CLICKHOUSE_BASE], "{:.2f}x"),
        Column("measured",
               lambda row: ratio(passes, PUBLISHED_TABLE, row["driver"], CLICKHOUSE_BASE)),
    ]  # fmt: skip
    return Listing(columns, [measured[driver] for driver in PUBLISHED_CLIENTS])


def shapes_figure(passes: pl.DataFrame) -> Figure:
    """Median rows/s as bars, slowest to fastest pass as whiskers: a panel for each shape, the same order in all."""

    def bar(axes: Axes, at: int, row: Row) -> None:
        charts.bar(axes, at, row, "rows_per_s", LANGUAGE_COLOURS[row["language"]], size=8)

    axis = f"rows/s, {charts.MEDIANS}"
    return _panels(summary(with_overall(_least_connections(passes))), bar, axis, charts.amount)


def latency_figure(passes: pl.DataFrame) -> Figure:
    """From median to 99th percentile as a line, on a logarithmic axis; the largest latency as a faint ring."""

    def line(axes: Axes, at: int, row: Row) -> None:
        colour, median = LANGUAGE_COLOURS[row["language"]], row["latency_p50_ms"]
        axes.plot([median, row["latency_p99_ms"]], [at, at], color=colour, linewidth=2)
        axes.scatter(median, at, color=colour, s=22, zorder=3)
        axes.scatter(row["latency_max_ms"], at, facecolor="white", edgecolor=charts.FAINT, s=14, zorder=2)

    axis = "latency in ms, logarithmic: dot = median, line to the 99th percentile, ring = largest"
    return _panels(summary(with_overall(passes)), line, axis, "{:g}".format, logarithmic=True)


def concurrency_figure(passes: pl.DataFrame) -> Figure:
    """Rows/s against queries at once, a line for each client."""
    figures = summary(passes.filter(shape=PUBLISHED_TABLE))
    counts = sorted(set(figures["connections"]))
    with charts.panels(1, height=4.6) as (figure, [axes]):
        for client, marker in zip(_by_driver(figures, "connections"), itertools.cycle("os^vD<>pXd"), strict=False):
            speeds = [client[count]["rows_per_s"] for count in counts]
            if any(speeds):
                axes.plot(range(len(counts)), speeds, marker=marker, label=client["label"])
        axes.set_xticks(range(len(counts)), [str(count) for count in counts])
        axes.set_ylim(0)
        charts.quantities(axes.yaxis)
        axes.grid(axis="y", color="#eeeeee")
        axes.set_xlabel("queries at once (together they fetch the same rows)")
        axes.set_ylabel("rows/s, all of them together")
        charts.title(axes, "Rows/s against queries at once")
        figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _panels(
    figures: pl.DataFrame, draw: Callable[[Axes, int, Row], None], axis: str, form: Callable[[float], str], *,
    logarithmic: bool = False,
) -> Figure:  # fmt: skip
    """A panel for each shape, with a line for each driver, in one order."""
    present = set(figures["shape"])
    shapes = [name for name in LABELS if name in present]
    drivers = _by_driver(figures, "shape")
    columns = 2 if len(shapes) > len(CLICKHOUSE_TABLES) else len(shapes)
    lines = -(-len(shapes) // columns)
    height = 0.9 + lines * (0.7 + 0.19 * len(drivers))
    with charts.panels(lines, columns, height=height) as (figure, panels):
        for axes in panels[len(shapes) :]:
            axes.set_axis_off()
        for number, (axes, shape) in enumerate(zip(panels, shapes, strict=False)):
            for at, driver in enumerate(drivers):
                row = driver.get(shape, {"status": None})
                if row["status"] == "ok":
                    draw(axes, at, row)
                elif row["status"]:
                    axes.text(0.01, at, row["status"], transform=axes.get_yaxis_transform(), va="center",
                              color=charts.STATUS_INK[row["status"]], fontsize=8)  # fmt: skip
            charts.name_lines(axes, [row["label"] for row in drivers], [row["origin"] for row in drivers])
            axes.tick_params(axis="y", labelleft=number % columns == 0)
            axes.margins(x=0.12)
            charts.quantities(axes.xaxis, form, logarithmic=logarithmic)
            axes.tick_params(axis="x", which="both", labelsize=8)
            axes.grid(axis="x", color="#eeeeee")
            charts.title(axes, LABELS[shape], 9)
        languages = set(figures["language"])
        if len(languages) > 1:
            colours = {name: colour for name, colour in LANGUAGE_COLOURS.items() if name in languages}
            charts.legend(figure, colours, loc="outside lower right", ncols=3)
        charts.footnote(figure, f"{axis}\nnames in grey: published")
    return figure


def _least_connections(passes: pl.DataFrame) -> pl.DataFrame:
    return passes.filter(connections=passes["connections"].min())


def _by_driver(figures: pl.DataFrame, by: str) -> list[dict[Any, Any]]:
    """The drivers, fastest first, each with its medians by what the column `by` holds.

    They are ordered by the geometric mean of the published shapes where there is one, else over what there is.
    """
    speed = pl.col("rows_per_s").log()
    if OVERALL in set(figures["shape"]):
        speed = speed.filter(pl.col("shape") == OVERALL)
    drivers = _least_connections(figures).group_by("driver", "label", "origin", maintain_order=True).agg(speed.mean())
    fastest_first = drivers.sort("rows_per_s", descending=True, nulls_last=True, maintain_order=True)
    rows = figures.to_dicts()
    return [
        driver | {row[by]: row for row in rows if row["driver"] == driver["driver"]}
        for driver in fastest_first.drop("rows_per_s").to_dicts()
    ]


def _speed(title: str, key: Any) -> Column:
    """Rows/s of what stands at `key` in a row of `_by_driver`."""
    return Column(title, lambda row: speed_text(row[key]) if key in row else None)


def _microseconds(row: Row | None) -> float | None:
    return None if row is None else row["client_cpu_s_per_row"] * 1e6


def _query_text(shape: Row) -> str:
    columns = ", ".join(map(" ".join, zip(shape["columns"], shape["types"], strict=True)))
    return f"`{shape['sql']}`" if shape["sql"] else f"{shape['count']:,} rows into `{columns}`"


class Drivers(Shown):
    """The passes of a study of drivers."""

    chart = chart(shapes_figure)
    missing = view(lambda passes: tables.missing(summary(passes), "driver", "shape"))


class PostgresDrivers(Drivers):
    """Those of PostgreSQL by the shape of a query."""

    study = POSTGRES
    shapes = view(lambda _: Listing([words("shape", "label"), words("query", _query_text)], map(vars, POSTGRES_SHAPES)))
    answer = view(postgres_answer)
    overall = view(overall_table)
    fastest = view(fastest_table)
    claims = view(claims_table)
    latency = view(latency_table)
    latency_chart = chart(latency_figure, "latency")


class ClickHouseClients(Drivers):
    """The clients that fetch from ClickHouse."""

    study = CLICKHOUSE
    tables = view(
        lambda _: Listing([words("table", "label"), words("columns", "columns", "`{}`")], map(vars, CLICKHOUSE_TABLES))
    )
    answer = view(clients_answer)
    clients = view(clients_table)
    published_clients = view(published_clients_table)
    concurrency = view(concurrency_table)
    concurrency_chart = chart(concurrency_figure, "concurrency")


def run_postgres(
    *, passes: int, seed: int, connections: int, duration: float, warmup_duration: float, rate: float
) -> PostgresDrivers:
    """Measure every PostgreSQL driver with every shape and write `results/postgres_drivers.csv`.

    Durations are seconds, `rate` is queries/s, 0 for a closed loop. Raises ValueError for a parameter that makes no
    sense, ServerError when the server cannot be had, ResultsError when the file cannot be written.
    """
    load = Load(connections, duration, warmup_duration, rate)
    loop = f"{rate:g} queries/s" if rate else "closed loop"
    what = f"{connections} connections, {loop}, {duration:g} s after {warmup_duration:g} s of warm-up, {passes} passes"
    tasks = [Task(contender, shape, load) for contender in catalog.POSTGRES for shape in POSTGRES_SHAPES]
    return _run(
        PostgresDrivers, tasks, Rounds(passes, seed=seed), vars(load), what,
        lambda both: PostgresGround(both.postgres).with_tables(),
    )  # fmt: skip


def run_clickhouse(*, rows: int, passes: int, warmup: int, seed: int, concurrency: list[int]) -> ClickHouseClients:
    """Measure every ClickHouse client and write `results/clickhouse_clients.csv`.

    Each table alone, and the published one with `concurrency` queries at once, which together fetch the same rows.
    Raises what `run_postgres` raises.
    """
    check(ROWS=(rows, 1))
    rounds = Rounds(passes, warmup, seed)
    tasks = [
        Task(contender, table.shape(max(1, rows // at_once)), Load(at_once, ONE_QUERY_SECONDS, 0, 0))
        for contender in catalog.CLICKHOUSE
        for table in CLICKHOUSE_TABLES
        for at_once in (concurrency if table.name == PUBLISHED_TABLE else concurrency[:1])
    ]
    return _run(
        ClickHouseClients, tasks, rounds, {"rows": rows, "concurrency": concurrency}, f"{rows:,} rows, {passes} passes",
        lambda both: ClickHouseGround(both.clickhouse, rows).with_tables(),
    )  # fmt: skip


def _run[D: Drivers](
    kind: type[D], tasks: list[Task], rounds: Rounds, terms: Mapping[str, Any], what: str,
    ground_of: Callable[[Servers], AbstractContextManager[Ground]],
) -> D:  # fmt: skip
    study = kind.study
    with (
        recording(study.notebook, study.results, Measurement, "task", {**terms, **vars(rounds)}) as run,
        servers.running(run.settings) as both,
        ground_of(both) as ground,
    ):

        def row(task: Task, number: int, measured: Pass[dict[str, Any]]) -> Measurement:
            contender = task.contender
            return Measurement(
                run_id=run.run_id, driver=contender.name, label=contender.label, language=contender.language,
                origin=contender.origin, shape=task.shape.name, connections=task.load.connections,
                rate=task.load.rate, pass_=number, **columns_of(measured),
            )  # fmt: skip

        run.expect(1 + len(tasks) * (rounds.warmup + rounds.passes))
        run.metadata |= {
            "what": what, "servers": both.mode, "server": server_versions(both),
            "toolchains": catalog.versions() if study == POSTGRES else {},
        }  # fmt: skip
        record, finished = run.passes(row)
        interruptible(
            lambda stop: runner.run(
                tasks, ground, run.settings, rounds, record, stop=stop, progress=run.progress, finished=finished
            )
        )
    return kind.load(run.settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when a study was not run."""
    postgres, clickhouse = (store.read(directory / study.results, Measurement) for study in STUDIES)
    return {
        "drivers": str(overall_table(postgres)), "drivers-claims": str(claims_table(postgres)),
        "clients": str(speeds_table(clickhouse)), "clients-published": str(published_clients_table(clickhouse)),
    }  # fmt: skip


def patience(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell may take: every driver answers every shape for so long."""
    tests = len(catalog.POSTGRES) * len(POSTGRES_SHAPES) * int(values.get("passes", 1))
    seconds = float(values.get("duration", 0)) + float(values.get("warmup_duration", 0))
    return 3 * round(tests * seconds)
