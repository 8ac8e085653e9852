"""How a driver is asked a shape, with few imports: under valgrind they take most of the time.

A shape takes microseconds, so a call is many queries over one connection, with the clock around all of them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from framehaul.servers.address import ClickHouseServer, Server
from framehaul.studies.drivers.driver import Driver
from framehaul.studies.drivers.shapes import Shape

SEPARATOR = "/"
"""Between a driver and a shape in the name of a path."""
QUERIES = {"one": 200, "integers": 20, "blobs": 20, "arrays": 5, "pg_type": 5, "copy": 1, "insert": 2}
"""Of one call by shape, so that a call takes some milliseconds; of a table of ClickHouse one."""


def driver_of(database: str, name: str) -> Driver:
    """How a driver is used; those of the other database are not imported."""
    drivers: dict[str, Driver] = importlib.import_module(f"framehaul.studies.drivers.{database}").DRIVERS
    return drivers[name]


def queries_of(shape: Shape) -> int:
    """How many make a call."""
    return QUERIES.get(shape.name, 1)


async def asked(driver: Driver, shape: Shape, server: Server, block: Callable[[], AbstractContextManager[Any]]) -> Any:
    """What the last query of a call gave; connected outside the block, asked within."""
    client = await _awaited(driver.open(server if isinstance(server, ClickHouseServer) else server.dsn()))
    try:
        query = getattr(driver, shape.kind)
        with block():
            for _ in range(queries_of(shape)):
                returned = await _awaited(query(client, shape))
        return returned
    finally:
        await _awaited(driver.close(client))


async def _awaited(returned: Any) -> Any:
    return await returned if inspect.isawaitable(returned) else returned
