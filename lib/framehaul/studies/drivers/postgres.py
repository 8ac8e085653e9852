"""Connect and fetch with the PostgreSQL drivers of Python, each as in its own documentation."""

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

from framehaul.studies.drivers.shapes import Driver, Shape

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi
    import pg8000.dbapi
    import pyarrow as pa


def _percent(sql: str) -> str:
    """Return the statement with the DB-API's placeholders `%s`."""
    return re.sub(r"\$\d+", "%s", sql)


async def asyncpg_fetch(connection: asyncpg.Connection[Any], shape: Shape) -> Any:
    """Fetch in the binary protocol; asyncpg prepares the statement once and keeps it."""
    return await connection.fetch(shape.sql, *shape.arguments)


def cursor_fetch(connection: Any, shape: Shape, **options: Any) -> Any:
    """Fetch with a cursor of psycopg 3, which prepares a statement after five runs, or of psycopg2.

    psycopg2 uses the text protocol, and puts arguments into the statement.
    """
    with connection.cursor(**options) as cursor:
        cursor.execute(_percent(shape.sql), shape.arguments)
        return cursor.fetchall()


async def cursor_fetch_async(connection: Any, shape: Shape, **options: Any) -> Any:
    """Fetch like `cursor_fetch` under an event loop; aiopg has the cursors of psycopg2."""
    async with connection.cursor(**options) as cursor:
        await cursor.execute(_percent(shape.sql), shape.arguments)
        return await cursor.fetchall()


# pg8000 and ADBC are imported where they are used, because their imports are slow.


def _pg8000_open(dsn: str) -> pg8000.dbapi.Connection:
    """Open a connection by the parts of its address, because pg8000 takes no URL."""
    import pg8000.dbapi

    options: dict[str, Any] = conninfo_to_dict(dsn)
    host, port = options["host"], int(options["port"])
    return pg8000.dbapi.connect(
        user=options["user"], password=options.get("password", ""), database=options["dbname"], host=host, port=port,
        unix_sock=f"{host}/.s.PGSQL.{port}" if host.startswith("/") else None,
        ssl_context=True if options.get("sslmode", "prefer") in ("require", "verify-ca", "verify-full") else None,
    )  # fmt: skip


def pg8000_fetch(connection: pg8000.dbapi.Connection, shape: Shape) -> list[Any]:
    """Fetch in the text protocol, in pure Python."""
    cursor = connection.cursor()
    cursor.execute(_percent(shape.sql), shape.arguments)
    return list(cursor.fetchall())


def _adbc_open(dsn: str) -> adbc_driver_postgresql.dbapi.Connection:
    import adbc_driver_postgresql.dbapi

    return adbc_driver_postgresql.dbapi.connect(dsn, autocommit=True)


def adbc_fetch(connection: adbc_driver_postgresql.dbapi.Connection, shape: Shape) -> pa.Table:
    """Fetch a binary COPY into Arrow columns, without a Python object for each value."""
    with connection.cursor() as cursor:
        cursor.execute(shape.sql, shape.arguments or None)
        return cursor.fetch_arrow_table()


ASYNCPG = partial(asyncpg.connect, timeout=30)
PSYCOPG = partial(psycopg.connect, autocommit=True, connect_timeout=30)
PSYCOPG_ASYNC = partial(psycopg.AsyncConnection.connect, autocommit=True, connect_timeout=30)
DICT = psycopg2.extras.DictCursor
DRIVERS = {
    "asyncpg": Driver("asyncpg, asyncio", ASYNCPG, asyncpg_fetch, "asyncio"),
    "asyncpg_uvloop": Driver("asyncpg, uvloop", ASYNCPG, asyncpg_fetch, "uvloop", "published"),
    "psycopg": Driver("psycopg 3, threads", PSYCOPG, cursor_fetch),
    "psycopg_binary": Driver("psycopg 3 binary, threads", PSYCOPG, partial(cursor_fetch, binary=True)),
    "psycopg_async": Driver("psycopg 3, uvloop", PSYCOPG_ASYNC, cursor_fetch_async, "uvloop"),
    "psycopg_async_binary": Driver(
        "psycopg 3 binary, uvloop", PSYCOPG_ASYNC, partial(cursor_fetch_async, binary=True), "uvloop"
    ),
    "psycopg2": Driver("psycopg2, threads", psycopg2.connect, cursor_fetch),
    "psycopg2_dict": Driver(
        "psycopg2 DictCursor, threads", psycopg2.connect, partial(cursor_fetch, cursor_factory=DICT)
    ),
    "aiopg": Driver("aiopg, uvloop", aiopg.connect, cursor_fetch_async, "uvloop", "published"),
    "aiopg_dict": Driver(
        "aiopg DictCursor, uvloop",
        aiopg.connect,
        partial(cursor_fetch_async, cursor_factory=DICT),
        "uvloop",
        "published",
    ),
    "pg8000": Driver("pg8000, threads", _pg8000_open, pg8000_fetch),
    "adbc": Driver("ADBC to Arrow, threads", _adbc_open, adbc_fetch),
}
