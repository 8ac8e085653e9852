"""The studies of drivers: run, kept as one row per pass, drawn and summarised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import polars as pl
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
from framehaul.reporting.tables import Column, Listing, Row, fastest_of_each, speed_text, thousands, words
from framehaul.servers import Servers
from framehaul.studies.drivers import catalog, runner
from framehaul.studies.drivers.runner import ClickHouseQueries, Measurement, PostgresQueries, Queries, Task
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, PUBLISHED_SHAPES, PUBLISHED_TABLE
from framehaul.studies.registry import CLICKHOUSE_CLIENTS, POSTGRES_DRIVERS

LANGUAGE_COLOURS = {"Python": "#0072B2", "Go": "#009E73", "Node": "#E69F00"}
LABELS = {shape.name: shape.label for shape in (*CLICKHOUSE_TABLES, *POSTGRES_SHAPES)}
SHAPES = [*LABELS]
AVERAGED = [*PUBLISHED_SHAPES, *(table.name for table in CLICKHOUSE_TABLES)]
MEAN = "geometric mean"
"""Of the four published shapes, or of the tables of ClickHouse: a query of its own."""
POSTGRES_BASE, CLICKHOUSE_BASE = "asyncpg_uvloop", "connect_async"
"""The fastest of the published figures: the one that ratios are over."""
ARRAYS, FLAT = LABELS["arrays"], LABELS[PUBLISHED_TABLE]

# What the article of 2016 claimed, and what https://github.com/DarkStussy/aiochlite/tree/master/benchmarks measured
# (100,000 rows, 5 rounds, ClickHouse 25.8), of which only who is faster is judged. Each has its query, and the least
# that rows/s of the left are over those of the right.
CLAIMS = (
    ("asyncpg: at least 3x aiopg with its DictCursor", MEAN, POSTGRES_BASE, "aiopg_dict", 3.0),
    ("at least 3x aiopg", MEAN, POSTGRES_BASE, "aiopg", 3),
    ("at least 3x psycopg2 (here with threads, DictCursor)", MEAN, POSTGRES_BASE, "psycopg2_dict", 3),
    ("at least 3x psycopg2 (here with threads)", MEAN, POSTGRES_BASE, "psycopg2", 3),
    ("faster than Node's pg", MEAN, POSTGRES_BASE, "node_pg", 1),
    ("faster than Node's pg-native", MEAN, POSTGRES_BASE, "node_pg_native", 1),
    ("faster than Go's drivers: lib/pq, arrays left as text", MEAN, POSTGRES_BASE, "go_pq_undecoded", 1),
    ("the same against lib/pq, arrays decoded", MEAN, POSTGRES_BASE, "go_pq", 1),
    ("the same against pgx", MEAN, POSTGRES_BASE, "go_pgx", 1),
    ("arrays: slower than lib/pq, which left them as text", ARRAYS, "go_pq_undecoded", POSTGRES_BASE, 1),
    ("arrays: the same against lib/pq that decodes them", ARRAYS, "go_pq", POSTGRES_BASE, 1),
    ("aiopg's DictCursor costs much against its tuples", MEAN, "aiopg", "aiopg_dict", 1),
    ("clickhouse-connect async: 1.06x aiochlite (tuples)", FLAT, CLICKHOUSE_BASE, "aiochlite_tuples", 1),
    ("clickhouse-connect async: 1.20x aiochlite (Row)", FLAT, CLICKHOUSE_BASE, "aiochlite_rows", 1),
    ("aiochlite (tuples): 3.38x aiochclient", FLAT, "aiochlite_tuples", "aiochclient", 1),
)


def queries(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the passes with their `query` in words and client CPU, and with the geometric means as a query.

    Only a driver has a mean that did all that is averaged in a pass, and nothing of it wrong in any.
    """
    cpu, least = pl.col("client_cpu_s") * 1e6, pl.col("connections").min()
    several = pl.when(pl.col("connections") > least).then(pl.format(", {} at once", "connections"))
    place = pl.col("shape").replace_strict(SHAPES, range(len(SHAPES)), return_dtype=pl.Int64)
    passes = passes.sort(place, "connections", maintain_order=True).with_columns(
        query=pl.col("shape").replace_strict(LABELS, return_dtype=pl.String) + several.otherwise(pl.lit("")),
        us_per_row=cpu / pl.col("rows"), us_per_query=cpu / pl.col("queries"),
    )  # fmt: skip
    averaged = passes.filter(pl.col("shape").is_in(AVERAGED), pl.col("connections") == least)
    means = (
        never_wrong(averaged, ["driver"])
        .group_by("driver", "label", "language", "origin", "pass", "status", maintain_order=True)
        .agg(pl.col("rows_per_s", "us_per_row", "^latency_p.*$").log().mean().exp(), pl.len().alias("averaged"))
        .filter(pl.col("averaged") == averaged["shape"].n_unique())
        .with_columns(query=pl.lit(MEAN))
    )
    return pl.concat([means.drop("averaged"), passes], how="diagonal")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """Return one row per driver and query, as `statistics.medians` makes it."""
    return medians(queries(passes), ["driver", "label", "language", "origin", "query"])


def by_driver(figures: pl.DataFrame) -> list[Row]:
    """Return the drivers with their medians by query, in the order of the geometric mean, fastest first."""
    found: dict[str, dict[str, Any]] = {}
    for row in figures.to_dicts():
        named = {name: row[name] for name in ("driver", "label", "origin")}
        found.setdefault(row["driver"], named)[row["query"]] = row
    return sorted(found.values(), key=lambda one: -one[MEAN]["rows_per_s"] if MEAN in one else 0)


def ratio(passes: pl.DataFrame, query: str, left: str, right: str) -> Ratio:
    """The ratio of rows/s of two drivers with a query, of what `queries` gives."""
    here = passes.filter(query=query)
    return ratios.ratio(here.filter(driver=left), here.filter(driver=right))


def throughput_table(passes: pl.DataFrame) -> Listing:
    """All drivers by their geometric mean, with the rows/s of each query."""
    figures, passes = summary(passes), queries(passes)
    base = POSTGRES_BASE if POSTGRES_BASE in passes["driver"] else CLICKHOUSE_BASE

    def speed(query: str) -> Column:
        return Column(f"{query}, rows/s", lambda row: speed_text(row[query]) if query in row else None)

    _, *others = figures["query"].unique(maintain_order=True)
    columns = [
        words("driver", "label"),
        speed(MEAN),
        Column(f"ratio to {catalog.LABELS[base]}", lambda row: ratio(passes, MEAN, row["driver"], base)),
        Column("client CPU, µs per row", lambda row: row[MEAN]["us_per_row"] if MEAN in row else None, "{:.2f}"),
        *map(speed, others),
    ]
    return Listing(columns, by_driver(figures))


def claims_table(passes: pl.DataFrame) -> Listing:
    """What was published, beside what was measured."""
    passes = queries(passes)
    claims = [claim for claim in CLAIMS if claim[2] in passes["driver"]]
    measured = [ratio(passes, *claim[1:4]) for claim in claims]
    today = verdicts([(found, claim[4]) for found, claim in zip(measured, claims, strict=True)])
    names = ("claim", "published", "measured", "today")
    rows = ((claim[0], f"over {claim[4]:g}x", *found) for claim, *found in zip(claims, measured, today, strict=True))
    return Listing([words(name, name) for name in names], [dict(zip(names, row, strict=True)) for row in rows])


def answer(passes: pl.DataFrame) -> Listing:
    """The fastest of each query that is averaged, and of their mean."""
    figures = summary(passes).filter(status="ok").sort("rows_per_s", descending=True)
    groups = {query: figures.filter(query=query) for query in (MEAN, *(LABELS[shape] for shape in AVERAGED))}
    return fastest_of_each(groups, Column("rows/s", "rows_per_s", thousands))


def latency_table(passes: pl.DataFrame, shape: str) -> Listing:
    """Latencies and CPU time of one shape, lowest median first."""
    columns = [
        words("driver", "label"),
        Column("queries/s", "queries_per_s", "{:,.0f}"),
        *(Column(f"{name} ms", f"latency_{name}_ms", "{:,.2f}") for name in ("mean", "p50", "p90", "p99", "max")),
        Column("client CPU, µs per query", "us_per_query", "{:,.0f}"),
    ]
    figures = summary(passes).filter(query=LABELS[shape], status="ok")
    return Listing(columns, figures.sort("latency_p50_ms", maintain_order=True))


def throughput_figure(passes: pl.DataFrame) -> Figure:
    """Median rows/s as bars, slowest to fastest pass as whiskers: a panel for each query, the same order in all."""
    figures = summary(passes)
    asked, drivers = figures["query"].unique(maintain_order=True).to_list(), by_driver(figures)
    lines = -(-len(asked) // 2)
    with charts.panels(lines, 2, height=0.9 + lines * (0.7 + 0.19 * len(drivers))) as (figure, panels):
        for axes in panels[len(asked) :]:
            axes.set_axis_off()
        for number, (axes, query) in enumerate(zip(panels, asked, strict=False)):
            for at, driver in enumerate(drivers):
                if query in driver:
                    colour = LANGUAGE_COLOURS[driver[query]["language"]]
                    charts.bar(axes, at, driver[query], "rows_per_s", colour, size=8)
            charts.name_lines(axes, [row["label"] for row in drivers], [row["origin"] for row in drivers])
            axes.tick_params(axis="y", labelleft=number % 2 == 0)
            axes.margins(x=0.12)
            charts.quantities(axes.xaxis)
            axes.tick_params(axis="x", which="both", labelsize=8)
            axes.grid(axis="x", color="#eeeeee")
            charts.title(axes, query, 9)
        if figures["language"].n_unique() > 1:
            charts.legend(figure, LANGUAGE_COLOURS, loc="outside lower right", ncols=3)
        charts.footnote(figure, f"rows/s, {charts.MEDIANS}\nnames in grey: published")
    return figure


class Drivers(Shown):
    """The passes of a study of drivers."""

    answer = view(answer)
    throughput = view(throughput_table)
    chart = chart(throughput_figure)
    claims = view(claims_table)
    latency = view(latency_table)
    missing = view(lambda passes: tables.missing(summary(passes), "driver", "query"))


class PostgresDrivers(Drivers):
    """Those of PostgreSQL by the shape of a query."""

    study = POSTGRES_DRIVERS
    shapes = view(
        lambda _: Listing([words("shape", "label"), words("query", "sql", "`{}`")], map(vars, POSTGRES_SHAPES))
    )


class ClickHouseClients(Drivers):
    """The clients that fetch from ClickHouse."""

    study = CLICKHOUSE_CLIENTS
    tables = view(
        lambda _: Listing([words("table", "label"), words("columns", "columns", "`{}`")], map(vars, CLICKHOUSE_TABLES))
    )


def run_postgres(
    *, rounds: int, seed: int, connections: int, duration: float, warmup_duration: float
) -> PostgresDrivers:
    """Measure every PostgreSQL driver with every shape and write `results/postgres_drivers.csv`.

    Durations are seconds. Raises ValueError for a parameter that makes no sense, ServerError when the server cannot be
    had, ResultsError when the file cannot be written.
    """
    check(CONNECTIONS=(connections, 1))
    what = f"{connections} connections, {duration:g} s after {warmup_duration:g} s of warm-up, {rounds} passes"
    tasks = [
        Task(contender, shape, connections, duration, warmup_duration)
        for contender in catalog.POSTGRES
        for shape in POSTGRES_SHAPES
    ]
    terms = {"connections": connections, "duration": duration, "warmup_duration": warmup_duration}
    return _run(
        PostgresDrivers, tasks, Rounds(rounds, seed=seed), terms, what,
        lambda both: PostgresQueries(both.postgres).with_tables(),
    )  # fmt: skip


def run_clickhouse(*, rows: int, rounds: int, warmup: int, seed: int, concurrency: list[int]) -> ClickHouseClients:
    """Measure every ClickHouse client and write `results/clickhouse_clients.csv`.

    Each table alone, and the published one with `concurrency` queries at once, which together fetch the same rows.
    Raises what `run_postgres` raises.
    """
    check(ROWS=(rows, 1))
    tasks = [
        Task(contender, table.shape(max(1, rows // at_once)), at_once)
        for contender in catalog.CLICKHOUSE
        for table in CLICKHOUSE_TABLES
        for at_once in (concurrency if table.name == PUBLISHED_TABLE else concurrency[:1])
    ]
    return _run(
        ClickHouseClients, tasks, Rounds(rounds, warmup, seed), {"rows": rows, "concurrency": concurrency},
        f"{rows:,} rows, {rounds} passes", lambda both: ClickHouseQueries(both.clickhouse, rows).with_tables(),
    )  # fmt: skip


def _run[D: Drivers](
    kind: type[D], tasks: list[Task], rounds: Rounds, terms: Mapping[str, Any], what: str,
    queries_of: Callable[[Servers], AbstractContextManager[Queries]],
) -> D:  # fmt: skip
    study = kind.study
    with (
        recording(study.notebook, study.results, Measurement, "task", {**terms, **vars(rounds)}) as run,
        servers.running(run.settings) as both,
        queries_of(both) as queries,
    ):

        def row(task: Task, number: int, measured: Pass[dict[str, Any]]) -> Measurement:
            one = task.contender
            return Measurement(
                run_id=run.run_id, driver=one.name, label=one.label, language=one.language, origin=one.origin,
                shape=task.shape.name, connections=task.connections, pass_=number, **columns_of(measured),
            )  # fmt: skip

        run.expect(len(tasks) * (rounds.warmup + rounds.passes))
        run.metadata |= {
            "what": what, "servers": both.mode, "server": server_versions(both),
            "toolchains": catalog.versions() if study == POSTGRES_DRIVERS else {},
        }  # fmt: skip
        record, finished = run.passes(row)
        interruptible(
            lambda stop: runner.run(
                tasks, queries, run.settings, rounds, record, stop=stop, progress=run.progress, finished=finished
            )
        )
    return kind.load(run.settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when a study was not run."""
    postgres, clickhouse = (
        store.read(directory / study.results, Measurement) for study in (POSTGRES_DRIVERS, CLICKHOUSE_CLIENTS)
    )
    return {
        "drivers": str(throughput_table(postgres)), "drivers-claims": str(claims_table(postgres)),
        "clients": str(throughput_table(clickhouse)), "clients-claims": str(claims_table(clickhouse)),
    }  # fmt: skip


def patience(values: Mapping[str, Any]) -> int:
    """Return for how many seconds more a cell may take: every driver is started and answers every shape for so long."""
    tests = len(catalog.POSTGRES) * len(POSTGRES_SHAPES) * int(values.get("rounds", 1))
    seconds = float(values.get("duration", 0)) + float(values.get("warmup_duration", 0))
    return 3 * round(tests * (seconds + 1))
