"""The program that drives Python's drivers: `python -m framehaul.studies.drivers.program postgres|clickhouse NAME`.

Requests and answers are those of `drivers/README.md`, but that a request for ClickHouse has `server` in place of `dsn`,
and that each connection sends one query however short the time is.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import importlib
import inspect
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

from framehaul.servers.address import ClickHouseServer
from framehaul.studies.drivers.driver import Driver, Loop, NotOfferedError
from framehaul.studies.drivers.shapes import Row, Shape

type Answer = dict[str, Any]
type Query = Callable[[Any, Shape], Any]


class Schedule:
    """When the queries of a window are due; all connections take from it.

    Closed loop: at once, until the time is over. Open loop: query k at k / rate, whoever is free.
    """

    def __init__(self, seconds: float, rate: float, at_least: int = 0) -> None:
        self._at_least, self._rate = at_least, rate
        self._numbers = itertools.count()
        self._stopped = False
        self.start_ns = time.perf_counter_ns()
        self._end_ns = self.start_ns + round(seconds * 1e9)

    def next_due_ns(self) -> int | None:
        """When the next query is due; None when the time is over."""
        number, now = next(self._numbers), time.perf_counter_ns()
        if self._stopped or (now >= self._end_ns and number >= self._at_least):
            return None
        due = self._due_ns(number)
        return now if due is None else due if due < self._end_ns else None

    def stop(self) -> None:
        """Give out no more: a query has failed."""
        self._stopped = True

    def waits_ns(self, served: int) -> list[int]:
        """How long each query had waited at the end that was due and never sent."""
        if not self._rate:
            return []
        due = itertools.takewhile(lambda at: at < self._end_ns, (self._due_ns(k) or 0 for k in itertools.count(served)))
        return [self._end_ns - at for at in due]

    def _due_ns(self, number: int) -> int | None:
        return self.start_ns + round(number * 1e9 / self._rate) if self._rate else None


class Window:
    """What happened between a common start and the end of the last query."""

    def __init__(self, seconds: float, rate: float, at_least: int = 0) -> None:
        self.rows = 0
        self.latencies_ns: list[int] = []
        self._lock = threading.Lock()
        self._cpu = time.process_time()
        self.schedule = Schedule(seconds, rate, at_least)

    def took(self, rows: int, due_ns: int) -> None:
        """One query has its rows."""
        with self._lock:
            self.latencies_ns.append(time.perf_counter_ns() - due_ns)
            self.rows += rows

    def answer(self, warm_up: Window) -> Answer:
        """The program's answer."""
        seconds = (time.perf_counter_ns() - self.schedule.start_ns) / 1e9
        cpu_seconds = time.process_time() - self._cpu
        waits = self.schedule.waits_ns(len(self.latencies_ns))
        return {
            "queries": len(self.latencies_ns), "rows": self.rows, "all_rows": warm_up.rows + self.rows,
            "seconds": seconds, "cpu_seconds": cpu_seconds, "unserved": len(waits),
            "latencies_ns": self.latencies_ns + waits,
        }  # fmt: skip


def counted(shape: Shape, returned: Any) -> int:
    """How many rows a query moved."""
    return len(returned) if shape.kind == "fetch" else shape.count


async def _in_task(query: Query, client: Any, shape: Shape, window: Window) -> None:
    while (due := window.schedule.next_due_ns()) is not None:
        # More than once: uvloop counts whole milliseconds, and wakes up before the time.
        while (ahead := due - time.perf_counter_ns()) > 0:  # noqa: ASYNC110  a time is waited for, no event
            await asyncio.sleep(ahead / 1e9)
        window.took(counted(shape, await query(client, shape)), due)


def _in_thread(query: Query, client: Any, shape: Shape, window: Window) -> None:
    try:
        while (due := window.schedule.next_due_ns()) is not None:
            if (ahead := due - time.perf_counter_ns()) > 0:
                time.sleep(ahead / 1e9)
            window.took(counted(shape, query(client, shape)), due)
    except BaseException:
        window.schedule.stop()
        raise


async def drive(driver: Driver, address: Any, shape: Shape, request: Answer) -> Answer:
    """Open the connections and answer the request, with a task for each, or a thread of its own."""
    query: Query = getattr(driver, shape.kind)
    async with AsyncExitStack() as stack:

        async def opened() -> Any:
            client = await _awaited(driver.open, address)
            stack.push_async_callback(_awaited, driver.close, client)
            return client

        if request["do"] == "check":
            return checked(shape, await _awaited(query, await opened(), shape), request)
        clients = [await opened() for _ in range(request["connections"])]
        pool = stack.enter_context(ThreadPoolExecutor(len(clients)))  # which has no threads until they are needed

        async def run(window: Window) -> Window:
            if driver.loop == "threads":  # the event loop, which has nothing to do, waits for them
                for done in [pool.submit(_in_thread, query, client, shape, window) for client in clients]:
                    done.result()
            else:
                async with asyncio.TaskGroup() as group:
                    for client in clients:
                        group.create_task(_in_task(query, client, shape, window))
            return window

        warm_up = await run(Window(request["warmup_seconds"], 0))
        window = await run(Window(request["seconds"], request["rate"], request["connections"]))
        return window.answer(warm_up)


async def _awaited(function: Callable[..., Any], *arguments: object) -> Any:
    """What a function returns, awaited where it is asynchronous."""
    returned = function(*arguments)
    return await returned if inspect.isawaitable(returned) else returned


def checked(shape: Shape, returned: Any, request: Answer) -> Answer:
    """The rows of one query as JSON's types, or, where `digest` is asked for, their number and digest."""
    if shape.kind != "fetch":
        return {"rows": shape.count}
    if not isinstance(returned, list):  # an Arrow table
        returned = [tuple(row.values()) for row in returned.to_pylist()]
    rows = [json_row(row) for row in returned]
    return {"rows": len(rows), "digest": digest(rows)} if request.get("digest") else {"rows": rows}


def json_row(row: Row | Mapping[str, Any]) -> list[Any]:
    """A row as JSON's own types."""
    return [json_value(value) for value in (row.values() if isinstance(row, Mapping) else row)]


def json_value(value: Any) -> Any:
    """A value as JSON's own types: bytes in hexadecimal, decimals and times as text, a time without a zone as UTC."""
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


def digest(rows: list[list[Any]]) -> str:
    """The same for the same rows in the same order."""
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()


def answered(driver: Driver, address: Any, request: Answer) -> Answer:
    """What the driver did, or what was wrong; never raises but for an interrupt."""
    try:
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in request["shape"].items()
        }
        shape = Shape(**fields)
        with asyncio.Runner(loop_factory=loop_factory(driver.loop)) as runner:
            return runner.run(drive(driver, address, shape, request))
    except NotOfferedError as error:
        return {"unavailable": str(error)}
    except Exception as error:  # noqa: BLE001  whatever a driver raises is its answer
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}


def answered_line(driver: Driver, line: bytes) -> str:
    """The line that answers a line, whatever is on it."""
    try:
        request = json.loads(line)
        address = ClickHouseServer(**request["server"]) if "server" in request else request["dsn"]
    except Exception as error:  # noqa: BLE001  what a message would quote may hold a password
        return json.dumps({"error": f"the request cannot be understood: {type(error).__name__}"})
    try:
        return json.dumps(answered(driver, address, request), allow_nan=False)
    except (TypeError, ValueError) as error:
        return json.dumps({"error": f"the answer cannot be made JSON: {error}"})


def loop_factory(name: Loop) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop; raises NotOfferedError where uvloop is not to be had."""
    if name != "uvloop":
        return None
    try:
        import uvloop
    except ImportError:
        raise NotOfferedError("uvloop does not run on this system; the driver itself does, under asyncio") from None
    return uvloop.new_event_loop


def main() -> int:
    """Answer requests until there are no more."""
    database, name = sys.argv[1:]
    # No other database's drivers beside them.
    driver = importlib.import_module(f"framehaul.studies.drivers.{database}").DRIVERS[name]
    # With a buffer, also where PYTHONUNBUFFERED is set: without one, a signal in the middle of a write loses the rest
    # of the answer, as happens now and then to those that run uvloop.
    with open(sys.stdout.fileno(), "w", encoding="utf8", closefd=False) as answers:
        sys.stdout = sys.stderr  # whatever a driver prints goes where errors go
        for line in sys.stdin.buffer:
            print(answered_line(driver, line), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
