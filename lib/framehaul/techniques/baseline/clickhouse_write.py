"""Write inside ClickHouse: rows of one table into another table, or rows that it parses and discards."""

from __future__ import annotations

import json

import polars as pl

from framehaul.data.frames import arrow_stream, from_polars
from framehaul.data.schema import Table, quote_clickhouse_text
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.registry import technique

# With two cores the server is fastest with smaller blocks and two insert threads.
FASTEST: dict[str, str | int] = {"max_insert_threads": 2, "min_insert_block_size_rows": 262_144}


@technique("server", "baseline: INSERT ... SELECT inside the server (no client, no parsing)")
def none_http_client_insert_select(connection: HttpConnection, table: Table, source: Table, order: str = "") -> None:
    """Insert rows in the order in which the server stores them, which is sorted by key within a partition."""
    rows = f"SELECT {table.clickhouse_columns} FROM {source.clickhouse_name} {order}"
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) {rows}"
    connection.post(query, settings=FASTEST).read()


@technique("server", "baseline: INSERT ... SELECT inside the server, shuffled first (no client, no parsing)", key=True)
def none_http_client_insert_select_unsorted(connection: HttpConnection, table: Table, source: Table) -> None:
    """Insert shuffled rows, so that the server sorts them again; shuffling is on the clock."""
    none_http_client_insert_select(connection, table, source, f"ORDER BY cityHash64({table.clickhouse_key})")


@technique("server", "baseline: INSERT FORMAT ArrowStream into null(), from Polars (parsed, never stored)")
def polars_http_client_arrow_discarded(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> int:
    """Insert without sorting, compressing and writing; return the number of rows that the server reports."""
    query = f"INSERT INTO FUNCTION null({quote_clickhouse_text(table.clickhouse_structure)}) FORMAT ArrowStream"
    response = connection.post(query, body=arrow_stream(from_polars(frame, table)))
    response.read()
    return int(json.loads(response.headers["X-ClickHouse-Summary"])["written_rows"])
