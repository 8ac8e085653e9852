"""Replace all rows of a table by a frame, atomically, with any technique that appends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from framehaul.data.schema import Table, quote_postgres_text
from framehaul.errors import UnavailableError
from framehaul.techniques.clients import AND_HTTP, UTF8, ParquetExchange, awaited, entered
from framehaul.techniques.contract import REPLACED, REPLACED_BESIDE, REPLACED_IN_TRANSACTION
from framehaul.techniques.registry import Technique

if TYPE_CHECKING:
    import asyncpg
    import duckdb
    import psycopg
    from adbc_driver_postgresql.dbapi import Connection as AdbcConnection


@contextmanager
def emptied(connection: psycopg.Connection[Any], table: Table) -> Iterator[Table]:
    """Truncate a table in a transaction that lasts as long as the block; an error in the block restores the rows.

    Other sessions wait for the end of the transaction: https://www.postgresql.org/docs/18/sql-truncate.html
    """
    with connection.transaction():
        connection.execute(UTF8)
        connection.execute(f"TRUNCATE {table.postgres_name}".encode())
        yield table


@contextmanager
def emptied_with_files(exchange: ParquetExchange, table: Table) -> Iterator[Table]:
    """Truncate a table as `emptied` does, over the connection of an exchange of files."""
    with emptied(exchange.connection, table):
        yield table


@asynccontextmanager
async def emptied_by_asyncpg(connection: asyncpg.Connection[Any], table: Table) -> AsyncIterator[Table]:
    """Truncate a table as `emptied` does, over asyncpg."""
    async with connection.transaction():
        await connection.execute(f"TRUNCATE {table.postgres_name}")
        yield table


@contextmanager
def emptied_by_adbc(connection: AdbcConnection, table: Table) -> Iterator[Table]:
    """Truncate a table as `emptied` does, over ADBC; the technique that writes the rows commits."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {table.postgres_name}")
        yield table
    except BaseException:
        connection.rollback()  # otherwise the next commit would include it
        raise


@contextmanager
def emptied_by_duckdb(connection: duckdb.DuckDBPyConnection, table: Table) -> Iterator[Table]:
    """Truncate a table as `emptied` does; a transaction of DuckDB is a transaction of PostgreSQL."""
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
    "psycopg": emptied,
    "psycopg_parquet": emptied_with_files,
    "asyncpg": emptied_by_asyncpg,
    "adbc": emptied_by_adbc,
    "duckdb": emptied_by_duckdb,
}
"""The context manager that truncates, by client of PostgreSQL; clients of two connections have two transactions."""


def making_room(technique: Technique) -> Emptying | None:
    """Return the context manager in which a write replaces all rows, or None if the technique replaces them by itself.

    Raises UnavailableError for a write that is not one transaction.
    """
    if technique.contract == REPLACED:
        return None
    if technique.database == "clickhouse":
        from framehaul.techniques.beyond.clickhouse_write import exchanged  # its module loads drivers of ClickHouse

        return exchanged
    if technique.client not in EMPTYING:
        raise UnavailableError("its write is not one transaction, so that it cannot replace all rows at once")
    return EMPTYING[technique.client]


def replacing(technique: Technique) -> Technique:
    """Return the technique with the frame in place of all rows; raises UnavailableError as `making_room` does."""
    room = making_room(technique)
    if room is None:
        return replace(technique, contract=REPLACED_BESIDE)
    exchanges = technique.database == "clickhouse"
    if exchanges:
        label, client = f"{technique.label}, into a new table, then EXCHANGE TABLES", technique.client + AND_HTTP
    else:
        label = f"TRUNCATE, {technique.label}, in one transaction".replace(", in one transaction, from", ", from")
        client = technique.client

    @wraps(technique.function)
    async def write(client: Any, table: Table, frame: Any) -> None:
        connection, writer = client if exchanges else (client, client)
        async with entered(room(connection, table)) as new_or_emptied:
            await awaited(technique.function(writer, new_or_emptied, frame))

    contract = REPLACED_BESIDE if exchanges else REPLACED_IN_TRANSACTION
    return replace(technique, function=write, client=client, label=label, contract=contract)
