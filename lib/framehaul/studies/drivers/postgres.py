"""PostgreSQL drivers of Python: how each is opened, fetches, copies and inserts, as its own documentation does it."""

from __future__ import annotations

import csv
import io
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import aiopg
import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
from psycopg.conninfo import conninfo_to_dict

from framehaul.studies.drivers.driver import Driver, Loop, NotOfferedError
from framehaul.studies.drivers.shapes import Row, Shape

if TYPE_CHECKING:
    import adbc_driver_postgresql.dbapi
    import pg8000.dbapi
    import pyarrow as pa


def _insert(shape: Shape, values: str) -> str:
    return f"INSERT INTO {shape.table} ({', '.join(shape.columns)}) VALUES {values}"


def _numbered(shape: Shape) -> str:
    """INSERT with `$1`, as the protocol has it."""
    return _insert(shape, f"({', '.join(f'${at}' for at in range(1, len(shape.columns) + 1))})")


def _percent(sql: str) -> str:
    """The same statement with `%s`, as the DB-API's drivers want it."""
    return re.sub(r"\$\d+", "%s", sql)


def _copy(shape: Shape, options: str = "") -> str:
    return f"COPY {shape.table} ({', '.join(shape.columns)}) FROM STDIN{options}"


def _csv(rows: list[Row]) -> io.StringIO:
    buffer = io.StringIO()
    csv.writer(buffer).writerows(rows)
    buffer.seek(0)
    return buffer


# asyncpg


async def asyncpg_fetch(connection: asyncpg.Connection[Any], shape: Shape) -> list[Any]:
    """Prepares once and keeps the statement, by itself; binary protocol."""
    return await connection.fetch(shape.sql, *shape.arguments)  # type: ignore[no-any-return]


async def asyncpg_copy(connection: asyncpg.Connection[Any], shape: Shape) -> None:
    """Binary COPY."""
    await connection.copy_records_to_table(shape.table, columns=shape.columns, records=shape.rows())


async def asyncpg_insert(connection: asyncpg.Connection[Any], shape: Shape) -> None:
    """One prepared statement, its arguments pipelined, all or nothing."""
    await connection.executemany(_numbered(shape), shape.rows())


# psycopg 3


def psycopg_fetch(connection: psycopg.Connection[Any], shape: Shape, *, binary: bool) -> list[Row]:
    """Prepares by itself when a statement has run five times."""
    with connection.cursor(binary=binary) as cursor:
        cursor.execute(_percent(shape.sql).encode(), shape.arguments)
        return cursor.fetchall()


def psycopg_copy(connection: psycopg.Connection[Any], shape: Shape, *, binary: bool) -> None:
    """Row by row into COPY."""
    with (
        connection.cursor() as cursor,
        cursor.copy(_copy(shape, " (FORMAT binary)" if binary else "").encode()) as copy,
    ):
        if binary:
            copy.set_types(shape.types)
        for row in shape.rows():
            copy.write_row(row)


def psycopg_insert(connection: psycopg.Connection[Any], shape: Shape) -> None:
    """`executemany`, which sends a pipeline."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_percent(_numbered(shape)).encode(), shape.rows())


async def psycopg_async_fetch(connection: psycopg.AsyncConnection[Any], shape: Shape, *, binary: bool) -> list[Row]:
    """As `psycopg_fetch`."""
    async with connection.cursor(binary=binary) as cursor:
        await cursor.execute(_percent(shape.sql).encode(), shape.arguments)
        return await cursor.fetchall()


async def psycopg_async_copy(connection: psycopg.AsyncConnection[Any], shape: Shape, *, binary: bool) -> None:
    """As `psycopg_copy`."""
    statement = _copy(shape, " (FORMAT binary)" if binary else "").encode()
    async with connection.cursor() as cursor, cursor.copy(statement) as copy:
        if binary:
            copy.set_types(shape.types)
        for row in shape.rows():
            await copy.write_row(row)


async def psycopg_async_insert(connection: psycopg.AsyncConnection[Any], shape: Shape) -> None:
    """As `psycopg_insert`."""
    async with connection.transaction(), connection.cursor() as cursor:
        await cursor.executemany(_percent(_numbered(shape)).encode(), shape.rows())


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


def psycopg2_copy(connection: Any, shape: Shape) -> None:
    """COPY from CSV that Python writes: psycopg2 has no COPY of rows."""
    with connection.cursor() as cursor:
        cursor.copy_expert(_copy(shape, " (FORMAT csv)"), _csv(shape.rows()))


def psycopg2_insert(connection: Any, shape: Shape) -> None:
    """`execute_values`: one INSERT of many rows."""
    with connection.cursor() as cursor:
        psycopg2.extras.execute_values(cursor, _insert(shape, "%s"), shape.rows(), page_size=shape.count)


# aiopg


async def aiopg_fetch(connection: aiopg.Connection, shape: Shape, *, cursor_factory: Any = None) -> list[Row]:
    """psycopg2 beneath an event loop."""
    async with connection.cursor(cursor_factory=cursor_factory) as cursor:
        await cursor.execute(_percent(shape.sql), shape.arguments)
        rows: list[Row] = await cursor.fetchall()
        return rows


async def aiopg_copy(_: aiopg.Connection, __: Shape) -> None:
    """There is none."""
    raise NotOfferedError("psycopg2 cannot COPY over an asynchronous connection, so aiopg cannot; use psycopg2")


async def aiopg_insert(connection: aiopg.Connection, shape: Shape) -> None:
    """One INSERT of many rows, put together by `mogrify`, as psycopg2's `execute_values` does."""
    template = "(" + ", ".join(["%s"] * len(shape.columns)) + ")"
    async with connection.cursor() as cursor:
        values = b",".join(cursor.mogrify(template, row) for row in shape.rows()).decode()
        await cursor.execute(_insert(shape, values))


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


def pg8000_copy(connection: pg8000.dbapi.Connection, shape: Shape) -> None:
    """COPY from CSV that Python writes."""
    connection.cursor().execute(_copy(shape, " (FORMAT csv)"), stream=_csv(shape.rows()))


def pg8000_insert(connection: pg8000.dbapi.Connection, shape: Shape) -> None:
    """`executemany`: a round trip for each row, in one transaction."""
    cursor = connection.cursor()
    cursor.execute("BEGIN")
    cursor.executemany(_percent(_numbered(shape)), shape.rows())
    cursor.execute("COMMIT")


def adbc_open(dsn: str) -> adbc_driver_postgresql.dbapi.Connection:
    """A connection in autocommit."""
    import adbc_driver_postgresql.dbapi

    return adbc_driver_postgresql.dbapi.connect(dsn, autocommit=True)


def _arrow(shape: Shape) -> pa.Table:
    import pyarrow as pa

    types = {"int4": pa.int32(), "float8": pa.float64(), "text": pa.string()}
    values = zip(*shape.rows(), strict=True)
    columns = [pa.array(column, types[kind]) for column, kind in zip(values, shape.types, strict=True)]
    return pa.Table.from_arrays(columns, list(shape.columns))


def adbc_fetch(connection: adbc_driver_postgresql.dbapi.Connection, shape: Shape) -> pa.Table:
    """Binary COPY decoded into Arrow columns: no Python object for a value."""
    with connection.cursor() as cursor:
        cursor.execute(shape.sql, shape.arguments or None)
        return cursor.fetch_arrow_table()


def adbc_copy(connection: adbc_driver_postgresql.dbapi.Connection, shape: Shape) -> None:
    """Rows to Arrow columns, then `adbc_ingest`, which is a binary COPY."""
    with connection.cursor() as cursor:
        cursor.adbc_ingest(shape.table, _arrow(shape), mode="append")


def adbc_insert(connection: adbc_driver_postgresql.dbapi.Connection, shape: Shape) -> None:
    """`executemany` of Arrow columns: a prepared statement, row by row, in one transaction."""
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.executemany(_numbered(shape), _arrow(shape))
        cursor.execute("COMMIT")


def _asyncpg(loop: Loop) -> Driver:
    return Driver(partial(asyncpg.connect, timeout=30), asyncpg_fetch, asyncpg_copy, asyncpg_insert, loop)


def _psycopg(*, binary: bool) -> Driver:
    connect = partial(psycopg.connect, autocommit=True, connect_timeout=30)
    fetch, copy = partial(psycopg_fetch, binary=binary), partial(psycopg_copy, binary=binary)
    return Driver(connect, fetch, copy, psycopg_insert)


def _psycopg_async(*, binary: bool) -> Driver:
    connect = partial(psycopg.AsyncConnection.connect, autocommit=True, connect_timeout=30)
    fetch, copy = partial(psycopg_async_fetch, binary=binary), partial(psycopg_async_copy, binary=binary)
    return Driver(connect, fetch, copy, psycopg_async_insert, "uvloop")


def _psycopg2(cursor_factory: Any) -> Driver:
    fetch = partial(psycopg2_fetch, cursor_factory=cursor_factory)
    return Driver(psycopg2_open, fetch, psycopg2_copy, psycopg2_insert)


def _aiopg(cursor_factory: Any) -> Driver:
    fetch = partial(aiopg_fetch, cursor_factory=cursor_factory)
    return Driver(aiopg.connect, fetch, aiopg_copy, aiopg_insert, "uvloop")


DRIVERS: dict[str, Driver] = {
    "asyncpg": _asyncpg("asyncio"),
    "asyncpg_uvloop": _asyncpg("uvloop"),
    "psycopg": _psycopg(binary=False),
    "psycopg_binary": _psycopg(binary=True),
    "psycopg_async": _psycopg_async(binary=False),
    "psycopg_async_binary": _psycopg_async(binary=True),
    "psycopg2": _psycopg2(None),
    "psycopg2_dict": _psycopg2(psycopg2.extras.DictCursor),
    "aiopg": _aiopg(None),
    "aiopg_dict": _aiopg(psycopg2.extras.DictCursor),
    "pg8000": Driver(pg8000_open, pg8000_fetch, pg8000_copy, pg8000_insert),
    "adbc": Driver(adbc_open, adbc_fetch, adbc_copy, adbc_insert),
}
