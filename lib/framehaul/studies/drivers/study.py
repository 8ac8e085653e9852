"""Measure every driver with every query once per round, in a separate process, after a check of its rows."""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from framehaul.bench import ratios, store
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, in_rounds, right
from framehaul.bench.statistics import RATIO
from framehaul.data.equality import Difference, other_shape
from framehaul.errors import ServerError, WrongResultError
from framehaul.servers import PostgresServer, Server
from framehaul.servers.tables import tables_of
from framehaul.settings import PROJECT, Settings
from framehaul.studies.drivers import catalog, clickhouse, postgres, shapes
from framehaul.studies.drivers.catalog import PATIENCE_SECONDS, Command, output_of
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, Driver, Shape
from framehaul.studies.registry import CLICKHOUSE_CLIENTS, POSTGRES_DRIVERS

JSON = """FORMAT JSONCompact SETTINGS date_time_output_format = 'iso', output_format_json_quote_decimals = 1,
    output_format_json_quote_64bit_integers = 0"""
"""The form in which ClickHouse writes values as the program of Python's drivers does."""
MEAN = "geometric mean"
LABELS = {shape.name: shape.label for shape in (*CLICKHOUSE_TABLES, *POSTGRES_SHAPES)}
AVERAGED = [*shapes.PUBLISHED_SHAPES, *(table.name for table in CLICKHOUSE_TABLES)]


class Contender(NamedTuple):
    """A driver, how it is used, and the command of its program; `origin` is `published` if the article has it."""

    name: str
    label: str
    language: str
    origin: str
    command: Command


def _python(database: str, name: str, driver: Driver) -> Contender:
    command = [sys.executable, "-m", "framehaul.studies.drivers.program", database, name]
    return Contender(name, driver.label, "Python", driver.origin, lambda _: command)


def _other(language: str, name: str, label: str, origin: str = "published") -> Contender:
    def command(settings: Settings) -> list[str]:
        program = str(catalog.driver_program(language, settings))
        return ["node", program, name] if language == "Node" else [program, name]

    return Contender(f"{language.lower()}_{name}", label, language, origin, command)


POSTGRES = [
    *(_python("postgres", *each) for each in postgres.DRIVERS.items()),
    _other("Go", "pgx", "Go pgx", "beyond"),
    _other("Go", "pq", "Go lib/pq, all decoded", "beyond"),
    _other("Go", "pq_undecoded", "Go lib/pq, arrays left as text"),
    _other("Node", "pg", "Node pg"),
    _other("Node", "pg_native", "Node pg-native"),
]
CLICKHOUSE = [_python("clickhouse", *each) for each in clickhouse.DRIVERS.items()]


@dataclass(frozen=True)
class Measurement(store.Timed):
    """A pass of a driver and query; a missing number is None, never 0."""

    driver: str
    label: str
    language: str
    origin: str
    shape: str
    connections: int
    queries: int | None = None
    rows: int | None = None
    queries_per_s: float | None = None
    latency_mean_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p90_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_max_ms: float | None = None
    client_cpu_s: float | None = None


type Task = tuple[Contender, Shape, int]
"""A driver, its query, and the number of connections."""
type Target = tuple[dict[str, Any], Callable[[Shape], list[list[Any]]]]
"""The part of a request about a server that has the tables, and a function that returns the rows of a query."""
ONE_QUERY = {"seconds": 0.0, "warmup_seconds": 0.0}
"""The part of a request about times: each connection sends one query."""


@recorded(POSTGRES_DRIVERS, Measurement)
def run_postgres(
    this_run: Recording, *, rounds: int, seed: int, connections: int, duration: float, warmup_duration: float
) -> None:
    """Measure every PostgreSQL driver with every shape of query and return one row per pass; durations are seconds."""
    target = this_run.entered(target_on(this_run.servers().postgres))
    what = f"{connections} connections, {duration:g} s after {warmup_duration:g} s of warm-up, {rounds} passes"
    this_run.metadata |= {"what": what, "toolchains": catalog.versions()}
    tasks = [*product(POSTGRES, POSTGRES_SHAPES, [connections])]
    time = {"seconds": duration, "warmup_seconds": warmup_duration}
    _measure(this_run, target, tasks, Rounds(rounds, seed=seed), time)


@recorded(CLICKHOUSE_CLIENTS, Measurement)
def run_clickhouse(
    this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int, concurrency: list[int]
) -> None:
    """Measure every ClickHouse client with every table and return one row per pass.

    The published table is also fetched by `concurrency` parallel queries, which together fetch about the same number of
    rows. Each connection sends one query.
    """
    target = this_run.entered(target_on(this_run.servers().clickhouse, rows))
    tasks = [
        (contender, table.shape(max(1, rows // at_once)), at_once)
        for contender in CLICKHOUSE
        for table in CLICKHOUSE_TABLES
        for at_once in (concurrency if table is CLICKHOUSE_TABLES[0] else concurrency[:1])
    ]
    _measure(this_run, target, tasks, Rounds(rounds, warmup, seed))


def _measure(
    this_run: Recording, target: Target, tasks: list[Task], rounds: Rounds, time: Mapping[str, float] = ONE_QUERY
) -> None:
    """Measure the tasks on a server and record every pass."""
    row = this_run.rows(Measurement, lambda task: (*task[0][:-1], task[1].name, task[2]))

    def measure(task: Task, _: int) -> dict[str, Any]:
        return measured(task, target, this_run.settings, time)

    in_rounds(tasks, rounds, measure, this_run.log(row, "{0[0].name}: {0[1].name}".format))


def measured(task: Task, target: Target, settings: Settings, time: Mapping[str, float] = ONE_QUERY) -> dict[str, Any]:
    """Run the program of a driver and return the figures of the pass.

    Raises WrongResultError for wrong rows or a failed program, and UnavailableError if the driver cannot run here.
    """
    (driver, shape, connections), (address, expected_of) = task, target
    command, expected = driver.command(settings), expected_of(shape)
    request = json.dumps(address | {"connections": connections, "shape": asdict(shape), **time})
    answer = json.loads(output_of(command, PATIENCE_SECONDS + sum(time.values()), cwd=PROJECT, input=request))
    queries, rows, seconds = (answer[name] for name in ("queries", "rows", "seconds"))
    if not queries:
        raise WrongResultError("it ran no query within the time")
    wrong = difference(answer["checked"], expected, arrays_as_text=driver.name == "go_pq_undecoded")
    if rows != queries * len(expected):
        wrong = wrong or f"{rows} rows in {queries} queries of {len(expected)} each"
    times_ms = np.asarray(answer["latencies_ns"], dtype=np.float64) / 1e6
    latencies = {f"p{at}": np.percentile(times_ms, at) for at in (50, 90, 99)}
    latencies |= {"mean": times_ms.mean(), "max": times_ms.max()}
    speeds = {"queries_per_s": queries / seconds, "rows_per_s": rows / seconds, "client_cpu_s": answer["cpu_seconds"]}
    speeds |= {f"latency_{name}_ms": float(value) for name, value in latencies.items()}
    return right({"queries": queries, "rows": rows, "seconds": seconds} | speeds, wrong)


@contextmanager
def target_on(server: Server, rows: int = 0) -> Iterator[Target]:
    """Create and fill the tables of the shapes, in ClickHouse with a number of rows, and drop them at the end.

    The server returns the expected rows as JSON. Raises ServerError for a table that is not framehaul's.
    """
    tables, request = tables_of(server), dict[str, Any](server=asdict(server))
    ddl = {each.table: each.ddl(rows) for each in CLICKHOUSE_TABLES}
    if isinstance(server, PostgresServer):
        ddl = {name: f"CREATE TABLE {name} AS {query}" for name, query in shapes.POSTGRES_TABLES.items()}
        request["dsn"] = server.dsn()  # for drivers of other languages

    @cache
    def expected(shape: Shape) -> list[list[Any]]:
        if not isinstance(server, PostgresServer):
            return [*json.loads(tables.run(f"{shape.sql} {JSON}"))["data"]]
        sql = shape.sql
        for at, value in enumerate(shape.arguments, 1):
            sql = sql.replace(f"${at}", str(value).lower())
        answer = tables.run(f"SELECT coalesce(json_agg(q), '[]')::text FROM ({sql}) AS q")[0][0]
        return [list(row.values()) for row in json.loads(answer)]

    try:
        for name, statement in ddl.items():
            tables.create_as(name, statement)
        yield request, expected
    finally:
        with contextlib.suppress(ServerError):  # if the server is gone, the next run drops them
            for name in ddl:
                tables.drop(name)


def difference(received: list[list[Any]], expected: list[list[Any]], *, arrays_as_text: bool) -> str | None:
    """Return the first difference between the rows of a driver and the rows of the server, or None.

    Raises ValueError or TypeError for rows of another form.
    """

    def forms(wanted: Any) -> list[str]:
        """Return the forms in which drivers return a value, as JSON."""
        if isinstance(wanted, list) and arrays_as_text:
            wanted = f"{{{','.join(map(str, wanted))}}}"
        found = [json.dumps(wanted, sort_keys=True)]
        if isinstance(wanted, str):
            # The server's JSON quotes an oid, asyncpg returns a "char" as a byte, and bytes are in hexadecimal.
            found += map(json.dumps, (wanted.encode().hex(), wanted.removeprefix("\\x")))
        return [*found, wanted] if isinstance(wanted, str) and wanted.isdecimal() else found

    if json.dumps(received) == json.dumps(expected):
        return None
    if wrong := other_shape((), len(received), (), len(expected)):
        return wrong
    for at, (given, row) in enumerate(zip(received, expected, strict=True)):
        for value, wanted in zip(given, row, strict=True):
            if json.dumps(value, sort_keys=True) not in forms(wanted):
                return str(Difference("", at, wanted, value))
    return None


def with_means(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the passes with a column `query`, client CPU time, and the geometric mean as an additional query.

    The mean is taken over the four published shapes of PostgreSQL, or over the tables of ClickHouse with the fewest
    connections. A driver has a mean only in passes with all of these queries, and only if none of them ever failed.
    """
    fewest, cpu_us = pl.col("connections") == pl.col("connections").min(), pl.col("client_cpu_s") * 1e6
    several = pl.when(~fewest).then(pl.format(", {} at once", "connections")).otherwise(pl.lit(""))
    passes = passes.sort(pl.col("shape").cast(pl.Enum([*LABELS])), "connections", maintain_order=True).with_columns(
        query=pl.col("shape").replace_strict(LABELS, return_dtype=pl.String) + several,
        cpu_us_per_row=cpu_us / pl.col("rows"), cpu_us_per_query=cpu_us / pl.col("queries"),
    )  # fmt: skip
    averaged = passes.filter(pl.col("shape").is_in(AVERAGED), fewest)
    means = (
        averaged.filter((pl.col("status") != "failed").all().over("driver"), status="ok")
        .group_by("driver", "label", "language", "origin", "pass", "status", maintain_order=True)
        .agg(pl.col("rows_per_s", "cpu_us_per_row").log().mean().exp(), pl.len().alias("averaged"))
        .filter(pl.col("averaged") == averaged["shape"].n_unique())
        .select(pl.exclude("averaged"), query=pl.lit(MEAN))
    )
    both = pl.concat([means, passes], how="diagonal")
    return both.with_columns(pl.col("query").cast(pl.Enum([MEAN, *passes["query"].unique(maintain_order=True)])))


def judged(passes: pl.DataFrame, claims: pl.DataFrame) -> pl.DataFrame:
    """Return claims with the measured ratio of rows/s, its interval, and in `today` whether each claim holds.

    A claim is that in a `query` the driver `left` has at least `at_least` times the rows/s of the driver `right`.
    Verdicts of one call are corrected for multiple comparisons, see `ratios.verdicts`.
    """
    measured = [
        ratios.ratio(*(passes.filter(query=query, driver=driver) for driver in pair))
        for query, *pair in claims.select("query", "left", "right").iter_rows()
    ]
    compared = pl.DataFrame([one.values for one in measured], RATIO, orient="row")
    today = ratios.verdicts([*zip(measured, claims["at_least"], strict=True)])
    return claims.hstack(compared.with_columns(pl.Series("today", today)))
