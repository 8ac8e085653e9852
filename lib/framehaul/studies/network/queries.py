"""A query of one row in each form that PostgreSQL's protocol gives it: what a round trip does to that.

Written as techniques are, and in no registry: every function takes an open connection and a `Table` of one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import polars as pl

from framehaul.data.schema import Table
from framehaul.techniques import Technique
from framehaul.techniques.registry import frame_and_driver

if TYPE_CHECKING:
    import asyncpg
    import psycopg

CALLS = 5
"""Of a pass, over one connection: what the first call prepares, the others find."""
QUERIES: dict[str, Technique] = {}
"""Them, by name, in their order here."""


def query[F: Callable[..., Any]](label: str) -> Callable[[F], F]:
    """Keep a function as a read that is in no registry."""

    def keep(function: F) -> F:
        frame, driver = frame_and_driver(function.__name__)
        QUERIES[function.__name__] = Technique(
            function, "postgres", "read", frame, driver, driver, "row_fetch", label, "everyday"
        )
        return function

    return keep


def _text(table: Table) -> str:
    return f"SELECT {table.postgres_columns} FROM {table.postgres_name}"


def _with_parameter(table: Table) -> bytes:
    return f"{_text(table).replace('%', '%%')} WHERE %s".encode()


@query("psycopg, a simple query")
def polars_psycopg_simple_query(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """Text without a parameter goes as one message.

    https://www.postgresql.org/docs/18/protocol-flow.html#PROTOCOL-FLOW-SIMPLE-QUERY
    """
    rows = connection.execute(_text(table).encode()).fetchall()
    return pl.DataFrame(rows, schema=table.column_names, orient="row")


@query("psycopg, with a parameter, not prepared")
def polars_psycopg_extended_query(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """What parses, binds and runs goes together, and the server keeps nothing of it.

    https://www.postgresql.org/docs/18/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY
    """
    rows = connection.execute(_with_parameter(table), [True], prepare=False).fetchall()
    return pl.DataFrame(rows, schema=table.column_names, orient="row")


@query("psycopg, prepared by the first call")
def polars_psycopg_prepared_query(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """The first call prepares the query, and waits for that; the others run it by its name.

    https://www.psycopg.org/psycopg3/docs/advanced/prepare.html
    """
    rows = connection.execute(_with_parameter(table), [True], prepare=True).fetchall()
    return pl.DataFrame(rows, schema=table.column_names, orient="row")


@query("asyncpg, prepared in each call")
async def polars_asyncpg_prepared_query(connection: asyncpg.Connection[Any], table: Table) -> pl.DataFrame:
    """Each call prepares the query, runs it, and closes that of the call before: three round trips.

    So does `fetch` where its cache is off.

    https://magicstack.github.io/asyncpg/current/usage.html
    """
    statement = await connection.prepare(f"{_text(table)} WHERE $1")
    rows = await statement.fetch(True)
    return pl.DataFrame([tuple(row) for row in rows], schema=table.column_names, orient="row")
