"""Rounds over drivers and shapes: every task once per round, in a shuffled order, checked before it is believed."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from framehaul.bench import meter, passes
from framehaul.bench.passes import Pass
from framehaul.bench.rounds import Rounds, check, in_rounds, never, nothing
from framehaul.bench.store import Status
from framehaul.data.equality import Difference, other_shape, same
from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError, UnavailableError, WrongResultError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.studies.drivers import program
from framehaul.studies.drivers.catalog import Asked, Commands, Contender, Program, ProgramError, started
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_TABLES, PREFIX, Shape

PERCENTILES = (25, 50, 75, 90, 99, 99.9, 99.99)
MOST_QUERIES = 100_000_000
"""Of one pass at a rate: each has a latency, which is kept."""
CATALOG = "pg_type"
"""Grows when anybody makes a table; what else is fetched is ours, and stays as it is."""
MEASURED: dict[str, type] = {
    "queries": int, "rows": int, "all_rows": int, "seconds": float, "cpu_seconds": float, "unserved": int,
    "latencies_ns": list,
}  # fmt: skip
"""The fields of the answer to `measure`."""


@dataclass(frozen=True)
class Load:
    """How hard a server is asked; raises ValueError, naming the parameter, when one makes no sense.

    `duration` and `warmup_duration` are seconds, `rate` queries/s, with 0 for as fast as answers come.
    """

    connections: int
    duration: float
    warmup_duration: float
    rate: float

    def __post_init__(self) -> None:
        check(CONNECTIONS=(self.connections, 1))
        for name in ("duration", "warmup_duration", "rate"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise ValueError(f"{name.upper()}={value!r}: give a number of at least 0")
        if not self.duration:
            raise ValueError(f"DURATION={self.duration!r}: give more than 0 seconds")
        if self.rate * self.duration > MOST_QUERIES:
            raise ValueError(
                f"RATE={self.rate!r}: in {self.duration} seconds give no more than {MOST_QUERIES:,} queries"
            )


def check_load(values: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the parameter, where values of parameters make no load together."""
    Load(*(values[name] for name in ("connections", "duration", "warmup_duration", "rate")))


@dataclass(frozen=True)
class Measurement:
    """One pass of one driver and shape: a row of the study's file. A missing number is None, never 0."""

    run_id: str
    driver: str
    label: str
    language: str
    origin: str
    shape: str
    connections: int
    rate: float
    pass_: int
    queries: int | None = None
    rows: int | None = None
    seconds: float | None = None
    queries_per_s: float | None = None
    rows_per_s: float | None = None
    latency_mean_ms: float | None = None
    latency_std_ms: float | None = None
    latency_min_ms: float | None = None
    latency_p25_ms: float | None = None
    latency_p50_ms: float | None = None
    latency_p75_ms: float | None = None
    latency_p90_ms: float | None = None
    latency_p99_ms: float | None = None
    latency_p999_ms: float | None = None
    latency_p9999_ms: float | None = None
    latency_max_ms: float | None = None
    unserved: int | None = None
    client_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """A driver, what it is asked, and over how many connections at once."""

    contender: Contender
    shape: Shape
    load: Load


type Ground = PostgresGround | ClickHouseGround
"""The tables of a study on its server, and what must come back from them."""


def run(
    tasks: list[Task], ground: Ground, settings: Settings, rounds: Rounds,
    record: Callable[[Task, int, Pass[dict[str, Any]]], None], *, stop: threading.Event | None = None,
    progress: Callable[[str], object] = nothing, finished: Callable[[Task, int], bool] = never,
) -> None:  # fmt: skip
    """Measure every task in each round; `record` and `finished` are those of `in_rounds`.

    A driver that is wrong, fails or is not there is recorded, and the others go on. Raises KeyboardInterrupt after
    `stop` was set, between two tasks, and ServerError when the server is gone.
    """
    commands = Commands(settings)
    running: dict[Contender, tuple[Program, ExitStack]] = {}
    with ExitStack() as programs:

        def program_of(contender: Contender) -> Program:
            if contender not in running:
                command, one = commands.of(contender.name, contender.command), programs.enter_context(ExitStack())
                running[contender] = one.enter_context(started(command)), one
            return running[contender][0]

        @contextmanager
        def fresh_after_failure(contender: Contender) -> Iterator[None]:
            try:
                yield
            except ProgramError:
                # The next task gets a fresh one.
                if contender in running:
                    running.pop(contender)[1].close()
                raise

        def measure(task: Task, _: int) -> dict[str, Any]:
            with fresh_after_failure(task.contender):
                return measured(task, ground, program_of(task.contender))

        # They take a second to begin: all of them at once, and none while another is measured. What goes wrong with one
        # goes wrong again in its first task, which tells.
        progress("starting the drivers")
        one_of_each = {task.contender: task for task in tasks if not finished(task, rounds.passes)}
        for contender in one_of_each:
            with contextlib.suppress(ProgramError, UnavailableError):
                program_of(contender)
        for contender, task in one_of_each.items():
            if contender in running and not (stop and stop.is_set()):
                with contextlib.suppress(WrongResultError, UnavailableError), fresh_after_failure(contender):
                    ground.check(task, running[contender][0])
        in_rounds(
            tasks, rounds, measure, record, stop=stop, finished=finished, failures=(),
            progress=lambda task, _: progress(f"{task.contender.name}: {task.shape.name}"),
        )  # fmt: skip


def measured(task: Task, ground: Ground, running: Program) -> dict[str, Any]:
    """The figures of one pass; raises WrongResultError for wrong rows, ProgramError and UnavailableError."""
    passes.right(None, ground.check(task, running))
    load = task.load
    # Of the driver's own process, which keeps the memory that it has: to set a mark costs its time nothing.
    resident = meter.reset_peak_rss(running.process_id)
    answer = running.ask(
        ground.address() | {
            "do": "measure", "shape": asdict(task.shape), "connections": load.connections, "rate": load.rate,
            "seconds": load.duration, "warmup_seconds": load.warmup_duration,
        },
        MEASURED,
    )  # fmt: skip
    _check_latencies(answer)
    peak_growth = meter.peak_rss_growth(resident, running.process_id)
    rows, seconds = answer["rows"], answer["seconds"]
    figures = {
        "queries": answer["queries"], "rows": rows, "seconds": seconds, "queries_per_s": answer["queries"] / seconds,
        "rows_per_s": rows / seconds, "unserved": answer["unserved"], "client_cpu_s": answer["cpu_seconds"],
        "peak_rss_bytes": peak_growth, **latencies(answer["latencies_ns"]),
    }  # fmt: skip
    return passes.right(figures, ground.check_moved(task.shape, answer))


def _check_latencies(answer: dict[str, Any]) -> None:
    """Raises ProgramError unless there is one of each query, and time went by."""
    times = answer["latencies_ns"]
    if not answer["queries"] or not answer["seconds"]:
        raise ProgramError("it ran no query within the time")
    if len(times) != answer["queries"] + answer["unserved"]:
        raise ProgramError(
            f"it has {len(times)} latencies of {answer['queries']} queries, {answer['unserved']} unserved"
        )
    if not all(type(time) is int and 0 <= time < 2**63 for time in times):
        raise ProgramError("not all of its latencies are nanoseconds")


def latencies(nanoseconds: list[int]) -> dict[str, float]:
    """Mean, standard deviation, extremes and percentiles in ms; exact, as every latency is there."""
    times = np.asarray(nanoseconds, dtype=np.float64) / 1e6
    names = [f"latency_p{at:g}_ms".replace(".", "") for at in PERCENTILES]
    return {
        "latency_mean_ms": float(times.mean()), "latency_std_ms": float(times.std()),
        "latency_min_ms": float(times.min()), "latency_max_ms": float(times.max()),
        **dict(zip(names, map(float, np.percentile(times, PERCENTILES)), strict=True)),
    }  # fmt: skip


@contextmanager
def _dropped_at_the_end(tables: PostgresTables | ClickHouseTables, names: Iterable[str]) -> Iterator[None]:
    try:
        yield
    finally:
        # Where the server is gone for good, the next run drops what is ours.
        with contextlib.suppress(ServerError):
            for name in names:
                tables.drop_named(name)


class PostgresGround:
    """The tables of the PostgreSQL shapes; what must come back is asked of the server as JSON, past all drivers."""

    def __init__(self, server: PostgresServer, prefix: str = PREFIX) -> None:
        self._server, self._tables, self._prefix = server, PostgresTables(server), prefix
        self._fetched: dict[str, int] = {}
        self._constant: dict[Shape, list[list[Any]]] = {}

    @contextmanager
    def with_tables(self) -> Iterator[PostgresGround]:
        """The tables, for as long as the block lasts; raises ServerError when one of these names is not ours."""
        made = [[text.replace(PREFIX, self._prefix) for text in (name, *ddl)] for name, ddl in POSTGRES_TABLES.items()]
        with _dropped_at_the_end(self._tables, [name for name, *_ in made]):
            for name, create, *fill in made:
                self._tables.create_as(name, create)
                for statement in fill:
                    self._tables.run(statement)
            yield self

    def address(self) -> dict[str, Any]:
        """Its URL."""
        return {"dsn": self._server.dsn()}

    def check(self, task: Task, running: Asked) -> str | None:
        """Compare values; an oid may come as text, a "char" as a byte, as long as it says the same."""
        request = self.address() | {"do": "check", "shape": asdict(task.shape)}
        if task.shape.kind != "fetch":
            self._tables.run(f"TRUNCATE {task.shape.table}")  # of what a driver left that failed
            return self.stored(task.shape, running.ask(request, {"rows": int})["rows"])
        while True:
            expected = self._expected(task.shape)
            rows = running.ask(request, {"rows": list})["rows"]
            if expected == self._expected(task.shape):
                self._fetched[task.shape.name] = len(expected)
                return difference(rows, expected, arrays_as_text=task.contender.arrays_as_text)

    def check_moved(self, shape: Shape, answer: dict[str, Any]) -> str | None:
        """Each fetch gave all rows; or all rows that were sent are there, none of them another, and are removed."""
        if shape.kind != "fetch":
            return self.stored(shape, answer["all_rows"])
        low, high = sorted((self._fetched[shape.name], len(self._expected(shape))))
        return _fetched(answer, low, high)

    def stored(self, shape: Shape, rows: int) -> str | None:
        """What is wrong with so many rows that were sent, None when nothing is; they are removed."""
        columns = ", ".join(shape.columns)
        stored, wrong = self._tables.run(
            f"SELECT count(*), count(*) FILTER (WHERE ({columns}) IS DISTINCT FROM {_literal(shape)}) "
            f"FROM {shape.table}"
        )[0]
        self._tables.run(f"TRUNCATE {shape.table}")
        if (stored, wrong) == (rows, 0):
            return None
        return f"{stored} rows are stored instead of {rows}, {wrong} of them wrong"

    def _expected(self, shape: Shape) -> list[list[Any]]:
        if shape in self._constant:
            return self._constant[shape]
        sql = shape.sql
        for at, value in enumerate(shape.arguments, 1):
            sql = sql.replace(f"${at}", str(value).lower())
        answer = self._tables.run(f"SELECT coalesce(json_agg(q), '[]')::text FROM ({sql}) AS q")[0][0]
        rows = [list(row.values()) for row in json.loads(answer)]
        if CATALOG not in shape.sql:
            self._constant[shape] = rows
        return rows


class ClickHouseGround:
    """The tables that ClickHouse fills by itself; what must come back is computed here, from what they are made of."""

    def __init__(self, server: ClickHouseServer, rows: int, prefix: str = PREFIX) -> None:
        self._server, self._rows, self._tables, self._prefix = server, rows, ClickHouseTables(server), prefix
        self._digests: dict[Shape, str] = {}

    @contextmanager
    def with_tables(self) -> Iterator[ClickHouseGround]:
        """The tables, for as long as the block lasts; raises ServerError when one of these names is not ours."""
        made = {one.table.replace(PREFIX, self._prefix): one for one in CLICKHOUSE_TABLES}
        with _dropped_at_the_end(self._tables, made):
            for name, one in made.items():
                create = f"CREATE TABLE {name} ({one.columns}) ENGINE = Memory COMMENT '{COMMENT}'"
                self._tables.create_as(name, create)
                self._tables.run(f"INSERT INTO {name} SELECT {one.select} FROM numbers({self._rows})")
            yield self

    def address(self) -> dict[str, Any]:
        """All that a client wants to know."""
        return {"server": asdict(self._server)}

    def check(self, task: Task, running: Asked) -> str | None:
        """Compare digests of all values."""
        shape = task.shape
        request = self.address() | {"do": "check", "shape": asdict(shape), "digest": True}
        answer = running.ask(request, {"rows": int, "digest": str})
        if answer["rows"] != shape.count:
            return f"{answer['rows']} rows of {shape.count}"
        return None if answer["digest"] == self._expected(shape) else "other values than the server made"

    def check_moved(self, shape: Shape, answer: dict[str, Any]) -> str | None:
        """Each fetch gave all rows."""
        return _fetched(answer, shape.count, shape.count)

    def _expected(self, shape: Shape) -> str:
        if shape not in self._digests:
            row = next(one.row for one in CLICKHOUSE_TABLES if one.name == shape.name)
            self._digests[shape] = program.digest([program.json_row(row(at)) for at in range(shape.count)])
        return self._digests[shape]


def _fetched(answer: dict[str, Any], low: int, high: int) -> str | None:
    queries, rows = answer["queries"], answer["rows"]
    return None if queries * low <= rows <= queries * high else f"{rows} rows in {queries} queries of {low} each"


def difference(got: list[Any], expected: list[list[Any]], *, arrays_as_text: bool) -> str | None:
    """What is wrong with rows that a driver gave; None when they say what the server said."""
    if wrong := other_shape((), len(got), (), len(expected)):
        return wrong
    for at, (left, right) in enumerate(zip(got, expected, strict=True)):
        if type(left) is not list:
            return f"row {at} is {left!r:.60}, and no list of values"
        if len(left) != len(right):
            return f"row {at} has {len(left)} values instead of {len(right)}"
        for value, wanted in zip(left, right, strict=True):
            if not _says(value, wanted, arrays_as_text=arrays_as_text):
                return str(Difference("", at, wanted, value))
    return None


def _says(value: Any, wanted: Any, *, arrays_as_text: bool) -> bool:
    if isinstance(wanted, list) and arrays_as_text:
        return bool(value == "{" + ",".join(map(str, wanted)) + "}")
    if same(value, wanted) or not isinstance(wanted, str):
        return same(value, wanted)
    # The server's JSON quotes an oid; asyncpg gives a "char" as a byte; bytes come in hexadecimal.
    return value in (wanted.encode().hex(), wanted.removeprefix("\\x")) or (type(value) is int and str(value) == wanted)


def _literal(shape: Shape) -> str:
    values = (f"'{value}'" if isinstance(value, str) else repr(value) for value in shape.row)
    return "ROW(" + ", ".join(f"{value}::{kind}" for value, kind in zip(values, shape.types, strict=True)) + ")"
