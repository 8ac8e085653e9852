"""Run the fidelity study: try every technique with every case on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import polars as pl
import psycopg

from framehaul import servers
from framehaul.bench import recording
from framehaul.bench.environment import server_versions
from framehaul.bench.measure import attempted, opened, quiet_drivers
from framehaul.bench.recording import which
from framehaul.bench.rounds import describe, interruptible
from framehaul.bench.store import EXACT
from framehaul.bench.trials import Trials, Tried, chosen_techniques, trials
from framehaul.bench.verify import dtype_drift, invalid
from framehaul.data.equality import content_of, first_difference, other_shape
from framehaul.errors import AnswerError, UnavailableError
from framehaul.servers import PostgresServer, Server, Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.fidelity.cases import BOTH, CASES, KEY, Case
from framehaul.studies.fidelity.places import hostile_session, without_encoding
from framehaul.studies.registry import FIDELITY
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database

type Outcome = Literal["exact", "loss", "error"]
DEFAULT, HOSTILE = "default", "hostile"

CELLS_PER_S = 4
"""The minimum speed of the study on a busy machine; an idle machine tries fifty cells per second."""
PATIENCE_SECONDS = 6.0
"""A technique whose connections are silent for so long hangs; a busy server may be silent for some seconds."""
SILENT = "hangs: client and server wait for each other"
FEW_BYTES = {("read", "stream_from_postgres"): [32]}
"""Arguments with which a small table comes in several record batches."""
CLOSING_SECONDS = 5.0
"""A client that takes longer to close after an error never closes (asyncpg before 0.32, after a panic in a COPY)."""
ACCEPTED = ("struct: a field more", "frame: a column missing", "frame: a nullable column missing")
"""Cases that `framehaul.write` accepts by its contract: jsonb names no fields, and an INSERT may leave columns out."""
UNEXPLAINED = "not explained yet"
# Tab-separated without quoting, because the patterns contain quotes and backslashes.
LOSSES = [line.split("\t") for line in Path(__file__).with_name("losses.tsv").read_text("utf8").splitlines()[1:]]
"""All known losses: the patterns of technique (`database direction name`), case, session and detail, then the reason
with its remedy. A loss that is not in the table needs an investigation."""


@dataclass(frozen=True)
class Cell(Tried):
    """The outcome of a case for a technique; its fields are the columns of `fidelity.csv`."""

    case: str
    session: str
    outcome: Outcome | Literal[""] = ""
    detail: str = ""
    why: str = ""


@recording.study(FIDELITY.notebook, None)
def run(*, tried: str = "all") -> None:
    """Try the techniques that `chosen_techniques` returns for `tried` with every case, and record one row per case.

    Raises ValueError for an unknown choice, ServerError when a server cannot be started, and ResultsError when the file
    cannot be written.
    """
    chosen = chosen_techniques(tried)
    with (
        trials(FIDELITY.notebook, FIDELITY.results, Cell, "cell", chosen) as (this_run, cells),
        servers.running(this_run.settings) as both,
    ):
        this_run.expect(expected(chosen))
        this_run.metadata |= {"servers": both.mode, "server": server_versions(both)}
        interruptible(lambda stop: run_cells(both, chosen, cells, stop=stop))
        this_run.metadata["what"] = f"{len(chosen) - len(cells.unavailable)} techniques, {len(CASES)} cases"
        cells.unavailable |= cells.left_out


def patience(values: Mapping[str, Any]) -> int:
    """Return the additional timeout of the notebook's cells in seconds."""
    return expected(chosen_techniques(values.get("tried", "all"))) // CELLS_PER_S


def expected(chosen: list[Technique]) -> int:
    """Return the largest possible number of cells."""
    return sum(1 + case.hostile for one in chosen for case in CASES if applies(one, case))


def applies(technique: Technique, case: Case) -> bool:
    """Return whether a case applies to a technique, if its kind of frame can hold the values."""
    if technique.direction not in case.directions or technique.database not in case.databases:
        return False
    if technique.direction == "read":
        return technique.database in case.held_by
    if technique.origin == "framehaul" and case.name in ACCEPTED:
        return False
    if case.filled and technique.contract and technique.contract.kind != "append":
        return False  # it needs an empty table
    return not case.shapes or technique.frame in case.shapes


@cache
def _holds(case: Case, kind: str) -> bool:
    """Return whether a kind of frame can hold the values of a case; Arrow holds all values."""
    return kind == "batches" or bool(case.shapes) or difference_of(case, case.frame(kind)) is None


def run_cells(
    both: Servers, chosen: list[Technique], trials: Trials[Cell], *, cases: tuple[Case, ...] = CASES,
    stop: threading.Event | None = None,
) -> None:  # fmt: skip
    """Try every technique with every case, and `hostile` cases in a hostile session too, until `stop` is set.

    Cells of an interrupted run are not tried again. Raises ServerError if a server is gone, and ValueError if a table
    does not hold the values of a case that it should be able to hold.
    """
    stop = stop or threading.Event()

    def try_all(database: Database) -> None:
        # Reads come first, because writes replace the tables.
        techniques = sorted((one for one in chosen if one.database == database), key=lambda one: one.direction)
        directions = {technique.direction for technique in techniques}
        some = [case for case in cases if directions & {*case.directions} and database in case.databases]
        try:
            with ExitStack() as stack:
                places = [*_places(stack, database, both.of(database), some, trials)]
                if "read" in directions:
                    _load(places, database)
                for technique in techniques:
                    asyncio.run(_try(technique, places, trials, stop))
        except BaseException:
            stop.set()  # ends the trials on the other server
            raise

    # Both servers at once: nothing is timed.
    with quiet_drivers(), _quiet_panics(), ThreadPoolExecutor(len(BOTH)) as pool:
        list(pool.map(try_all, sorted({technique.database for technique in chosen})))


@contextmanager
def _quiet_panics() -> Iterator[None]:
    """Discard stderr, to which Rust prints a panic with paths of this machine before it becomes an exception."""
    stderr = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


@dataclass(frozen=True)
class _Place:
    """The server that techniques connect to, the administration of its tables, and the cases that are tried there."""

    session: str
    server: Server
    tables: Tables
    cases: list[Case]


def _places(
    stack: ExitStack, database: Database, server: Server, cases: list[Case], trials: Trials[Cell]
) -> Iterator[_Place]:
    """Yield the server, its hostile session and its database without encoding; closing the stack removes them."""
    # Only PostgreSQL validates text, except in a database without encoding.
    not_text = [case for case in cases if case.about == "not text" and "read" in case.directions]
    ordinary = [case for case in cases if database == "clickhouse" or case not in not_text]
    hostile = [case for case in ordinary if case.hostile]
    default = _Place(DEFAULT, server, tables_of(server), ordinary)
    stack.enter_context(default.tables.kept())
    for case in ordinary:
        stack.callback(default.tables.drop, case.table)
    yield default
    if server.process_id is None:
        trials.left_out[f"{database}: other sessions"] = "roles and databases are created on embedded servers only"
        return
    if hostile:
        yield _Place(HOSTILE, stack.enter_context(hostile_session(server)), default.tables, hostile)
    if not_text and isinstance(server, PostgresServer):
        encodes_nothing = stack.enter_context(without_encoding(server))
        place = _Place(DEFAULT, encodes_nothing, tables_of(encodes_nothing), not_text)
        stack.enter_context(place.tables.kept())
        yield place


def _load(places: list[_Place], database: Database) -> None:
    """Fill the tables for reads with code that no technique uses, and check their content."""
    # The hostile session reads the same tables as the default.
    for tables, case in ((one.tables, case) for one in places if one.session == DEFAULT for case in one.cases):
        if "read" in case.directions and database in case.held_by:
            tables.create(case.table)
            tables.load(case.table, case.stored())
            if wrong := difference_of(case, tables.content(case.table)):
                raise ValueError(f"the table for {case.name!r} does not hold what was loaded: {wrong}")


async def _try(technique: Technique, places: list[_Place], trials: Trials[Cell], stop: threading.Event) -> None:
    """Try a technique with every case that an interrupted run has not recorded."""
    for place in places:
        left = [
            (case, cell)
            for case in place.cases
            if applies(technique, case)
            and (technique.direction == "read" or _holds(case, technique.frame))
            and not trials.finished(cell := Cell(**which(technique), case=case.name, session=place.session))
        ]
        with relayed(place.server, _EndingRelay) as (server, relay):
            caller = _Caller(technique, server, relay, opens=place is places[0])
            try:
                for case, cell in left:
                    if stop.is_set():
                        return
                    outcome, detail = await _outcome(caller, case, place)
                    reason = why(technique, case.name, place.session, detail) if outcome == "loss" else ""
                    trials.record(replace(cell, outcome=outcome, detail=detail, why=reason))
            except UnavailableError as error:
                trials.skip(technique, str(error))
                return
            finally:
                await caller.close()


def why(technique: Technique, case: str, session: str, detail: str) -> str:
    """Return the reason and remedy of the first of LOSSES whose patterns all match, or UNEXPLAINED."""
    texts = (" ".join(technique.key), case, session, detail)
    for *patterns, reason in LOSSES:
        if all(re.search(pattern, text) for pattern, text in zip(patterns, texts, strict=True)):
            return reason
    return UNEXPLAINED


async def _outcome(caller: _Caller, case: Case, place: _Place) -> tuple[Outcome, str]:
    if caller.technique.direction == "read":
        returned, error = await caller.call(case.table, *FEW_BYTES.get(caller.technique.key[1:], []))
        return ("error", error) if error is not None else _read(case, returned)
    place.tables.create(case.table)
    if case.filled:
        place.tables.load(*case.before)
    _, error = await caller.call(case.table, case.frame(caller.technique.frame))
    return _stored(case, place.tables, error)


def _read(case: Case, returned: object) -> tuple[Outcome, str]:
    """Return the outcome of a read that raised no error."""
    if not isinstance(returned, pl.DataFrame | pd.DataFrame):
        return "loss", f"a {type(returned).__name__} came instead of a frame"
    if lost := difference_of(case, returned):
        return "loss", lost
    drift = dtype_drift(returned, case.table)
    return "exact", "" if drift == EXACT else f"dtypes {drift}"


def _stored(case: Case, tables: Tables, error: str | None) -> tuple[Outcome, str]:
    """Return the outcome of a write from the content of its table and its error, if any."""
    try:
        content = tables.content(case.full_table)
    except (psycopg.DataError, AnswerError) as unreadable:
        # PostgreSQL stores infinite dates and years before 1, and ClickHouse stores numbers that an enum does not have.
        return "loss", f"what is stored cannot be read back: {describe(unreadable)}"
    if error is not None:
        stored = len(content) - case.before[1].num_rows
        return ("loss", f"{stored} rows are stored in spite of {error}") if stored else ("error", error)
    if case.filled and case.filled.numbers:
        content = content.sort(KEY.name).with_columns(pl.col(case.filled.column.name).sort())
    lost = difference_of(case, content) or case.unfit
    return ("loss", lost) if lost else ("exact", "")


class _EndingRelay(Relay):
    """A relay that ends silent connections."""

    @contextmanager
    def patience(self) -> Iterator[threading.Event]:
        """End silent connections while the block lasts, and set the event that is yielded when that happens."""
        silent = threading.Event()

        async def watch() -> None:
            seen, busy_s = -1, 0.0
            # A client that uses the CPU does not hang: on a new machine it compiles loops for some seconds.
            while seen != self.total_bytes or busy_s > PATIENCE_SECONDS / 10:
                seen, began_s = self.total_bytes, time.process_time()
                await asyncio.sleep(PATIENCE_SECONDS)
                busy_s = time.process_time() - began_s
            silent.set()
            self._shut(socket.SHUT_RDWR)

        watching = asyncio.run_coroutine_threadsafe(watch(), self._loop)
        try:
            yield silent
        finally:
            watching.cancel()


@dataclass
class _Caller:
    """A technique and its client, which is replaced after an error."""

    technique: Technique
    server: Server
    relay: _EndingRelay | None
    opens: bool
    """Whether every client can open, unless the server is gone."""
    _client: object = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def call(self, *arguments: object) -> tuple[Any, str | None]:
        """Return the technique's result, or its error as text; raises UnavailableError if it cannot run."""
        if self._client is None:
            try:
                self._client = await self._stack.enter_async_context(opened(self.technique, self.server))
            except Exception as error:
                if self.opens or isinstance(error, UnavailableError):
                    raise
                return None, f"the client does not open: {describe(error)}"
        with self.relay.patience() if self.relay else nullcontext(threading.Event()) as silent:
            returned, raised = await attempted(self.technique, self._client, *arguments)
        if self.relay and raised is not None and raised.startswith("panic"):
            # After a panic within a COPY, asyncpg waits half a minute for the COPY to end before it closes.
            self.relay.end_connections()
        if raised is not None or silent.is_set():  # a silent connection was ended even if the call succeeded
            await self.close()
        if raised is not None and silent.is_set():
            raised = f"{SILENT}; ended, it says {raised}"
        return returned, raised

    async def close(self) -> None:
        """Close the client and ignore errors."""
        self._client = None
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._stack.aclose()


def difference_of(case: Case, frame: pl.DataFrame | pd.DataFrame) -> str | None:
    """Return the first difference between a frame and the expected content in one line, or None."""
    table = case.full_table
    if wrong := other_shape(list(frame.columns), len(frame), table.column_names, len(case.expected)) or invalid(frame):
        return wrong
    received = content_of(frame, table.columns, nan_is_null=False).in_order([KEY.name])
    difference = first_difference(case.expected, received)
    if difference is None or difference.column == "value":
        return difference and difference.change
    return f"{difference.column}: {difference.change}"
