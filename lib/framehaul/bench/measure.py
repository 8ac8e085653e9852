"""The clock of techniques: what each pass of one takes, verified outside of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
import polars as pl
import pyarrow as pa
from numba.core.event import install_timer

from framehaul.bench.meter import Meter, Moved, Usage
from framehaul.bench.passes import Failed, PanicError, Pass, describe, panics_raised, right
from framehaul.bench.rounds import Rounds, in_rounds, never, nothing
from framehaul.bench.store import EXACT
from framehaul.bench.times import Part, Times
from framehaul.bench.verify import Expected, dtype_drift
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import Table
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import Server
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import ClickHouseTables, Tables, tables_of
from framehaul.techniques import Technique
from framehaul.techniques.clients import CLIENTS, awaited, entered
from framehaul.techniques.registry import Key

if TYPE_CHECKING:
    from framehaul.bench.recording import Recording

SERVER_RETURN_SECONDS = 30
"""How long a run waits for a server that died to come back."""


@dataclass(frozen=True)
class Found:
    """What writes find in their table."""

    rows: pa.Table
    after: pa.Table | None = None
    """What has to be there afterwards, where it is not what is sent alone."""
    made: Callable[[Technique, Table], Table] = lambda _, table: table
    """The table as a technique asks for it."""
    read: Callable[[Technique, Tables], Tables] = lambda _, tables: tables
    """The tables as who reads after this technique has to."""


type Frame = pl.DataFrame | pd.DataFrame
IN_FRAMES: dict[str, Callable[[pa.Table, Table], Frame]] = {"polars": to_polars, "pandas": to_pandas}
"""What makes of the rows what a technique is given, by its kind of frame."""
type Returned = Frame | int | None
"""What a technique gives back: a frame, or for a baseline that keeps nothing, how many rows or bytes there were."""


def run(
    techniques: list[Technique],
    server: Server,
    table: Table,
    content: pa.Table,
    rounds: Rounds,
    record: Callable[[Technique, int, Pass[Moved]], None],
    *,
    stop: threading.Event | None = None,
    progress: Callable[[str], object] = nothing,
    finished: Callable[[Technique, int], bool] = never,
    times: Times | None = None,
    cold: Container[Key] = (),
    profile: bool = False,
    calls: int = 1,
    found: Found | None = None,
    way: Callable[[], AbstractContextManager[Way]] | None = None,
) -> None:
    """Measure techniques of one database and direction with `content`, which is in `table.arrow_schema`.

    A technique that is wrong or raises is recorded as failed and the run goes on. When the server dies, the run waits
    for it to come back; when it does not, ServerError is raised, and what was finished has been recorded. Setting
    `stop` ends the run with KeyboardInterrupt before its next pass. `record` and `finished` are those of `in_rounds`.

    Passes find the memory that earlier ones have used and freed, as in a process that is in service; those of
    techniques that are `cold` find none of it, as in a process that has moved nothing yet: it is handed back before.
    How much a technique takes is measured in its warm-up alone, which is cold in any case.

    With `profile`, a pass has what ClickHouse counted while it ran.

    One call of few rows is too short to be told from noise: a pass is so many `calls`, one after another. Writes send
    `content` in as many parts, reads fetch all of it each time, and every frame is verified.

    Writes find a new table, with the rows that are `found`, if any; afterwards it has to hold `content`, or what is
    `found.after`, and nothing else. Clients reach the server by a `way`, if one is given, and administration does not.
    """
    progress("preparing data")
    directions, frames = ({getattr(one, name) for one in techniques} for name in ("direction", "frame"))
    with (
        Passes(server, table, content, directions, frames, times, cold, found, profile=profile, calls=calls) as passes,
        asyncio.Runner() as runner,
    ):

        def step(technique: Technique, number: int) -> None:
            progress(f"{f'pass {number}' if number > 0 else 'warm-up'}: {technique.name}")

        def ended(outcome: Pass[Moved]) -> None:
            if isinstance(outcome, Failed):
                _wait_for_server(passes.tables, outcome.reason)

        def measure(technique: Technique, number: int) -> Moved:
            return runner.run(passes.one(technique, number, way))

        in_rounds(
            techniques, rounds, measure, record, stop=stop, progress=step, finished=finished, ended=ended,
        )  # fmt: skip


def record_passes(
    this_run: Recording, notebook: str, techniques: list[Technique], server: Server,
    table: Table, content: pa.Table, rounds: Rounds, stop: threading.Event, *, profile: bool = False,
    found: Found | None = None,
) -> None:  # fmt: skip
    """`run`, with its passes and times recorded as those of this run."""
    record, finished = this_run.techniques(notebook, content.num_rows)
    run(
        techniques, server, table, content, rounds, record,
        stop=stop, progress=this_run.progress, finished=finished, times=this_run.times,
        profile=profile, found=found,
    )  # fmt: skip


@dataclass(frozen=True)
class Way:
    """How the client of a pass reaches the server; what is on the clock is surrounded by `counting`."""

    server: Server
    meter: Meter
    counting: Callable[[], AbstractContextManager[object]] = nullcontext


class Passes:
    """Makes passes of techniques over one table and content, for as long as the block lasts.

    What is read is there then, and what is written is compared with it; `frames` are the kinds that are written.
    """

    def __init__(
        self, server: Server, table: Table, content: pa.Table, directions: Collection[str],
        frames: Collection[str] = (), times: Times | None = None, cold: Container[Key] = (), found: Found | None = None,
        *, profile: bool = False, calls: int = 1,
    ) -> None:  # fmt: skip
        found = found if "write" in directions else None
        self.tables = tables_of(server)
        self._times, self._cold, self._found = times or Times(), cold, found
        self._server, self._table, self._content, self._directions = server, table, content, directions
        self._reference = reference_of(table)
        self._rows, self._meter = content.num_rows, Meter(server.process_id)
        with self._times.spent("preparation"):
            self._expected = Expected(table, content if found is None or found.after is None else found.after)
            self._frames = {kind: IN_FRAMES[kind](content, table) for kind in sorted(IN_FRAMES.keys() & frames)}
            self._parts = {kind: _in_parts(frame, calls) for kind, frame in self._frames.items()}
        self._profile, self._calls = profile, calls
        self._wire_bytes: dict[str, int] = {}
        self._peak_rss_bytes: dict[str, int | None] = {}

    def __enter__(self) -> Self:
        try:
            with self._times.spent("preparation"), self.tables.kept():
                if "write" in self._directions:
                    self._expected.keep_reference(self.tables, self._reference)
                if "read" in self._directions:
                    self.tables.create(self._table)
                    self.tables.load(self._table, self._content)
                    self.tables.quiesce()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Where the server is gone for good, the next run drops what is ours.
        with contextlib.suppress(ServerError), self.tables.kept():
            for ours in (self._table, self._reference):
                self.tables.drop(ours)

    async def one(
        self, technique: Technique, number: int, way: Callable[[], AbstractContextManager[Way]] | None = None
    ) -> Moved:
        """Reset, connect, run on the clock, verify; raises what `attempt` takes for the end of a pass.

        The client is opened and used within `way`, all else outside; numbers below 1 are warm-ups.
        """
        order = self._table.key if technique.database == "postgres" else self._table.clickhouse_order
        if "key" in technique.requires and not order:
            raise UnavailableError("it is about the order of a key, and the table has none")
        self._reset(technique)
        while (done := await self.sent(technique, number, way)) is None:
            self._reset(technique)
        returned, moved = done
        if number < 1:
            self._peak_rss_bytes[technique.name] = moved.usage.peak_rss_bytes
        with self._times.spent("verification"):
            dtypes = [self.checked(one, technique) for one in returned][-1]
        usage = replace(moved.usage, peak_rss_bytes=self._peak_rss_bytes.get(technique.name))
        return replace(moved, usage=usage, dtypes=dtypes)

    def _reset(self, technique: Technique) -> None:
        """A new table for what is written, and nothing that the server still does for an older one."""
        if technique.direction != "write":
            return
        with self._times.spent("reset"), self.tables.kept():
            table = self._found.made(technique, self._table) if self._found else self._table
            self.tables.create(table)
            if self._found:
                self.tables.load(table, self._found.rows)
            self.tables.quiesce()

    async def sent(
        self, technique: Technique, number: int, way: Callable[[], AbstractContextManager[Way]] | None = None
    ) -> tuple[list[Returned], Moved] | None:
        """Connect and run on the clock, and nothing else: what came is not looked at, and has no dtypes yet.

        None where loops were compiled meanwhile: what a machine does once is no part of a path.
        """
        compiling: list[float] = []
        with (
            way() if way else self._usual_way(technique, number) as there,
            install_timer("numba:compile", compiling.append),
        ):
            async with opened(technique, there.server) as client:
                with there.counting():
                    counted = self._counted()
                    returned, seconds, latencies, usage = await self._timed(technique, client, number, there.meter)
                    events = _since(counted, self._counted())
        if compiling:
            self._times.move(_clock(number), "compilation", sum(compiling))
            return None
        return returned, Moved(seconds, usage, None, self._wire_bytes.get(technique.name), events, latencies)

    def _counted(self) -> dict[str, int]:
        """What ClickHouse has counted since it started, where that is asked for.

        Of all queries: while a pass runs there are no others, but for what the server does by itself.
        https://clickhouse.com/docs/operations/system-tables/events
        """
        if not self._profile or not isinstance(self.tables, ClickHouseTables):
            return {}
        return {name: int(value) for name, value in self.tables.rows("SELECT event, value FROM system.events")}

    def checked(self, returned: Returned, technique: Technique) -> str | None:
        """The dtypes of the frame that a pass gave, if it gave one; raises WrongResultError where it is wrong."""
        if isinstance(returned, int):
            # A baseline that keeps nothing tells how many rows, or bytes, there were.
            return right(None, None if returned >= self._rows else f"only {returned} of {self._rows} rows moved")
        if returned is None:
            tables = self._found.read(technique, self.tables) if self._found else self.tables
            return right(EXACT, self._expected.difference_on_server(tables))
        return right(dtype_drift(returned, self._table), self._expected.difference(returned))

    async def _timed(
        self, technique: Technique, client: object, number: int, meter: Meter
    ) -> tuple[list[Returned], float, tuple[float, ...], Usage]:
        """What the calls of a pass gave, a write but once; the seconds of all and of each; and what they used."""
        arguments: list[tuple[object, ...]] = [(client, self._table)] * self._calls
        if technique.direction == "write":
            sent = [self._reference] if technique.frame == "none" else self._parts[technique.frame]
            arguments = [(client, self._table, part) for part in sent]
        returned: list[Returned] = []
        ends: list[float] = []
        with self._times.spent("memory"):
            meter.start(memory=number < 1, cold=technique.key in self._cold)
        with self._times.spent(_clock(number)):
            start = time.perf_counter()
            for each in arguments:
                returned.append(await called(technique, *each))
                ends.append(time.perf_counter())
        usage = meter.stop()
        latencies = tuple(end - begin for begin, end in pairwise([start, *ends]))
        return returned[-1:] if technique.direction == "write" else returned, ends[-1] - start, latencies, usage

    @contextmanager
    def _usual_way(self, technique: Technique, number: int) -> Iterator[Way]:
        """As the server says; in the warm-up through a relay that counts, where it can."""
        if number > 0:
            yield Way(self._server, self._meter)
            return
        with relayed(self._server, Relay) as (server, relay):

            @contextmanager
            def counting() -> Iterator[None]:
                before = relay.total_bytes if relay else 0
                yield
                if relay:
                    self._wire_bytes[technique.name] = relay.total_bytes - before

            yield Way(server, self._meter, counting)


def reference_of(table: Table) -> Table:
    """The table that holds what was sent: what is written is compared with it on the server."""
    return table.renamed(f"{table.name}_sent")


def _clock(number: int) -> Part:
    return "clock" if number > 0 else "warm-up"


def _in_parts(frame: Frame, calls: int) -> list[Frame]:
    """So many parts of a frame, one after another, of as many rows each; the last has what is over."""
    size = len(frame) // calls
    starts = [*range(0, size * calls, size)] if size else [0]
    return [frame[start:end] for start, end in pairwise([*starts, len(frame)])]


def _since(before: dict[str, int], after: dict[str, int]) -> str | None:
    """What was counted in between, as JSON; None where nothing is."""
    counts = {name: value - before.get(name, 0) for name, value in after.items()}
    return json.dumps({name: count for name, count in sorted(counts.items()) if count}) if after else None


def _wait_for_server(tables: Tables, reason: str) -> None:
    deadline = time.monotonic() + SERVER_RETURN_SECONDS
    while True:
        try:
            tables.ping()
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
    """What the technique returns, awaited where it is asynchronous; raises PanicError, and what it raises."""
    with panics_raised():
        return await awaited(technique.function(*arguments))


async def attempted(technique: Technique, *arguments: object) -> tuple[Any, str | None]:
    """What the technique returned, or, in one line, what it raised."""
    try:
        return await called(technique, *arguments), None
    except PanicError as error:
        return None, f"panic: {error}"
    except Exception as error:  # noqa: BLE001  whatever a path raises is what this is about
        return None, describe(error)


def opened(technique: Technique, server: Server) -> AbstractAsyncContextManager[object]:
    """The technique's client, whichever kind of context manager opens it."""
    return entered(CLIENTS[technique.client](server))


@contextmanager
def quiet_drivers() -> Iterator[None]:
    """Where errors are what is looked for, drivers do not log them as well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
