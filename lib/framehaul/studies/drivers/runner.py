"""Rounds over drivers and shapes: every task once per round, in a shuffled order, verified before it counts."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from framehaul.bench.passes import Pass, right
from framehaul.bench.rounds import Rounds, in_rounds, never, nothing
from framehaul.bench.store import Status
from framehaul.data.equality import Difference, other_shape, same
from framehaul.data.schema import COMMENT
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.studies.drivers import catalog, program
from framehaul.studies.drivers.catalog import Commands, Contender, ProgramError
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_TABLES, Shape

PERCENTILES = (50, 90, 99)
ANSWER: dict[str, type] = {
    "queries": int, "rows": int, "seconds": float, "cpu_seconds": float, "latencies_ns": list
}  # fmt: skip
"""The fields of an answer, beside what is `checked`."""
ONE_QUERY_SECONDS = 1e-9
"""A window in which each connection of Python has the time for the one query that it begins with."""


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


@dataclass(frozen=True)
class Task:
    """A driver, what it is asked, over how many connections at once, and for how long after which warm-up."""

    contender: Contender
    shape: Shape
    connections: int
    seconds: float = ONE_QUERY_SECONDS
    warmup_seconds: float = 0


def run(
    tasks: list[Task], queries: Queries, settings: Settings, rounds: Rounds,
    record: Callable[[Task, int, Pass[dict[str, Any]]], None], *, stop: threading.Event | None = None,
    progress: Callable[[str], object] = nothing, finished: Callable[[Task, int], bool] = never,
) -> None:  # fmt: skip
    """Measure every task in each round, in a process of its own; `record` and `finished` are those of `in_rounds`.

    A driver that is wrong, fails or is not there is recorded, and the others go on. Raises KeyboardInterrupt after
    `stop` was set, between two tasks, and ServerError when the server is gone.
    """
    commands = Commands(settings)

    def measure(task: Task, _: int) -> dict[str, Any]:
        return measured(task, queries, commands.of(task.contender.name, task.contender.command))

    in_rounds(
        tasks, rounds, measure, record, stop=stop, finished=finished, failures=(),
        progress=lambda task, _: progress(f"{task.contender.name}: {task.shape.name}"),
    )  # fmt: skip


def measured(task: Task, queries: Queries, command: list[str]) -> dict[str, Any]:
    """Return the figures of one pass; raises WrongResultError for wrong rows, ProgramError and UnavailableError."""
    request = queries.address() | {
        "shape": asdict(task.shape), "connections": task.connections, "seconds": task.seconds,
        "warmup_seconds": task.warmup_seconds,
    }  # fmt: skip
    expected = queries.expected(task.shape)
    patience = catalog.PATIENCE_SECONDS + task.seconds + task.warmup_seconds
    answer = catalog.answer_of(command, request, ANSWER, patience)
    count, times, rows, seconds = (answer[name] for name in ("queries", "latencies_ns", "rows", "seconds"))
    if not count or not seconds:
        raise ProgramError("it ran no query within the time")
    if len(times) != count or not all(type(time) is int and 0 <= time < 2**63 for time in times):
        raise ProgramError(f"it has {len(times)} latencies of {count} queries, or some are no nanoseconds")
    figures = {
        "queries": count, "rows": rows, "seconds": seconds, "queries_per_s": count / seconds,
        "rows_per_s": rows / seconds, "client_cpu_s": answer["cpu_seconds"], **latencies(times),
    }  # fmt: skip
    return right(figures, queries.wrong(task, answer, expected))


def latencies(nanoseconds: list[int]) -> dict[str, float]:
    """Mean, percentiles and maximum in ms; exact, as every latency is there."""
    times = np.asarray(nanoseconds, dtype=np.float64) / 1e6
    exact = {f"latency_p{at}_ms": float(np.percentile(times, at)) for at in PERCENTILES}
    return {"latency_mean_ms": float(times.mean()), **exact, "latency_max_ms": float(times.max())}


@contextmanager
def _tables(tables: PostgresTables | ClickHouseTables, made: Mapping[str, Iterable[str]]) -> Iterator[None]:
    """Tables by the statements that create and fill them, for as long as the block lasts."""
    try:
        for name, (create, *fill) in made.items():
            tables.create_as(name, create)
            for statement in fill:
                tables.run(statement)
        yield
    finally:
        # Where the server is gone for good, the next run drops what is ours.
        with contextlib.suppress(ServerError):
            for name in made:
                tables.drop_named(name)


class PostgresQueries:
    """The tables of the PostgreSQL shapes; what must come back is asked of the server as JSON, past all drivers."""

    def __init__(self, server: PostgresServer) -> None:
        self._server, self._tables = server, PostgresTables(server)

    @contextmanager
    def with_tables(self) -> Iterator[PostgresQueries]:
        """The tables, for as long as the block lasts; raises ServerError when one of these names is not ours."""
        with _tables(self._tables, POSTGRES_TABLES):
            yield self

    def address(self) -> dict[str, Any]:
        """Return the part of a request that says where the server is."""
        return {"dsn": self._server.dsn()}

    def expected(self, shape: Shape) -> list[list[Any]]:
        """Return the rows that a query must give."""
        sql = shape.sql
        for at, value in enumerate(shape.arguments, 1):
            sql = sql.replace(f"${at}", str(value).lower())
        answer = self._tables.run(f"SELECT coalesce(json_agg(q), '[]')::text FROM ({sql}) AS q")[0][0]
        return [list(row.values()) for row in json.loads(answer)]

    def wrong(self, task: Task, answer: dict[str, Any], expected: Any) -> str | None:
        """Return what is wrong with rows that were fetched, None when nothing is."""
        found = difference(answer.get("checked"), expected, arrays_as_text=task.contender.arrays_as_text)
        return found or _fetched(answer, len(expected))


class ClickHouseQueries:
    """The tables that ClickHouse fills by itself; what must come back is computed here, from what they are made of."""

    def __init__(self, server: ClickHouseServer, rows: int) -> None:
        self._server, self._rows, self._tables = server, rows, ClickHouseTables(server)
        self._digests: dict[Shape, str] = {}

    @contextmanager
    def with_tables(self) -> Iterator[ClickHouseQueries]:
        """The tables, for as long as the block lasts; raises ServerError when one of these names is not ours."""
        made = {
            one.table: (
                f"CREATE TABLE {one.table} ({one.columns}) ENGINE = Memory COMMENT '{COMMENT}'",
                f"INSERT INTO {one.table} SELECT {one.select} FROM numbers({self._rows})",
            )
            for one in CLICKHOUSE_TABLES
        }
        with _tables(self._tables, made):
            yield self

    def address(self) -> dict[str, Any]:
        """Return the part of a request that says where the server is, and that a digest stands for the rows."""
        return {"server": asdict(self._server), "digest": True}

    def expected(self, shape: Shape) -> str:
        """Return the digest of all values that a query must give."""
        if shape not in self._digests:
            row = next(one.row for one in CLICKHOUSE_TABLES if one.name == shape.name)
            self._digests[shape] = program.digest([program.json_value(row(at)) for at in range(shape.count)])
        return self._digests[shape]

    def wrong(self, task: Task, answer: dict[str, Any], expected: Any) -> str | None:
        """Return what is wrong with rows that were fetched, None when nothing is."""
        if answer.get("checked") != expected:
            return "other values than the server made"
        return _fetched(answer, task.shape.count)


type Queries = PostgresQueries | ClickHouseQueries


def _fetched(answer: dict[str, Any], each: int) -> str | None:
    queries, rows = answer["queries"], answer["rows"]
    return None if rows == queries * each else f"{rows} rows in {queries} queries of {each} each"


def difference(got: Any, expected: list[list[Any]], *, arrays_as_text: bool) -> str | None:
    """Return what is wrong with rows that a driver gave; None when they say what the server said."""
    if not isinstance(got, list) or not all(isinstance(row, list) for row in got):
        return f"{got!r:.60} is no list of rows"
    if wrong := other_shape((), len(got), (), len(expected)):
        return wrong
    for at, (given, row) in enumerate(zip(got, expected, strict=True)):
        if len(given) != len(row):
            return f"row {at} has {len(given)} values instead of {len(row)}"
        for value, wanted in zip(given, row, strict=True):
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
