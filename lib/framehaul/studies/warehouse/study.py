"""Measure every route from a PostgreSQL table through files into DuckDB, ClickHouse and BigQuery, stage by stage."""

import datetime as dt
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from framehaul.bench import store
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, in_rounds, right
from framehaul.data.schema import COMMENT, ColumnType
from framehaul.errors import UnavailableError
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
CLICKHOUSE_SETTINGS = """async_insert = 0, input_format_parquet_allow_missing_columns = 0,
    format_csv_null_representation = '', input_format_csv_trim_whitespaces = 0, input_format_csv_detect_header = 0"""

# With this null marker a STRING is NULL only if the field is empty and not quoted:
# https://cloud.google.com/bigquery/docs/reference/rest/v2/Job#JobConfigurationLoad
BIGQUERY_CSV: dict[str, Any] = {"source_format": "CSV", "null_marker": "", "allow_quoted_newlines": True}
BIGQUERY_TYPES = {ColumnType.INT32: "INTEGER", ColumnType.DATE: "DATE", ColumnType.TEXT: "STRING"}
ANSWER_SECONDS, POLL_SECONDS = 30, 0.5
REMEDY = "set FRAMEHAUL_BIGQUERY_PROJECT and FRAMEHAUL_BIGQUERY_DATASET, and `gcloud auth application-default login`"


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
        kind = "Parquet" if file.suffix == PARQUET else "CSV"
        rows = f"INSERT INTO {TABLE.clickhouse_name} ({TABLE.clickhouse_columns}) SETTINGS {CLICKHOUSE_SETTINGS}"
        with open_http_client(server) as connection, file.open("rb") as source:
            connection.headers.update({} if file.suffix == PARQUET else {"Content-Encoding": "gzip"})
            body = iter(partial(source.read, READ_BYTES), b"")
            connection.post(f"{rows} FORMAT {kind}", body=body).read()

    def load(files: Sequence[Path], parallel: int) -> None:
        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(insert, files))

    def content() -> pa.Table:
        return tables.content(TABLE).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(SCHEMA)

    with tables.loaded(TABLE):
        yield Target(load, content)


@contextmanager
def opened_bigquery(_servers: object, settings: Settings) -> Iterator[Target]:
    """Create a table with a unique name in the data set of the settings, and delete it at the end of the block.

    Raises UnavailableError, with the remedy, without settings or credentials, or when BigQuery refuses them.
    """
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.api_core.retry import Retry, if_exception_type
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import bigquery  # it takes seconds

    fields = [bigquery.SchemaField(column.name, BIGQUERY_TYPES[column.type]) for column in TABLE.columns]
    append = {"create_disposition": "CREATE_NEVER", "write_disposition": "WRITE_APPEND", "schema": fields}
    project, dataset, endpoint = settings.bigquery_project, settings.bigquery_dataset, settings.bigquery_endpoint
    if not project or not dataset:
        raise UnavailableError(f"no data set of BigQuery is given: {REMEDY}")
    table = bigquery.Table(f"{project}.{dataset}.{TABLE.name}_{secrets.token_hex(8)}", fields)
    # BigQuery deletes a table that a run could not delete.
    table.description, table.expires = COMMENT, dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
    options = {"api_endpoint": endpoint} if endpoint else None
    # Only emulators lack TLS; they get no credentials.
    login = AnonymousCredentials() if endpoint and endpoint.startswith("http://") else None
    with ExitStack() as stack:
        try:
            # A client may be shared by threads: https://docs.cloud.google.com/python/docs/reference/bigquery/latest
            client = stack.enter_context(closing(bigquery.Client(project, login, client_options=options)))
            # By default the client retries for ten minutes.
            client.get_dataset(
                f"{project}.{dataset}", retry=Retry(predicate=if_exception_type()), timeout=ANSWER_SECONDS
            )
            # When an answer is lost, the client repeats the request, and the table exists already.
            client.create_table(table, exists_ok=True)
        except (GoogleAPICallError, GoogleAuthError, requests.RequestException) as error:
            where = f"data set {dataset} of the project {project}"
            raise UnavailableError(f"BigQuery creates no table in the {where}: {REMEDY} ({error})") from error
        stack.callback(client.delete_table, table, not_found_ok=True)

        def load_one(file: Path) -> None:
            """Load a file by one job, which loads all of its rows or none."""
            kind = {"source_format": "PARQUET"} if file.suffix == PARQUET else BIGQUERY_CSV
            with file.open("rb") as source:
                # A resumed upload keeps the number of its job, so that no row is loaded twice.
                job = client.load_table_from_file(source, table, job_config=bigquery.LoadJobConfig(**append, **kind))
            while not job.done():  # result() would poll at growing intervals of up to 20 s
                time.sleep(POLL_SECONDS)
            job.result()

        def load(files: Sequence[Path], parallel: int) -> None:
            with ThreadPoolExecutor(parallel) as pool:
                list(pool.map(load_one, files))

        def content() -> pa.Table:  # over the JSON interface, which is slow for large tables
            return client.list_rows(table, fields).to_arrow(create_bqstorage_client=False).cast(SCHEMA)

        yield Target(load, content)


WAREHOUSES = {"duckdb": opened_duckdb, "clickhouse": opened_clickhouse, "bigquery": opened_bigquery}
"""Functions that open a warehouse with an empty table, dropped at the end; they raise UnavailableError without it."""
type Task = tuple[Route, str]


@dataclass(frozen=True)
class Result(store.Timed):
    """A pass of a route into a warehouse; a missing number is None, never 0."""

    route: str
    label: str
    origin: str
    warehouse: str
    rows: int
    files: int | None = None
    file_bytes: int | None = None
    files_s: float | None = None
    load_s: float | None = None


@recorded(WAREHOUSE, Result)
def run(this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int, parallel: int) -> None:
    """Move the table along every route into every warehouse and return one row per pass.

    `parallel` is the maximum number of simultaneous files, connections or loads.
    """
    content, both = buildings.table(rows, seed), this_run.servers()
    home = Path(this_run.entered(tempfile.TemporaryDirectory(prefix="framehaul-warehouse-"))) / "files"
    this_run.entered(PostgresTables(both.postgres).loaded(TABLE, content))
    row = this_run.rows(Result, lambda task: (*task[0][:-1], task[1], rows))

    def move(task: Task, _: int) -> dict[str, Any]:
        return moved(task, both, this_run.settings, content, home, parallel)

    name, schedule = "{0[0].name} to {0[1]}".format, Rounds(rounds, warmup, seed)
    in_rounds([*product(ROUTES, WAREHOUSES)], schedule, move, this_run.log(row, name), home)


def moved(
    task: Task, servers: Servers, settings: Settings, sent: pa.Table, home: Path, parallel: int
) -> dict[str, Any]:
    """Make the files in a new directory, load them into an empty table, and return the figures of the pass.

    Raises UnavailableError without the warehouse or the route, and WrongResultError if other rows than `sent` arrived.
    """
    route, warehouse = task
    home.mkdir()
    try:
        with WAREHOUSES[warehouse](servers, settings) as target:
            start = time.perf_counter()
            route.function(servers, home, parallel)
            made = time.perf_counter()
            files = sorted(home.iterdir())
            target.load(files, parallel)
            loaded = time.perf_counter()
            wrong, _, _ = buildings.difference(target.content(), sent)
        sizes = {"files": len(files), "file_bytes": sum(file.stat().st_size for file in files)}
        times = {"files_s": made - start, "load_s": loaded - made, "seconds": loaded - start}
        return right(sizes | times | {"rows_per_s": sent.num_rows / (loaded - start)}, wrong)
    finally:
        shutil.rmtree(home)
