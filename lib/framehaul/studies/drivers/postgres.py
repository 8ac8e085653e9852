"""PostgreSQL drivers of Python: how each is opened and fetches, as its own documentation does it."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import aiopg
import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
from psycopg.conninfo import conninfo_to_dict

from framehaul.studies.drivers.driver import Driver
from framehaul.studies.drivers.shapes import Row, Shape

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi
    import pg8000.dbapi
    import pyarrow as pa


def _percent(sql: str) -> str:
    """The same statement with `%s`, as the DB-API's drivers want it."""
    return re.sub(r"\$\d+", "%s", sql)


# asyncpg


async def asyncpg_fetch(connection: asyncpg.Connection[Any], shape: Shape) -> list[Any]:
    """Prepares once and keeps the statement, by itself; binary protocol."""
    return await connection.fetch(shape.sql, *shape.arguments)  # type: ignore[no-any-return]


# psycopg 3


def psycopg_fetch(connection: psycopg.Connection[Any], shape: Shape, *, binary: bool) -> list[Row]:
    """Prepares by itself when a statement has run five times."""
    with connection.cursor(binary=binary) as cursor:
        cursor.execute(_percent(shape.sql).encode(), shape.arguments)
        return cursor.fetchall()


async def psycopg_async_fetch(connection: psycopg.AsyncConnection[Any], shape: Shape, *, binary: bool) -> list[Row]:
    """As `psycopg_fetch`."""
    async with connection.cursor(binary=binary) as cursor:
        await cursor.execute(_percent(shape.sql).encode(), shape.arguments)
        return await cursor.fetchall()


# psycopg2


def psycopg2_open(dsn: str) -> Any:
    """A connection in autocommit."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    return connection


def psycopg2_fetch(connection: Any, shape: Shape, *, cursor_factory: Any = None) -> list[Row]:
    """Text protocol; arguments are put into the statement by the client."""
    with connection.cursor(cursor_factory=cursor_factory) as cursor:
        cursor.execute(_percent(shape.sql), shape.arguments)
        rows: list[Row] = cursor.fetchall()
        return rows


# aiopg


async def aiopg_fetch(connection: aiopg.Connection, shape: Shape, *, cursor_factory: Any = None) -> list[Row]:
    """psycopg2 beneath an event loop."""
    async with connection.cursor(cursor_factory=cursor_factory) as cursor:
        await cursor.execute(_percent(shape.sql), shape.arguments)
        rows: list[Row] = await cursor.fetchall()
        return rows


# pg8000 and ADBC, whose imports are costly


def pg8000_open(dsn: str) -> pg8000.dbapi.Connection:
    """A connection in autocommit."""
    import pg8000.dbapi

    options: dict[str, Any] = conninfo_to_dict(dsn)
    host, port = options.get("host", ""), int(options.get("port", 5432))
    connection = pg8000.dbapi.connect(
        user=options.get("user", ""), password=options.get("password", ""), database=options.get("dbname", ""),
        host=host, port=port, unix_sock=f"{host}/.s.PGSQL.{port}" if host.startswith("/") else None,
        ssl_context=True if options.get("sslmode", "prefer") in ("require", "verify-ca", "verify-full") else None,
    )  # fmt: skip
    connection.autocommit = True
    return connection


def pg8000_fetch(connection: pg8000.dbapi.Connection, shape: Shape) -> list[Any]:
    """Python all through; text protocol."""
    cursor = connection.cursor()
    cursor.execute(_percent(shape.sql), shape.arguments)
    return list(cursor.fetchall())


def adbc_open(dsn: str) -> adbc_driver_postgresql.dbapi.Connection:
    """A connection in autocommit."""
    import adbc_driver_postgresql.dbapi

    return adbc_driver_postgresql.dbapi.connect(dsn, autocommit=True)


def adbc_fetch(connection: adbc_driver_postgresql.dbapi.Connection, shape: Shape) -> pa.Table:
    """Binary COPY decoded into Arrow columns: no Python object for a value."""
    with connection.cursor() as cursor:
        cursor.execute(shape.sql, shape.arguments or None)
        return cursor.fetch_arrow_table()


def _psycopg(*, binary: bool) -> Driver:
    connect = partial(psycopg.connect, autocommit=True, connect_timeout=30)
    return Driver(connect, partial(psycopg_fetch, binary=binary))


def _psycopg_async(*, binary: bool) -> Driver:
    connect = partial(psycopg.AsyncConnection.connect, autocommit=True, connect_timeout=30)
    return Driver(connect, partial(psycopg_async_fetch, binary=binary), "uvloop")


DRIVERS: dict[str, Driver] = {
    "asyncpg": Driver(partial(asyncpg.connect, timeout=30), asyncpg_fetch, "asyncio"),
    "asyncpg_uvloop": Driver(partial(asyncpg.connect, timeout=30), asyncpg_fetch, "uvloop"),
    "psycopg": _psycopg(binary=False),
    "psycopg_binary": _psycopg(binary=True),
    "psycopg_async": _psycopg_async(binary=False),
    "psycopg_async_binary": _psycopg_async(binary=True),
    "psycopg2": Driver(psycopg2_open, psycopg2_fetch),
    "psycopg2_dict": Driver(psycopg2_open, partial(psycopg2_fetch, cursor_factory=psycopg2.extras.DictCursor)),
    "aiopg": Driver(aiopg.connect, aiopg_fetch, "uvloop"),
    "aiopg_dict": Driver(aiopg.connect, partial(aiopg_fetch, cursor_factory=psycopg2.extras.DictCursor), "uvloop"),
    "pg8000": Driver(pg8000_open, pg8000_fetch),
    "adbc": Driver(adbc_open, adbc_fetch),
}
