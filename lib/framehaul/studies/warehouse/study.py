"""From a PostgreSQL table through files into a warehouse: every route into every warehouse, stage by stage."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import batched, product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from framehaul import servers
from framehaul.bench import recording
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
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
"""Open a warehouse with an empty table; at the end of the block the table is dropped.

Raises UnavailableError, with the remedy, without the warehouse, and ServerError where its table is not ours.
"""


def opened_bigquery(_servers: Servers, settings: Settings) -> AbstractContextManager[Target]:
    """Open BigQuery; Google's client, which takes seconds to import, is loaded now."""
    from framehaul.studies.warehouse import bigquery

    return bigquery.opened(settings)


WAREHOUSES: dict[str, Opened] = {
    "duckdb": opened_duckdb,
    "clickhouse": opened_clickhouse,
    "bigquery": opened_bigquery,
}
"""The warehouses by their names in results; the first needs nothing but this machine."""
FILL_BATCHES = 16


@dataclass(frozen=True)
class Result:
    """One pass of one route into one warehouse; a missing number is None, never 0."""

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

    `parallel` is how many files, connections or loads may run at once. Raises ValueError for an invalid parameter,
    ServerError without a server, ResultsError when results/warehouse.csv cannot be written.
    """
    check(ROWS=(rows, 1), parallel=(parallel, 1))
    schedule, tasks = Rounds(rounds, warmup, seed), [*product(ROUTES, WAREHOUSES)]
    terms = {"rows": rows, "parallel": parallel, **vars(schedule)}
    with (
        recording.recording(WAREHOUSE.notebook, WAREHOUSE.results, Result, "route", terms) as recorder,
        servers.running(recorder.settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-warehouse-") as name,
    ):
        tables, directory = PostgresTables(both.postgres), Path(name) / "files"
        recorder.expect(len(tasks) * (warmup + rounds))
        what = f"{rows:,} rows, {rounds} rounds, {parallel} at once"
        recorder.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}

        def row(task: tuple[Route, str], number: int, ended: Pass[dict[str, Any]]) -> Result:
            route, warehouse = task
            labels = route.name, route.label, route.origin, warehouse
            return Result(recorder.run_id, *labels, rows, number, **columns_of(ended))

        record, finished = recorder.passes(row)

        def work(stop: threading.Event) -> None:
            try:
                move = Move(both, recorder.settings, directory, parallel, rows, fill(tables, rows, seed))
                in_rounds(
                    tasks, schedule, move, record, stop=stop, finished=finished, home=directory,
                    progress=lambda task, _: recorder.progress(f"{task[0].name} to {task[1]}"),
                )  # fmt: skip
            finally:
                tables.drop(SOURCE)

        interruptible(work)


def fill(tables: PostgresTables, rows: int, seed: int) -> int:
    """Create the table of buildings on PostgreSQL and return the fingerprint of its rows."""
    tables.create(SOURCE)
    total = 0
    for part in batched(buildings.batches(rows, seed), FILL_BATCHES):
        content = pa.Table.from_batches(part)
        tables.load(SOURCE, content)
        total += fingerprint(content)
    return total % 2**64


def fingerprint(content: pa.Table) -> int:
    """Return the `content_fingerprint` of buildings, which is the same for the same rows in any order."""
    frame = pl.from_arrow(content.select(buildings.SCHEMA.names).cast(buildings.SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return content_fingerprint(frame)


@dataclass(frozen=True)
class Move:
    """One pass along a route into a warehouse, with what all passes have in common."""

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
                "files": len(files), "file_bytes": sum(file.stat().st_size for file in files),
                "files_s": made - start, "load_s": loaded - made, "seconds": loaded - start,
                "rows_per_s": self.rows / (loaded - start),
            }  # fmt: skip
        finally:
            shutil.rmtree(self.directory)
        if content.num_rows != self.rows:
            return right(values, f"{content.num_rows} rows arrived instead of {self.rows}")
        same = fingerprint(content) == self.fingerprint
        return right(values, None if same else "other values arrived than were sent")
