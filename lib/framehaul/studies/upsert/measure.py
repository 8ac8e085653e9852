"""Time an upsert, read the table during it, run two at once, send one twice, and kill its client."""

import collections
import contextlib
import datetime as dt
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from statistics import median
from typing import Any, Self

import polars as pl

from framehaul.bench.children import child, context
from framehaul.bench.rounds import right
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import from_polars
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, Server
from framehaul.servers.relay import relayed
from framehaul.servers.tables import ClickHouseTables, PostgresTables, Tables, tables_of
from framehaul.studies.faults.wire import BreakingRelay
from framehaul.techniques import Technique
from framehaul.techniques.clients import opened_now
from framehaul.techniques.registry import DATABASES, Database, named
from framehaul.techniques.upsert.rows import target

TABLE = Table(
    "framehaul_upsert",
    (
        Column("id", ColumnType.INT64), Column("day", ColumnType.DATE), Column("label", ColumnType.TEXT),
        Column("note", ColumnType.TEXT, nullable=True), Column("amount", ColumnType.FLOAT64),
        Column("mark", ColumnType.INT32),
    ),
    ("id", "day"),
    partition_by_month_of="day",
)  # fmt: skip
"""The key is a number and the day, by which ClickHouse partitions; `mark` is the number of the frame of a row."""
KEY = list(TABLE.key)
FIRST_DAY = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
DAYS = 120
"""The number of days of the rows, which are in four partitions."""
PER_CENT = 100
TRIES = 4
"""The maximum number of attempts of a writer that gets errors."""
READS_BEFORE = 3
"""The number of reads before the upsert, whose median is the time of an undisturbed read."""

STAGING = """
SELECT count(*) FROM pg_class
WHERE relkind = 'r' AND relpersistence <> 't' AND starts_with(relname, 'framehaul_staging_')
"""
BUSY = """
SELECT (SELECT count() FROM system.processes
        WHERE position(query, {table:String}) > 0 AND position(query, 'system.processes') = 0)
    + (SELECT count() FROM system.mutations
       WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done)
"""


@dataclass(frozen=True)
class Case:
    """The numbers of existing and incoming rows, and the percentage of incoming rows whose key exists."""

    target_rows: int
    rows: int
    share: int = 90

    @property
    def existing(self) -> int:
        """Return the number of incoming rows whose key exists."""
        return min(self.target_rows, round(self.rows * self.share / PER_CENT))

    @property
    def exact_share(self) -> str:
        """The percentage in words; a single row has 0% or 100%, whatever the share."""
        return f"{PER_CENT * self.existing / self.rows:.0f}%"

    @property
    def label(self) -> str:
        """The case in words."""
        return f"{self.rows:,} row{'s' * (self.rows > 1)} into {self.target_rows:,}, {self.exact_share} there"


def cases(targets: Sequence[int], incoming: Sequence[int]) -> list[Case]:
    """Return for every table all numbers of rows that fit, or the fewest.

    Of several tables, the smallest has only the most rows, and the largest only the fewest and the most.
    """
    *smaller, largest = sorted({*targets})
    every = []
    for there in smaller or [largest]:
        fitting = [rows for rows in sorted({*incoming}) if rows <= there] or [min(incoming)]
        every += [Case(there, rows) for rows in (fitting[-1:] if smaller and there == smaller[0] else fitting)]
    ends = (min(incoming), min(max(incoming), largest)) if smaller else ()
    return [*dict.fromkeys(every + [Case(largest, rows) for rows in ends])]


def base(rows: int, seed: int, first: int = 0, mark: int = 0) -> pl.DataFrame:
    """Return rows with ids from `first` on, and days that follow from the ids."""
    ids = pl.int_range(first, first + rows, dtype=pl.Int64, eager=True)
    day = (ids % DAYS + FIRST_DAY).cast(pl.Int32).cast(pl.Date)
    return generator.polars_frame(TABLE, rows, seed).with_columns(id=ids, day=day, mark=pl.lit(mark, pl.Int32))


def incoming(there: pl.DataFrame, case: Case, seed: int, *, mark: int = 1, first: int | None = None) -> pl.DataFrame:
    """Return shuffled incoming rows: some of the table's keys with other values, and new rows.

    New ids begin with `first`, by default the number of rows in the table.
    """
    known = there.select(KEY).sample(case.existing, seed=seed)
    fresh = base(case.rows - case.existing, seed + 1, len(there) if first is None else first, mark)
    changed = base(case.existing, seed + 2, 0, mark).with_columns(known["id"], known["day"])
    return pl.concat([changed, fresh]).sample(fraction=1, shuffle=True, seed=seed)


def updated(there: pl.DataFrame, come: pl.DataFrame) -> pl.DataFrame:
    """Return the rows after the upsert, computed by Polars."""
    return pl.concat([there.join(come, on=KEY, how="anti"), come])


class FinalTables(ClickHouseTables):
    """`ClickHouseTables` that are read with FINAL."""

    def run(self, query: str, body: bytes = b"", **settings: str | int) -> bytes:
        """Run a statement and return its answer; raises ServerError."""
        return super().run(query, body, **settings, final=1)


def as_read(technique: Technique, server: Server) -> Tables:
    """Return the tables of a server, which are read with FINAL if the technique requires it."""
    return FinalTables(server) if technique.final and isinstance(server, ClickHouseServer) else tables_of(server)


def count_staging_tables(tables: Tables, table: Table = TABLE) -> int:
    """Return the number of staging tables that are left of a table; on ClickHouse they are dropped."""
    return tables.drop_beside(table) if isinstance(tables, ClickHouseTables) else int(tables.rows(STAGING)[0][0])


class Bench:
    """The existing, incoming and expected rows of a case, on a server."""

    def __init__(self, server: Server, case: Case, seed: int) -> None:
        self.server, self.case, self.seed = server, case, seed
        self.there = base(case.target_rows, seed)
        self.come = incoming(self.there, case, seed)
        self.expected = updated(self.there, self.come)
        self.tables = tables_of(server)
        self._source, self._reference = (TABLE.renamed(f"{TABLE.name}_{name}") for name in ("before", "after"))
        self._right = Expected(TABLE, from_polars(self.expected, TABLE))

    @contextmanager
    def filled(self) -> Iterator[Self]:
        """Hold the existing and the expected rows in tables while the block lasts."""
        with self.tables.kept():
            try:
                count_staging_tables(self.tables)  # drops tables of a killed run
                self.tables.make(self._source, from_polars(self.there, TABLE))
                self._right.keep_reference(self.tables, self._reference)
                yield self
            finally:
                with contextlib.suppress(ServerError):  # the server is down: the next run drops our tables
                    for table in (TABLE, self._source, self._reference):
                        self.tables.drop(table.name)
                    count_staging_tables(self.tables)

    def fresh(self, technique: Technique) -> Table:
        """Create the table that the technique needs, with the existing rows of the case, and return it."""
        table, columns = target(technique, TABLE), ", ".join(TABLE.column_names)  # no name needs quotes
        self.tables.create(table)
        self.tables.run(f"INSERT INTO {TABLE.name} ({columns}) SELECT {columns} FROM {self._source.name}")
        if isinstance(self.tables, PostgresTables):
            self.tables.run(f"VACUUM (ANALYZE) {TABLE.name}")
        self.tables.quiesce()
        return table

    def difference(self, technique: Technique) -> str | None:
        """Return how the table differs from the expected rows, or None."""
        return self._right.difference_on_server(as_read(technique, self.server))


def upsert(technique: Technique, server: Server, table: Table, *frames: Any) -> float:
    """Return the seconds of a technique with these frames, one after another, over an open connection."""
    with opened_now(technique.client, server) as client:
        begin = time.perf_counter()
        for frame in frames:
            technique.function(client, table, frame)
        return time.perf_counter() - begin


def processes() -> ForkServerContext:
    """Return the context of child processes, with the upserts imported."""
    return context(__name__, *(f"framehaul.techniques.upsert.{database}_write" for database in DATABASES))


def timed(bench: Bench, technique: Technique, _: int) -> dict[str, Any]:
    """Return seconds and rows/s of one pass; raise WrongResultError for other rows than expected."""
    seconds = upsert(technique, bench.server, bench.fresh(technique), bench.come)
    return right({"seconds": seconds, "rows_per_s": len(bench.come) / seconds}, bench.difference(technique))


def reads(requests: Connection, server: Server, database: Database, name: str) -> None:
    """Send the time of an undisturbed read, read the table until a request comes, and send what the reads saw."""
    tables, seen, longest_s = as_read(named(database, "write", name), server), list[tuple[int, int]](), 0.0

    def read() -> float:
        begin = time.perf_counter()
        rows, marks = tables.rows(f"SELECT count(*), sum(mark) FROM {TABLE.name}")[0]
        seen.append((int(rows), int(marks or 0)))
        return time.perf_counter() - begin

    with tables.kept():
        requests.send(median(read() for _ in range(READS_BEFORE)))
        while not requests.poll():
            longest_s = max(longest_s, read())
    requests.recv()  # raises EOFError when the parent is gone
    requests.send((seen[READS_BEFORE:], longest_s))


def watched(bench: Bench, technique: Technique, _: int) -> dict[str, Any]:
    """Return what a reader in another process sees, which counts the rows while an upsert runs.

    Raises ChildError if that process ends early, and WrongResultError for other rows than expected.
    """
    table = bench.fresh(technique)
    with child(processes(), "a reader", reads, bench.server, technique.database, technique.name) as reader:
        read_before_s = reader.receive()
        seconds = upsert(technique, bench.server, table, bench.come)
        found, longest_read_s = reader.ask(None)
    old, new = (len(bench.there), 0), (len(bench.expected), len(bench.come))
    seen = collections.Counter(what_was_seen(one, old, new) for one in found)
    values: dict[str, Any] = {"seconds": seconds, "read_before_s": read_before_s, "longest_read_s": longest_read_s}
    values["seen"] = "; ".join(f"{what} {count}" for what, count in seen.most_common())
    return right(values, bench.difference(technique))


def what_was_seen(found: tuple[int, int], old: tuple[int, int], new: tuple[int, int]) -> str:
    """Return in words what a reader saw: the number of rows and the sum of marks, which are 1 in new rows."""
    if found in (old, new):
        return "old" if found == old else "new"
    if found[0] < old[0]:
        return "rows missing"
    return "rows twice" if found[0] > new[0] else "a part of the new"


def two_frames(there: pl.DataFrame, case: Case, seed: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frames of two writers: a third of each has keys of its own, the rest has the same keys reordered."""
    first = incoming(there, case, seed, mark=1)
    known = there.join(first, on=KEY, how="anti")
    case = Case(len(known), case.rows // 3, case.share)
    own = incoming(known, case, seed + 7, mark=2, first=len(there) + len(first))
    shared = first[case.rows :].with_columns(
        pl.lit(2, pl.Int32).alias("mark"), pl.col("label") + " of the second", amount=pl.col("amount") + 1
    )
    return first, pl.concat([own, shared]).reverse()


def together(bench: Bench, technique: Technique, number: int) -> dict[str, Any]:
    """Run two writers at once and return their errors, and the wrong rows after both have succeeded."""
    table, frames = bench.fresh(technique), two_frames(bench.there, bench.case, bench.seed + number)
    errors: collections.Counter[str] = collections.Counter()
    barrier = threading.Barrier(len(frames))

    def write(frame: pl.DataFrame) -> None:
        barrier.wait()
        for tried in range(1, TRIES + 1):
            try:
                upsert(technique, bench.server, table, frame)
            except Exception as error:
                errors[f"{type(error).__module__.partition('.')[0].strip('_')}.{type(error).__name__}"] += 1
                if tried == TRIES:
                    raise
            else:
                return

    begin = time.perf_counter()
    with ThreadPoolExecutor(len(frames)) as pool:
        list(pool.map(write, frames))
    seconds = time.perf_counter() - begin
    counts = outcome(as_read(technique, bench.server).content(table), bench.there, frames)
    return {"seconds": seconds, "errors": ", ".join(f"{name} {n}" for name, n in sorted(errors.items())), **counts}


def outcome(found: pl.DataFrame, there: pl.DataFrame, frames: tuple[pl.DataFrame, pl.DataFrame]) -> dict[str, int]:
    """Count wrong rows after two writers: lost or changed rows, doubled keys, and rows of the losing writer."""
    first, second = frames
    acceptable = pl.concat([there.join(pl.concat(frames), on=KEY, how="anti"), first, second])
    as_sent = found.join(acceptable, on=TABLE.column_names, how="semi", nulls_equal=True)
    shared = as_sent.join(first, on=KEY, how="semi").join(second, on=KEY, how="semi")
    return {
        "lost_rows": len(acceptable.select(KEY).unique().join(as_sent, on=KEY, how="anti")),
        "doubled_rows": len(found) - found.select(KEY).n_unique(),
        "mixed_rows": min(int((shared["mark"] == mark).sum()) for mark in (1, 2)),
    }


def sent_twice(bench: Bench, technique: Technique, _: int) -> dict[str, Any]:
    """Send the same frame twice; raise WrongResultError if the second time changes the table."""
    upsert(technique, bench.server, bench.fresh(technique), bench.come, bench.come)
    return right({}, bench.difference(technique))


def writes(
    requests: Connection, server: Server, database: Database, name: str, table: Table, come: pl.DataFrame
) -> None:
    """Connect, send an answer, run the upsert on request, and send another answer."""
    technique = named(database, "write", name)
    with opened_now(technique.client, server) as client:
        requests.send(None)
        requests.recv()
        technique.function(client, table, come)
    requests.send(None)


def killed(bench: Bench, technique: Technique, _: int) -> dict[str, Any]:
    """Kill the client while it sends its last message but one, and send the frame again.

    Returns the rows that the killed client left, and the number of staging tables. Raises UnavailableError for a
    connection that no relay can forward, RuntimeError when the client ended before it could be killed, and
    WrongResultError for other rows than expected after the second time.
    """
    with relayed(bench.server, BreakingRelay) as (through, relay):
        if relay is None:
            raise UnavailableError("nothing can break a connection that is encrypted, or a socket: connect plainly")
        table = bench.fresh(technique)
        with opened_now(technique.client, through) as undisturbed:
            relay.strike(None)
            technique.function(undisturbed, table, bench.come)
        # Of a single message, half of the bytes.
        after = next((start + 1 for start in relay.starts[-2:] if start), relay.passed[True] // 2)
        table = bench.fresh(technique)
        arguments = through, technique.database, technique.name, table, bench.come
        with child(processes(), technique.name, writes, *arguments) as client:
            client.receive()
            relay.strike("hold", after)
            client.tell(None)
            try:
                while not relay.held.wait(0.05):
                    if client.connection.poll():
                        client.receive()
                        raise RuntimeError(f"{technique.name} ended before it could be killed")
            finally:
                client.process.kill()
                client.process.join()
                relay.released.set()
    if isinstance(bench.tables, PostgresTables):  # a session that has changed the table locks it until it commits
        bench.tables.run(f"DO $$ BEGIN LOCK TABLE {table.postgres_name} IN ACCESS EXCLUSIVE MODE; END $$")
    while isinstance(bench.tables, ClickHouseTables) and int(bench.tables.rows(BUSY, table=table.name)[0][0]):
        time.sleep(0.02)
    left = state_of(as_read(technique, bench.server).content(table), bench.there, bench.expected)
    beside = count_staging_tables(bench.tables)
    upsert(technique, bench.server, table, bench.come)
    return right({"left": left, "beside": beside}, bench.difference(technique))


def state_of(found: pl.DataFrame, there: pl.DataFrame, expected: pl.DataFrame) -> str:
    """Return which rows of the frame are in the table: `nothing`, `all`, `rows missing`, `rows twice` or `a part`."""
    here, before, after = (frame.select(found.columns).sort(found.columns) for frame in (found, there, expected))
    if here.equals(after):
        return "all"
    if here.equals(before):
        return "nothing"
    if here.select(KEY).n_unique() < len(here):
        return "rows twice"
    return "rows missing" if len(before.join(here, on=KEY, how="anti")) else "a part"
