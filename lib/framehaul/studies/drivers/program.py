"""Run a Python driver once: `python -m framehaul.studies.drivers.program postgres|clickhouse NAME`.

Request, answer and exit codes are those of `drivers/README.md`, with two differences: `server` has the address, with
the fields of a `PostgresServer` or `ClickHouseServer`, and each connection sends at least one query in any time.
"""

import asyncio
import contextlib
import datetime as dt
import importlib
import json
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

from framehaul.servers import ClickHouseServer, PostgresServer, Server
from framehaul.studies.drivers.shapes import Driver, Shape
from framehaul.techniques.clients import awaited, entered

type Answer = dict[str, Any]


async def _drive(driver: Driver, server: Server, request: Answer) -> Answer:
    """Run one query for the check, then queries on all connections, one task or thread per connection."""
    shape = Shape(**request["shape"])
    async with AsyncExitStack() as stack:

        async def connected() -> Any:
            opened = driver.open(server)
            return await stack.enter_async_context(entered(await opened if asyncio.iscoroutine(opened) else opened))

        fetched = await awaited(driver.fetch(await connected(), shape))
        rows = fetched if isinstance(fetched, list) else fetched.to_pylist()  # an Arrow table
        checked = [[*(row.values() if isinstance(row, Mapping) else row)] for row in rows]
        del fetched, rows
        await stack.aclose()
        clients = [await connected() for _ in range(request["connections"])]
        if request["warmup_seconds"]:
            await _run_queries(driver, clients, shape, request["warmup_seconds"])
        figures = await _run_queries(driver, clients, shape, request["seconds"])
    return figures | {"checked": checked}


async def _run_queries(driver: Driver, clients: list[Any], shape: Shape, seconds: float) -> Answer:
    """Run queries on all connections from a common start, and return the part of the answer about them."""
    rows, latencies_ns = list[int](), list[int]()  # threads may append to a list
    cpu, start_ns = time.process_time(), time.perf_counter_ns()

    def next_may_begin(fetched: int, began_ns: int) -> bool:
        """Count a finished query."""
        now = time.perf_counter_ns()
        latencies_ns.append(now - began_ns)
        rows.append(fetched)
        return now < start_ns + seconds * 1e9

    async def in_task(client: Any) -> None:
        began = time.perf_counter_ns()
        while next_may_begin(len(await driver.fetch(client, shape)), began):
            began = time.perf_counter_ns()

    def in_thread(client: Any) -> None:
        began = time.perf_counter_ns()
        while next_may_begin(len(driver.fetch(client, shape)), began):
            began = time.perf_counter_ns()

    if driver.loop == "threads":  # blocks the event loop, which has nothing to do
        with ThreadPoolExecutor(len(clients)) as pool:
            list(pool.map(in_thread, clients))
    else:
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(in_task(client))
    figures = {"seconds": (time.perf_counter_ns() - start_ns) / 1e9, "cpu_seconds": time.process_time() - cpu}
    return figures | {"queries": len(rows), "rows": sum(rows), "latencies_ns": latencies_ns}


def _json_value(value: Any) -> Any:
    """Return a value that JSON lacks as ClickHouse writes it; bytes are in hexadecimal, times in UTC."""
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, dt.datetime):
        moment = value.astimezone(dt.UTC) if value.tzinfo else value
        return f"{moment.replace(tzinfo=None).isoformat()}Z"
    return bytes(value).hex()


def answered(driver: Driver, server: Any, request: Answer) -> Answer:
    """Run the driver under its event loop and return the answer; raises what the driver raises."""
    factory = importlib.import_module("uvloop").new_event_loop if driver.loop == "uvloop" else None
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_drive(driver, server, request))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def main() -> None:
    """Answer the request on standard input; the last line of standard error is the reason of a failed pass."""
    database, name = sys.argv[1:]
    request = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # some drivers print
            module = importlib.import_module(f"framehaul.studies.drivers.{database}")
            server = (PostgresServer if database == "postgres" else ClickHouseServer)(**request["server"])
            answer = answered(module.DRIVERS[name], server, request)
    except Exception as error:
        raise SystemExit(" ".join(f"{type(error).__name__}: {error}".split())) from error
    json.dump(answer, sys.stdout, allow_nan=False, default=_json_value)


if __name__ == "__main__":
    main()
