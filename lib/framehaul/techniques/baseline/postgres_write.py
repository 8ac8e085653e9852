"""Write inside PostgreSQL: rows of one table into another table, without client, network and parsing."""

from __future__ import annotations

from typing import Any

import psycopg

from framehaul.data.schema import Table
from framehaul.techniques.registry import technique


@technique("server", "baseline: INSERT ... SELECT inside the server (no client, no parsing)")
def none_psycopg_insert_select(connection: psycopg.Connection[Any], table: Table, source: Table) -> None:
    """Insert rows in the order of the frame, and update the primary key with each row."""
    rows = f"SELECT {table.postgres_columns} FROM {source.postgres_name}"
    connection.execute(f"INSERT INTO {table.postgres_name} ({table.postgres_columns}) {rows}".encode())


@technique("server", "baseline: INSERT ... SELECT ... ORDER BY key inside the server (no client, no parsing)", key=True)
def none_psycopg_insert_select_sorted(connection: psycopg.Connection[Any], table: Table, source: Table) -> None:
    """Insert rows in the order of the primary key; sorting is on the clock."""
    rows = f"SELECT {table.postgres_columns} FROM {source.postgres_name} ORDER BY {table.postgres_key}"
    connection.execute(f"INSERT INTO {table.postgres_name} ({table.postgres_columns}) {rows}".encode())
