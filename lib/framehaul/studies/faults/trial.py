"""Every technique with every fault, on servers that are there to be broken."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench.measure import attempted, called, opened, quiet_drivers
from framehaul.bench.recording import which
from framehaul.bench.trials import Trials, Tried
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import Table, quote_postgres
from framehaul.errors import UnavailableError
from framehaul.servers import Server
from framehaul.servers.relay import relayed
from framehaul.servers.tables import tables_of
from framehaul.studies.faults.breakable import (
    BLOCK_ROWS,
    BOTH,
    TABLE,
    TIMEOUT_SECONDS,
    BreakableServers,
    numbers,
    run_on,
)
from framehaul.studies.faults.wire import Break, BreakingRelay
from framehaul.techniques import Technique
from framehaul.techniques.registry import Direction

type Sent = Literal["good", "failing", "duplicate"]
type Verdict = Literal["safe", "unaffected", "stored", "partial", "doubled", "silent"]

WHOLE, FAILING = TABLE.renamed("framehaul_faults_whole"), TABLE.renamed("framehaul_faults_failing")
FAILS_IN_LAST_ROW = {"postgres": "1 / ({last} - id) >= 0", "clickhouse": "throwIf(id = {last}) = 0"}
"""A condition that holds for every row but the last, where it raises an error."""
SLOW_SECONDS = 2.5
"""For all rows, where the target is to be slow: more than the time-out, less than ClickHouse's limit for one block."""
AS_SENT = "label = concat('row number ', id, ' of many') AND value = id / 8.0"
"""A row as `content` makes it."""
WAITING = 8
"""How many may wait at once."""
BATCH_ROWS = 1_000
"""Of a record batch, where those are sent."""
ROWS = {"postgres": 6_000, "clickhouse": 200_000}
"""Rows of a trial: for ClickHouse, several of its blocks, and of the batches of any client: half as many look safe."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong, and what is done to make it so."""

    name: str
    direction: Direction
    how: str
    sends: Sent = "good"
    """What is written: see `sent`."""
    postgres: str = ""
    clickhouse: str = ""
    """What is done to the target: a statement about `{table}`, and the `{last}` or `{middle}` id."""
    strikes: Break | None = None
    """What happens to the connection,"""
    after: tuple[float, ...] = (0.0,)
    """after this share of the bytes; after the next, where a pass turns out to have fewer bytes."""
    idles: bool = False
    """Whether the connection is used, reset while it is idle, and used again."""
    waits: bool = False
    """Most of what happens is waiting."""


NO_FAULT = Fault("", "write", "")
IDLE_RESET = "between two transfers the connection is idle, and a load balancer resets it"
FAULTS = (
    Fault("source fails", "write", sends="failing",
          how="a value of the frame, two thirds down, cannot be turned into text; or the batch there does not come"),
    Fault("value refused", "write", "the target has a constraint that the last row breaks",
          postgres="ALTER TABLE {table} ADD CONSTRAINT refused CHECK (id <> {last})",
          clickhouse="ALTER TABLE {table} ADD CONSTRAINT refused CHECK id != {last}"),
    Fault("duplicate key", "write", "the last row has the key of the first", sends="duplicate"),
    Fault("time-out", "write", "the target is slow, and the server ends statements that take too long", waits=True,
          postgres="CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.id = {middle}) "
                   "EXECUTE FUNCTION framehaul_wait()",
          clickhouse="ALTER TABLE {table} ADD CONSTRAINT slow CHECK sleepEachRow({seconds:.9f}) = 0"),
    Fault("connection cut", "write", "the connection ends after nine tenths of the bytes",
          strikes="cut", after=(0.9, 0.7), waits=True),
    Fault("server killed", "write", "the server is killed after nine tenths of the bytes, and started again",
          strikes="hold", after=(0.9,)),
    # What follows the strike still gets through to the server.
    Fault("answer lost, tried again", "write",
          "the server has everything, its answer is lost, it is written again",
          strikes="swallow", after=(0.99, 0.9, 0.7), waits=True),
    Fault("idle, then reset", "write", IDLE_RESET, idles=True, waits=True),
    Fault("query fails", "read", "the last row raises an error on the server"),
    Fault("connection cut", "read", "the connection ends after half of the bytes",
          strikes="cut", after=(0.5, 0.3), waits=True),
    Fault("server killed", "read", "the server is killed when half of the bytes have gone out",
          strikes="hold", after=(0.5,)),
    Fault("idle, then reset", "read", IDLE_RESET, idles=True, waits=True),
)  # fmt: skip


@dataclass(frozen=True)
class Cell(Tried):
    """What one fault did on one path, all empty before it was tried. The fields are the columns of `faults.csv`."""

    fault: str
    verdict: Verdict | Literal[""] = ""
    rows: str = ""
    """Afterwards: `none`, `all`, `part`, `doubled` or `changed`; for a read, of the frame."""
    detail: str = ""

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


@cache
def content(rows: int) -> pa.Table:
    """So many rows with ascending ids, as Arrow."""
    ids = range(rows)
    arrays = [pa.array(ids, pa.int64()), pa.array([f"row number {at} of many" for at in ids]),
              pa.array([at / 8 for at in ids], pa.float64())]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=TABLE.arrow_schema)


def sent(rows: int, kind: str, what: Sent) -> pl.DataFrame | pd.DataFrame | Iterable[pa.RecordBatch]:
    """A frame of `good` rows, one whose last row has the key of the first, or one that fails two thirds down.

    It fails in a text that is a Python object, and unreadable; of batches with one that does not come.
    """
    table, fails_at = content(rows), rows * 2 // 3
    if what == "duplicate":
        table = pa.concat_tables([table.slice(0, rows - 1), table.slice(0, 1)]).combine_chunks()
    if kind == "batches":
        batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=BATCH_ROWS)
        return _failing(batches[: fails_at // BATCH_ROWS]) if what == "failing" else batches
    texts: list[object] = table.column("label").to_pylist()
    texts[fails_at] = Unreadable()
    if kind == "pandas":
        rows_of_pandas = to_pandas(table, TABLE)
        failing = {"label": pd.Series(texts, dtype=object)} if what == "failing" else {}
        return rows_of_pandas.assign(**failing)
    failing_texts = [pl.Series("label", texts, dtype=pl.Object)] if what == "failing" else []
    return to_polars(table, TABLE).with_columns(failing_texts)


def _failing(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise SourceError("the source of the data failed")


def run_cells(
    broken: BreakableServers, chosen: list[Technique], trials: Trials[Cell], stop: threading.Event,
    rows: dict[str, int] = ROWS, faults: tuple[Fault, ...] = FAULTS,
) -> None:  # fmt: skip
    """Try every technique with every fault of its direction; what an interrupted run has left is not tried again."""
    fill_what_is_read(broken, rows)
    paths = []
    for at, technique in enumerate(chosen):
        path = Path(broken, technique, TABLE.renamed(f"{TABLE.name}_{at}"), rows[technique.database], trials)
        try:
            path.measure_bytes()
        except UnavailableError as error:
            trials.skip(technique, str(error))
        else:
            paths.append(path)
    for fault in faults:
        if affected := [path for path in paths if path.is_left(fault)]:
            with prepared(broken, fault), quiet_drivers():
                if fault.strikes == "hold":
                    kill_under(broken, affected, fault)
                else:
                    strike_each(affected, fault, stop)


def strike_each(paths: list[Path], fault: Fault, stop: threading.Event) -> None:
    """Let the fault happen to one technique after the other on each server, to several where all of them wait."""
    of_servers = [[path for path in paths if path.technique.database == database] for database in BOTH]
    lines = [[path] for path in paths] if fault.waits else of_servers

    def run(line: list[Path]) -> None:
        for path in line:
            if stop.is_set():
                raise KeyboardInterrupt
            path.meet(fault)

    with ThreadPoolExecutor(WAITING) as pool:
        done, left = wait([pool.submit(run, line) for line in lines], return_when=FIRST_EXCEPTION)
        for future in left:
            future.cancel()  # where one has failed
    for future in done:
        future.result()


@contextlib.contextmanager
def prepared(broken: BreakableServers, fault: Fault) -> Iterator[None]:
    """The servers with what a fault needs of them."""
    if fault.name != "time-out":
        yield
        return
    postgres, role = broken.servers.postgres, quote_postgres(broken.servers.postgres.user)
    broken.start("clickhouse", max_execution_time=TIMEOUT_SECONDS)
    run_on(
        postgres,
        "CREATE OR REPLACE FUNCTION framehaul_wait() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN PERFORM pg_sleep(600); RETURN NEW; END'",
        f"ALTER ROLE {role} SET statement_timeout = '{TIMEOUT_SECONDS}s'",
    )
    try:
        yield
    finally:
        run_on(postgres, f"ALTER ROLE {role} RESET statement_timeout")
        broken.start("clickhouse")


def kill_under(broken: BreakableServers, paths: list[Path], fault: Fault) -> None:
    """Hold every transfer on its way, kill the servers, start them again, and see what became of each."""
    with ThreadPoolExecutor(len(paths)) as pool:
        running = [pool.submit(path.meet, fault) for path in paths]
        for path, future in zip(paths, running, strict=True):
            while not path.held.wait(0.05) and not future.done():
                pass  # it is on its way
        try:
            broken.kill("postgres", "clickhouse")
            broken.start("postgres", "clickhouse")
        finally:  # else they would wait for ever, and whoever waits for them would not hear why
            for path in paths:
                path.server_is_back.set()
        for future in running:
            future.result()


class Path:
    """One technique, its table, and what happens to it."""

    def __init__(
        self, broken: BreakableServers, technique: Technique, table: Table, rows: int, trials: Trials[Cell]
    ) -> None:
        self.technique = technique
        self.held = threading.Event()
        """Set when the transfer is held, for the server to be killed."""
        self.server_is_back = threading.Event()
        self._broken, self._table, self._rows, self._trials = broken, table, rows, trials
        self._another = table.renamed(f"{table.name}_another")
        self._client_bytes = self._server_bytes = 0

    def is_left(self, fault: Fault) -> bool:
        """Whether there is something to try that was not tried yet."""
        return self.technique.direction == fault.direction and not self._trials.finished(self._cell(fault))

    def _cell(self, fault: Fault) -> Cell:
        return Cell(**which(self.technique), fault=fault.name)

    def measure_bytes(self) -> None:
        """Make a pass without any fault, to know how many bytes there are. Raises what the technique raises."""
        with self._relayed() as (server, relay):
            asyncio.run(self._pass(server, relay))
            self._client_bytes, self._server_bytes = relay.from_client_bytes, relay.from_server_bytes

    async def _pass(self, server: Server, relay: BreakingRelay) -> None:
        target = self._target(NO_FAULT)
        async with opened(self.technique, server) as client:
            relay.count()
            await called(self.technique, client, target, *self._sent(NO_FAULT))

    def meet(self, fault: Fault) -> None:
        """Let the fault happen, and record what became of it."""
        for share in fault.after:
            target = self._target(fault)
            with self._relayed() as (server, relay):
                cell = asyncio.run(self._outcome(server, relay, fault, target, share))
            if relay.struck or not (fault.strikes or fault.idles):
                break
        else:
            raise RuntimeError(f"{fault.name}: {self.technique.name} was over before it could happen")
        for table in (self._table, self._another):
            tables_of(self._server).drop(table)
        self._trials.record(cell)

    async def _outcome(self, server: Server, relay: BreakingRelay, fault: Fault, target: Table, share: float) -> Cell:
        said = ""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(opened(self.technique, server))
            if fault.idles:
                await called(self.technique, client, self._target(NO_FAULT, self._another), *self._sent(NO_FAULT))
                await asyncio.to_thread(relay.reset)
            self._arm(relay, fault, share)
            before = relay.connections
            returned, error = await attempted(self.technique, client, target, *self._sent(fault))
            if fault.idles and (more := relay.connections - before):
                said = f"{more} new connection{'s' if more > 1 else ''}: "
            if fault.strikes == "hold":
                self.held.set()  # or it was over before
                self.server_is_back.wait()
            relay.mend()
            detail = f"{said}{error or ('no error' if said else '')}"
            if fault.strikes == "swallow":  # another client does the same
                async with opened(self.technique, self._server) as another:
                    _, again = await attempted(self.technique, another, target, *self._sent(NO_FAULT))
                detail = f"{error or 'no error'}; then: {again or 'no error'}"
            with contextlib.suppress(Exception):  # closing what is broken says nothing new
                await stack.aclose()
        if self.technique.direction == "write":
            rows = self._stored()
        else:
            rows = "none" if returned is None else "all" if len(returned) == self._rows else "part"
        return replace(
            self._cell(fault), rows=rows, detail=detail, verdict=verdict_of(fault, rows, reported=error is not None)
        )

    def _arm(self, relay: BreakingRelay, fault: Fault, share: float) -> None:
        write = fault.direction == "write"
        after = int(share * (self._client_bytes if write else self._server_bytes))
        if fault.strikes == "hold":
            relay.hold(after, in_client_bytes=write, held=self.held, until=self.server_is_back)
        elif fault.strikes:
            relay.strike(fault.strikes, after, in_client_bytes=write)

    def _sent(self, fault: Fault) -> list[Any]:
        """What is written, if anything is; of batches as many rows together as ClickHouse has in a block here."""
        if self.technique.direction == "read":
            return []
        frame = sent(self._rows, self.technique.frame, fault.sends)
        return [frame, BLOCK_ROWS] if self.technique.frame == "batches" else [frame]

    @contextlib.contextmanager
    def _relayed(self) -> Iterator[tuple[Server, BreakingRelay]]:
        with relayed(self._server, BreakingRelay) as (server, relay):
            assert relay is not None  # the servers are ours: no encryption, no Unix socket
            yield server, relay

    @property
    def _server(self) -> Server:
        return self._broken.servers.of(self.technique.database)

    def _target(self, fault: Fault, table: Table | None = None) -> Table:
        """What is read, or the table that is written, made anew with what is wrong with it."""
        if self.technique.direction == "read":
            return FAILING if fault.name == "query fails" else WHOLE
        table, rows = table or self._table, self._rows
        tables_of(self._server).create(table)
        if change := fault.postgres if self.technique.database == "postgres" else fault.clickhouse:
            name = table.postgres_name  # ClickHouse knows these quotes as well
            run_on(
                self._server,
                change.format(table=name, last=rows - 1, middle=rows // 2, seconds=SLOW_SECONDS / rows),
            )
        return table

    def _stored(self) -> str:
        """Which rows there are: none, all, part; doubled where an id is there twice, changed where one differs."""
        name = self._table.postgres_name
        query = f"SELECT count(*), count(DISTINCT id), count(CASE WHEN {AS_SENT} THEN 1 END) FROM {name}"
        rows, ids, right = numbers(self._server, query)
        if rows > ids:
            return "doubled"
        if right < rows:
            return "changed"
        return "none" if not rows else "all" if rows == self._rows else "part"


def verdict_of(fault: Fault, rows: str, *, reported: bool) -> Verdict:
    """What it comes to, for who only knows whether there was an error, or nothing."""
    if fault.direction == "read":
        return "safe" if reported else "unaffected" if rows == "all" else "silent"
    verdicts: dict[str, Verdict] = {"all": "unaffected", "doubled": "doubled"}
    otherwise: Verdict = "silent"
    if fault.strikes == "swallow":  # what counts is what there is after the second time
        verdicts = {"all": "safe", "doubled": "doubled", "part": "partial"}
    elif reported:
        verdicts, otherwise = {"none": "safe", "all": "stored", "doubled": "doubled"}, "partial"
    return verdicts.get(rows, otherwise)


def fill_what_is_read(broken: BreakableServers, rows: dict[str, int]) -> None:
    """The table that readers read, and a view of it that raises an error in its last row."""
    for database in BOTH:
        server = broken.servers.of(database)
        run_on(server, f"DROP VIEW IF EXISTS {FAILING.postgres_name}")
        tables = tables_of(server)
        tables.create(WHOLE)
        tables.load(WHOLE, content(rows[database]))
        columns, condition = ", ".join(TABLE.column_names), FAILS_IN_LAST_ROW[database].format(last=rows[database] - 1)
        run_on(
            server,
            f"CREATE VIEW {FAILING.postgres_name} AS SELECT {columns} FROM {WHOLE.postgres_name} WHERE {condition}",
        )
