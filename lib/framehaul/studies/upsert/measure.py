"""Time an upsert, read the table during it, run two at once, send one twice, and kill its client."""

from __future__ import annotations

import collections
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from statistics import median
from typing import Any

import polars as pl

from framehaul.bench.children import child, context
from framehaul.bench.rounds import right
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers import Server
from framehaul.servers.relay import relayed
from framehaul.studies.faults.wire import BreakingRelay
from framehaul.studies.upsert.frames import BOTH, KEY, TABLE, Case, incoming
from framehaul.studies.upsert.places import Bench, as_read, count_marks, count_staging_tables, opened, upsert, wait
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, named

TRIES = 4
"""The maximum number of attempts of a writer that gets errors."""
READS_BEFORE = 3
"""The number of reads before the upsert, whose median is the time of an undisturbed read."""
HELD_SECONDS = 0.05
"""The interval for checking whether a client has ended before it could be held."""


def processes() -> ForkServerContext:
    """Return the context of child processes, with the upserts imported."""
    return context(__name__, *(f"framehaul.techniques.upsert.{one}_write" for one in BOTH))


def timed(bench: Bench, technique: Technique, _: int) -> dict[str, Any]:
    """Return seconds and rows/s of one pass; raise WrongResultError for other rows than expected."""
    seconds = upsert(technique, bench.server, bench.fresh(technique), bench.come)
    return right({"seconds": seconds, "rows_per_s": len(bench.come) / seconds}, bench.difference(technique))


def reads(requests: Connection, server: Server, database: Database, name: str) -> None:
    """Send the time of an undisturbed read, read the table until a request comes, and send what the reads saw."""
    tables, seen, longest_s = as_read(named(database, "write", name), server), list[tuple[int, int]](), 0.0

    def read() -> float:
        begin = time.perf_counter()
        seen.append(count_marks(tables))
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


class MessageRelay(BreakingRelay):
    """A relay that also records the position in bytes of each message of the client."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self.starts: list[int] = []
        self._answered = True

    async def _lets_through(self, count: int, *, from_client: bool) -> bool:
        if from_client and self._answered:
            self.starts.append(self.from_client_bytes)
        self._answered = not from_client
        return await super()._lets_through(count, from_client=from_client)

    @property
    def before_the_end(self) -> int:
        """The position of the last message but one, or half of the bytes of a single message."""
        return next((start + 1 for start in self.starts[-2:] if start), self.from_client_bytes // 2)


def writes(
    requests: Connection, server: Server, database: Database, name: str, table: Table, come: pl.DataFrame
) -> None:
    """Connect, send an answer, run the upsert on request, and send another answer."""
    technique = named(database, "write", name)
    with opened(technique, server) as client:
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
    with relayed(bench.server, MessageRelay) as (through, relay):
        if relay is None:
            raise UnavailableError("nothing can break a connection that is encrypted, or a socket: connect plainly")
        table = bench.fresh(technique)
        with opened(technique, through) as undisturbed:
            relay.count()
            relay.starts.clear()
            technique.function(undisturbed, table, bench.come)
            after = relay.before_the_end
        table, held, until = bench.fresh(technique), threading.Event(), threading.Event()
        arguments = through, technique.database, technique.name, table, bench.come
        with child(processes(), technique.name, writes, *arguments) as client:
            client.receive()
            relay.hold(after, in_client_bytes=True, held=held, until=until)
            client.tell(None)
            try:
                while not held.wait(HELD_SECONDS):
                    if client.connection.poll():
                        client.receive()
                        raise RuntimeError(f"{technique.name} ended before it could be killed")
            finally:
                client.process.kill()
                client.process.join()
                until.set()
    wait(bench.tables, table)
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
