"""Run the faults study: every technique with every fault, a crash of both servers, and a sustained load."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.bench import recording, store
from framehaul.bench.environment import server_versions
from framehaul.bench.measure import attempted, called, opened, quiet_drivers
from framehaul.bench.recording import which
from framehaul.bench.rounds import check, interruptible
from framehaul.bench.trials import Trials, Tried, chosen_techniques, trials
from framehaul.data.frames import from_polars, to_pandas, to_polars
from framehaul.data.schema import Table, quote_postgres
from framehaul.errors import UnavailableError
from framehaul.servers import Server
from framehaul.servers.relay import relayed
from framehaul.servers.tables import tables_of
from framehaul.settings import load_settings
from framehaul.studies.faults.breakable import BLOCK_ROWS, BOTH, TABLE, BreakableServers, breakable, frame_of, run_on
from framehaul.studies.faults.held import hold_load, survives_a_crash
from framehaul.studies.faults.wire import Break, BreakingRelay
from framehaul.studies.registry import FAULTS_STUDY
from framehaul.techniques import Technique
from framehaul.techniques.registry import Direction

type Sent = Literal["good", "failing", "duplicate"]
type Verdict = Literal["safe", "unaffected", "stored", "partial", "doubled", "silent"]

WHOLE, FAILING = TABLE.renamed("framehaul_faults_whole"), TABLE.renamed("framehaul_faults_failing")
FAILS_IN_LAST_ROW = {"postgres": "1 / ({last} - id) >= 0", "clickhouse": "throwIf(id = {last}) = 0"}
"""A condition that is true for every row but the last, where it raises an error."""
TIMEOUT_SECONDS = 2
SLOW_SECONDS = 2.5
"""The time that a slow table takes for all rows: above the time-out, below ClickHouse's limit for a block."""
AS_SENT = "label = concat('row number ', id, ' of many') AND value = id / 8.0"
"""A condition that is true for the rows of `frame_of`."""
AT_ONCE = 8
"""The maximum number of concurrent trials."""
CELL_SECONDS = 4
"""The maximum time of a cell on a busy machine."""
BATCH_ROWS = 1_000
"""Rows of a record batch."""
ROWS = {"postgres": 6_000, "clickhouse": 200_000}
"""Rows of a trial: several ClickHouse blocks and several batches of any client. Half as many hide partial writes."""


@dataclass(frozen=True)
class Fault:
    """A fault and its cause."""

    name: str
    direction: Direction
    how: str
    sends: Sent = "good"
    """The frame that is written, see `sent`."""
    postgres: str = ""
    clickhouse: str = ""
    """A statement that prepares the target `{table}`, with the `{last}` or `{middle}` id."""
    strikes: Break | None = None
    """The way in which the relay breaks the connection."""
    after: tuple[float, ...] = (0.0,)
    """The share of the bytes after which the connection breaks, and smaller shares for passes with fewer bytes."""
    idles: bool = False
    """Whether the connection is used, reset while it is idle, and used again."""


NO_FAULT = Fault("", "write", "")
IDLE_RESET = "the connection is reset while it is idle between two transfers, as load balancers do"
FAULTS = (
    Fault("source fails", "write", sends="failing",
          how="a value two thirds down cannot be converted to text, or a record batch there raises an error"),
    Fault("value refused", "write", "the last row violates a constraint of the table",
          postgres="ALTER TABLE {table} ADD CONSTRAINT refused CHECK (id <> {last})",
          clickhouse="ALTER TABLE {table} ADD CONSTRAINT refused CHECK id != {last}"),
    Fault("duplicate key", "write", "the last row has the key of the first", sends="duplicate"),
    Fault("time-out", "write", "the table is slow, and the server ends statements that run too long",
          postgres="CREATE TRIGGER slow BEFORE INSERT ON {table} FOR EACH ROW WHEN (NEW.id = {middle}) "
                   "EXECUTE FUNCTION framehaul_wait()",
          clickhouse="ALTER TABLE {table} ADD CONSTRAINT slow CHECK sleepEachRow({seconds:.9f}) = 0"),
    Fault("connection cut", "write", "the connection ends after nine tenths of the bytes",
          strikes="cut", after=(0.9, 0.7)),
    Fault("server killed", "write", "the server is killed after nine tenths of the bytes, and started again",
          strikes="hold", after=(0.9,)),
    # Bytes after the strike still reach the server.
    Fault("answer lost, tried again", "write",
          "the server gets all rows, its answer is lost, and another client retries",
          strikes="swallow", after=(0.99, 0.9, 0.7)),
    Fault("idle, then reset", "write", IDLE_RESET, idles=True),
    Fault("query fails", "read", "the last row raises an error on the server"),
    Fault("connection cut", "read", "the connection ends after half of the bytes", strikes="cut", after=(0.5, 0.3)),
    Fault("server killed", "read", "the server is killed after half of the bytes", strikes="hold", after=(0.5,)),
    Fault("idle, then reset", "read", IDLE_RESET, idles=True),
)  # fmt: skip


@dataclass(frozen=True)
class Cell(Tried):
    """The outcome of a fault for a technique; its fields are the columns of `faults.csv`."""

    fault: str
    verdict: Verdict | Literal[""] = ""
    rows: str = ""
    """The rows afterwards, in the table or in the frame: `none`, `all`, `part`, `doubled` or `changed`."""
    detail: str = ""


@recording.study(FAULTS_STUDY.notebook, None)
def run(*, hold: int, tried: str = "all") -> None:
    """Try every fault with the techniques that `chosen_techniques` returns for `tried`, then load servers for `hold` s.

    The servers are always separate embedded ones, because they are killed. Raises ValueError for an invalid time or
    choice, ServerError if servers cannot be started, and ResultsError if the file cannot be written.
    """
    check(HOLD=(hold, 1))
    chosen = chosen_techniques(tried)
    with (
        trials(FAULTS_STUDY.notebook, FAULTS_STUDY.results, Cell, "trial", chosen) as (this_run, cells),
        breakable(this_run.settings.postgres_extensions) as broken,
    ):
        this_run.expect(_expected(chosen))

        def work(stop: threading.Event) -> None:
            run_cells(broken, chosen, cells, stop)
            this_run.metadata["recovery"] = survives_a_crash(broken)
            with ThreadPoolExecutor(len(BOTH)) as pool:
                loads = pool.map(lambda database: hold_load(broken, database, hold, stop), BOTH)
                this_run.metadata["held"] = list(loads)

        interruptible(work)
        this_run.metadata |= {"servers": "embedded", "server": server_versions(broken.servers)}
        this_run.metadata["what"] = f"{len(chosen)} techniques, {len(FAULTS)} faults"


def load_results() -> pl.DataFrame:
    """Return the results of the load and of the crash in the last run, one row per database.

    `lost_in_crash` counts rows that were acknowledged before both servers were killed and not restored by recovery.
    """
    metadata = store.read_metadata(load_settings().out / "results")["runs"][FAULTS_STUDY.notebook]
    lost = {database: before - after for database, (before, after) in metadata["recovery"].items()}
    return pl.DataFrame(metadata["held"]).with_columns(lost_in_crash=pl.col("database").replace_strict(lost))


def _expected(chosen: Sequence[Technique]) -> int:
    return sum(fault.direction == technique.direction for fault in FAULTS for technique in chosen)


def patience(values: Mapping[str, Any]) -> int:
    """Return the additional timeout of the notebook's cells in seconds: servers restart, and the load takes time."""
    return int(values.get("hold", 0)) + CELL_SECONDS * _expected(chosen_techniques(values.get("tried", "all")))


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


def sent(rows: int, kind: str, what: Sent) -> pl.DataFrame | pd.DataFrame | Iterable[pa.RecordBatch]:
    """Return a frame of `good` rows, a frame whose last row has the key of the first, or a frame that fails midway.

    A failing frame has an unreadable Python object among its texts; failing record batches end with an exception.
    """
    table, fails_at = content(rows), rows * 2 // 3
    if what == "duplicate":
        table = pa.concat_tables([table.slice(0, rows - 1), table.slice(0, 1)]).combine_chunks()
    if kind == "batches":
        batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=BATCH_ROWS)
        return _failing(batches[: fails_at // BATCH_ROWS]) if what == "failing" else batches
    frame: pl.DataFrame | pd.DataFrame = to_pandas(table, TABLE) if kind == "pandas" else to_polars(table, TABLE)
    if what != "failing":
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
    _fill_source_tables(broken, rows)
    subjects = []
    for at, technique in enumerate(chosen):
        subject = Subject(broken, technique, TABLE.renamed(f"{TABLE.name}_{at}"), rows[technique.database], trials)
        try:
            subject.measure_bytes()
            subjects.append(subject)
        except UnavailableError as error:
            trials.skip(technique, str(error))
    for fault in faults:
        if affected := [subject for subject in subjects if subject.is_left(fault)]:
            with prepared(broken, fault), quiet_drivers():
                if fault.strikes == "hold":
                    kill_under(broken, affected, fault)
                else:
                    strike_each(affected, fault, stop)


def strike_each(subjects: list[Subject], fault: Fault, stop: threading.Event) -> None:
    """Try the fault with several techniques at once, because trials mostly wait."""

    def suffer(subject: Subject) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        subject.suffer(fault)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(suffer, subjects))


@contextlib.contextmanager
def prepared(broken: BreakableServers, fault: Fault) -> Iterator[None]:
    """Set the time-out of both servers that a fault needs, while the block lasts."""
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


def kill_under(broken: BreakableServers, subjects: list[Subject], fault: Fault) -> None:
    """Hold every transfer midway, kill and restart both servers, and record the outcome of each transfer."""
    with ThreadPoolExecutor(len(subjects)) as pool:
        running = [pool.submit(subject.suffer, fault) for subject in subjects]
        for subject, future in zip(subjects, running, strict=True):
            while not subject.held.wait(0.05) and not future.done():
                pass
        try:
            broken.kill(*BOTH)
            broken.start(*BOTH)
        finally:  # also if a server does not start: waiting threads would hide its error
            for subject in subjects:
                subject.server_is_back.set()
        for future in running:
            future.result()


class Subject:
    """A technique and the table with which faults are tried."""

    def __init__(
        self, broken: BreakableServers, technique: Technique, table: Table, rows: int, trials: Trials[Cell]
    ) -> None:
        self.technique = technique
        self.held = threading.Event()
        """Set when the transfer is held and the server can be killed."""
        self.server_is_back = threading.Event()
        self._broken, self._table, self._rows, self._trials = broken, table, rows, trials
        self._writes = technique.direction == "write"
        self._bytes = 0
        """The bytes of a transfer in its direction."""

    def is_left(self, fault: Fault) -> bool:
        """Return whether the fault applies and was not tried yet."""
        return self.technique.direction == fault.direction and not self._trials.finished(self._cell(fault))

    def _cell(self, fault: Fault) -> Cell:
        return Cell(**which(self.technique), fault=fault.name)

    def measure_bytes(self) -> None:
        """Run the technique without a fault and count its bytes; raises what the technique raises."""

        async def count(server: Server, relay: BreakingRelay) -> None:
            async with opened(self.technique, server) as client:
                relay.count()
                await called(self.technique, client, target, *self._sent(NO_FAULT))

        target = self._target(NO_FAULT, self._table)
        with relayed(self._server, BreakingRelay) as (server, relay):
            assert relay is not None  # embedded servers use neither encryption nor a Unix socket
            asyncio.run(count(server, relay))
            self._bytes = relay.from_client_bytes if self._writes else relay.from_server_bytes

    def suffer(self, fault: Fault) -> None:
        """Try the fault and record the outcome."""
        another = self._table.renamed(f"{self._table.name}_another")
        for share in fault.after:
            with relayed(self._server, BreakingRelay) as (server, relay):
                assert relay is not None
                cell = asyncio.run(self._outcome(server, relay, fault, share, another))
            if relay.struck or not (fault.strikes or fault.idles):
                break
        else:
            raise RuntimeError(f"{fault.name}: {self.technique.name} ended before the fault")
        for table in (self._table, another):
            tables_of(self._server).drop(table)
        self._trials.record(cell)

    async def _outcome(self, server: Server, relay: BreakingRelay, fault: Fault, share: float, another: Table) -> Cell:
        target, said = self._target(fault, self._table), ""
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(opened(self.technique, server))
            if fault.idles:
                await called(self.technique, client, self._target(NO_FAULT, another), *self._sent(NO_FAULT))
                await asyncio.to_thread(relay.reset)
            after, before = int(share * self._bytes), relay.connections
            if fault.strikes == "hold":
                relay.hold(after, in_client_bytes=self._writes, held=self.held, until=self.server_is_back)
            elif fault.strikes:
                relay.strike(fault.strikes, after, in_client_bytes=self._writes)
            returned, error = await attempted(self.technique, client, target, *self._sent(fault))
            if fault.idles and (more := relay.connections - before):
                said = f"{more} new connection{'s' if more > 1 else ''}: "
            if fault.strikes == "hold":
                self.held.set()  # the transfer may have ended before
                self.server_is_back.wait()
            relay.mend()
            detail = f"{said}{error or ('no error' if said else '')}"
            if fault.strikes == "swallow":  # another client retries
                async with opened(self.technique, self._server) as retrying:
                    _, again = await attempted(self.technique, retrying, target, *self._sent(NO_FAULT))
                detail = f"{error or 'no error'}; then: {again or 'no error'}"
            with contextlib.suppress(Exception):  # closing a broken connection may fail
                await stack.aclose()
        if self._writes:
            rows = self._stored()
        else:
            rows = "none" if returned is None else "all" if len(returned) == self._rows else "part"
        verdict = verdict_of(fault, rows, reported=error is not None)
        return replace(self._cell(fault), rows=rows, detail=detail, verdict=verdict)

    def _sent(self, fault: Fault) -> list[Any]:
        """Return the arguments of a write; record batches are sent in groups of the size of a ClickHouse block."""
        if not self._writes:
            return []
        frame = sent(self._rows, self.technique.frame, fault.sends)
        return [frame, BLOCK_ROWS] if self.technique.frame == "batches" else [frame]

    @property
    def _server(self) -> Server:
        return self._broken.servers.of(self.technique.database)

    def _target(self, fault: Fault, table: Table) -> Table:
        """Return the table that is read, or a new table to write, prepared for the fault."""
        if not self._writes:
            return FAILING if fault.name == "query fails" else WHOLE
        tables_of(self._server).create(table)
        if change := getattr(fault, self.technique.database):
            places = {"last": self._rows - 1, "middle": self._rows // 2, "seconds": SLOW_SECONDS / self._rows}
            # ClickHouse supports PostgreSQL's quotes too.
            run_on(self._server, change.format(table=table.postgres_name, **places))
        return table

    def _stored(self) -> str:
        """Return which rows are stored: `none`, `all`, `part`, `doubled` (repeated ids) or `changed` (other values)."""
        counts = f"count(*), count(DISTINCT id), count(CASE WHEN {AS_SENT} THEN 1 END)"
        rows, ids, right = map(int, run_on(self._server, f"SELECT {counts} FROM {self._table.postgres_name}"))
        if rows > ids:
            return "doubled"
        if right < rows:
            return "changed"
        return "none" if not rows else "all" if rows == self._rows else "part"


def verdict_of(fault: Fault, rows: str, *, reported: bool) -> Verdict:
    """Return the verdict for the rows that are left, for a caller who only sees whether there was an error."""
    if fault.direction == "read":
        return "safe" if reported else "unaffected" if rows == "all" else "silent"
    verdicts: dict[str, Verdict] = {"all": "unaffected", "doubled": "doubled"}
    otherwise: Verdict = "silent"
    if fault.strikes == "swallow":  # the rows after the retry count
        verdicts = {"all": "safe", "doubled": "doubled", "part": "partial"}
    elif reported:
        verdicts, otherwise = {"none": "safe", "all": "stored", "doubled": "doubled"}, "partial"
    return verdicts.get(rows, otherwise)


def _fill_source_tables(broken: BreakableServers, rows: dict[str, int]) -> None:
    """Create the table that is read, and a view of it that raises an error in its last row."""
    source, view, columns = WHOLE.postgres_name, FAILING.postgres_name, TABLE.postgres_columns
    for database in BOTH:
        server, condition = broken.servers.of(database), FAILS_IN_LAST_ROW[database].format(last=rows[database] - 1)
        run_on(server, f"DROP VIEW IF EXISTS {view}")
        tables_of(server).create(WHOLE)
        tables_of(server).load(WHOLE, content(rows[database]))
        run_on(server, f"CREATE VIEW {view} AS SELECT {columns} FROM {source} WHERE {condition}")
