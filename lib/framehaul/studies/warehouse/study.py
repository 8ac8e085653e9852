"""Measure every route from a PostgreSQL table through files into every warehouse, stage by stage."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.buildings import TABLE
from framehaul.studies.registry import WAREHOUSE
from framehaul.studies.warehouse.routes import ROUTES, Route
from framehaul.studies.warehouse.warehouses import Target, opened_clickhouse, opened_duckdb

type Opened = Callable[[Servers, Settings], AbstractContextManager[Target]]
"""Opens a warehouse with an empty table, which is dropped at the end; raises UnavailableError without the warehouse."""


def opened_bigquery(_servers: Servers, settings: Settings) -> AbstractContextManager[Target]:
    """Open BigQuery, and import Google's client only now, because that takes seconds."""
    from framehaul.studies.warehouse import bigquery

    return bigquery.opened(settings)


WAREHOUSES: dict[str, Opened] = {"duckdb": opened_duckdb, "clickhouse": opened_clickhouse, "bigquery": opened_bigquery}
"""The warehouses by their names in results."""

type Task = tuple[Route, str]


@dataclass(frozen=True)
class Result:
    """A pass of a route into a warehouse; a missing number is None, never 0."""

    run_id: str
    route: str
    label: str
    origin: str
    warehouse: str
    rows: int
    pass_: int
    files: int | None = None
    file_bytes: int | None = None
    files_s: float | None = None
    load_s: float | None = None
    seconds: float | None = None
    rows_per_s: float | None = None
    status: Status = "ok"
    reason: str | None = None


@recording.study(WAREHOUSE.notebook, Result)
def run(*, rows: int, rounds: int, warmup: int, seed: int, parallel: int) -> None:
    """Move the table along every route into every warehouse and return one row per pass.

    `parallel` is the maximum number of simultaneous files, connections or loads.
    """
    check(ROWS=(rows, 1), parallel=(parallel, 1))
    schedule, content = Rounds(rounds, warmup, seed), buildings.table(rows, seed)
    tasks = [*product(ROUTES, WAREHOUSES)]
    with (
        recording.with_servers(WAREHOUSE, Result, schedule, rows=rows, parallel=parallel) as (this_run, both),
        tempfile.TemporaryDirectory(prefix="framehaul-warehouse-") as temporary,
    ):
        tables, directory = PostgresTables(both.postgres), Path(temporary) / "files"
        this_run.expect(len(tasks) * (warmup + rounds))
        this_run.metadata["what"] = f"{rows:,} rows, {rounds} rounds, {parallel} at once"

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> Result:
            route, warehouse = task
            labels = route.name, route.label, route.origin, warehouse
            return Result(this_run.run_id, *labels, rows, number, **columns_of(ended))

        def move(task: Task, _: int) -> dict[str, Any]:
            return moved(task, both, this_run.settings, content, directory, parallel)

        def name(task: Task) -> str:
            return f"{task[0].name} to {task[1]}"

        def work(stop: threading.Event) -> None:
            try:
                tables.create(TABLE)
                tables.load(TABLE, content)
                this_run.in_rounds(tasks, schedule, move, row, name, stop=stop, home=directory)
            finally:
                tables.drop(TABLE)

        interruptible(work)


def moved(
    task: Task, servers: Servers, settings: Settings, sent: pa.Table, directory: Path, parallel: int
) -> dict[str, Any]:
    """Make the files in a new directory, load them into an empty table, and return the figures of the pass.

    All rows are compared with the rows that were `sent`. Raises UnavailableError without the warehouse or the route,
    WrongResultError for other rows.
    """
    route, warehouse = task
    directory.mkdir()
    try:
        with WAREHOUSES[warehouse](servers, settings) as target:
            start = time.perf_counter()
            route.function(servers, directory, parallel)
            made = time.perf_counter()
            files = sorted(directory.iterdir())
            target.load(files, parallel)
            loaded = time.perf_counter()
            wrong, _, _ = buildings.difference(target.content(), sent)
        figures = {
            "files": len(files),
            "file_bytes": sum(file.stat().st_size for file in files),
            "files_s": made - start,
            "load_s": loaded - made,
            "seconds": loaded - start,
            "rows_per_s": sent.num_rows / (loaded - start),
        }
        return right(figures, wrong)
    finally:
        shutil.rmtree(directory)
