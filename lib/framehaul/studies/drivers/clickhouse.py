"""Connect and fetch with the ClickHouse clients of Python, each of which returns rows of Python values.

Clients are imported where they connect, because some imports take longer than the test. No client compresses: on
loopback compression costs more than it saves, and the clients differ in what they request.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from framehaul.servers.address import TIMEOUT_SECONDS, ClickHouseServer
from framehaul.studies.drivers.shapes import Driver, Row, Shape

if TYPE_CHECKING:
    import aiochclient
    import aiochlite
    import clickhouse_driver
    import httpx
    from asynch.proto.connection import Connection as AsynchConnection
    from clickhouse_connect.driver.asyncclient import AsyncClient
    from clickhouse_connect.driver.client import Client


def _login(server: ClickHouseServer, port: int, **options: Any) -> dict[str, Any]:
    """Return options with those that several clients have in common."""
    options |= {"host": server.host, "port": port, "user": server.user, "password": server.password}
    return options | {"database": server.database, "secure": server.secure, "send_receive_timeout": TIMEOUT_SECONDS}


def _connect(server: ClickHouseServer, codec: str = "python") -> Client:
    import clickhouse_connect

    options = _login(server, server.http_port, native_codec=codec, compress=False, dedicated_pool=True)
    return clickhouse_connect.get_client(**options)


def connect_fetch(client: Client, shape: Shape) -> list[Row]:
    """Fetch FORMAT Native and turn its columns into rows."""
    return [*map(tuple, client.query(shape.sql).result_rows)]


async def _connect_async(server: ClickHouseServer, codec: str = "python") -> AsyncClient:
    import clickhouse_connect

    options = _login(server, server.http_port, native_codec=codec, compress=False)
    return await clickhouse_connect.get_async_client(**options)


async def connect_async_fetch(client: AsyncClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT Native and turn its columns into rows."""
    return [*map(tuple, (await client.query(shape.sql)).result_rows)]


async def _aiochlite_open(server: ClickHouseServer) -> aiochlite.AsyncChClient:
    import aiochlite

    return aiochlite.AsyncChClient(server.url, user=server.user, password=server.password, database=server.database)


async def aiochlite_rows(client: aiochlite.AsyncChClient, shape: Shape) -> list[aiochlite.Row]:
    """Fetch FORMAT RowBinary, decoded into rows with names."""
    return await client.fetch(shape.sql)


async def aiochlite_tuples(client: aiochlite.AsyncChClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT RowBinary, decoded into tuples."""
    return await client.fetch_rows(shape.sql)


async def _aiochclient_open(server: ClickHouseServer) -> aiochclient.ChClient:
    import aiochclient
    import aiohttp

    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
    return aiochclient.ChClient(session, server.url, server.user, server.password, server.database)


async def aiochclient_fetch(client: aiochclient.ChClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT TSV; a record decodes its values on access, so all of them are accessed."""
    return [record[:] for record in await client.fetch(shape.sql)]


async def _asynch_open(server: ClickHouseServer) -> AsynchConnection:
    from asynch.proto.connection import Connection

    connection = Connection(**_login(server, server.native_port))
    await connection.connect()
    return connection


def execute(client: Any, shape: Shape) -> Any:
    """Fetch Native blocks and turn their columns into rows, with asynch or clickhouse-driver."""
    return client.execute(shape.sql)


def _driver_open(server: ClickHouseServer) -> clickhouse_driver.Client:
    import clickhouse_driver

    return clickhouse_driver.Client(**_login(server, server.native_port))


JSON_TEXT: dict[str, Callable[[Any], Any]] = {
    "DateTime('UTC')": dt.datetime.fromisoformat,
    "Array(Decimal(10, 2))": lambda values: [*map(Decimal, values)],
}
"""Conversions of text to the types that JSON lacks."""


async def _httpx_open(server: ClickHouseServer) -> httpx.AsyncClient:
    import httpx

    login = server.user, server.password
    quoting = {"output_format_json_quote_decimals": 1, "output_format_json_quote_64bit_integers": 0}
    options: Any = {"params": {"database": server.database} | quoting, "headers": {"Accept-Encoding": "identity"}}
    options |= {"timeout": TIMEOUT_SECONDS, "trust_env": False, "verify": server.secure}
    return httpx.AsyncClient(base_url=server.url, auth=login, **options)


async def httpx_json(client: httpx.AsyncClient, shape: Shape) -> list[list[Any]]:
    """Fetch FORMAT JSONCompactEachRow; each line is parsed, and times and decimals are converted from text."""
    response = await client.post("/", content=f"{shape.sql} FORMAT JSONCompactEachRowWithNamesAndTypes")
    response.raise_for_status()
    _, types, *lines = response.text.splitlines()
    rows = [json.loads(line) for line in lines]
    for at, kind in enumerate(json.loads(types)):
        if kind in JSON_TEXT:
            for row in rows:
                row[at] = JSON_TEXT[kind](row[at])
    return rows


DRIVERS = {
    "connect_async": Driver("clickhouse-connect async", _connect_async, connect_async_fetch, "asyncio", "published"),
    "connect_async_rust": Driver(
        "clickhouse-connect async, Rust codec", partial(_connect_async, codec="rust"), connect_async_fetch, "asyncio"
    ),
    "connect": Driver("clickhouse-connect", _connect, connect_fetch),
    "connect_rust": Driver("clickhouse-connect, Rust codec", partial(_connect, codec="rust"), connect_fetch),
    "aiochlite_rows": Driver("aiochlite (Row)", _aiochlite_open, aiochlite_rows, "asyncio", "published"),
    "aiochlite_tuples": Driver("aiochlite (tuples)", _aiochlite_open, aiochlite_tuples, "asyncio", "published"),
    "aiochclient": Driver("aiochclient", _aiochclient_open, aiochclient_fetch, "asyncio", "published"),
    "asynch": Driver("asynch", _asynch_open, execute, "asyncio", close=methodcaller("disconnect")),
    "clickhouse_driver": Driver("clickhouse-driver", _driver_open, execute, close=methodcaller("disconnect")),
    "httpx_json": Driver("httpx, JSONCompactEachRow", _httpx_open, httpx_json, "asyncio", close=methodcaller("aclose")),
}
