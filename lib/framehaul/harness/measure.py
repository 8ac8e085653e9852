"""The only clock: a discarded warm-up, then rounds that run every technique once in a shuffled, seeded order."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import random
import threading
import time
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.data import generator
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import Table
from framehaul.errors import ServerError, UnavailableError
from framehaul.harness.meter import Meter, Usage
from framehaul.harness.verify import Expected, dtype_drift
from framehaul.results.store import EXACT, Status
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import tables_of
from framehaul.techniques import Technique
from framehaul.techniques.clients import CLIENTS

SERVER_RETURN_SECONDS = 30
"""How long a run waits for a server that died to come back."""

type Returned = pl.DataFrame | pd.DataFrame | int | None
"""What a technique gives back: a frame, or for a limit that keeps nothing, how many rows or bytes there were."""

WARM_UP = 0
"""The pass number under which nothing is kept."""


@dataclass(frozen=True)
class Parameters:
    """Size and repetition of a run; raises ValueError, naming the parameter, when one makes no sense."""

    rows: int
    passes: int
    warmup: int
    seed: int

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("passes", 1), ("warmup", 0), ("seed", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name.upper()}={value!r}: give a whole number of at least {least}")


@dataclass(frozen=True)
class Outcome:
    """What one pass of one technique came to."""

    status: Status
    seconds: float | None = None
    usage: Usage | None = None
    dtypes: str | None = None
    reason: str | None = None


def run(
    techniques: list[Technique],
    server: PostgresServer | ClickHouseServer,
    table: Table,
    parameters: Parameters,
    record: Callable[[Technique, int, Outcome, int | None], None],
    progress: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    content: pa.Table | None = None,
) -> None:
    """Measure techniques of one database and direction; `record` gets technique, pass, outcome and wire bytes.

    What is moved is `content`, in `table.arrow_schema` and of `parameters.rows` rows, or, without any, made for it.

    A technique that is wrong or raises is recorded as failed and the run goes on. When the server dies, the run waits
    for it to come back; when it does not, ServerError is raised, and what was finished has been recorded. Setting
    `stop` ends the run with KeyboardInterrupt before its next pass.
    """
    with asyncio.Runner() as runner:
        runner.run(
            _Run(techniques, server, table, parameters, record, progress, stop or threading.Event()).all_rounds(content)
        )


class _Run:
    def __init__(
        self,
        techniques: list[Technique],
        server: PostgresServer | ClickHouseServer,
        table: Table,
        parameters: Parameters,
        record: Callable[[Technique, int, Outcome, int | None], None],
        progress: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._techniques, self._server, self._table = techniques, server, table
        self._parameters, self._record, self._progress = parameters, record, progress
        self._stop = stop
        self._tables = tables_of(server)
        self._meter = Meter(server.process_id)
        self._reference = table.renamed(f"{table.name}_sent")
        self._wire_bytes: dict[str, int | None] = {}
        self._unavailable: dict[str, str] = {}

    async def all_rounds(self, content: pa.Table | None) -> None:
        self._progress("preparing data")
        if content is None:
            content = generator.arrow_table(self._table, self._parameters.rows, self._parameters.seed)
        convert: dict[str, Callable[[pa.Table, Table], pl.DataFrame | pd.DataFrame]] = {
            "polars": to_polars, "pandas": to_pandas,
        }  # fmt: skip
        kinds = {technique.frame for technique in self._techniques if technique.direction == "write"}
        self._frames = {kind: convert[kind](content, self._table) for kind in kinds & convert.keys()}
        self._expected = Expected(self._table, content)
        try:
            if any(technique.direction == "write" for technique in self._techniques):
                self._expected.keep_reference(self._tables, self._reference)
            if any(technique.direction == "read" for technique in self._techniques):
                self._tables.create(self._table)
                self._tables.load(self._table, content)
                self._tables.quiesce()
            del content
            for number in range(1 - self._parameters.warmup, self._parameters.passes + 1):
                order = list(self._techniques)
                random.Random(f"{self._parameters.seed}/{number}").shuffle(order)
                for technique in order:
                    if self._stop.is_set():
                        raise KeyboardInterrupt
                    await self._one(technique, max(number, WARM_UP))
        finally:
            # Where the server is gone for good, the next run drops what is ours.
            with contextlib.suppress(ServerError):
                for table in (self._table, self._reference):
                    self._tables.drop(table)

    async def _one(self, technique: Technique, number: int) -> None:
        name = technique.name
        self._progress(f"{'warm-up' if number == WARM_UP else f'pass {number}'}: {name}")
        if name in self._unavailable:
            outcome = Outcome("skipped", reason=self._unavailable[name])
        else:
            outcome = await self._outcome(technique, number)
        if outcome.status == "skipped":
            self._unavailable[name] = outcome.reason or ""
        if number != WARM_UP:
            self._record(technique, number, outcome, self._wire_bytes.get(name))
        if outcome.status == "failed":
            self._wait_for_server(outcome.reason or "")

    async def _outcome(self, technique: Technique, number: int) -> Outcome:
        """One pass: reset, connect, run on the clock, verify."""
        order = self._table.key if technique.database == "postgres" else self._table.clickhouse_order
        if technique.needs_key and not order:
            return Outcome("skipped", reason="it is about the order of a key, and the table has none")
        try:
            if technique.direction == "write":
                self._tables.create(self._table)
                self._tables.quiesce()
            with self._counting_relay(number) as (server, relay):
                async with opened(technique, server) as client:
                    bytes_before = relay.total_bytes if relay else 0
                    returned, seconds, usage = await self._timed(technique, client)
                    if relay:
                        self._wire_bytes[technique.name] = relay.total_bytes - bytes_before
            difference, dtypes = self._checked(returned)
        except UnavailableError as error:
            return Outcome("skipped", reason=str(error))
        except Exception as error:  # noqa: BLE001  whatever a driver raises is this technique's result, not the run's end
            return Outcome("failed", reason=describe(error))
        if difference:
            return Outcome("failed", reason=difference)
        return Outcome("ok", seconds, usage, dtypes)

    def _checked(self, returned: Returned) -> tuple[str | None, str | None]:
        """What is wrong with a pass, if anything, and the dtypes of the frame that it gave, if it gave one."""
        if isinstance(returned, int):
            # A limit that keeps nothing tells how many rows, or bytes, there were.
            rows = self._parameters.rows
            return (None if returned >= rows else f"only {returned} of {rows} rows moved"), None
        if returned is None:
            return self._expected.difference_on_server(self._tables), EXACT
        return self._expected.difference(returned), dtype_drift(returned, self._table)

    async def _timed(self, technique: Technique, client: object) -> tuple[Returned, float, Usage]:
        arguments = [client, self._table]
        if technique.direction == "write":
            arguments.append(self._reference if technique.frame == "none" else self._frames[technique.frame])
        self._meter.start()
        start = time.perf_counter()
        returned: Returned = await called(technique, *arguments)
        seconds = time.perf_counter() - start
        return returned, seconds, self._meter.stop()

    @contextmanager
    def _counting_relay(self, number: int) -> Iterator[tuple[PostgresServer | ClickHouseServer, Relay | None]]:
        """In the warm-up the way to the server leads through a relay, where it can."""
        if number == WARM_UP:
            with relayed(self._server, Relay) as found:
                yield found
        else:
            yield self._server, None

    def _wait_for_server(self, reason: str) -> None:
        deadline = time.monotonic() + SERVER_RETURN_SECONDS
        while True:
            try:
                self._tables.metadata()
            except ServerError as error:
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"the server did not come back within {SERVER_RETURN_SECONDS} s after: {reason}; "
                        "what was finished is kept"
                    ) from error
                time.sleep(0.5)
            else:
                return


async def called(technique: Technique, *arguments: object) -> Any:
    """What the technique returns, awaited where it is asynchronous."""
    returned = technique.function(*arguments)
    return await returned if inspect.isawaitable(returned) else returned


async def attempted(technique: Technique, *arguments: object) -> tuple[Any, str | None]:
    """What the technique returned, or, in one line, what it raised."""
    try:
        return await called(technique, *arguments), None
    except Exception as error:  # noqa: BLE001  whatever a path raises is what this is about
        return None, describe(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust: no Exception, but an error that a caller sees
            raise
        return None, f"panic: {describe(error)}"


@asynccontextmanager
async def opened(technique: Technique, server: PostgresServer | ClickHouseServer) -> AsyncIterator[object]:
    """The technique's client, whichever kind of context manager opens it."""
    opening = CLIENTS[technique.client](server)
    if isinstance(opening, AbstractAsyncContextManager):
        async with opening as client:
            yield client
    else:
        with opening as client:
            yield client


@contextmanager
def quiet_drivers() -> Iterator[None]:
    """Where errors are what is looked for, drivers do not log them as well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def describe(error: BaseException) -> str:
    """One line of what went wrong, with the server's own words when it sent some."""
    text: Any = str(error)
    if isinstance(error, urllib.error.HTTPError):
        text = error.read().decode(errors="replace") or text
    elif isinstance(error, httpx.HTTPStatusError):
        text = error.response.text or text
    return " ".join(f"{type(error).__name__}: {text}".split())[:400]
