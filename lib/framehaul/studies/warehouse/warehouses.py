"""Warehouses that load files of buildings: a DuckDB file and ClickHouse; `bigquery` has BigQuery."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.ipc

from framehaul.data.frames import validated
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables
from framehaul.settings import Settings
from framehaul.studies.buildings import DUCKDB_TYPES, SCHEMA, TABLE
from framehaul.techniques.clients import connected_duckdb, open_http_client

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


class Target(NamedTuple):
    """The table of buildings in an open warehouse, empty at first."""

    load: Callable[[Sequence[Path], int], None]
    """Loads every row of the files exactly once, and commits; the number is the most files at a time.

    The files are all gzip CSV or all Parquet. Raises the warehouse's error for a file that cannot be loaded; the table
    may then hold some of the rows.
    """
    content: Callable[[], pa.Table]
    """Returns the whole table, with the columns of SCHEMA and the rows in any order."""


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
        parquet = file.suffix == PARQUET
        encoding, kind = {} if parquet else {"Content-Encoding": "gzip"}, "Parquet" if parquet else "CSV"
        statement = f"INSERT INTO {TABLE.clickhouse_name} ({TABLE.clickhouse_columns}) FORMAT {kind}"
        with open_http_client(server) as plain, file.open("rb") as source:
            connection = dataclasses.replace(plain, headers=plain.headers | encoding)
            body = iter(lambda: source.read(READ_BYTES), b"")
            connection.post(statement, body=body, settings=CLICKHOUSE_SETTINGS).read()

    def load(files: Sequence[Path], parallel: int) -> None:
        with ThreadPoolExecutor(parallel) as pool:
            list(pool.map(insert, files))

    def content() -> pa.Table:
        query = f"SELECT * FROM {TABLE.clickhouse_name} FORMAT ArrowStream"
        settings = {"output_format_arrow_string_as_string": 1}
        with open_http_client(server) as connection, connection.post(query, settings=settings) as response:
            return validated(pa.ipc.open_stream(response).read_all()).cast(SCHEMA)

    tables.create(TABLE)
    try:
        yield Target(load, content)
    finally:
        tables.drop(TABLE)
