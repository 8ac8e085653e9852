"""Measure appends into tables with rows and indexes, alone and while other clients use the table."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from framehaul.bench import recording
from framehaul.bench.children import child, context, ended_with_the_block
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Ok, Pass, Rounds, Skipped, attempt, check, columns_of, interruptible, value_of
from framehaul.bench.store import Status
from framehaul.servers import Server
from framehaul.studies.registry import TABLES_IN_USE
from framehaul.studies.tables_in_use.copies import Copies, append
from framehaul.studies.tables_in_use.layouts import LAYOUTS, TABLES, Case
from framehaul.studies.tables_in_use.others import WRITTEN_ROWS, summary, use
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, named

COMPARED: dict[Database, tuple[str, ...]] = {
    "postgres": (
        "polars_asyncpg_copy_binary", "polars_pgpq_copy_binary", "polars_pgpq_presorted",
        "polars_pgpq_presorted_two_connections", "polars_framehaul_write", "pandas_sqlalchemy_to_sql",
    ),
    "clickhouse": (
        "polars_httpx_parquet", "polars_http_client_arrow_stream", "polars_http_client_native_presorted",
        "polars_framehaul_write", "pandas_clickhouse_connect_insert_df",
    ),
}  # fmt: skip
IN_ALL_TABLES = 3
"""The number of appends into all tables: the best published one, one as it is and one presorted."""
BUSY: dict[Database, tuple[str, ...]] = {
    "postgres": ("polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_pgpq_key_last"),
    "clickhouse": ("polars_httpx_parquet", "polars_http_client_native_presorted"),
}
BUSY_LAYOUT: dict[Database, str] = {"postgres": "one_index", "clickhouse": "nine_columns"}
"""Appends, and a bulk load, into a table that others use; it has an index or partitions for their aggregate."""
MOST_ROWS, BUSY_TIMES, BEFORE_SECONDS = 1_000_000, 10, 0.5
"""The most existing rows; those of the table that others use, as a multiple; the time of others before an append."""
APPEND, ALONE, TOGETHER = "append", "alone", "together"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A pass of an append, alone or together with other clients, or what a client saw of such a pass."""

    run_id: str
    database: str
    technique: str
    label: str
    origin: str
    layout: str
    existing_rows: int
    rows: int
    part: str
    """`append`; `alone` or `together` for the table that others use; or the name of another client."""
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    index_bytes: int | None = None
    index_growth_bytes: int | None = None
    wal_bytes: int | None = None
    dead_rows: int | None = None
    parts: int | None = None
    merges: int | None = None
    requests: int | None = None
    errors: int | None = None
    error: str | None = None
    before_p50_s: float | None = None
    before_p95_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    longest_s: float | None = None
    status: Status = "ok"
    reason: str | None = None


class Task(NamedTuple):
    """An append in a case, alone or together with other clients."""

    technique: Technique
    case: Case
    part: str


def groups(
    database: Database, appended: list[int], times: list[int], names: list[str], busy_rows: int
) -> list[list[Task]]:
    """Return the tasks of each number of rows, and those of the table that others use; a group shares its rounds.

    The fewest rows are appended to all tables, more rows to the first table alone and not by everyday calls.
    """
    found, known = [], [name for name in LAYOUTS[database] if name in names]
    compared, busy = ([named(database, "write", one) for one in by[database]] for by in (COMPARED, BUSY))
    for size in sorted({*appended}):
        few = size == min(appended)
        cases = [Case(name, size * by, size) for name in known[: None if few else 1] for by in sorted({*times})]
        found.append([
            Task(one, case, APPEND)
            for case in cases
            for one in compared[: None if case.layout == known[0] else IN_ALL_TABLES]
            if case.existing_rows <= MOST_ROWS and (few or one.origin != "everyday")
        ])  # fmt: skip
    case = Case(BUSY_LAYOUT[database], busy_rows * BUSY_TIMES, busy_rows)
    return [*found, [Task(one, case, part) for one in busy for part in (ALONE, TOGETHER)]]


@recording.study(TABLES_IN_USE.notebook, Row)
def run(*, appended: list[int], times: list[int], layouts: str, busy_rows: int, rounds: int, seed: int) -> None:
    """Measure appends of `appended` rows into tables with `times` as many; of `busy_rows` while others use a table.

    `layouts` are names of tables, or empty for all. Raises ValueError for a parameter out of range.
    """
    check(APPENDED=(min(appended), 1), TIMES=(min(times), 0), BUSY_ROWS=(busy_rows, 1))
    names, schedule = layouts.split() or [*TABLES], Rounds(rounds, 0, seed)
    if unknown := {*names} - {*TABLES}:
        raise ValueError(f"LAYOUTS={layouts!r}: there is no {min(unknown)}; choose from {', '.join(TABLES)}")
    terms = {"appended": appended, "times": times, "layouts": names, "busy_rows": busy_rows}
    with recording.with_servers(TABLES_IN_USE, Row, schedule, **terms) as (this_run, both), ended_with_the_block():
        sizes = ", ".join(f"{one:,}" for one in sorted({*appended, busy_rows}))
        this_run.metadata["what"] = f"appends of {sizes} rows, {rounds} rounds"
        every = [(one, group) for one in LAYOUTS for group in groups(one, appended, times, names, busy_rows)]
        this_run.expect(rounds * sum(len(group) for _, group in every))

        def work(stop: threading.Event) -> None:
            for database, group in every:
                measure(this_run, both.of(database), group, schedule, stop)

        interruptible(work)


def measure(this_run: Recording, server: Server, group: list[Task], rounds: Rounds, stop: threading.Event) -> None:
    """Measure tasks in rounds and record every pass, after each technique has run once."""

    def row(task: Task, number: int, outcome: Pass[dict[str, Any]], part: str = "") -> Row:
        one = task.technique
        which: dict[str, Any] = {name: getattr(one, name) for name in ("database", "label", "origin")}
        which |= {**task.case._asdict(), "technique": one.name, "part": part or task.part}
        return Row(run_id=this_run.run_id, pass_=number, **which, **columns_of(outcome))

    def measured(task: Task, number: int) -> dict[str, Any]:
        value_of(grown)
        columns, seen = one_pass(copies, task)
        for client, of_client in seen.items():
            this_run.write(row(task, number, Ok(of_client), client))
        return columns

    if all(this_run.finished(row(one, number + 1, Skipped(""))) for one in group for number in range(rounds.passes)):
        return
    with Copies(server, rounds.seed) as copies:
        grown = attempt(lambda: copies.grow(dict.fromkeys(task.case for task in group)))
        for technique in dict.fromkeys(task.technique for task in group):
            # It imports drivers and compiles loops. If it fails, so does the pass that is recorded.
            attempt(partial(one_pass, copies, Task(technique, group[0].case, ALONE)))
        this_run.in_rounds(
            group, rounds, measured, row, lambda one: f"{one.technique.name} ({one.case.layout})", stop=stop
        )


def one_pass(copies: Copies, task: Task) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Append to a copy; return columns of results, and of each other client; raise WrongResultError for other rows."""
    table, (server, tables) = TABLES[task.case.layout], copies.at.fresh(task.case)
    arguments = task.technique, server, table, copies.frames[table, task.technique.frame]
    seen, written = dict[str, dict[str, Any]](), 0
    if task.part != TOGETHER:
        begin, end = asyncio.run(append(*arguments))
    else:
        with child(context(use.__module__), "the other clients", use, server, copies.keys) as others:
            others.receive()
            time.sleep(BEFORE_SECONDS)
            begin, end = asyncio.run(append(*arguments))
            requests = others.ask(end)
        seen = summary(requests, begin, end)
        written = WRITTEN_ROWS * sum(one.client == "write" and one.error is None for one in requests)
    columns = {"seconds": end - begin, "rows_per_s": task.case.rows / (end - begin), **copies.at.costs(tables)}
    copies.check(task.case, tables, written)
    return columns, seen
