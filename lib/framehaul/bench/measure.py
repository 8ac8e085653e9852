"""Measure techniques: make timed passes and verify each of them outside the clock."""

import asyncio
import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench.meter import Meter, Moved
from framehaul.bench.rounds import Log, PanicError, Rounds, describe, in_rounds, panics_raised, right
from framehaul.bench.store import EXACT
from framehaul.bench.verify import Expected, dtype_drift
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import Table
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import Server
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import Tables, tables_of
from framehaul.techniques import Technique
from framehaul.techniques.clients import CLIENTS, awaited, entered
from framehaul.techniques.registry import Key

SERVER_RETURN_SECONDS = 30
"""The time that a run waits for a server that died to come back."""

type Frame = pl.DataFrame | pd.DataFrame
IN_FRAMES: dict[str, Callable[[pa.Table, Table], Frame]] = {"polars": to_polars, "pandas": to_pandas}


@dataclass(frozen=True)
class ExistingRows:
    """Rows that are in the table before a write."""

    rows: pa.Table | None = None
    expected: pa.Table | None = None
    """The content after the write; None for exactly the rows that are written."""
    table_for: Callable[[Technique, Table], Table] = lambda _, table: table
    """Return the table as a technique needs it."""
    tables_for: Callable[[Technique, Tables], Tables] = lambda _, tables: tables
    """Return the administration that reads the table as a technique's readers have to."""


@dataclass(frozen=True)
class PassOptions:
    """Options of passes."""

    cold: Container[Key] = ()
    """Techniques whose passes find no memory that earlier passes have freed, as in a process that just started."""
    calls: int = 1
    """Calls of a pass, one after another: one call of few rows is too short to be timed. Writes send `content` in as
    many parts. Reads fetch all of it each time, and every frame is verified."""
    existing: ExistingRows | None = None


PLAIN = PassOptions()


def run(
    techniques: list[Technique],
    server: Server,
    table: Table,
    content: pa.Table,
    rounds: Rounds,
    log: Log[Technique, Moved],
    options: PassOptions = PLAIN,
) -> None:
    """Measure techniques of one database and direction with `content`, which is in `table.arrow_schema`.

    A technique that is wrong or raises is recorded as failed and the run goes on. When the server dies, the run waits
    for it to come back; when it does not, ServerError is raised, and finished passes have been recorded. Setting
    `log.stop` ends the run with KeyboardInterrupt before its next pass. Without passes to make, it loads no table.
    """
    if not log.left(techniques, rounds):
        return
    with Passes(server, table, content, techniques, options) as passes, asyncio.Runner() as runner:

        def progress(technique: Technique, number: int) -> None:
            passes.wait_for_server()
            log.progress(technique, number)

        in_rounds(techniques, rounds, lambda *which: runner.run(passes.one(*which)), replace(log, progress=progress))
        passes.wait_for_server()


class Passes:
    """A context that loads a table to read, and a reference for writes, and makes passes of techniques over them.

    A timed pass reuses memory that earlier passes have freed, as in a process that is in service.
    """

    def __init__(
        self, server: Server, table: Table, content: pa.Table, techniques: list[Technique], options: PassOptions = PLAIN
    ) -> None:
        self.tables, self._server, self._meter = tables_of(server), server, Meter(server.process_id)
        self._table, self._content, self._reference = table, content, table.renamed(f"{table.name}_sent")
        self._options, self._directions = options, {one.direction for one in techniques}
        self._existing = (options.existing if "write" in self._directions else None) or ExistingRows()
        self._expected = Expected(table, content if self._existing.expected is None else self._existing.expected)
        self._parts: dict[str, list[Any]] = {"none": [self._reference]}  # what writes send, by kind of frame
        size = max(1, -(-content.num_rows // options.calls))
        for kind in sorted(IN_FRAMES.keys() & {one.frame for one in techniques if one.direction == "write"}):
            frame = IN_FRAMES[kind](content, table)
            self._parts[kind] = [frame[at : at + size] for at in range(0, max(1, len(frame)), size)]
        self._warm_ups: dict[str, Moved] = {}
        self._unfinished = ""
        """The technique of a pass that has begun, or failed."""

    def __enter__(self) -> Self:
        try:
            with self.tables.kept():
                if "write" in self._directions:
                    self._expected.keep_reference(self.tables, self._reference)
                if "read" in self._directions:
                    self.tables.make(self._table, self._content)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # When the server is gone for good, the next run drops our tables.
        with contextlib.suppress(ServerError), self.tables.kept():
            for ours in (self._table, self._reference):
                self.tables.drop(ours.name)

    async def one(self, technique: Technique, number: int, server: Server | None = None) -> Moved:
        """Make one pass: reset, connect, run on the clock, verify; raise the errors that `attempt` records.

        Numbers below 1 are warm-ups: they alone measure peak memory and, through a relay, bytes on the wire. The client
        connects to `server`, if it is given: another address of the same one.
        """
        order = self._table.key if technique.database == "postgres" else self._table.clickhouse_order
        if "key" in technique.requires and not order:
            raise UnavailableError("it is about the order of a key, and the table has none")
        self._unfinished = technique.name
        returned, moved = await self._timed_calls(technique, number, server)
        if number < 1:
            self._warm_ups[technique.name] = moved
        dtypes = [self._checked(one, technique) for one in returned][-1]
        warm_up = self._warm_ups.get(technique.name, moved)
        usage = replace(moved.usage, peak_rss_bytes=warm_up.usage.peak_rss_bytes)
        self._unfinished = ""
        return replace(moved, usage=usage, dtypes=dtypes, wire_bytes=warm_up.wire_bytes)

    def wait_for_server(self) -> None:
        """Wait until the server answers, if the last pass failed; raise ServerError when it does not come back."""
        deadline = time.monotonic() + SERVER_RETURN_SECONDS
        while self._unfinished:
            try:
                self.tables.run("SELECT 1")
                self._unfinished = ""
            except ServerError as error:
                if time.monotonic() > deadline:
                    late = f"within {SERVER_RETURN_SECONDS} s after {self._unfinished}"
                    raise ServerError(f"the server did not come back {late}; what was finished is kept") from error
                time.sleep(0.5)

    async def _timed_calls(self, one: Technique, number: int, other: Server | None) -> tuple[list[Any], Moved]:
        """Reset, connect, run on the clock; return the calls' unverified results, of a write one, with their cost.

        A pass in which numba compiled a function, as a machine does once, is made again.
        """
        from numba.core.event import install_timer  # importing numba takes half a second, which only passes need

        arguments: list[tuple[object, ...]] = [(self._table,)] * self._options.calls
        if one.direction == "write":
            with self.tables.kept():
                self.tables.make(self._existing.table_for(one, self._table), self._existing.rows)
            arguments = [(self._table, part) for part in self._parts[one.frame]]
        returned: list[Any] = []
        compiling: list[float] = []
        relays = number < 1 and other is None
        relaying = relayed(self._server, Relay) if relays else nullcontext((other or self._server, None))
        with relaying as (server, relay), install_timer("numba:compile", compiling.append):
            async with opened(one, server) as client:
                bytes_before = relay.total_bytes if relay else 0
                self._meter.start(memory=number < 1, cold=one.key in self._options.cold)
                ends = [time.perf_counter()]
                for each in arguments:
                    returned.append(await called(one, client, *each))
                    ends.append(time.perf_counter())
                usage = self._meter.stop()
                wire_bytes = relay.total_bytes - bytes_before if relay else None
        if compiling:
            return await self._timed_calls(one, number, other)
        latencies = tuple(end - begin for begin, end in pairwise(ends))
        moved = Moved(ends[-1] - ends[0], usage, None, wire_bytes, latencies)
        return returned[-1:] if one.direction == "write" else returned, moved

    def _checked(self, returned: Frame | int | None, technique: Technique) -> str | None:
        """Return the dtypes of the frame that a pass gave, if any; raise WrongResultError when it is wrong."""
        if isinstance(returned, int):  # the rows or bytes of a baseline that keeps nothing
            rows = self._content.num_rows
            return right(None, None if returned >= rows else f"only {returned} of {rows} rows moved")
        if returned is None:
            tables = self._existing.tables_for(technique, self.tables)
            return right(EXACT, self._expected.difference_on_server(tables))
        return right(dtype_drift(returned, self._table), self._expected.difference(returned))


async def called(technique: Technique, *arguments: object) -> Any:
    """Call a technique, await it where it is asynchronous, and return its result; raise PanicError for a panic."""
    with panics_raised():
        return await awaited(technique.function(*arguments))


async def attempted(technique: Technique, *arguments: object) -> tuple[Any, str | None]:
    """Return the technique's result, or its error in one line."""
    try:
        return await called(technique, *arguments), None
    except PanicError as error:
        return None, f"panic: {error}"
    except Exception as error:  # noqa: BLE001  any error is a result of the study
        return None, describe(error)


def opened(technique: Technique, server: Server) -> AbstractAsyncContextManager[object]:
    """Return the technique's client as an asynchronous context manager."""
    return entered(CLIENTS[technique.client](server))


@contextmanager
def quiet_drivers() -> Iterator[None]:
    """Disable logging and warnings while the block lasts: drivers log the errors that a study provokes."""
    before, show = logging.root.manager.disable, warnings.showwarning
    logging.disable(logging.CRITICAL)
    warnings.showwarning = lambda *_, **__: None  # not a filter, which libraries in other threads change
    try:
        yield
    finally:
        logging.disable(before)
        warnings.showwarning = show
