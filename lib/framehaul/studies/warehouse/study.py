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

import polars as pl
import pyarrow as pa

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.data.equality import content_fingerprint
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.registry import WAREHOUSE
from framehaul.studies.warehouse.routes import ROUTES, SOURCE, Route
from framehaul.studies.warehouse.warehouses import Target, opened_clickhouse, opened_duckdb

type Opened = Callable[[Servers, Settings], AbstractContextManager[Target]]
"""Opens a warehouse with an empty table; at the end of the block the table is dropped.

Raises UnavailableError, with the remedy, without the warehouse, and ServerError where its table is not ours.
"""


def opened_bigquery(_servers: Servers, settings: Settings) -> AbstractContextManager[Target]:
    """Open BigQuery, and import Google's client only now, because that takes seconds."""
    from framehaul.studies.warehouse import bigquery

    return bigquery.opened(settings)


WAREHOUSES: dict[str, Opened] = {
    "duckdb": opened_duckdb,
    "clickhouse": opened_clickhouse,
    "bigquery": opened_bigquery,
}
"""The warehouses by their names in results; the first needs nothing but this machine."""


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

    `parallel` is the maximum number of simultaneous files, connections or loads. Raises ValueError for an invalid
    parameter, ServerError without a server, ResultsError when results/warehouse.csv cannot be written.
    """
    check(ROWS=(rows, 1), parallel=(parallel, 1))
    schedule, tasks = Rounds(rounds, warmup, seed), [*product(ROUTES, WAREHOUSES)]
    with (
        recording.with_servers(WAREHOUSE, Result, schedule, rows=rows, parallel=parallel) as (this_run, both),
        tempfile.TemporaryDirectory(prefix="framehaul-warehouse-") as temporary,
    ):
        tables, directory = PostgresTables(both.postgres), Path(temporary) / "files"
        this_run.expect(len(tasks) * (warmup + rounds))
        this_run.metadata["what"] = f"{rows:,} rows, {rounds} rounds, {parallel} at once"

        def row(task: tuple[Route, str], number: int, ended: Pass[dict[str, Any]]) -> Result:
            route, warehouse = task
            labels = route.name, route.label, route.origin, warehouse
            return Result(this_run.run_id, *labels, rows, number, **columns_of(ended))

        def name(task: tuple[Route, str]) -> str:
            return f"{task[0].name} to {task[1]}"

        def work(stop: threading.Event) -> None:
            try:
                move = Move(both, this_run.settings, directory, parallel, rows, fill(tables, rows, seed))
                this_run.in_rounds(tasks, schedule, move, row, name, stop=stop, home=directory)
            finally:
                tables.drop(SOURCE)

        interruptible(work)


def fill(tables: PostgresTables, rows: int, seed: int) -> int:
    """Create the table of buildings on PostgreSQL and return the fingerprint of its rows."""
    content = buildings.table(rows, seed)
    tables.create(SOURCE)
    tables.load(SOURCE, content)
    return fingerprint(content)


def fingerprint(content: pa.Table) -> int:
    """Return the `content_fingerprint` of buildings, which does not depend on the order of rows."""
    frame = pl.from_arrow(content.select(buildings.SCHEMA.names).cast(buildings.SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return content_fingerprint(frame)


@dataclass(frozen=True)
class Move:
    """A function that makes one pass along a route into a warehouse, with the parameters of all passes."""

    servers: Servers
    settings: Settings
    directory: Path
    """The directory of the files during a pass."""
    parallel: int
    rows: int
    fingerprint: int

    def __call__(self, task: tuple[Route, str], _: int) -> dict[str, Any]:
        """Make the files, load them into an empty table, and compare all rows with the source.

        Raises UnavailableError without the warehouse or the route, WrongResultError for other rows.
        """
        route, warehouse = task
        self.directory.mkdir()
        try:
            with WAREHOUSES[warehouse](self.servers, self.settings) as target:
                start = time.perf_counter()
                route.function(self.servers, self.directory, self.parallel)
                made = time.perf_counter()
                files = sorted(self.directory.iterdir())
                target.load(files, self.parallel)
                loaded = time.perf_counter()
                content = target.content()
            values = {
                "files": len(files),
                "file_bytes": sum(file.stat().st_size for file in files),
                "files_s": made - start,
                "load_s": loaded - made,
                "seconds": loaded - start,
                "rows_per_s": self.rows / (loaded - start),
            }
        finally:
            shutil.rmtree(self.directory)
        if content.num_rows != self.rows:
            return right(values, f"{content.num_rows} rows arrived instead of {self.rows}")
        same = fingerprint(content) == self.fingerprint
        return right(values, None if same else "other values arrived than were sent")
