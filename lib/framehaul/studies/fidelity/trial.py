"""Run the fidelity study: try every technique with every case on real servers."""

import asyncio
import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection, wait
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import polars as pl
import psycopg

from framehaul.bench.children import Child, child, context
from framehaul.bench.measure import attempted, opened, quiet_drivers
from framehaul.bench.recording import Recording, recorded, which
from framehaul.bench.rounds import describe
from framehaul.bench.store import EXACT
from framehaul.bench.trials import Trials, Tried, all_techniques, chosen_techniques, in_order, trials_of
from framehaul.bench.verify import dtype_drift, invalid
from framehaul.data.equality import content_of, first_difference, other_shape
from framehaul.data.schema import quote_postgres, quote_postgres_text
from framehaul.errors import AnswerError, ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, PostgresServer, Server, Servers
from framehaul.servers.hostile import HOSTILE as ROLE
from framehaul.servers.hostile import POSTGRES_SETTINGS
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.fidelity.cases import BEFORE, CASES, KEY, NUMBER, ROWS_BEFORE, Case
from framehaul.studies.fidelity.shapes import PLAIN
from framehaul.studies.registry import FIDELITY
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Key

type Outcome = Literal["exact", "loss", "error"]
type Place = tuple[str, Server, Tables, list[Case]]
"""A session, the server of its techniques, the administration of its tables, and the cases that are tried there."""
DEFAULT, HOSTILE = "default", "hostile"
IDENTITY = ("database", "direction", "technique", "case", "session")
NO_ENCODING = "framehaul_sql_ascii"

PATIENCE_SECONDS, LOOKS = 6.0, 6
"""A technique counts as hanging after this silence of its connections, which is looked at so many times."""
SILENT = "hangs: client and server wait for each other"
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


@recorded(FIDELITY, Cell, in_order)
def run(this_run: Recording, *, tried: str = "all") -> None:
    """Try the techniques that `chosen_techniques` returns for `tried` with every case, and record one row per case.

    Raises ServerError when a server cannot be started, and the errors of `recorded`.
    """
    chosen, cells, both = chosen_techniques(tried), trials_of(this_run), this_run.servers()
    this_run.expect(sum(1 + case.hostile for one in chosen for case in CASES if applies(one, case)))  # at most
    finished = {*this_run.so_far().select(IDENTITY).rows()}
    # Nothing is timed, and the Python code of a process runs on one core at a time: each server has a process. It
    # imports this module itself, because the cases start threads of Polars, which no fork inherits.
    with ExitStack() as stack:
        trying = dict[Any, Child]()
        for database in sorted({one.database for one in chosen}):
            keys = [one.key for one in chosen if one.database == database]
            process = stack.enter_context(child(context(), f"{database} trials", send_cells, both, keys, finished))
            trying[process.connection] = process
        while trying:
            for connection in wait([*trying]):
                if isinstance(answer := trying[connection].receive(), Cell):
                    cells.record(answer)
                else:
                    cells.unavailable |= answer
                    del trying[connection]
            if this_run.stop.is_set():
                raise KeyboardInterrupt
    tried_here = [one for one in chosen if " ".join(one.key) not in cells.unavailable]
    this_run.metadata["what"] = f"{len(tried_here)} techniques, {len(CASES)} cases"


def send_cells(requests: Connection, both: Servers, keys: list[Key], finished: set[tuple[str, ...]]) -> None:
    """Try techniques with every case; send all cells but the finished ones, and then what is unavailable."""
    trials = Trials[Cell](requests.send, lambda cell: attrgetter(*IDENTITY)(cell) in finished)
    run_cells(both, [one for one in all_techniques() if one.key in keys], trials)
    requests.send(trials.unavailable)


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
    return technique.frame in case.shapes


@cache
def _fits(case: Case, kind: str) -> bool:
    """Return whether a kind of frame can hold the values of a case; Arrow holds all values."""
    return kind == "batches" or case.shapes is not PLAIN or difference_of(case, case.frame(kind)) is None


def run_cells(both: Servers, chosen: list[Technique], trials: Trials[Cell], *, cases: Sequence[Case] = CASES) -> None:
    """Try every technique with every case, and `hostile` cases in a hostile session too.

    Cells of an interrupted run are not tried again. Raises ServerError if a server is gone, and ValueError if a table
    does not hold the values of a case that it should be able to hold.
    """
    with quiet_drivers(), _quiet_panics():
        for database in sorted({technique.database for technique in chosen}):
            # Reads come first, because writes replace the tables.
            techniques = sorted((one for one in chosen if one.database == database), key=lambda one: one.direction)
            here = [case for case in cases if database in case.databases]
            with ExitStack() as stack:
                places = [*_places(stack, database, both.of(database), here, trials)]
                for technique in techniques:
                    asyncio.run(_try(technique, places, trials))


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


def _places(
    stack: ExitStack, database: Database, server: Server, cases: list[Case], trials: Trials[Cell]
) -> Iterator[Place]:
    """Yield the server, its hostile session and its database without encoding; closing the stack removes them."""

    def filled(server: Server, tables: Tables, cases: list[Case]) -> Place:
        """Fill tables for reads with code that no technique uses, and check their content."""
        stack.enter_context(tables.kept())
        for case in cases:
            if "read" in case.directions and database in case.held_by:
                tables.create(case.table)
                content = case.content()
                tables.load(case.table, content if case.about == "not text" else content.cast(case.table.arrow_schema))
                if wrong := difference_of(case, tables.content(case.table)):
                    raise ValueError(f"the table for {case.name!r} does not hold what was loaded: {wrong}")
        return DEFAULT, server, tables, cases

    # Only PostgreSQL validates text, except in a database without encoding.
    postgres, tables = server if isinstance(server, PostgresServer) else None, tables_of(server)
    not_text = [case for case in cases if postgres and case.about == "not text" and "read" in case.directions]
    ordinary = [case for case in cases if case not in not_text]
    for case in ordinary:
        stack.callback(tables.drop, case.table.name)
    yield filled(server, tables, ordinary)
    if server.process_id is None:
        trials.unavailable[f"{database}: other sessions"] = "roles and databases are created on embedded servers only"
        return
    if hostile := [case for case in ordinary if case.hostile]:
        yield HOSTILE, stack.enter_context(hostile_session(server)), tables, hostile
    if postgres and not_text:
        encodes_nothing = stack.enter_context(without_encoding(postgres))
        yield filled(encodes_nothing, tables_of(encodes_nothing), not_text)


def hostile_session(server: Server) -> AbstractContextManager[Server]:
    """Return an embedded server with another user, which may use framehaul's tables, and whose sessions are hostile."""
    if isinstance(server, ClickHouseServer):
        return nullcontext(replace(server, user=ROLE))  # embedded ClickHouse has this user in its configuration
    password, owner = secrets.token_urlsafe(24), quote_postgres(server.user)
    # A member of the role may alter, lock and truncate its tables. pg_parquet needs the other roles to use files.
    roles = f"{owner}, pg_read_server_files, pg_write_server_files"
    create = [f"CREATE ROLE {ROLE} LOGIN PASSWORD '{password}' IN ROLE {roles}"]
    for name, value in POSTGRES_SETTINGS.items():
        create.append(f"ALTER ROLE {ROLE} SET {name} = {quote_postgres_text(str(value))}")
    drop = f"IF to_regrole('{ROLE}') IS NOT NULL THEN DROP OWNED BY {ROLE}; DROP ROLE {ROLE}; END IF"
    return _made(server, create, f"DO $$ BEGIN {drop}; END $$", replace(server, user=ROLE, password=password))


def without_encoding(server: PostgresServer) -> AbstractContextManager[Server]:
    """Return a database of an embedded server that takes any bytes as text.

    https://www.postgresql.org/docs/18/multibyte.html
    """
    create = f"CREATE DATABASE {NO_ENCODING} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
    drop = f"DROP DATABASE IF EXISTS {NO_ENCODING} WITH (FORCE)"
    return _made(server, [create], drop, replace(server, database=NO_ENCODING))


@contextmanager
def _made(server: PostgresServer, create: list[str], drop: str, made: Server) -> Iterator[Server]:
    """Drop what a killed run has left, create it anew, yield the server with it, and drop it at the end."""
    tables = tables_of(server)
    for statement in (drop, *create):
        tables.run(statement)
    try:
        yield made
    finally:
        with contextlib.suppress(ServerError):  # when the server is gone
            tables.run(drop)


async def _try(technique: Technique, places: list[Place], trials: Trials[Cell]) -> None:
    """Try a technique with every case that an interrupted run has not recorded."""
    for session, reached, tables, cases in places:
        with relayed(reached, Relay) as (server, relay):
            caller = _Caller(technique, server, relay)
            try:
                for case in cases:
                    cell = Cell(**which(technique), case=case.name, session=session)
                    if not applies(technique, case) or trials.finished(cell):
                        continue
                    if technique.direction == "write" and not _fits(case, technique.frame):
                        continue
                    outcome, detail = await _outcome(caller, case, tables)
                    reason = why(technique, case.name, session, detail) if outcome == "loss" else ""
                    trials.record(replace(cell, outcome=outcome, detail=detail, why=reason))
            except UnavailableError as error:
                trials.unavailable[" ".join(technique.key)] = str(error)
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


async def _outcome(caller: "_Caller", case: Case, tables: Tables) -> tuple[Outcome, str]:
    """Return the outcome of a technique with a case: of the frame that was read, or of the content of the table."""
    technique = caller.technique
    if technique.direction == "read":
        few_bytes = [32] if technique.name == "stream_from_postgres" else []  # several record batches
        content, error = await caller.call(case.table, *few_bytes)
        if error is not None:
            tables.run("SELECT 1")  # raises ServerError if the server is gone
            return "error", error
        lost, drift = difference_of(case, content), dtype_drift(content, case.table)
        return ("loss", lost) if lost else ("exact", "" if drift == EXACT else f"dtypes {drift}")
    tables.create(case.table)
    if case.filled:
        tables.load(replace(case.table, columns=BEFORE), ROWS_BEFORE)
    _, error = await caller.call(case.table, case.frame(technique.frame))
    try:
        content = tables.content(case.full_table)
    except (psycopg.DataError, AnswerError) as unreadable:
        # PostgreSQL stores infinite dates and years before 1, and ClickHouse stores numbers that an enum does not have.
        return "loss", f"what is stored cannot be read back: {describe(unreadable)}"
    if error is not None:
        stored = len(content) - (len(ROWS_BEFORE) if case.filled else 0)
        return ("loss", f"{stored} rows are stored in spite of {error}") if stored else ("error", error)
    if case.filled and case.filled.name == NUMBER.name:  # rows are numbered as they arrive, not in the order of the key
        content = content.sort(KEY.name).with_columns(pl.col(NUMBER.name).sort())
    lost = difference_of(case, content) or case.unfit
    return ("loss", lost) if lost else ("exact", "")


@contextmanager
def _patience(relay: Relay | None) -> Iterator[threading.Event]:
    """End connections that are silent while the block lasts, and set the event that is yielded when that happens."""
    over, silent = threading.Event(), threading.Event()

    def watch(relay: Relay) -> None:
        before, times_quiet = -1, 0
        while times_quiet < LOOKS:
            # A client that uses the CPU does not hang: on a new machine it compiles loops for some seconds.
            now = relay.total_bytes + int(time.process_time() * 10 / PATIENCE_SECONDS)
            before, times_quiet = now, times_quiet + 1 if now == before else 0
            if over.wait(PATIENCE_SECONDS / LOOKS):
                return
        silent.set()
        relay.end_connections()

    if relay:
        threading.Thread(target=watch, args=[relay], daemon=True).start()
    try:
        yield silent
    finally:
        over.set()


@dataclass
class _Caller:
    """A technique and its client, which is replaced after an error."""

    technique: Technique
    server: Server
    relay: Relay | None
    _client: object = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def call(self, *arguments: object) -> tuple[Any, str | None]:
        """Return the technique's result, or its error as text; raises UnavailableError if it cannot run."""
        if self._client is None:
            try:
                self._client = await self._stack.enter_async_context(opened(self.technique, self.server))
            except Exception as error:
                if isinstance(error, UnavailableError):
                    raise
                return None, f"the client does not open: {describe(error)}"
        with _patience(self.relay) as silent:
            returned, raised = await attempted(self.technique, self._client, *arguments)
        if raised is not None or silent.is_set():  # a silent connection was ended even if the call succeeded
            await self.close()
        return returned, f"{SILENT}; ended, it says {raised}" if raised and silent.is_set() else raised

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
