"""A frame in place of all rows that a table holds: any append, made to be seen all at once, or not at all."""

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
from framehaul.servers import ClickHouseServer
from framehaul.techniques.beyond.clickhouse_write import exchanged
from framehaul.techniques.clients import (
    CLIENTS,
    HttpConnection,
    Opener,
    ParquetExchange,
    awaited,
    entered,
    open_http_client,
)
from framehaul.techniques.contract import REPLACED, REPLACED_BESIDE, REPLACED_IN_TRANSACTION
from framehaul.techniques.registry import Technique


@contextmanager
def emptied(connection: psycopg.Connection[Any], table: Table) -> Iterator[Table]:
    """The table without its rows, which are there again where the block fails: it is one transaction.

    Others wait for its end: https://www.postgresql.org/docs/18/sql-truncate.html
    """
    with connection.transaction():
        connection.execute(f"TRUNCATE {table.postgres_name}".encode())
        yield table


@contextmanager
def emptied_with_files(exchange: ParquetExchange, table: Table) -> Iterator[Table]:
    """As `emptied`."""
    with emptied(exchange.connection, table):
        yield table


@asynccontextmanager
async def emptied_by_asyncpg(connection: asyncpg.Connection[Any], table: Table) -> AsyncIterator[Table]:
    """As `emptied`."""
    async with connection.transaction():
        await connection.execute(f"TRUNCATE {table.postgres_name}")
        yield table


@contextmanager
def emptied_by_adbc(connection: AdbcConnection, table: Table) -> Iterator[Table]:
    """As `emptied`; the transaction begins here, and whoever writes the rows commits it."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {table.postgres_name}")
        yield table
    except BaseException:
        connection.rollback()  # else whoever commits next commits it
        raise


@contextmanager
def emptied_by_duckdb(connection: duckdb.DuckDBPyConnection, table: Table) -> Iterator[Table]:
    """As `emptied`; one transaction of DuckDB is one of PostgreSQL."""
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
"""By client of PostgreSQL; what two connections write is no one transaction."""
BESIDE = " beside http_client"
"""Behind the name of a client of ClickHouse: a connection that makes and exchanges tables, and the client."""


def making_room(technique: Technique) -> Emptying | None:
    """What a write is done inside of, so that the rows before it go; nothing where it does that by itself.

    Raises UnavailableError where nothing can.
    """
    if technique.contract == REPLACED:
        return None
    if technique.database == "clickhouse":
        return exchanged
    if technique.client not in EMPTYING:
        raise UnavailableError("what it writes is no one transaction, in which the rows before it could go")
    return EMPTYING[technique.client]


def replacing(technique: Technique) -> Technique:
    """The technique, of whose frame the table holds all rows and no others afterwards.

    Raises UnavailableError as `making_room` does.
    """
    if making_room(technique) is None:
        return replace(technique, contract=REPLACED_BESIDE)
    if technique.database == "postgres":
        label = f"TRUNCATE, {technique.label}, in one transaction".replace(", in one transaction, from", ", from")
        return replace(
            technique, function=_into_emptied(technique), label=label, contract=REPLACED_IN_TRANSACTION
        )  # fmt: skip
    both = technique.client + BESIDE
    CLIENTS[both] = _with_http(CLIENTS[technique.client])
    return replace(
        technique, function=_into_new(technique), client=both, contract=REPLACED_BESIDE,
        label=f"{technique.label}, into a new table, then EXCHANGE TABLES",
    )  # fmt: skip


def _into_emptied(technique: Technique) -> Callable[..., Any]:
    @wraps(technique.function)
    async def write(client: Any, table: Table, frame: Any) -> None:
        async with entered(EMPTYING[technique.client](client, table)) as emptied_table:
            await awaited(technique.function(client, emptied_table, frame))

    return write


def _into_new(technique: Technique) -> Callable[..., Any]:
    @wraps(technique.function)
    async def write(clients: tuple[HttpConnection, Any], table: Table, frame: Any) -> None:
        beside, client = clients
        with exchanged(beside, table) as new:
            await awaited(technique.function(client, new, frame))

    return write


def _with_http(opener: Opener) -> Opener:
    @asynccontextmanager
    async def opened(server: ClickHouseServer) -> AsyncIterator[tuple[HttpConnection, Any]]:
        with open_http_client(server) as beside:
            async with entered(opener(server)) as client:
                yield beside, client

    return opened
