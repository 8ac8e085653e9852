"""Run the faults study: every technique with every fault, a crash of both servers, and a sustained load."""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench import store
from framehaul.bench.environment import server_versions
from framehaul.bench.measure import attempted, called, opened, quiet_drivers
from framehaul.bench.recording import Recording, recorded, which
from framehaul.bench.trials import Trials, Tried, chosen_techniques, in_order, trials_of
from framehaul.codecs.compiled import start_numba
from framehaul.data.frames import from_polars, to_pandas, to_polars
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers import Server
from framehaul.servers.relay import relayed
from framehaul.servers.tables import tables_of
from framehaul.settings import load_settings
from framehaul.studies.faults.breakable import BLOCK_ROWS, TABLE, BreakableServers, breakable, frame_of, hold_load
from framehaul.studies.faults.wire import Break, BreakingRelay
from framehaul.studies.registry import FAULTS_STUDY
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES, Direction

type Verdict = Literal["safe", "unaffected", "stored", "partial", "doubled", "silent"]

WHOLE, FAILING = TABLE.renamed("framehaul_faults_whole"), TABLE.renamed("framehaul_faults_failing")
FAILS_IN_LAST_ROW = {"postgres": "1 / ({last} - id) >= 0", "clickhouse": "throwIf(id = {last}) = 0"}
"""A condition that is true for every row but the last, where it raises an error."""
TIMEOUT_SECONDS = 2
SLOW = {"postgres": "id <> {rows} / 2 OR pg_sleep(600) IS NULL", "clickhouse": "sleepEachRow(2.5 / {rows}) = 0"}
"""A condition that takes longer than the time-out for all rows, and in ClickHouse less than the limit for a block."""
AS_SENT = "label = concat('row number ', id, ' of many') AND value = id / 8.0"
"""A condition that is true for the rows of `frame_of`."""
BATCH_ROWS = 1_000
ROWS = {"postgres": 6_000, "clickhouse": 200_000}
"""Rows of a trial: several ClickHouse blocks and several batches of any client. Half as many hide partial writes."""


@dataclass(frozen=True)
class Fault:
    """A fault and its cause."""

    name: str
    direction: Direction
    how: str
    constraint: str = ""
    """A condition that the table imposes on rows, with the `{last}` id, or `{slow}` for one that takes long."""
    strikes: Break | Literal["reset"] | None = None
    """The way in which the relay breaks the connection, which it resets while it is idle between two transfers."""
    after: tuple[float, ...] = (0.0,)
    """The share of the bytes after which the connection breaks, and smaller shares for passes with fewer bytes."""
    retries: bool = False
    """True if another client tries the write again."""


NO_FAULT = Fault("", "write", "")
IDLE_RESET = "the connection is reset while it is idle between two transfers, as load balancers do"
FAULTS = (
    Fault("source fails", "write",
          "a value two thirds down cannot be converted to text, or a record batch there raises an error"),
    Fault("value refused", "write", "the last row violates a constraint of the table",
          constraint="id <> {last}"),
    Fault("duplicate key", "write", "the last row has the key of the first"),
    Fault("time-out", "write", "the table is slow, and the server ends statements that run too long",
          constraint="{slow}"),
    Fault("connection cut", "write", "the connection ends after nine tenths of the bytes",
          strikes="cut", after=(0.9, 0.7)),
    Fault("server killed", "write", "the server is killed after nine tenths of the bytes, and started again",
          strikes="hold", after=(0.9,)),
    Fault("cut early, tried again", "write",
          "the connection ends after a tenth of the bytes, and another client retries",
          strikes="cut", after=(0.1,), retries=True),
    Fault("cut late, tried again", "write",
          "the connection ends after nine tenths of the bytes, and another client retries",
          strikes="cut", after=(0.9, 0.7), retries=True),
    # Bytes after the strike still reach the server.
    Fault("answer lost, tried again", "write",
          "the server gets all rows, its answer is lost, and another client retries",
          strikes="swallow", after=(0.99, 0.9, 0.7), retries=True),
    Fault("idle, then reset", "write", IDLE_RESET, strikes="reset"),
    Fault("query fails", "read", "the last row raises an error on the server"),
    Fault("connection cut", "read", "the connection ends after half of the bytes", strikes="cut", after=(0.5, 0.3)),
    Fault("server killed", "read", "the server is killed after half of the bytes", strikes="hold", after=(0.5,)),
    Fault("idle, then reset", "read", IDLE_RESET, strikes="reset"),
)  # fmt: skip


@dataclass(frozen=True)
class Cell(Tried):
    """The outcome of a fault for a technique; its fields are the columns of `faults.csv`."""

    fault: str
    verdict: Verdict | Literal[""] = ""
    rows: str = ""
    """The rows afterwards, in the table or in the frame: `none`, `all`, `part`, `doubled` or `changed`."""
    detail: str = ""


@recorded(FAULTS_STUDY, Cell, in_order)
def run(this_run: Recording, *, hold: int, tried: str = "all") -> None:
    """Try every fault with the techniques that `chosen_techniques` returns for `tried`, then load servers for `hold` s.

    The servers are always separate embedded ones, because they are killed. Raises ServerError if servers cannot be
    started, and the errors of `recorded`.
    """
    chosen = chosen_techniques(tried)
    broken = this_run.entered(breakable(this_run.settings.postgres_extensions))
    this_run.expect(sum(fault.direction == technique.direction for fault in FAULTS for technique in chosen))
    run_cells(broken, chosen, trials_of(this_run), this_run.stop)
    this_run.metadata["recovery"] = broken.survives_a_crash()
    with ThreadPoolExecutor(len(DATABASES)) as pool:
        loads = pool.map(lambda database: hold_load(broken, database, hold, this_run.stop), DATABASES)
        this_run.metadata["held"] = list(loads)
    this_run.metadata |= {"servers": "embedded", "server": server_versions(broken.servers)}
    this_run.metadata["what"] = f"{len(chosen)} techniques, {len(FAULTS)} faults"


def load_results() -> pl.DataFrame:
    """Return the results of the load and of the crash in the last run, one row per database.

    `lost_in_crash` counts rows that were acknowledged before both servers were killed and not restored by recovery.
    """
    metadata = store.read_metadata(load_settings().out / "results")["runs"][FAULTS_STUDY.notebook]
    lost = {database: before - after for database, (before, after) in metadata["recovery"].items()}
    return pl.DataFrame(metadata["held"]).with_columns(lost_in_crash=pl.col("database").replace_strict(lost))


class SourceError(RuntimeError):
    """The source of the data failed."""


class Unreadable:
    """A value that raises an error when it is converted to text."""

    def __str__(self) -> str:
        raise SourceError("the source of the data failed")

    __repr__ = __str__


@cache
def content(rows: int) -> pa.Table:
    """Return an Arrow table of rows with ascending ids."""
    return from_polars(frame_of(0, rows), TABLE).cast(TABLE.arrow_schema)


def sent(rows: int, kind: str, fault: str) -> pl.DataFrame | pd.DataFrame | Iterable[pa.RecordBatch]:
    """Return a frame of good rows, a frame whose last row has the key of the first, or a frame that fails midway.

    A failing frame has an unreadable Python object among its texts; failing record batches end with an exception.
    """
    table, fails_at = content(rows), rows * 2 // 3
    if fault == "duplicate key":
        table = pa.concat_tables([table.slice(0, rows - 1), table.slice(0, 1)]).combine_chunks()
    if kind == "batches":
        batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=BATCH_ROWS)
        return _failing(batches[: fails_at // BATCH_ROWS]) if fault == "source fails" else batches
    frame: pl.DataFrame | pd.DataFrame = to_pandas(table, TABLE) if kind == "pandas" else to_polars(table, TABLE)
    if fault != "source fails":
        return frame
    texts: list[object] = table.column("label").to_pylist()
    texts[fails_at] = Unreadable()
    if isinstance(frame, pd.DataFrame):
        return frame.assign(label=pd.Series(texts, dtype=object))
    return frame.with_columns(pl.Series("label", texts, dtype=pl.Object))


def _failing(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise SourceError("the source of the data failed")


def run_cells(
    broken: BreakableServers, chosen: list[Technique], trials: Trials[Cell], stop: threading.Event,
    rows: dict[str, int] = ROWS, faults: tuple[Fault, ...] = FAULTS,
) -> None:  # fmt: skip
    """Try every technique with every fault of its direction, except cells that an interrupted run has recorded."""
    start_numba()  # before bytes are counted: framehaul.write and .read send others until compiled loops have started
    view = f"VIEW {FAILING.postgres_name} AS SELECT {TABLE.postgres_columns} FROM {WHOLE.postgres_name} WHERE "
    for database in DATABASES:
        broken.run(database, f"DROP VIEW IF EXISTS {FAILING.postgres_name}")
        tables = tables_of(broken.servers.of(database))
        tables.make(WHOLE, content(rows[database]))
        broken.run(database, f"CREATE {view}" + FAILS_IN_LAST_ROW[database].format(last=rows[database] - 1))
    subjects = []
    for at, technique in enumerate(chosen):
        subject = Subject(broken, technique, TABLE.renamed(f"{TABLE.name}_{at}"), rows[technique.database], trials)
        try:
            subject.measure_bytes()
            subjects.append(subject)
        except UnavailableError as error:
            trials.unavailable[" ".join(technique.key)] = str(error)
    for fault in faults:
        affected = []
        for subject in subjects:
            cell = Cell(**which(subject.technique), fault=fault.name)
            if fault.direction == cell.direction and not trials.finished(cell):
                affected.append(subject)
        if affected:
            if fault.name == "time-out":
                broken.start(TIMEOUT_SECONDS)
            with quiet_drivers():
                strike(broken, affected, fault, stop)
            if fault.name == "time-out":
                broken.start()


def strike(broken: BreakableServers, subjects: "list[Subject]", fault: Fault, stop: threading.Event) -> None:
    """Try the fault with several techniques at once, because trials mostly wait, and record the outcomes.

    To kill the servers, every transfer is held midway.
    """
    crash = fault.strikes == "hold"
    with ThreadPoolExecutor(len(subjects) if crash else 8) as pool:
        running = [pool.submit(subject.suffer, fault, stop) for subject in subjects]
        if crash:
            for subject, future in zip(subjects, running, strict=True):
                while not subject.held.wait(0.05) and not future.done():
                    pass
            try:
                broken.crash()
            finally:  # also if a server does not start: waiting threads would hide its error
                for subject in subjects:
                    subject.server_is_back.set()
        for future in running:
            future.result()


@dataclass
class Subject:
    """A technique and the table with which faults are tried."""

    broken: BreakableServers
    technique: Technique
    table: Table
    rows: int
    trials: Trials[Cell]
    held: threading.Event = field(default_factory=threading.Event)
    """Set when the transfer is held and the server can be killed."""
    server_is_back: threading.Event = field(default_factory=threading.Event)
    bytes: int = 0
    """The bytes of a transfer in its direction."""

    @property
    def writes(self) -> bool:
        """Whether the technique writes; the bytes from the client are then those of the transfer."""
        return self.technique.direction == "write"

    @property
    def server(self) -> Server:
        """The server of the technique, as it was started last."""
        return self.broken.servers.of(self.technique.database)

    def measure_bytes(self) -> None:
        """Run the technique without a fault and count its bytes; raises what the technique raises."""

        async def move(server: Server, relay: BreakingRelay) -> None:
            async with opened(self.technique, server) as client:
                relay.strike(None)
                await called(self.technique, client, *arguments)

        arguments = self._arguments(NO_FAULT)
        with relayed(self.server, BreakingRelay) as (server, relay):
            assert relay is not None  # embedded servers use neither encryption nor a Unix socket
            asyncio.run(move(server, relay))
            self.bytes = relay.passed[self.writes]

    def suffer(self, fault: Fault, stop: threading.Event) -> None:
        """Try the fault and record the outcome; raises KeyboardInterrupt on `stop`."""
        if stop.is_set():
            raise KeyboardInterrupt
        for share in fault.after:
            with relayed(self.server, BreakingRelay) as (server, relay):
                assert relay is not None
                cell = asyncio.run(self._outcome(server, relay, fault, share))
            if relay.struck or not fault.strikes:
                break
        else:
            raise RuntimeError(f"{fault.name}: {self.technique.name} ended before the fault")
        tables_of(self.server).drop(self.table.name)
        self.trials.record(cell)

    async def _outcome(self, server: Server, relay: BreakingRelay, fault: Fault, share: float) -> Cell:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(opened(self.technique, server))
            if fault.strikes == "reset":
                await called(self.technique, client, *self._arguments(NO_FAULT))
                await asyncio.to_thread(relay.reset)
            arguments, before = self._arguments(fault), relay.connections
            if fault.strikes and fault.strikes != "reset":
                relay.held, relay.released = self.held, self.server_is_back
                relay.strike(fault.strikes, int(share * self.bytes), in_client_bytes=self.writes)
            returned, error = await attempted(self.technique, client, *arguments)
            detail = error or ""
            if fault.strikes == "reset" and (more := relay.connections - before):
                detail = f"{more} new connection{'s' if more > 1 else ''}: {error or 'no error'}"
            if fault.strikes == "hold":
                self.held.set()  # the transfer may have ended before
                self.server_is_back.wait()
            relay.strike(None)
            if fault.retries:
                async with opened(self.technique, self.server) as retrying:
                    _, again = await attempted(self.technique, retrying, *arguments)
                detail = f"{error or 'no error'}; then: {again or 'no error'}"
            with contextlib.suppress(Exception):  # closing a broken connection may fail
                await stack.aclose()
        if self.writes:
            rows = self._stored()
        else:
            rows = "none" if returned is None else "all" if len(returned) == self.rows else "part"
        verdict = verdict_of(fault, rows, reported=error is not None)
        return Cell(**which(self.technique), fault=fault.name, verdict=verdict, rows=rows, detail=detail)

    def _arguments(self, fault: Fault) -> list[Any]:
        """Return the table that is read, or a new table that is prepared for the fault, and the frame to write."""
        if not self.writes:
            return [FAILING if fault.name == "query fails" else WHOLE]
        tables_of(self.server).create(self.table)
        if fault.constraint:
            slow = SLOW[self.technique.database].format(rows=self.rows)
            condition = fault.constraint.format(last=self.rows - 1, slow=slow)
            # ClickHouse supports PostgreSQL's quotes too.
            statement = f"ALTER TABLE {self.table.postgres_name} ADD CONSTRAINT broken CHECK ({condition})"
            self.broken.run(self.technique.database, statement)
        kind = self.technique.frame
        # Record batches are sent in groups of the size of a ClickHouse block.
        return [self.table, sent(self.rows, kind, fault.name), *([BLOCK_ROWS] if kind == "batches" else [])]

    def _stored(self) -> str:
        """Return which rows are stored: `none`, `all`, `part`, `doubled` (repeated ids) or `changed` (other values)."""
        counts = f"count(*), count(DISTINCT id), count(CASE WHEN {AS_SENT} THEN 1 END)"
        query = f"SELECT {counts} FROM {self.table.postgres_name}"
        rows, ids, right = map(int, self.broken.run(self.technique.database, query))
        if rows > ids:
            return "doubled"
        if right < rows:
            return "changed"
        return "none" if not rows else "all" if rows == self.rows else "part"


def verdict_of(fault: Fault, rows: str, *, reported: bool) -> Verdict:
    """Return the verdict for the rows that are left, for a caller who only sees whether there was an error."""
    if fault.direction == "read":
        return "safe" if reported else "unaffected" if rows == "all" else "silent"
    verdicts: dict[str, Verdict] = {"all": "unaffected", "doubled": "doubled"}
    otherwise: Verdict = "silent"
    if fault.retries:  # the rows after it count
        verdicts = {"all": "safe", "doubled": "doubled", "part": "partial"}
    elif reported:
        verdicts, otherwise = {"none": "safe", "all": "stored", "doubled": "doubled"}, "partial"
    return verdicts.get(rows, otherwise)
