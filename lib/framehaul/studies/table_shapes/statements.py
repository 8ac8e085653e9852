"""INSERT in forms that people call without choosing, beside those in `techniques/everyday`, written as techniques are.

Every function takes an open connection in autocommit, a `Table` and a frame, and returns when the rows are committed or
acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast, get_args

import polars as pl
import psycopg

from framehaul.data.frames import in_table_order
from framehaul.data.schema import Table
from framehaul.techniques import Technique
from framehaul.techniques.beyond.clickhouse_write import INSERT
from framehaul.techniques.clients import UTF8, HttpConnection
from framehaul.techniques.contract import APPEND
from framehaul.techniques.registry import Database, Frame

STATEMENTS: list[Technique] = []
"""Them, in their order here."""


def everyday[F: Callable[..., Any]](database: Database, client: str, label: str) -> Callable[[F], F]:
    """Keep a function as a technique that is in no registry."""

    def keep(function: F) -> F:
        frame = function.__name__.partition("_")[0]
        assert frame in get_args(Frame)
        one = Technique(
            function, database, "write", cast("Frame", frame), client, client, "insert_rows", label, "everyday",
            APPEND[database],
        )  # fmt: skip
        STATEMENTS.append(one)
        return function

    return keep


def placeholders(table: Table) -> str:
    """`(%s::uuid, %s::date, ...)`: text that comes without a type is what the column is."""
    return "(" + ", ".join(f"%s::{column.types.postgres}" for column in table.columns) + ")"


def insert_into(table: Table) -> str:
    """The beginning of an INSERT where psycopg looks for placeholders, in which a per cent sign is one."""
    return f"INSERT INTO {table.postgres_name} ({table.postgres_columns})".replace("%", "%%")


@everyday("postgres", "psycopg", "psycopg execute, a row at a time, in one transaction, from Polars rows")
def polars_psycopg_execute(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """A loop over rows: a round trip for each."""
    statement = f"{insert_into(table)} VALUES {placeholders(table)}".encode()
    with connection.transaction():
        connection.execute(UTF8)
        for row in in_table_order(frame, table).iter_rows():
            connection.execute(statement, row)


@everyday("postgres", "psycopg", "psycopg INSERT with many values from Polars rows")
def polars_psycopg_insert_many_values(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """One statement with all rows, a parameter for each value."""
    rows = [*in_table_order(frame, table).iter_rows()]
    if not rows:
        return
    values = ", ".join([placeholders(table)] * len(rows))
    with connection.transaction():
        connection.execute(UTF8)
        connection.execute(f"{insert_into(table)} VALUES {values}".encode(), [one for row in rows for one in row])


@everyday("clickhouse", "http_client", "http.client INSERT FORMAT JSONEachRow from Polars")
def polars_http_client_json_rows(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """A JSON object for each row, which is what services often have."""
    rows = in_table_order(frame, table).iter_rows(named=True)
    text = "\n".join(json.dumps(row, default=str, ensure_ascii=False) for row in rows)
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT JSONEachRow"
    connection.post(query, body=text.encode(), settings=INSERT).read()
