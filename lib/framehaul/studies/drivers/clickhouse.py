"""Connect and fetch with the ClickHouse clients of Python, each of which returns rows of Python values.

Clients are imported where they connect, because some imports take longer than the test. No client compresses: on
loopback compression costs more than it saves, and the clients differ in what they request.
"""

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

from framehaul.servers import TIMEOUT_SECONDS, ClickHouseServer
from framehaul.studies.drivers.shapes import Driver, Row, Shape
from framehaul.techniques import clients


def connect_fetch(client: Any, shape: Shape) -> list[Row]:
    """Fetch FORMAT Native and turn its columns into rows."""
    return [*map(tuple, client.query(shape.sql).result_rows)]


def _connect_async(server: ClickHouseServer, codec: str = "python") -> Any:
    import clickhouse_connect

    options = clients.options_of(server, server.http_port) | {"native_codec": codec, "compress": False}
    return clickhouse_connect.get_async_client(**options)


async def connect_async_fetch(client: Any, shape: Shape) -> list[Row]:
    """Fetch FORMAT Native and turn its columns into rows."""
    return [*map(tuple, (await client.query(shape.sql)).result_rows)]


def _aiochlite(server: ClickHouseServer) -> Any:
    import aiochlite

    return aiochlite.AsyncChClient(server.url, user=server.user, password=server.password, database=server.database)


async def aiochlite_rows(client: Any, shape: Shape) -> Any:
    """Fetch FORMAT RowBinary, decoded into rows with names."""
    return await client.fetch(shape.sql)


async def aiochlite_tuples(client: Any, shape: Shape) -> Any:
    """Fetch FORMAT RowBinary, decoded into tuples."""
    return await client.fetch_rows(shape.sql)


def _aiochclient(server: ClickHouseServer) -> Any:
    import aiochclient
    import aiohttp

    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS))
    return aiochclient.ChClient(session, server.url, server.user, server.password, server.database)


async def aiochclient_fetch(client: Any, shape: Shape) -> list[Row]:
    """Fetch FORMAT TSV; a record decodes its values on access, so all of them are accessed."""
    return [record[:] for record in await client.fetch(shape.sql)]


def execute(client: Any, shape: Shape) -> Any:
    """Fetch Native blocks and turn their columns into rows, with asynch or clickhouse-driver."""
    return client.execute(shape.sql)


JSON_TEXT: dict[str, Callable[[Any], Any]] = {
    "DateTime('UTC')": dt.datetime.fromisoformat,
    "Array(Decimal(10, 2))": lambda values: [*map(Decimal, values)],
}
"""Conversions of text to the types that JSON lacks."""


async def httpx_json(client: Any, shape: Shape) -> list[list[Any]]:
    """Fetch FORMAT JSONCompactEachRow; each line is parsed, and times and decimals are converted from text."""
    settings = "output_format_json_quote_decimals = 1, output_format_json_quote_64bit_integers = 0"
    query = f"{shape.sql} FORMAT JSONCompactEachRowWithNamesAndTypes SETTINGS {settings}"
    response = await client.post("/", content=query, headers={"Accept-Encoding": "identity"})
    response.raise_for_status()
    _, types, *lines = response.text.splitlines()
    rows = [json.loads(line) for line in lines]
    for at, kind in enumerate(json.loads(types)):
        if kind in JSON_TEXT:
            for row in rows:
                row[at] = JSON_TEXT[kind](row[at])
    return rows


_async_rust = partial(_connect_async, codec="rust")
DRIVERS = {
    "connect_async": Driver("clickhouse-connect async", _connect_async, connect_async_fetch, "asyncio", "published"),
    "connect_async_rust": Driver("clickhouse-connect async, Rust codec", _async_rust, connect_async_fetch, "asyncio"),
    "connect": Driver("clickhouse-connect", clients.open_clickhouse_connect, connect_fetch),
    "connect_rust": Driver("clickhouse-connect, Rust codec", clients.open_clickhouse_connect_rust, connect_fetch),
    "aiochlite_rows": Driver("aiochlite (Row)", _aiochlite, aiochlite_rows, "asyncio", "published"),
    "aiochlite_tuples": Driver("aiochlite (tuples)", _aiochlite, aiochlite_tuples, "asyncio", "published"),
    "aiochclient": Driver("aiochclient", _aiochclient, aiochclient_fetch, "asyncio", "published"),
    "asynch": Driver("asynch", clients.open_asynch, execute, "asyncio"),
    "clickhouse_driver": Driver("clickhouse-driver", clients.open_clickhouse_driver, execute),
    "httpx_json": Driver("httpx, JSONCompactEachRow", clients.open_httpx, httpx_json, "asyncio"),
}
