"""Warehouses that load files of buildings: a DuckDB file and ClickHouse; `bigquery` has BigQuery."""

from __future__ import annotations

import dataclasses
import http.client
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.ipc

from framehaul.data.frames import validated
from framehaul.data.schema import COMMENT
from framehaul.servers import ClickHouseServer, Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import Settings
from framehaul.studies.buildings import CLICKHOUSE_COLUMNS, DUCKDB_TYPES, SCHEMA
from framehaul.techniques.clients import QueryError, connected_duckdb, open_http_client

TABLE = "framehaul_buildings"
"""The name of the table that files are loaded into; on BigQuery, its prefix."""
COLUMNS = ", ".join(SCHEMA.names)
PARQUET = ".parquet"
READ_BYTES = 1 << 20
"""The size of the pieces in which a file is sent to ClickHouse."""

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


class WarehouseError(RuntimeError):
    """A warehouse could not load a file; the message has the file and the warehouse's reason."""


class Target(Protocol):
    """The table of buildings in an open warehouse, empty at first."""

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """Load every row of the files exactly once, up to `parallel` files at a time, and commit.

        The files are all gzip CSV or all Parquet. Raises WarehouseError for a file that cannot be loaded; the table
        may then hold some of the rows.
        """

    def content(self) -> pa.Table:
        """Return the whole table, with the columns of SCHEMA and the rows in any order."""


def each_at_once(load: Callable[[Path], None], files: Sequence[Path], parallel: int) -> None:
    """Call `load` for every file in up to `parallel` threads and raise the first error."""
    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(load, files))


@dataclass(frozen=True)
class DuckDb:
    """A DuckDB file; a load is one statement, which reads gzip CSV with one thread per file."""

    connection: duckdb.DuckDBPyConnection

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """Load all files or none."""
        types = {field.name: DUCKDB_TYPES[field.type] for field in SCHEMA}
        source = "read_parquet($1)" if files[0].suffix == PARQUET else f"read_csv($1, columns = {types}, {DUCKDB_CSV})"
        self.connection.execute(f"SET threads = {parallel:d}")
        try:
            self.connection.execute(f"INSERT INTO {TABLE} SELECT {COLUMNS} FROM {source}", [list(map(str, files))])
        except duckdb.Error as error:  # its messages name the file
            raise WarehouseError(str(error)) from error

    def content(self) -> pa.Table:
        """Return the whole table."""
        return self.connection.execute(f"SELECT * FROM {TABLE}").to_arrow_table().cast(SCHEMA)


@contextmanager
def opened_duckdb(_servers: Servers, _settings: Settings) -> Iterator[DuckDb]:
    """Open a file in a temporary directory, which is deleted at the end of the block."""
    columns = ", ".join(f"{field.name} {DUCKDB_TYPES[field.type]}" for field in SCHEMA)
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-duckdb-") as directory,
        connected_duckdb(Path(directory) / "warehouse.duckdb") as connection,
    ):
        # Without an order of rows, threads do not wait for each other.
        # https://duckdb.org/docs/stable/guides/performance/how_to_tune_workloads
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(f"CREATE TABLE {TABLE} ({columns})")
        yield DuckDb(connection)


@dataclass(frozen=True)
class ClickHouse:
    """A MergeTree table on the server of the other studies; each file is one INSERT over its own connection."""

    server: ClickHouseServer

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """Send every file once."""
        each_at_once(self._insert, files, parallel)

    def _insert(self, file: Path) -> None:
        parquet = file.suffix == PARQUET
        encoding = {} if parquet else {"Content-Encoding": "gzip"}
        statement = f"INSERT INTO {TABLE} ({COLUMNS}) FORMAT {'Parquet' if parquet else 'CSV'}"
        with open_http_client(self.server) as plain, file.open("rb") as source:
            connection = dataclasses.replace(plain, headers=plain.headers | encoding)
            body = iter(lambda: source.read(READ_BYTES), b"")
            try:
                connection.post(statement, body=body, settings=CLICKHOUSE_SETTINGS).read()
            except (QueryError, http.client.HTTPException, OSError) as error:
                raise WarehouseError(f"{file}: {error}") from error

    def content(self) -> pa.Table:
        """Return the whole table."""
        query, settings = f"SELECT * FROM {TABLE} FORMAT ArrowStream", {"output_format_arrow_string_as_string": 1}
        with open_http_client(self.server) as connection, connection.post(query, settings=settings) as response:
            return validated(pa.ipc.open_stream(response).read_all()).cast(SCHEMA)


@contextmanager
def opened_clickhouse(servers: Servers, _settings: Settings) -> Iterator[ClickHouse]:
    """Create the table, and drop it at the end of the block."""
    tables = ClickHouseTables(servers.clickhouse)
    engine = f"ENGINE = MergeTree ORDER BY () COMMENT '{COMMENT}'"
    tables.create_as(TABLE, f"CREATE TABLE {TABLE} ({CLICKHOUSE_COLUMNS}) {engine}")
    try:
        yield ClickHouse(servers.clickhouse)
    finally:
        tables.drop_named(TABLE)
