"""Every technique with every case, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import polars as pl
import psycopg

from framehaul.data.equality import content_of, first_difference, other_shape
from framehaul.errors import ServerError, UnavailableError
from framehaul.harness.measure import attempted, describe, opened, quiet_drivers
from framehaul.harness.trials import Tried, of
from framehaul.harness.verify import dtype_drift, invalid
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import ClickHouseTables, Tables, tables_of
from framehaul.studies.fidelity.cases import BOTH, CASES, KEY, Case
from framehaul.studies.fidelity.losses import why
from framehaul.studies.fidelity.places import NotAllowedError, hostile_session, without_encoding
from framehaul.techniques import Technique

type Result = Literal["exact", "loss", "error"]
DEFAULT, HOSTILE = "default", "hostile"
FLUSH = "SYSTEM FLUSH ASYNC INSERT QUEUE"

SILENCE_SECONDS = 1
TIMES_SILENT = 3
"""A path without a byte for so long, so many times, waits for what does not come; its own patience is minutes."""
SILENT = "hangs: client and server wait for each other"


@dataclass(frozen=True)
class Cell(Tried):
    """What one technique did with one case. The fields are the columns of `fidelity.csv`."""

    case: str
    session: str
    outcome: Result
    detail: str
    why: str


@dataclass(frozen=True)
class Reporting:
    """Who is told of what comes of a run; called from two threads, one for each server."""

    record: Callable[[Cell], None]
    unavailable: Callable[[Technique, str], None]
    """Gets the techniques that cannot run here, with the reason."""
    left_out: Callable[[str, str], None] = lambda _what, _reason: None
    """Gets what a server does not let us try, with the reason."""


def run_cells(
    both: Servers,
    chosen: list[Technique],
    record: Callable[[Cell], None],
    unavailable: Callable[[Technique, str], None],
    left_out: Callable[[str, str], None] = lambda _what, _reason: None,
    *,
    cases: tuple[Case, ...] = CASES,
    stop: threading.Event | None = None,
) -> None:
    """Try every technique with every case, those that are `hostile` also in a session of other settings.

    `unavailable` gets the techniques that cannot run here, `left_out` what a server does not let us try, each with the
    reason. All three are called from two threads, one for each server.
    Raises ServerError when a server is gone, ValueError when a table does not hold what the case says it can.
    """
    stop = stop or threading.Event()
    reporting = Reporting(record, unavailable, left_out)

    def try_all(found: list[Technique]) -> None:
        with asyncio.Runner() as runner:
            runner.run(_Trial(both.of(found[0].database), found, cases, reporting, stop).run())

    # The servers do not meet, and nothing is measured: both at once.
    with quiet_drivers(), _quiet_panics(), ThreadPoolExecutor(len(BOTH)) as pool:
        running = [pool.submit(try_all, found) for found in _by_server(chosen)]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            stop.set()
        for future in sorted(running, key=lambda future: future not in done):
            future.result()


@contextmanager
def _quiet_panics() -> Iterator[None]:
    """Rust tells of a panic itself, with the paths of this machine, before it is an exception: on stderr, not to us."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _by_server(chosen: list[Technique]) -> Iterator[list[Technique]]:
    for database in BOTH:
        found = [technique for technique in chosen if technique.database == database]
        if found:
            yield found


@dataclass(frozen=True)
class _Place:
    """Where cases are tried: as whom techniques connect, and where their tables are made and looked at."""

    session: str
    server: PostgresServer | ClickHouseServer
    tables: Tables
    cases: tuple[Case, ...]
    queues_inserts: bool = False
    """Whether a write may be acknowledged while its rows only wait to be stored."""


class _Trial:
    """All techniques of one database with all cases."""

    def __init__(
        self,
        server: PostgresServer | ClickHouseServer,
        chosen: list[Technique],
        cases: tuple[Case, ...],
        reporting: Reporting,
        stop: threading.Event,
    ) -> None:
        self._server, self._chosen, self._reporting, self._stop = server, chosen, reporting, stop
        self._database = chosen[0].database
        self._holds: dict[tuple[str, str], bool] = {}
        """Whether a kind of frame holds what a case sends."""
        directions = {technique.direction for technique in chosen}
        self._cases = tuple(case for case in cases if directions & set(case.directions))

    async def run(self) -> None:
        with ExitStack() as stack:
            places = list(self._places(stack))
            for direction in ("read", "write"):
                chosen = [technique for technique in self._chosen if technique.direction == direction]
                for place in places if direction == "read" and chosen else []:
                    if place.session == DEFAULT:  # another session reads the same tables
                        self._load(place)
                for technique in chosen:
                    await self._one(technique, places)

    def _places(self, stack: ExitStack) -> Iterator[_Place]:
        """The server as it is, and what is made on it for the run; everything is gone when the stack is closed."""
        apart = [case for case in self._cases if self._wants_no_encoding(case)]
        ordinary = tuple(case for case in self._cases if case not in apart)
        default = _Place(DEFAULT, self._server, tables_of(self._server), ordinary)
        stack.enter_context(default.tables.kept())
        stack.callback(_drop, default)
        yield default
        if hostile := tuple(case for case in ordinary if case.hostile):
            try:
                server = stack.enter_context(hostile_session(self._server))
            except NotAllowedError as error:
                self._reporting.left_out(f"{self._database}: hostile session", str(error))
            else:
                yield _Place(HOSTILE, server, default.tables, hostile, self._queues_inserts(default.tables))
        if apart and isinstance(self._server, PostgresServer):
            try:
                server = stack.enter_context(without_encoding(self._server))
            except NotAllowedError as error:
                self._reporting.left_out(f"{self._database}: database without encoding", str(error))
            else:
                place = _Place(DEFAULT, server, tables_of(server), tuple(apart))
                stack.enter_context(place.tables.kept())
                yield place

    def _queues_inserts(self, tables: Tables) -> bool:
        if not isinstance(tables, ClickHouseTables):
            return False
        try:
            tables.run(FLUSH)
        except ServerError as error:  # the embedded server has no such queue, and stores at once whatever is asked for
            self._reporting.left_out("clickhouse: asynchronous inserts", str(error))
            return False
        return True

    def _wants_no_encoding(self, case: Case) -> bool:
        """Whether only a database of its own can hold the case: PostgreSQL's others check that text is text."""
        return case.about == "not text" and "read" in case.directions and self._database == "postgres"

    def _load(self, place: _Place) -> None:
        """Fill the tables that the readers read, by a path that no technique uses, and prove that they are right."""
        for case in place.cases:
            if "read" in case.directions and self._server_holds(case):
                place.tables.create(case.table)
                place.tables.load(case.table, case.stored())
                if wrong := difference_of(case, place.tables.content(case.table)):
                    raise ValueError(f"the table for {case.name!r} does not hold what was loaded: {wrong}")

    def _server_holds(self, case: Case) -> bool:
        return self._database in case.held_by

    def _applies(self, technique: Technique, case: Case) -> bool:
        """Whether there is something to try: what a table, or a kind of frame, cannot hold is not lost on the way."""
        if technique.direction not in case.directions:
            return False
        if technique.direction == "read":
            return self._server_holds(case)
        if case.shapes:
            return technique.frame in case.shapes
        key = case.name, technique.frame
        if key not in self._holds:
            self._holds[key] = difference_of(case, case.frame(technique.frame)) is None
        return self._holds[key]

    async def _one(self, technique: Technique, places: list[_Place]) -> None:
        """One technique with every case."""
        for place in places:
            cases = [case for case in place.cases if self._applies(technique, case)]
            if not cases:
                continue
            with relayed(place.server, Relay) as (server, relay):
                path = _Path(technique, server, relay, opens=place.server is self._server)
                try:
                    for case in cases:
                        if self._stop.is_set():
                            raise KeyboardInterrupt
                        self._reporting.record(await self._cell(path, case, place))
                except UnavailableError as error:
                    self._reporting.unavailable(technique, str(error))
                    return
                finally:
                    await path.close()

    async def _cell(self, path: _Path, case: Case, place: _Place) -> Cell:
        found = path.technique
        outcome, detail = await self._outcome(path, case, place)
        reason = why(found, case.name, place.session, detail) if outcome == "loss" else ""
        return Cell(
            **of(found), case=case.name, session=place.session, outcome=outcome, detail=detail, why=reason
        )  # fmt: skip

    async def _outcome(self, path: _Path, case: Case, place: _Place) -> tuple[Result, str]:
        table, write = case.table, path.technique.direction == "write"
        for _ in range(1 if path.has_hung else TIMES_SILENT):
            if write:
                place.tables.create(table)
            returned, error, silent = await path.call(table, *([case.frame(path.technique.frame)] if write else []))
            if not silent:
                break
        path.has_hung |= silent
        if not write:
            return ("error", error) if error is not None else _read(case, returned)
        outcome, detail = _stored(case, place.tables, error)
        if place.queues_inserts and isinstance(place.tables, ClickHouseTables):
            # Whoever asks at once does not find them: https://clickhouse.com/docs/optimize/asynchronous-inserts
            place.tables.run(FLUSH)
            at_once = detail
            outcome, detail = _stored(case, place.tables, error)
            if detail != at_once:
                return "loss", f"{at_once}; later: {detail or 'exact'}"
        return outcome, detail


def _drop(place: _Place) -> None:
    for case in place.cases:
        place.tables.drop(case.table)


def _read(case: Case, found: object) -> tuple[Result, str]:
    """What came of a read that raised nothing."""
    if not isinstance(found, pl.DataFrame | pd.DataFrame):
        return "loss", f"a {type(found).__name__} came instead of a frame"
    if lost := difference_of(case, found):
        return "loss", lost
    drift = dtype_drift(found, case.table)
    return "exact", "" if drift == "exact" else f"dtypes {drift}"


def _stored(case: Case, tables: Tables, error: str | None) -> tuple[Result, str]:
    """What came of a write, going by what is in its table, and by what it raised, if anything."""
    try:
        found = tables.content(case.table)
    except psycopg.DataError as unreadable:
        # PostgreSQL holds more dates than Python: infinity, and those before the year 1.
        return "loss", f"what is stored cannot be read back: {describe(unreadable)}"
    if error is not None:
        return ("loss", f"{len(found)} rows are stored in spite of {error}") if len(found) else ("error", error)
    if lost := difference_of(case, found) or case.unfit:
        return "loss", lost
    return "exact", ""


class _Path:
    """A technique and its client, which is not used again after an error."""

    def __init__(
        self,
        technique: Technique,
        server: PostgresServer | ClickHouseServer,
        relay: Relay | None,
        *,
        opens: bool,
    ) -> None:
        """`opens` says that its client opens there, and that the server is gone when it does not."""
        self.technique = technique
        self.has_hung = False
        self._server, self._relay, self._opens = server, relay, opens
        self._client: object = None
        self._stack = AsyncExitStack()

    async def call(self, *arguments: object) -> tuple[Any, str | None, bool]:
        """What the technique returned, what it raised, and whether it was waiting for what does not come.

        Raises UnavailableError where it cannot run.
        """
        if self._client is None:
            try:
                self._client = await self._stack.enter_async_context(opened(self.technique, self._server))
            except UnavailableError:
                raise
            except Exception as error:
                if self._opens:
                    raise
                return None, f"the client does not open: {describe(error)}", False
        with _ended_when_silent(self._relay) as silent:
            returned, said = await attempted(self.technique, self._client, *arguments)
        if said is None:
            return returned, None, False
        if self._relay and said.startswith("panic"):
            # It came through the driver in the middle of a COPY, for whose end asyncpg's close waits half a minute.
            self._relay.end_connections()
        await self.close()
        return None, f"{SILENT}; ended, it says {said}" if silent.is_set() else said, silent.is_set()

    async def close(self) -> None:
        """Close the client; after an error that may fail as well, and says nothing new."""
        self._client = None
        with contextlib.suppress(Exception):
            await self._stack.aclose()


@contextmanager
def _ended_when_silent(relay: Relay | None) -> Iterator[threading.Event]:
    """End the relay's connections when no byte has come for a while; the event tells that it happened."""
    over, silent = threading.Event(), threading.Event()

    def watch(relay: Relay) -> None:
        seen, since = relay.total_bytes, time.monotonic()
        while not over.wait(SILENCE_SECONDS / 10):
            if relay.total_bytes != seen:
                seen, since = relay.total_bytes, time.monotonic()
            elif time.monotonic() > since + SILENCE_SECONDS:
                silent.set()
                relay.end_connections()

    watching = threading.Thread(target=watch, args=(relay,), daemon=True) if relay else None
    if watching:
        watching.start()
    try:
        yield silent
    finally:
        over.set()
        if watching:
            watching.join()


def difference_of(case: Case, frame: pl.DataFrame | pd.DataFrame) -> str | None:
    """Where what was found first differs from what was sent, in one line."""
    sent, columns = case.expected(), case.table.columns
    wrong = other_shape(list(frame.columns), len(frame), case.table.column_names, len(sent)) or invalid(frame)
    if wrong:
        return wrong
    found = content_of(frame, columns, nan_is_null=False).in_order([KEY.name])
    difference = first_difference(sent, found)
    if difference is None or difference.column == "value":
        return difference and difference.change
    return f"{difference.column}: {difference.change}"
