"""Measure every route from a PostgreSQL table through files into every warehouse, stage by stage.

The warehouses here are a DuckDB file and ClickHouse; `bigquery` has BigQuery.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from framehaul.bench import recording
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.bench.study import imported
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.settings import Settings
from framehaul.studies import buildings
from framehaul.studies.buildings import DUCKDB_TYPES, SCHEMA, TABLE
from framehaul.studies.registry import WAREHOUSE
from framehaul.studies.warehouse.routes import READ_BYTES, ROUTES, Route
from framehaul.techniques.clients import connected_duckdb, open_http_client

PARQUET = ".parquet"

# A field is NULL when it is empty and not quoted. The dialect is given, because auto_detect would take line breaks in
# texts for ends of lines: https://duckdb.org/docs/stable/data/csv/overview
DUCKDB_CSV = """auto_detect = false, header = false, compression = 'gzip', delim = ',', quote = '"', escape = '"',
    nullstr = '', allow_quoted_nulls = false, comment = '', new_line = '\\n'"""

# By default missing columns become NULL, unquoted text is trimmed, \N is NULL, and a row of column names is skipped as
# a header: https://clickhouse.com/docs/operations/settings/formats
CLICKHOUSE_SETTINGS: dict[str, str | int] = {
    "async_insert": 0,
    "input_format_parquet_allow_missing_columns": 0,
    "input_format_csv_trim_whitespaces": 0,
    "format_csv_null_representation": "",
    "input_format_csv_detect_header": 0,
}


class Target(NamedTuple):
    """The table of buildings in an open warehouse, empty at first.

    `load` loads every row of the files, all gzip CSV or all Parquet, exactly once, and commits; the number is the most
    files at a time. It raises the warehouse's error for a file that cannot be loaded; the table may then hold some of
    the rows. `content` returns the whole table, with the columns of SCHEMA and the rows in any order.
    """

    load: Callable[[Sequence[Path], int], None]
    content: Callable[[], pa.Table]


@contextmanager
def opened_duckdb(_servers: Servers, _settings: Settings) -> Iterator[Target]:
    """Open a DuckDB file in a temporary directory, which is deleted at the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-duckdb-") as directory,
        connected_duckdb(Path(directory) / "warehouse.duckdb") as connection,
    ):
        # Without an order of rows, threads do not wait for each other.
        # https://duckdb.org/docs/stable/guides/performance/how_to_tune_workloads
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(TABLE.postgres_ddl)

        def load(files: Sequence[Path], parallel: int) -> None:
            """Load all files or none; gzip CSV is read with one thread per file."""
            csv = f"read_csv($1, columns = {DUCKDB_TYPES}, {DUCKDB_CSV})"
            source = "read_parquet($1)" if files[0].suffix == PARQUET else csv
            statement = f"INSERT INTO {TABLE.postgres_name} SELECT {TABLE.postgres_columns} FROM {source}"
            connection.execute(f"SET threads = {parallel:d}")
            connection.execute(statement, [list(map(str, files))])

        def content() -> pa.Table:
            return connection.execute(f"SELECT * FROM {TABLE.postgres_name}").to_arrow_table().cast(SCHEMA)

        yield Target(load, content)


@contextmanager
def opened_clickhouse(servers: Servers, _settings: Settings) -> Iterator[Target]:
    """Create a MergeTree table on the server of the other studies, and drop it at the end of the block."""
    server, tables = servers.clickhouse, ClickHouseTables(servers.clickhouse)

    def insert(file: Path) -> None:
        """Send a file as one INSERT over its own connection."""
        kind, encoding = ("Parquet", "identity") if file.suffix == PARQUET else ("CSV", "gzip")
        statement = f"INSERT INTO {TABLE.clickhouse_name} ({TABLE.clickhouse_columns}) FORMAT {kind}"
        with open_http_client(server) as connection, file.open("rb") as source:
            connection.headers["Content-Encoding"] = encoding
            body = iter(partial(source.read, READ_BYTES), b"")
            connection.post(statement, body=body, settings=CLICKHOUSE_SETTINGS).read()

    def load(files: Sequence[Path], parallel: int) -> None:
        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(insert, files))

    def content() -> pa.Table:
        return tables.content(TABLE).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)

    tables.create(TABLE)
    try:
        yield Target(load, content)
    finally:
        tables.drop(TABLE)


type Opened = Callable[[Servers, Settings], AbstractContextManager[Target]]
WAREHOUSES: dict[str, Opened] = {
    "duckdb": opened_duckdb,
    "clickhouse": opened_clickhouse,
    # Google's client is only imported when it is needed, because that takes seconds.
    "bigquery": lambda _, settings: imported("framehaul.studies.warehouse.bigquery:opened")(settings),
}
"""Functions that open a warehouse with an empty table, dropped at the end; they raise UnavailableError without it."""
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

        name = "{0[0].name} to {0[1]}".format
        try:
            tables.create(TABLE)
            tables.load(TABLE, content)
            interruptible(lambda stop: this_run.in_rounds(tasks, schedule, move, row, name, stop=stop, home=directory))
        finally:
            tables.drop(TABLE)


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
        sizes = {"files": len(files), "file_bytes": sum(file.stat().st_size for file in files)}
        times = {"files_s": made - start, "load_s": loaded - made, "seconds": loaded - start}
        return right(sizes | times | {"rows_per_s": sent.num_rows / (loaded - start)}, wrong)
    finally:
        shutil.rmtree(directory)
