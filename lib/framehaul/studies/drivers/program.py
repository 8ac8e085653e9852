"""Run a Python driver once: `python -m framehaul.studies.drivers.program postgres|clickhouse NAME`.

Request, answer and exit codes are those of `drivers/README.md`, with three differences. A request for ClickHouse has
`server` in place of `dsn`. `checked` is a digest of the rows if the request asks for one. Each connection sends at
least one query, however short the time is.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import importlib
import inspect
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from typing import Any

from framehaul.servers.address import ClickHouseServer
from framehaul.studies.drivers.driver import Driver
from framehaul.studies.drivers.shapes import Shape

type Answer = dict[str, Any]
type Query = Callable[[Any, Shape], Any]


class Window:
    """The queries of all connections from a common start to the end of the last query."""

    def __init__(self, seconds: float) -> None:
        self.rows, self.failed = 0, False
        self.latencies_ns: list[int] = []
        self._lock, self._cpu = threading.Lock(), time.process_time()
        self._start_ns = time.perf_counter_ns()
        self._end_ns = self._start_ns + round(seconds * 1e9)

    def took(self, rows: int, began_ns: int) -> bool:
        """Count a finished query; return whether the next query may begin."""
        now = time.perf_counter_ns()
        with self._lock:
            self.latencies_ns.append(now - began_ns)
            self.rows += rows
        return now < self._end_ns and not self.failed

    def figures(self) -> Answer:
        """Return the part of the answer about the queries; the window ends now."""
        return {
            "seconds": (time.perf_counter_ns() - self._start_ns) / 1e9, "cpu_seconds": time.process_time() - self._cpu,
            "queries": len(self.latencies_ns), "rows": self.rows, "latencies_ns": self.latencies_ns,
        }  # fmt: skip


async def _in_task(query: Query, client: Any, shape: Shape, window: Window) -> None:
    began = time.perf_counter_ns()
    while window.took(len(await query(client, shape)), began):
        began = time.perf_counter_ns()


def _in_thread(query: Query, client: Any, shape: Shape, window: Window) -> None:
    try:
        began = time.perf_counter_ns()
        while window.took(len(query(client, shape)), began):
            began = time.perf_counter_ns()
    except BaseException:
        window.failed = True  # ends the other threads too
        raise


async def _awaited(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function, and await it if it is asynchronous."""
    returned = function(*arguments)
    return await returned if inspect.isawaitable(returned) else returned


@asynccontextmanager
async def _connected(driver: Driver, address: Any, count: int) -> AsyncIterator[list[Any]]:
    async with AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(await _awaited(driver.open, address))
            stack.push_async_callback(_awaited, driver.close, clients[-1])
        yield clients


async def _drive(driver: Driver, address: Any, request: Answer) -> Answer:
    """Run one query for the check, then queries on all connections, one task or thread per connection."""
    shape, query = Shape(**request["shape"]), driver.fetch
    async with _connected(driver, address, 1) as [client]:
        rows = _rows(await _awaited(query, client, shape))
        checked = digest(rows) if request.get("digest") else rows
        del rows
    async with _connected(driver, address, request["connections"]) as clients:
        with ThreadPoolExecutor(len(clients)) as pool:  # starts threads only for synchronous drivers

            async def run(seconds: float) -> Window:
                window = Window(seconds)
                if driver.loop == "threads":  # blocks the event loop, which has nothing to do
                    for done in [pool.submit(_in_thread, query, client, shape, window) for client in clients]:
                        done.result()
                else:
                    async with asyncio.TaskGroup() as group:
                        for client in clients:
                            group.create_task(_in_task(query, client, shape, window))
                return window

            if request["warmup_seconds"]:
                await run(request["warmup_seconds"])
            figures = (await run(request["seconds"])).figures()
    return figures | {"checked": checked}


def _rows(returned: Any) -> list[Any]:
    """Return the rows of a query in JSON's types."""
    rows = returned if isinstance(returned, list) else returned.to_pylist()  # an Arrow table
    return [json_value(tuple(row.values() if isinstance(row, Mapping) else row)) for row in rows]


def json_value(value: Any) -> Any:
    """Return a value in JSON's types: bytes in hexadecimal, decimals as text, times as text in UTC."""
    match value:
        case bytes() | memoryview() | bytearray():
            return bytes(value).hex()
        case Decimal():
            return f"{value.normalize():f}"
        case dt.datetime():
            return (value if value.tzinfo else value.replace(tzinfo=dt.UTC)).astimezone(dt.UTC).isoformat()
        case Mapping():
            return {key: json_value(inner) for key, inner in value.items()}
        case list() | tuple():
            return [json_value(inner) for inner in value]
        case _:
            return value


def digest(rows: list[Any]) -> str:
    """Return a SHA-256 digest of rows in their order."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def answered(driver: Driver, address: Any, request: Answer) -> Answer:
    """Run the driver under its event loop and return the answer; raises what the driver raises."""
    factory = importlib.import_module("uvloop").new_event_loop if driver.loop == "uvloop" else None
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(_drive(driver, address, request))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def main() -> int:
    """Answer the request on standard input."""
    database, name = sys.argv[1:]
    request = json.load(sys.stdin)
    # Buffered even with PYTHONUNBUFFERED: otherwise a signal during a write would lose the rest of the answer.
    with open(sys.stdout.fileno(), "w", encoding="utf8", closefd=False) as answers:
        sys.stdout = sys.stderr  # some drivers print
        try:
            module = importlib.import_module(f"framehaul.studies.drivers.{database}")
            address = request["dsn"] if database == "postgres" else ClickHouseServer(**request["server"])
            answer = answered(module.DRIVERS[name], address, request)
        except Exception as error:  # noqa: BLE001  the last line of standard error is the reason of a failed pass
            print(" ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr)
            return 1
        json.dump(answer, answers, allow_nan=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
