"""Every technique with every case, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import polars as pl
import psycopg

from framehaul.clients import UnavailableError
from framehaul.fidelity.cases import BOTH, CASES, KEY, Case
from framehaul.fidelity.losses import why
from framehaul.measure import attempted, describe, opened, quiet_drivers
from framehaul.relay import Relay, relayed
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.tables import Tables, tables_of
from framehaul.techniques import Technique
from framehaul.trials import Tried, of
from framehaul.values import first_difference, plain_values
from framehaul.verify import dtype_drift

type Result = Literal["exact", "loss", "error"]

SILENCE_SECONDS = 1
TIMES_SILENT = 3
"""A path without a byte for so long, so many times, waits for what does not come; its own patience is minutes."""
SILENT = "hangs: client and server wait for each other"


@dataclass(frozen=True)
class Cell(Tried):
    """What one technique did with one case. The fields are the columns of `fidelity.csv`."""

    case: str
    outcome: Result
    detail: str
    why: str


def run_cells(
    both: Servers,
    chosen: list[Technique],
    record: Callable[[Cell], None],
    unavailable: Callable[[Technique, str], None],
    *,
    cases: tuple[Case, ...] = CASES,
    stop: threading.Event | None = None,
) -> None:
    """Try every technique with every case; `unavailable` gets those that cannot run here, with the reason.

    Both are called from two threads, one for each server.
    Raises ServerError when a server is gone, ValueError when a table does not hold what the case says it can.
    """
    stop = stop or threading.Event()

    def try_all(found: list[Technique]) -> None:
        with asyncio.Runner() as runner:
            runner.run(_Trial(both.of(found[0].database), found, cases, record, unavailable, stop).run())

    # The servers do not meet, and nothing is measured: both at once.
    with quiet_drivers(), ThreadPoolExecutor(len(BOTH)) as pool:
        running = [pool.submit(try_all, found) for found in _by_server(chosen)]
        done, _ = wait(running, return_when=FIRST_EXCEPTION)
        if any(future.exception() for future in done):
            stop.set()
        for future in sorted(running, key=lambda future: future not in done):
            future.result()


def _by_server(chosen: list[Technique]) -> Iterator[list[Technique]]:
    for database in BOTH:
        found = [technique for technique in chosen if technique.database == database]
        if found:
            yield found


class _Trial:
    """All techniques of one database with all cases."""

    def __init__(
        self,
        server: PostgresServer | ClickHouseServer,
        chosen: list[Technique],
        cases: tuple[Case, ...],
        record: Callable[[Cell], None],
        unavailable: Callable[[Technique, str], None],
        stop: threading.Event,
    ) -> None:
        self._server, self._chosen, self._cases = server, chosen, cases
        self._tables: Tables = tables_of(server)
        self._record, self._unavailable, self._stop = record, unavailable, stop

    async def run(self) -> None:
        try:
            for direction in ("read", "write"):
                chosen = [technique for technique in self._chosen if technique.direction == direction]
                if chosen and direction == "read":
                    self._load()
                for technique in chosen:
                    await self._one(technique)
        finally:
            for case in self._cases:
                self._tables.drop(case.table)

    def _load(self) -> None:
        """Fill the tables that the readers read, by a path that no technique uses, and prove that they are right."""
        for case in self._cases:
            if self._server_holds(case):
                self._tables.create(case.table)
                self._tables.load(case.table, case.content().cast(case.table.arrow_schema))
                if wrong := difference_of(case, self._tables.content(case.table)):
                    raise ValueError(f"the table for {case.name!r} does not hold what was loaded: {wrong}")

    def _server_holds(self, case: Case) -> bool:
        return self._chosen[0].database in case.held_by

    def _applies(self, technique: Technique, case: Case) -> bool:
        """Whether there is something to try: what a table, or a kind of frame, cannot hold is not lost on the way."""
        if technique.direction == "read":
            return self._server_holds(case)
        if case.doubled:
            return technique.frame == "pandas"
        return difference_of(case, case.frame(technique.frame)) is None

    async def _one(self, technique: Technique) -> None:
        """One technique with every case."""
        with relayed(self._server, Relay) as (server, relay):
            path = _Path(technique, server, relay)
            try:
                for case in self._cases:
                    if self._stop.is_set():
                        raise KeyboardInterrupt
                    if self._applies(technique, case):
                        self._record(await self._cell(path, case))
            except UnavailableError as error:
                self._unavailable(technique, str(error))
            finally:
                await path.close()

    async def _cell(self, path: _Path, case: Case) -> Cell:
        found = path.technique
        outcome, detail = await self._outcome(path, case)
        reason = why(found, case.name, detail) if outcome == "loss" else ""
        return Cell(**of(found), case=case.name, outcome=outcome, detail=detail, why=reason)

    async def _outcome(self, path: _Path, case: Case) -> tuple[Result, str]:
        table, write = case.table, path.technique.direction == "write"
        for _ in range(TIMES_SILENT):
            if write:
                self._tables.create(table)
            returned, error, silent = await path.call(table, *([case.frame(path.technique.frame)] if write else []))
            if not silent:
                break
        try:
            found = self._tables.content(table) if write else returned
        except psycopg.DataError as unreadable:
            # PostgreSQL holds more dates than Python: infinity, and those before the year 1.
            return "loss", f"what is stored cannot be read back: {describe(unreadable)}"
        if error is not None:
            stored = len(found) if write else 0
            return ("loss", f"{stored} rows are stored in spite of {error}") if stored else ("error", error)
        assert isinstance(found, pl.DataFrame | pd.DataFrame)
        if lost := difference_of(case, found):
            return "loss", lost
        drift = "exact" if write else dtype_drift(found, table)
        return "exact", "" if drift == "exact" else f"dtypes {drift}"


class _Path:
    """A technique and its client, which is not used again after an error."""

    def __init__(self, technique: Technique, server: PostgresServer | ClickHouseServer, relay: Relay | None) -> None:
        self.technique = technique
        self._server, self._relay = server, relay
        self._client: object = None
        self._stack = AsyncExitStack()

    async def call(self, *arguments: object) -> tuple[Any, str | None, bool]:
        """What the technique returned, what it raised, and whether it was waiting for what does not come.

        Raises UnavailableError where it cannot run.
        """
        if self._client is None:
            self._client = await self._stack.enter_async_context(opened(self.technique, self._server))
        with _ended_when_silent(self._relay) as silent:
            returned, said = await attempted(self.technique, self._client, *arguments)
        if said is None:
            return returned, None, False
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
    if list(frame.columns) != case.table.column_names:
        return f"columns became {list(frame.columns)}"
    found = {column.name: plain_values(frame[column.name], column.type) for column in case.table.columns}
    order = sorted(range(len(frame)), key=lambda at: (found[KEY.name][at] is None, found[KEY.name][at]))
    for name, sent in case.expected().items():
        if difference := first_difference(sent, [found[name][at] for at in order]):
            return difference if name == "value" else f"{name}: {difference}"
    return None
