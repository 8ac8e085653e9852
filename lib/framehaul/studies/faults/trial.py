"""Every technique with every fault, on servers that are there to be broken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.data.frames import to_pandas
from framehaul.data.schema import Table, quote_clickhouse_text, quote_postgres
from framehaul.errors import UnavailableError
from framehaul.harness import trials
from framehaul.harness.measure import attempted, called, describe, opened, quiet_drivers
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.relay import relayed
from framehaul.servers.tables import tables_of
from framehaul.studies.faults.breakable import (
    TABLE,
    TIMEOUT_SECONDS,
    BreakableServers,
    numbers,
    run_clickhouse,
    run_postgres,
)
from framehaul.studies.faults.wire import BreakingRelay
from framehaul.techniques import Technique

type Server = PostgresServer | ClickHouseServer
type Verdict = Literal["safe", "unaffected", "stored", "partial", "doubled", "silent"]

WHOLE, FAILING = TABLE.renamed("framehaul_faults_whole"), TABLE.renamed("framehaul_faults_failing")
SMALL = "framehaul_small"
"""A tablespace on a small file system."""
SLOW_SECONDS = 2.5
"""For all rows, where the target is to be slow: more than the time-out, less than ClickHouse's limit for one block."""
AS_SENT = "label = concat('row number ', id, ' of many') AND value = id / 8.0"
"""A row as `Frames` makes it."""
WAITING, PATIENT = 8, ("time-out", "connection cut", "answer lost, tried again")
ROWS = {"postgres": 6_000, "clickhouse": 200_000}
"""Rows of a trial: for ClickHouse, several of its blocks."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and what is done to make it so."""

    name: str
    direction: Literal["write", "read"]
    how: str


FAULTS = (
    Fault("source fails", "write", "a value of the frame, two thirds down, cannot be turned into text"),
    Fault("value refused", "write", "the target has a constraint that the last row breaks"),
    Fault("duplicate key", "write", "the last row has the key of the first"),
    Fault("time-out", "write", "the target is slow, and the server ends statements that take too long"),
    Fault("disk full", "write", "the target lies on a file system that has room for a part of the rows"),
    Fault("connection cut", "write", "the connection ends after nine tenths of the bytes"),
    Fault("server killed", "write", "the server is killed after nine tenths of the bytes, and started again"),
    Fault("answer lost, tried again", "write", "the server has everything, its answer is lost, it is written again"),
    Fault("query fails", "read", "the last row raises an error on the server"),
    Fault("connection cut", "read", "the connection ends after half of the bytes"),
    Fault("server killed", "read", "the server is killed when half of the bytes have gone out"),
)  # fmt: skip


STRIKES = {
    ("connection cut", "write"): (0.9, 0.7), ("server killed", "write"): (0.9,),
    ("answer lost, tried again", "write"): (0.99, 0.9, 0.7),
    ("connection cut", "read"): (0.5, 0.3), ("server killed", "read"): (0.5,),
}  # fmt: skip
"""Faults that happen after this share of the bytes; after the next, where a pass turns out to have fewer bytes."""


@dataclass(frozen=True)
class Cell(trials.Tried):
    """What one fault did on one path. The fields are the columns of `faults.csv`."""

    fault: str
    verdict: Verdict
    rows: str
    """Afterwards: `none`, `all`, `part`, `doubled` or `changed`; for a read, of the frame."""
    usable: str
    """Whether the same client could do its work afterwards: `yes` or `no`; empty when there was no error."""
    detail: str

    @property
    def headline(self) -> str:
        """The fault as well."""
        return f"{self.fault}: {self.technique}"


class SourceError(RuntimeError):
    """The source of the data failed."""


class Unreadable:
    """A value that fails when somebody wants to have it."""

    def __str__(self) -> str:
        raise SourceError("the source of the data failed")

    __repr__ = __str__


class Frames:
    """What is sent: rows with ascending ids, made once."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    @cached_property
    def content(self) -> pa.Table:
        """All rows, as Arrow."""
        ids = range(self.rows)
        arrays = [pa.array(ids, pa.int64()), pa.array([f"row number {at} of many" for at in ids]),
                  pa.array([at / 8 for at in ids], pa.float64())]  # fmt: skip
        return pa.Table.from_arrays(arrays, schema=TABLE.arrow_schema)

    def good(self, kind: str) -> pl.DataFrame | pd.DataFrame:
        """All rows."""
        return self._frame(self.content, kind)

    def duplicate(self, kind: str) -> pl.DataFrame | pd.DataFrame:
        """The last row has the first one's key."""
        content = pa.concat_tables([self.content.slice(0, self.rows - 1), self.content.slice(0, 1)])
        return self._frame(content.combine_chunks(), kind)

    def failing(self, kind: str) -> pl.DataFrame | pd.DataFrame:
        """Text as Python objects, one of which is unreadable."""
        texts: list[object] = self.content.column("label").to_pylist()
        texts[self.rows * 2 // 3] = Unreadable()
        frame = self._frame(self.content, kind)
        if isinstance(frame, pl.DataFrame):
            return frame.with_columns(pl.Series("label", texts, dtype=pl.Object))
        return frame.assign(label=pd.Series(texts, dtype=object))

    def _frame(self, content: pa.Table, kind: str) -> pl.DataFrame | pd.DataFrame:
        if kind == "pandas":
            return to_pandas(content, TABLE)
        frame = pl.from_arrow(content)
        assert isinstance(frame, pl.DataFrame)
        return frame


def run_cells(
    broken: BreakableServers,
    chosen: list[Technique],
    record: Callable[[Cell], None],
    unavailable: Callable[[Technique, str], None],
    stop: threading.Event,
    rows: dict[str, int] = ROWS,
    faults: tuple[Fault, ...] = FAULTS,
) -> None:
    """Try every technique with every fault of its direction; `unavailable` gets those that cannot run, and why."""
    fill_what_is_read(broken, rows)
    frames = {database: Frames(number) for database, number in rows.items()}
    ready = []
    for at, technique in enumerate(chosen):
        trial = Trial(broken, technique, TABLE.renamed(f"{TABLE.name}_{at}"), frames[technique.database], record)
        try:
            trial.measure_bytes()
        except UnavailableError as error:
            unavailable(technique, str(error))
        else:
            ready.append(trial)
    for fault in faults:
        affected = [trial for trial in ready if trial.technique.direction == fault.direction]
        if fault.name == "disk full" and broken.small_disk is None:
            continue
        with prepared(broken, fault), quiet_drivers():
            if fault.name == "server killed":
                kill_under(broken, affected, fault)
            else:
                run_trials(affected, fault, stop)


def run_trials(trials: list[Trial], fault: Fault, stop: threading.Event) -> None:
    """Let the fault happen to one technique after the other, on both servers at once: they do not meet."""
    over = threading.Event()

    def run(trial: Trial) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        if over.is_set():
            return
        try:
            trial.run(fault)
        except BaseException:
            over.set()
            raise

    # Where most of what happens is waiting, several may wait at once.
    workers = WAITING if fault.name in PATIENT else 1
    with ThreadPoolExecutor(workers) as postgres, ThreadPoolExecutor(workers) as clickhouse:
        pools = {"postgres": postgres, "clickhouse": clickhouse}
        running = [pools[trial.technique.database].submit(run, trial) for trial in trials]
    for future in running:
        future.result()


@contextlib.contextmanager
def prepared(broken: BreakableServers, fault: Fault) -> Iterator[None]:
    """The servers with what a fault needs of them."""
    if fault.name == "time-out":
        broken.start("clickhouse", max_execution_time=TIMEOUT_SECONDS)
        role = quote_postgres(broken.servers.postgres.user)
        run_postgres(
            broken.servers.postgres,
            "CREATE OR REPLACE FUNCTION framehaul_wait() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(600); RETURN NEW; END'",
            f"ALTER ROLE {role} SET statement_timeout = '{TIMEOUT_SECONDS}s'",
        )
        try:
            yield
        finally:
            run_postgres(broken.servers.postgres, f"ALTER ROLE {role} RESET statement_timeout")
            broken.start("clickhouse")
    elif fault.name == "disk full":
        assert broken.small_disk is not None
        tablespace = broken.small_disk / "postgres"
        broken.postgres_process.own(tablespace)
        run_postgres(broken.servers.postgres, f"CREATE TABLESPACE {SMALL} LOCATION '{tablespace}'")
        yield
        run_postgres(broken.servers.postgres, f"DROP TABLESPACE {SMALL}")
    else:
        yield


def kill_under(broken: BreakableServers, trials: list[Trial], fault: Fault) -> None:
    """Hold every transfer on its way, kill the servers, start them again, and see what became of each."""
    with ThreadPoolExecutor(max(1, len(trials))) as pool:
        running: list[Future[None]] = [pool.submit(trial.run, fault) for trial in trials]
        for trial, future in zip(trials, running, strict=True):
            while not trial.held.wait(0.05) and not future.done():
                pass  # it is on its way
        broken.kill("postgres", "clickhouse")
        broken.start("postgres", "clickhouse")
        for trial in trials:
            trial.server_is_back.set()
        for future in running:
            future.result()


class Trial:
    """One technique and what happens to it."""

    def __init__(
        self, broken: BreakableServers, technique: Technique, table: Table, frames: Frames,
        record: Callable[[Cell], None],
    ) -> None:  # fmt: skip
        self.technique = technique
        self.held = threading.Event()
        """Set when the transfer is held, for the server to be killed."""
        self.server_is_back = threading.Event()
        self._broken, self._table, self._frames, self._record = broken, table, frames, record
        self._another = table.renamed(f"{table.name}_another")
        self._client_bytes = self._server_bytes = 0

    def measure_bytes(self) -> None:
        """Make a pass without any fault, to know how many bytes there are. Raises what the technique raises."""
        with self._relayed() as (server, relay):
            asyncio.run(self._pass(server, relay, self._target(None)))

    def run(self, fault: Fault) -> None:
        """Let the fault happen, and record what became of it."""
        shares = STRIKES.get((fault.name, fault.direction), (0.0,))
        for share in shares:
            target = self._target(fault)
            with self._relayed() as (server, relay):
                verdict, rows, usable, detail = asyncio.run(self._outcome(server, relay, fault, target, share))
            if relay.struck or not share:
                break
        else:
            raise RuntimeError(f"{fault.name}: {self.technique.name} was over before it could happen")
        for table in (self._table, self._another):  # the small disk is for the next
            tables_of(self._server).drop(table)
        cell = Cell(
            **trials.of(self.technique), fault=fault.name, verdict=verdict, rows=rows, usable=usable, detail=detail
        )
        self._record(cell)

    async def _outcome(
        self, server: Server, relay: BreakingRelay, fault: Fault, target: Table, share: float
    ) -> tuple[Verdict, str, str, str]:
        """Verdict, rows, whether the client could be used afterwards, and what was said."""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(opened(self.technique, server))
            self._arm(relay, fault, share)
            returned, error = await self._try(client, target, fault)
            if fault.name == "server killed":
                self.held.set()  # or it was over before
                self.server_is_back.wait()
            relay.mend()
            said = error or ""
            if fault.name.startswith("answer lost"):
                said = f"{error or 'no error'}; then: {await self._error_of_another(target) or 'no error'}"
            usable = ""
            if error is not None:  # on another table: a client may still hold locks on this one
                _, still_wrong = await self._try(client, self._target(None, self._another), None)
                usable = "no" if still_wrong else "yes"
            with contextlib.suppress(Exception):  # closing what is broken says nothing new
                await stack.aclose()
        if self.technique.direction == "write":
            rows = self._stored()
        else:
            rows = "none" if returned is None else "all" if len(returned) == self._frames.rows else "part"
        return verdict_of(fault, rows, told=error is not None), rows, usable, said

    def _arm(self, relay: BreakingRelay, fault: Fault, share: float) -> None:
        write = fault.direction == "write"
        late = int(share * (self._client_bytes if write else self._server_bytes))
        match fault.name:
            case "connection cut":
                relay.strike("cut", late, in_client_bytes=write)
            case "server killed":
                relay.hold(late, in_client_bytes=write, held=self.held, until=self.server_is_back)
            case "answer lost, tried again":
                relay.strike("swallow", late, in_client_bytes=True)  # what follows still gets through to the server

    async def _try(self, client: object, target: Table, fault: Fault | None) -> tuple[Any, str | None]:
        """What the technique returned, or what it raised."""
        return await attempted(self.technique, client, target, *self._arguments(fault))

    async def _pass(self, server: Server, relay: BreakingRelay, target: Table) -> None:
        async with opened(self.technique, server) as client:
            relay.count()
            await called(self.technique, client, target, *self._arguments(None))
            self._client_bytes, self._server_bytes = relay.from_client_bytes, relay.from_server_bytes

    async def _error_of_another(self, target: Table) -> str | None:
        """What is raised when another client does the same."""
        try:
            async with opened(self.technique, self._server) as client:
                await called(self.technique, client, target, *self._arguments(None))
        except Exception as error:  # noqa: BLE001  whatever a path raises is what this is about
            return describe(error)
        return None

    def _arguments(self, fault: Fault | None) -> list[Any]:
        if self.technique.direction == "read":
            return []
        make = {"source fails": self._frames.failing, "duplicate key": self._frames.duplicate}
        return [make.get(fault.name if fault else "", self._frames.good)(self.technique.frame)]

    @contextlib.contextmanager
    def _relayed(self) -> Iterator[tuple[Server, BreakingRelay]]:
        with relayed(self._server, BreakingRelay) as (server, relay):
            assert relay is not None  # the servers are ours: no encryption, no Unix socket
            yield server, relay

    @property
    def _server(self) -> Server:
        return self._broken.servers.of(self.technique.database)

    def _target(self, fault: Fault | None, table: Table | None = None) -> Table:
        """What is read, or the table that is written, made anew with what is wrong with it."""
        table = table or self._table
        if self.technique.direction == "read":
            return FAILING if fault and fault.name == "query fails" else WHOLE
        server, name = self._server, fault.name if fault else ""
        if isinstance(server, PostgresServer):
            make_postgres_table(server, table, name, self._frames.rows)
        else:
            make_clickhouse_table(server, table, name, self._frames.rows, self._broken.small_disk)
        return table

    def _stored(self) -> str:
        """Which rows there are: none, all, part; doubled where an id is there twice, changed where one differs."""
        name = self._table.postgres_name  # ClickHouse knows these quotes as well
        query = f"SELECT count(*), count(DISTINCT id), count(CASE WHEN {AS_SENT} THEN 1 END) FROM {name}"
        rows, ids, right = numbers(self._server, query)
        if rows > ids:
            return "doubled"
        if right < rows:
            return "changed"
        return "none" if not rows else "all" if rows == self._frames.rows else "part"


def verdict_of(fault: Fault, rows: str, *, told: bool) -> Verdict:
    """What it comes to, for who only knows whether there was an error."""
    if fault.direction == "read":
        return "safe" if told else "unaffected" if rows == "all" else "silent"
    if fault.name.startswith("answer lost"):  # what counts is what there is after the second time
        return {"all": "safe", "doubled": "doubled", "part": "partial"}.get(rows, "silent")  # type: ignore[return-value]
    if told:
        return {"none": "safe", "all": "stored", "doubled": "doubled"}.get(rows, "partial")  # type: ignore[return-value]
    return {"all": "unaffected", "doubled": "doubled"}.get(rows, "silent")  # type: ignore[return-value]


def make_postgres_table(server: PostgresServer, table: Table, fault: str, rows: int) -> None:
    """The table with what a fault needs."""
    tables_of(server).create(table)
    name = table.postgres_name
    match fault:
        case "value refused":
            run_postgres(server, f"ALTER TABLE {name} ADD CONSTRAINT refused CHECK (id <> {rows - 1})")
        case "time-out":
            run_postgres(
                server,
                f"CREATE TRIGGER slow BEFORE INSERT ON {name} FOR EACH ROW WHEN (NEW.id = {rows // 2}) "
                "EXECUTE FUNCTION framehaul_wait()",
            )
        case "disk full":
            key = quote_postgres(f"{table.name}_pkey")
            run_postgres(
                server, f"ALTER TABLE {name} SET TABLESPACE {SMALL}", f"ALTER INDEX {key} SET TABLESPACE {SMALL}"
            )


def make_clickhouse_table(server: ClickHouseServer, table: Table, fault: str, rows: int, disk: Path | None) -> None:
    """The table with what a fault needs."""
    tables_of(server).create(table)
    name = table.clickhouse_name
    match fault:
        case "value refused":
            run_clickhouse(server, f"ALTER TABLE {name} ADD CONSTRAINT refused CHECK id != {rows - 1}")
        case "time-out":
            run_clickhouse(
                server, f"ALTER TABLE {name} ADD CONSTRAINT slow CHECK sleepEachRow({SLOW_SECONDS / rows:.9f}) = 0"
            )
        case "disk full":
            assert disk is not None
            path = quote_clickhouse_text(f"{disk}/clickhouse/")
            ddl = table.clickhouse_ddl.replace(
                "\nCOMMENT", f"\nSETTINGS disk = disk(type = local, path = {path})\nCOMMENT"
            )
            tables_of(server).drop(table)
            run_clickhouse(server, ddl)


def fill_what_is_read(broken: BreakableServers, rows: dict[str, int]) -> None:
    """The table that readers read, and a view of it that raises an error in its last row."""
    run_postgres(broken.servers.postgres, f"DROP VIEW IF EXISTS {FAILING.postgres_name}")
    run_clickhouse(broken.servers.clickhouse, f"DROP VIEW IF EXISTS {FAILING.clickhouse_name} SYNC")
    for database, server in (("postgres", broken.servers.postgres), ("clickhouse", broken.servers.clickhouse)):
        tables = tables_of(server)
        tables.create(WHOLE)
        tables.load(WHOLE, Frames(rows[database]).content)
    columns, last = ", ".join(TABLE.column_names), rows["postgres"] - 1
    run_postgres(
        broken.servers.postgres,
        f"CREATE VIEW {FAILING.postgres_name} AS SELECT {columns} FROM {WHOLE.postgres_name} "
        f"WHERE 1 / ({last} - id) >= 0",
    )
    last = rows["clickhouse"] - 1
    run_clickhouse(
        broken.servers.clickhouse,
        f"CREATE VIEW {FAILING.clickhouse_name} AS SELECT {columns} FROM {WHOLE.clickhouse_name} "
        f"WHERE throwIf(id = {last}) = 0",
    )
