"""Connect and fetch with the ClickHouse clients of Python, each of which returns rows of Python values.

Clients are imported where they connect, because some imports take longer than the test. No client compresses: on
loopback compression costs more than it saves, and the clients differ in what they request.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from framehaul.servers.address import TIMEOUT_SECONDS, ClickHouseServer
from framehaul.studies.drivers.driver import Driver
from framehaul.studies.drivers.shapes import Row, Shape

if TYPE_CHECKING:
    import aiochclient
    import aiochlite
    import clickhouse_driver
    import httpx
    from asynch.proto.connection import Connection as AsynchConnection
    from clickhouse_connect.driver.asyncclient import AsyncClient
    from clickhouse_connect.driver.client import Client


def _connect_options(server: ClickHouseServer) -> dict[str, Any]:
    return {
        "host": server.host, "port": server.http_port, "username": server.user, "password": server.password,
        "database": server.database, "secure": server.secure, "compress": False,
        "send_receive_timeout": TIMEOUT_SECONDS,
    }  # fmt: skip


def _native_options(server: ClickHouseServer) -> dict[str, Any]:
    return {
        "host": server.host, "port": server.native_port, "user": server.user, "password": server.password,
        "database": server.database, "secure": server.secure, "send_receive_timeout": TIMEOUT_SECONDS,
    }  # fmt: skip


def connect_open(server: ClickHouseServer, native_codec: str) -> Client:
    """Open a synchronous client of clickhouse-connect."""
    import clickhouse_connect

    return clickhouse_connect.get_client(**_connect_options(server), native_codec=native_codec, dedicated_pool=True)


def connect_fetch(client: Client, shape: Shape) -> list[Row]:
    """Fetch FORMAT Native and turn its columns into rows."""
    return [*map(tuple, client.query(shape.sql).result_rows)]


async def connect_async_open(server: ClickHouseServer, native_codec: str) -> AsyncClient:
    """Open an asynchronous client of clickhouse-connect."""
    import clickhouse_connect

    return await clickhouse_connect.get_async_client(**_connect_options(server), native_codec=native_codec)


async def connect_async_fetch(client: AsyncClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT Native and turn its columns into rows."""
    return [*map(tuple, (await client.query(shape.sql)).result_rows)]


async def aiochlite_open(server: ClickHouseServer) -> aiochlite.AsyncChClient:
    """Open aiochlite in its default configuration."""
    import aiochlite

    return aiochlite.AsyncChClient(server.url, user=server.user, password=server.password, database=server.database)


async def aiochlite_rows(client: aiochlite.AsyncChClient, shape: Shape) -> list[aiochlite.Row]:
    """Fetch FORMAT RowBinary, decoded into rows with names."""
    return await client.fetch(shape.sql)


async def aiochlite_tuples(client: aiochlite.AsyncChClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT RowBinary, decoded into tuples."""
    return await client.fetch_rows(shape.sql)


async def aiochclient_open(server: ClickHouseServer) -> aiochclient.ChClient:
    """Open aiochclient over aiohttp."""
    import aiochclient
    import aiohttp

    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
    return aiochclient.ChClient(
        session, url=server.url, user=server.user, password=server.password, database=server.database
    )


async def aiochclient_fetch(client: aiochclient.ChClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT TSV; a record decodes its values on access, so all of them are accessed."""
    return [record[:] for record in await client.fetch(shape.sql)]


async def asynch_open(server: ClickHouseServer) -> AsynchConnection:
    """Open asynch over the native protocol."""
    from asynch.proto.connection import Connection

    connection = Connection(**_native_options(server))
    await connection.connect()
    return connection


async def asynch_fetch(connection: AsynchConnection, shape: Shape) -> list[Row]:
    """Fetch Native blocks and turn their columns into rows."""
    rows: list[Row] = await connection.execute(shape.sql)
    return rows


def driver_open(server: ClickHouseServer) -> clickhouse_driver.Client:
    """Open clickhouse-driver over the native protocol."""
    import clickhouse_driver

    return clickhouse_driver.Client(**_native_options(server))


def driver_fetch(client: clickhouse_driver.Client, shape: Shape) -> list[Row]:
    """Fetch Native blocks and turn their columns into rows."""
    rows: list[Row] = client.execute(shape.sql)
    return rows


JSON_TEXT: dict[str, Callable[[Any], Any]] = {
    "DateTime('UTC')": dt.datetime.fromisoformat,
    "Array(Decimal(10, 2))": lambda values: [*map(Decimal, values)],
}
"""Conversions of text to the types that JSON lacks."""


async def httpx_open(server: ClickHouseServer) -> httpx.AsyncClient:
    """Open httpx bound to the server, its login and its database."""
    import httpx

    return httpx.AsyncClient(
        base_url=server.url, auth=(server.user, server.password), timeout=TIMEOUT_SECONDS,
        params={"database": server.database, "output_format_json_quote_decimals": 1,
                "output_format_json_quote_64bit_integers": 0},
        headers={"Accept-Encoding": "identity"}, trust_env=False, verify=server.secure,
    )  # fmt: skip


async def httpx_json(client: httpx.AsyncClient, shape: Shape) -> list[Row]:
    """Fetch FORMAT JSONCompactEachRow; each line is parsed, and times and decimals are converted from text."""
    response = await client.post("/", content=f"{shape.sql} FORMAT JSONCompactEachRowWithNamesAndTypes")
    response.raise_for_status()
    _, types, *lines = response.text.splitlines()
    converted = [(at, JSON_TEXT[kind]) for at, kind in enumerate(json.loads(types)) if kind in JSON_TEXT]
    rows: list[Row] = []
    for line in lines:
        row = json.loads(line)
        for at, convert in converted:
            row[at] = convert(row[at])
        rows.append(row)
    return rows


DRIVERS: Mapping[str, Driver] = {
    "connect_async": Driver(partial(connect_async_open, native_codec="python"), connect_async_fetch, loop="asyncio"),
    "connect_async_rust": Driver(partial(connect_async_open, native_codec="rust"), connect_async_fetch, loop="asyncio"),
    "connect": Driver(partial(connect_open, native_codec="python"), connect_fetch),
    "connect_rust": Driver(partial(connect_open, native_codec="rust"), connect_fetch),
    "aiochlite_rows": Driver(aiochlite_open, aiochlite_rows, loop="asyncio"),
    "aiochlite_tuples": Driver(aiochlite_open, aiochlite_tuples, loop="asyncio"),
    "aiochclient": Driver(aiochclient_open, aiochclient_fetch, loop="asyncio"),
    "asynch": Driver(asynch_open, asynch_fetch, loop="asyncio", close=methodcaller("disconnect")),
    "clickhouse_driver": Driver(driver_open, driver_fetch, close=methodcaller("disconnect")),
    "httpx_json": Driver(httpx_open, httpx_json, loop="asyncio", close=methodcaller("aclose")),
}
