"""Warehouses that take files of buildings: a DuckDB file and ClickHouse; BigQuery is in a module of its own."""

from __future__ import annotations

import dataclasses
import http.client
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.ipc

from framehaul.data.frames import validated
from framehaul.data.schema import COMMENT, quote_clickhouse, quote_postgres, quote_postgres_text
from framehaul.servers import ClickHouseServer, Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import Settings
from framehaul.studies.warehouse.buildings import CLICKHOUSE_COLUMNS, DUCKDB_TYPES, SCHEMA
from framehaul.techniques.clients import QueryError, connected_duckdb, open_http_client

TABLE = "framehaul_buildings"
"""The table that files are loaded into; on BigQuery the beginning of its name."""
PARQUET = ".parquet"
READ_BYTES = 1 << 20
"""How much of a file is in memory at once on its way to ClickHouse."""

# A field is NULL when it is empty and not quoted, else the text that it is; the columns and the dialect are known. The
# end of a line is looked for in spite of auto_detect, and found in texts: https://duckdb.org/docs/stable/data/csv/overview
DUCKDB_CSV = """auto_detect = false, header = false, compression = 'gzip', delim = ',', quote = '"', escape = '"',
    nullstr = '', allow_quoted_nulls = false, comment = '', new_line = '\\n'"""

# Else a missing column is full of NULLs, texts that are not quoted are trimmed, \N among them is NULL, and a row
# of column names is a header: https://clickhouse.com/docs/operations/settings/formats
CLICKHOUSE_SETTINGS: dict[str, str | int] = {
    "async_insert": 0,
    "input_format_parquet_allow_missing_columns": 0,
    "input_format_csv_trim_whitespaces": 0,
    "format_csv_null_representation": "",
    "input_format_csv_detect_header": 0,
}


class WarehouseError(RuntimeError):
    """A warehouse could not load a file; the message names the file and says what the warehouse said."""


class Target(Protocol):
    """The table of buildings in an open warehouse, empty at first."""

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """Put the rows of all files into the table, each exactly once, up to `parallel` files at a time.

        The files are all gzip CSV (`.csv.gz`: no header, columns in the order of SCHEMA, NULL as an empty field that is
        not quoted, lines that end with a line feed alone) or all Parquet. Returns when the rows are committed. Raises
        WarehouseError for a file that cannot be loaded; what the table holds then is of no use.
        """

    def content(self) -> pa.Table:
        """The whole table, with the columns of SCHEMA and the rows in any order."""


@dataclass(frozen=True)
class Warehouse:
    """A warehouse: its name in results, its label in tables and charts, and how it is opened.

    What is opened lives as long as the block, and its table with it. Opening raises UnavailableError, with the remedy,
    when the warehouse is not there, and ServerError when its table is not ours.
    """

    name: str
    label: str
    opened: Callable[[Servers, Settings], AbstractContextManager[Target]]


def each_at_once(load: Callable[[Path], None], files: Sequence[Path], parallel: int) -> None:
    """Call `load` for every file, in up to `parallel` threads; raises the first error and leaves those not begun."""
    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(load, files))


@dataclass(frozen=True)
class DuckDb:
    """A DuckDB file; a load is one statement: all files or none."""

    connection: duckdb.DuckDBPyConnection

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """As `Target.load`, by DuckDB's own threads; a file of gzip CSV keeps no more than one of them busy."""
        types = ", ".join(f"{quote_postgres_text(field.name)}: '{DUCKDB_TYPES[field.type]}'" for field in SCHEMA)
        parquet = files[0].suffix == PARQUET
        source = "read_parquet($1)" if parquet else f"read_csv($1, columns = {{{types}}}, {DUCKDB_CSV})"
        columns = ", ".join(map(quote_postgres, SCHEMA.names))
        self.connection.execute(f"SET threads = {parallel:d}")
        try:
            self.connection.execute(
                f"INSERT INTO {TABLE} ({columns}) SELECT {columns} FROM {source}", [list(map(str, files))]
            )
        except duckdb.Error as error:  # its messages name the file
            raise WarehouseError(str(error)) from error

    def content(self) -> pa.Table:
        """As `Target.content`."""
        return self.connection.execute(f"SELECT * FROM {TABLE}").to_arrow_table().cast(SCHEMA)


@contextmanager
def opened_duckdb(_servers: Servers, _settings: Settings) -> Iterator[DuckDb]:
    """A file in a temporary directory, which goes at the end."""
    columns = ", ".join(f"{quote_postgres(field.name)} {DUCKDB_TYPES[field.type]}" for field in SCHEMA)
    with (
        tempfile.TemporaryDirectory(prefix="framehaul-duckdb-") as directory,
        connected_duckdb(Path(directory) / "warehouse.duckdb") as connection,
    ):
        # Threads need not wait for one another to keep the order of rows.
        # https://duckdb.org/docs/stable/guides/performance/how_to_tune_workloads
        connection.execute("SET preserve_insertion_order = false")
        connection.execute(f"CREATE TABLE {TABLE} ({columns})")
        yield DuckDb(connection)


@dataclass(frozen=True)
class ClickHouse:
    """ClickHouse itself: a MergeTree that each file enters by an INSERT of its own."""

    server: ClickHouseServer

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """As `Target.load`: a connection for each file, nothing sent twice."""
        each_at_once(self._insert, files, parallel)

    def _insert(self, file: Path) -> None:
        columns = ", ".join(map(quote_clickhouse, SCHEMA.names))
        parquet = file.suffix == PARQUET
        statement = f"INSERT INTO {TABLE} ({columns}) FORMAT {'Parquet' if parquet else 'CSV'}"
        encoding = {} if parquet else {"Content-Encoding": "gzip"}
        with open_http_client(self.server) as plain, file.open("rb") as source:
            connection = dataclasses.replace(plain, headers=plain.headers | encoding)
            body = iter(lambda: source.read(READ_BYTES), b"")
            try:
                connection.post(statement, body=body, settings=CLICKHOUSE_SETTINGS).read()
            except (QueryError, http.client.HTTPException, OSError) as error:
                raise WarehouseError(f"{file}: {error}") from error

    def content(self) -> pa.Table:
        """As `Target.content`."""
        query = f"SELECT * FROM {TABLE} FORMAT ArrowStream"
        with (
            open_http_client(self.server) as connection,
            connection.post(query, settings={"output_format_arrow_string_as_string": 1}) as response,
        ):
            return validated(pa.ipc.open_stream(response).read_all()).cast(SCHEMA)


@contextmanager
def opened_clickhouse(servers: Servers, _settings: Settings) -> Iterator[ClickHouse]:
    """A table on the project's server, dropped at the end."""
    tables = ClickHouseTables(servers.clickhouse)
    engine = f"ENGINE = MergeTree ORDER BY () COMMENT '{COMMENT}'"
    tables.create_as(TABLE, f"CREATE TABLE {TABLE} ({CLICKHOUSE_COLUMNS}) {engine}")
    try:
        yield ClickHouse(servers.clickhouse)
    finally:
        tables.drop_named(TABLE)
