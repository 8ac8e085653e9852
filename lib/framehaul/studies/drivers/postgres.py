"""Connect and fetch with the PostgreSQL drivers of Python, each as in its own documentation."""

import re
from functools import partial
from typing import Any

import aiopg
import psycopg
import psycopg2.extras

from framehaul.servers import PostgresServer
from framehaul.studies.drivers.shapes import Driver, Shape
from framehaul.techniques.clients import open_adbc, open_asyncpg, open_psycopg, open_psycopg2


def _percent(sql: str) -> str:
    """Return the statement with the DB-API's placeholders `%s`."""
    return re.sub(r"\$\d+", "%s", sql)


async def asyncpg_fetch(connection: Any, shape: Shape) -> Any:
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


def _psycopg_async(server: PostgresServer) -> Any:
    return psycopg.AsyncConnection.connect(server.dsn(), autocommit=True, connect_timeout=30)


def _aiopg(server: PostgresServer) -> Any:
    return aiopg.connect(server.dsn())


def _pg8000(server: PostgresServer) -> Any:
    import pg8000.dbapi  # it takes long

    # pg8000 takes no URL.
    encrypted = dict(server.options).get("sslmode") in ("require", "verify-ca", "verify-full")
    return pg8000.dbapi.connect(
        server.user, server.host, server.database, server.port, server.password,
        unix_sock=f"{server.host}/.s.PGSQL.{server.port}" if server.over_socket else None,
        ssl_context=True if encrypted else None,
    )  # fmt: skip


def pg8000_fetch(connection: Any, shape: Shape) -> Any:
    """Fetch in the text protocol, in pure Python."""
    cursor = connection.cursor()
    cursor.execute(_percent(shape.sql), shape.arguments)
    return list(cursor.fetchall())


def adbc_fetch(connection: Any, shape: Shape) -> Any:
    """Fetch a binary COPY into Arrow columns, without a Python object for each value."""
    with connection.cursor() as cursor:
        cursor.execute(shape.sql, shape.arguments or None)
        return cursor.fetch_arrow_table()


DICT = psycopg2.extras.DictCursor
_async_binary = partial(cursor_fetch_async, binary=True)
_async_dict = partial(cursor_fetch_async, cursor_factory=DICT)
DRIVERS = {
    "asyncpg": Driver("asyncpg, asyncio", open_asyncpg, asyncpg_fetch, "asyncio"),
    "asyncpg_uvloop": Driver("asyncpg, uvloop", open_asyncpg, asyncpg_fetch, "uvloop", "published"),
    "psycopg": Driver("psycopg 3, threads", open_psycopg, cursor_fetch),
    "psycopg_binary": Driver("psycopg 3 binary, threads", open_psycopg, partial(cursor_fetch, binary=True)),
    "psycopg_async": Driver("psycopg 3, uvloop", _psycopg_async, cursor_fetch_async, "uvloop"),
    "psycopg_async_binary": Driver("psycopg 3 binary, uvloop", _psycopg_async, _async_binary, "uvloop"),
    "psycopg2": Driver("psycopg2, threads", open_psycopg2, cursor_fetch),
    "psycopg2_dict": Driver("psycopg2 DictCursor, threads", open_psycopg2, partial(cursor_fetch, cursor_factory=DICT)),
    "aiopg": Driver("aiopg, uvloop", _aiopg, cursor_fetch_async, "uvloop", "published"),
    "aiopg_dict": Driver("aiopg DictCursor, uvloop", _aiopg, _async_dict, "uvloop", "published"),
    "pg8000": Driver("pg8000, threads", _pg8000, pg8000_fetch),
    "adbc": Driver("ADBC to Arrow, threads", open_adbc, adbc_fetch),
}
