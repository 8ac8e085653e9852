"""Replace all rows of a table by a frame, atomically, with any technique that appends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import replace
from functools import wraps
from typing import Any

import asyncpg
import duckdb
import psycopg
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection

from framehaul.data.schema import Table, quote_postgres_text
from framehaul.errors import UnavailableError
from framehaul.techniques.beyond.clickhouse_write import exchanged
from framehaul.techniques.clients import AND_HTTP, ParquetExchange, awaited, entered
from framehaul.techniques.contract import REPLACED, REPLACED_BESIDE, REPLACED_IN_TRANSACTION
from framehaul.techniques.registry import Technique


@contextmanager
def emptied(connection: psycopg.Connection[Any], table: Table) -> Iterator[Table]:
    """Truncate a table in a transaction that is the block: an error in it restores the rows.

    Other sessions wait for its end: https://www.postgresql.org/docs/18/sql-truncate.html
    """
    with connection.transaction():
        connection.execute(f"TRUNCATE {table.postgres_name}".encode())
        yield table


@contextmanager
def emptied_with_files(exchange: ParquetExchange, table: Table) -> Iterator[Table]:
    """Truncate as `emptied` does."""
    with emptied(exchange.connection, table):
        yield table


@asynccontextmanager
async def emptied_by_asyncpg(connection: asyncpg.Connection[Any], table: Table) -> AsyncIterator[Table]:
    """Truncate as `emptied` does."""
    async with connection.transaction():
        await connection.execute(f"TRUNCATE {table.postgres_name}")
        yield table


@contextmanager
def emptied_by_adbc(connection: AdbcConnection, table: Table) -> Iterator[Table]:
    """Truncate as `emptied` does; the technique that writes the rows commits."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {table.postgres_name}")
        yield table
    except BaseException:
        connection.rollback()  # else the next commit would include it
        raise


@contextmanager
def emptied_by_duckdb(connection: duckdb.DuckDBPyConnection, table: Table) -> Iterator[Table]:
    """Truncate as `emptied` does; one transaction of DuckDB is one of PostgreSQL."""
    connection.begin()
    try:
        statement = quote_postgres_text(f"TRUNCATE {table.postgres_name}")
        connection.execute(f"CALL postgres_execute('pg', {statement})")
        yield table
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


type Emptying = Callable[[Any, Table], AbstractContextManager[Table] | AbstractAsyncContextManager[Table]]

EMPTYING: dict[str, Emptying] = {
    "psycopg": emptied, "psycopg_parquet_stream": emptied, "psycopg_parquet": emptied_with_files,
    "asyncpg": emptied_by_asyncpg, "adbc": emptied_by_adbc, "duckdb": emptied_by_duckdb,
}  # fmt: skip
"""By client of PostgreSQL; two connections have two transactions."""


def making_room(technique: Technique) -> Emptying | None:
    """Return the context manager in which a write replaces all rows, or None for one that replaces them by itself.

    Raises UnavailableError for a write that is not one transaction.
    """
    if technique.contract == REPLACED:
        return None
    if technique.database == "clickhouse":
        return exchanged
    if technique.client not in EMPTYING:
        raise UnavailableError("what it writes is no one transaction, in which the rows before it could go")
    return EMPTYING[technique.client]


def replacing(technique: Technique) -> Technique:
    """Return a technique whose frame takes the place of all rows; raises UnavailableError as `making_room` does."""
    room = making_room(technique)
    if room is None:
        return replace(technique, contract=REPLACED_BESIDE)
    if technique.database == "postgres":
        label = f"TRUNCATE, {technique.label}, in one transaction".replace(", in one transaction, from", ", from")
        client, contract = technique.client, REPLACED_IN_TRANSACTION
    else:
        label, client = f"{technique.label}, into a new table, then EXCHANGE TABLES", technique.client + AND_HTTP
        contract = REPLACED_BESIDE

    @wraps(technique.function)
    async def write(client: Any, table: Table, frame: Any) -> None:
        first, writer = client if room is exchanged else (client, client)
        async with entered(room(first, table)) as new_or_emptied:
            await awaited(technique.function(writer, new_or_emptied, frame))

    return replace(technique, function=write, client=client, label=label, contract=contract)
