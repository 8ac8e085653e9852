"""Measure every driver with every query once per round, in a separate process, after a check of its rows."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.bench.study import Study
from framehaul.data.equality import Difference, other_shape, same
from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, WrongResultError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.studies.drivers import catalog, program, shapes
from framehaul.studies.drivers.catalog import Contender
from framehaul.studies.drivers.shapes import Shape
from framehaul.studies.registry import CLICKHOUSE_CLIENTS, POSTGRES_DRIVERS

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Measurement:
    """A pass of a driver and query; a missing number is None, never 0."""

    run_id: str
    driver: str
    label: str
    language: str
    origin: str
    shape: str
    connections: int
    pass_: int
    queries: int | None = None
    rows: int | None = None
    seconds: float | None = None
    queries_per_s: float | None = None
    rows_per_s: float | None = None
    latency_mean_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p90_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_max_ms: float | None = None
    client_cpu_s: float | None = None
    status: Status = "ok"
    reason: str | None = None


type Task = tuple[Contender, Shape, int]
"""A driver, its query, and the number of connections."""
type Target = tuple[dict[str, Any], Callable[[Shape], list[list[Any]] | str]]
"""The part of a request about a server that has the tables, and a function: the rows of a query, or their digest."""


@recording.study(POSTGRES_DRIVERS.notebook, Measurement)
def run_postgres(*, rounds: int, seed: int, connections: int, duration: float, warmup_duration: float) -> None:
    """Measure every PostgreSQL driver with every shape of query and return one row per pass; durations are seconds."""
    check(CONNECTIONS=(connections, 1))
    tasks = [*product(catalog.POSTGRES, shapes.POSTGRES_SHAPES, [connections])]
    terms = {"connections": connections, "duration": duration, "warmup_duration": warmup_duration}
    what = f"{connections} connections, {duration:g} s after {warmup_duration:g} s of warm-up, {rounds} passes"
    about = {"what": what, "toolchains": catalog.versions()}
    _run(POSTGRES_DRIVERS, tasks, Rounds(rounds, seed=seed), terms, about, lambda both: postgres_target(both.postgres))


@recording.study(CLICKHOUSE_CLIENTS.notebook, Measurement)
def run_clickhouse(*, rows: int, rounds: int, warmup: int, seed: int, concurrency: list[int]) -> None:
    """Measure every ClickHouse client with every table and return one row per pass.

    The published table is also fetched by `concurrency` parallel queries, which together fetch about the same number of
    rows. Each connection sends one query.
    """
    check(ROWS=(rows, 1))
    tasks = [
        (contender, table.shape(max(1, rows // at_once)), at_once)
        for contender in catalog.CLICKHOUSE
        for table in shapes.CLICKHOUSE_TABLES
        for at_once in (concurrency if table.name == shapes.PUBLISHED_TABLE else concurrency[:1])
    ]
    terms, about = {"rows": rows, "concurrency": concurrency}, {"what": f"{rows:,} rows, {rounds} passes"}
    schedule = Rounds(rounds, warmup, seed)
    _run(CLICKHOUSE_CLIENTS, tasks, schedule, terms, about, lambda both: clickhouse_target(both.clickhouse, rows))


def _run(
    study: Study, tasks: list[Task], rounds: Rounds, terms: Mapping[str, Any], about: Mapping[str, Any],
    target_of: Callable[[Servers], AbstractContextManager[Target]],
) -> None:  # fmt: skip
    """Measure the tasks and record every pass; `about` is added to the metadata of the run."""
    with recording.with_servers(study, Measurement, rounds, **terms) as (run, both), target_of(both) as target:
        run.expect(len(tasks) * (rounds.warmup + rounds.passes))
        run.metadata |= about

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> Measurement:
            driver, shape, connections = task
            labels = driver.name, driver.label, driver.language, driver.origin, shape.name, connections
            return Measurement(run.run_id, *labels, number, **columns_of(ended))

        def measure(task: Task, _: int) -> dict[str, Any]:
            return measured(task, target, run.settings, terms.get("duration", 0), terms.get("warmup_duration", 0))

        def name(task: Task) -> str:
            return f"{task[0].name}: {task[1].name}"

        interruptible(lambda stop: run.in_rounds(tasks, rounds, measure, row, name, stop=stop))


def measured(
    task: Task, target: Target, settings: Settings, duration: float = 0, warmup_duration: float = 0
) -> dict[str, Any]:
    """Run the program of a driver and return the figures of the pass; by default each connection sends one query.

    Raises WrongResultError for wrong rows or a failed program, and UnavailableError if the driver cannot run here.
    """
    (driver, shape, connections), (address, expected_of) = task, target
    command, expected = driver.command(settings), expected_of(shape)
    load = {"connections": connections, "seconds": duration, "warmup_seconds": warmup_duration}
    request = address | load | {"shape": asdict(shape)}
    answer = catalog.answer_of(command, request, catalog.PATIENCE_SECONDS + duration + warmup_duration)
    queries, rows, seconds, checked = (answer[name] for name in ("queries", "rows", "seconds", "checked"))
    if not queries:
        raise WrongResultError("it ran no query within the time")
    if isinstance(expected, str):
        each, wrong = shape.count, None if checked == expected else "other values than the server made"
    else:
        each, wrong = len(expected), difference(checked, expected, arrays_as_text=driver.arrays_as_text)
    if rows != queries * each:
        wrong = wrong or f"{rows} rows in {queries} queries of {each} each"
    speeds = {"queries_per_s": queries / seconds, "rows_per_s": rows / seconds, "client_cpu_s": answer["cpu_seconds"]}
    times_ms = np.asarray(answer["latencies_ns"], dtype=np.float64) / 1e6
    latencies = {f"latency_p{at}_ms": float(np.percentile(times_ms, at)) for at in PERCENTILES}
    latencies |= {"latency_mean_ms": float(times_ms.mean()), "latency_max_ms": float(times_ms.max())}
    return right({"queries": queries, "rows": rows, "seconds": seconds} | speeds | latencies, wrong)


@contextmanager
def _created(tables: PostgresTables | ClickHouseTables, ddl: Mapping[str, tuple[str, str]]) -> Iterator[None]:
    """Create and fill tables, and drop them at the end; raises ServerError for a table that is not framehaul's."""
    try:
        for name, (create, fill) in ddl.items():
            tables.create_as(name, create)
            tables.run(fill)
        yield
    finally:
        with contextlib.suppress(ServerError):  # if the server is gone, the next run drops them
            for name in ddl:
                tables.drop_named(name)


@contextmanager
def postgres_target(server: PostgresServer) -> Iterator[Target]:
    """Create the tables of the PostgreSQL shapes; the server returns the expected rows as JSON."""
    tables = PostgresTables(server)

    def expected(shape: Shape) -> list[list[Any]]:
        sql = shape.sql
        for at, value in enumerate(shape.arguments, 1):
            sql = sql.replace(f"${at}", str(value).lower())
        answer = tables.run(f"SELECT coalesce(json_agg(q), '[]')::text FROM ({sql}) AS q")[0][0]
        return [list(row.values()) for row in json.loads(answer)]

    with _created(tables, shapes.POSTGRES_TABLES):
        yield {"dsn": server.dsn()}, expected


@contextmanager
def clickhouse_target(server: ClickHouseServer, rows: int) -> Iterator[Target]:
    """Create the tables that ClickHouse generates; the digest of the expected rows is computed in Python."""
    ddl = {
        each.table: (
            f"CREATE TABLE {each.table} ({each.columns}) ENGINE = Memory COMMENT '{COMMENT}'",
            f"INSERT INTO {each.table} SELECT {each.select} FROM numbers({rows})",
        )
        for each in shapes.CLICKHOUSE_TABLES
    }

    @cache
    def expected(shape: Shape) -> str:
        row = next(each.row for each in shapes.CLICKHOUSE_TABLES if each.name == shape.name)
        return program.digest([program.json_value(row(at)) for at in range(shape.count)])

    with _created(ClickHouseTables(server), ddl):
        yield {"server": asdict(server), "digest": True}, expected


def difference(received: list[list[Any]], expected: list[list[Any]], *, arrays_as_text: bool) -> str | None:
    """Return the first difference between the rows of a driver and the rows of the server, or None.

    Raises ValueError or TypeError for rows of another form.
    """
    if wrong := other_shape((), len(received), (), len(expected)):
        return wrong
    for at, (given, row) in enumerate(zip(received, expected, strict=True)):
        for value, wanted in zip(given, row, strict=True):
            if not _equal(value, wanted, arrays_as_text=arrays_as_text):
                return str(Difference("", at, wanted, value))
    return None


def _equal(value: Any, wanted: Any, *, arrays_as_text: bool) -> bool:
    if isinstance(wanted, list) and arrays_as_text:
        return bool(value == "{" + ",".join(map(str, wanted)) + "}")
    if same(value, wanted) or not isinstance(wanted, str):
        return same(value, wanted)
    # The server's JSON quotes an oid, asyncpg returns a "char" as a byte, and bytes are in hexadecimal.
    return value in (wanted.encode().hex(), wanted.removeprefix("\\x")) or (type(value) is int and str(value) == wanted)


def patience(values: Mapping[str, Any]) -> int:
    """Return the additional timeout of the notebook's cells in seconds: every driver starts for every query."""
    tests = len(catalog.POSTGRES) * len(shapes.POSTGRES_SHAPES) * int(values.get("rounds", 1))
    seconds = float(values.get("duration", 0)) + float(values.get("warmup_duration", 0))
    return 3 * round(tests * (seconds + 1))
