"""A load held for a while: writers and readers at once, every row accounted for."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.data.frames import from_polars
from framehaul.data.schema import Table
from framehaul.servers import Server
from framehaul.servers.tables import tables_of
from framehaul.studies.faults.breakable import BOTH, TABLE, BreakableServers
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction, named

WRITERS = READERS = 2
FRAME_ROWS, STILL_ROWS = 2_000, 20_000
EVERY_SECONDS = 0.1
"""Each writer has a frame so often; readers read as fast as they can."""
FAST: dict[tuple[Database, Direction], str] = {
    ("postgres", "write"): "polars_pgpq_copy_binary",
    ("postgres", "read"): "polars_asyncpg_copy_decoded",
    ("clickhouse", "write"): "polars_http_client_arrow_stream",
    ("clickhouse", "read"): "polars_http_client_arrow_preallocated",
}
"""Of the fastest that write and read over one connection."""


@dataclass(frozen=True)
class Held:
    """What came of a load."""

    database: str
    seconds: float
    frames_written: int
    rows_written: int
    rows_lost: int
    """Rows that were written and are not in the table, or not as they were written."""
    rows_more: int
    """Rows in the table that nobody wrote, or that are there twice."""
    frames_read: int
    frames_read_wrong: int


def fast(database: Database, direction: Direction) -> Technique:
    """The technique of the load."""
    return named(database, direction, FAST[database, direction])


def hold_load(broken: BreakableServers, database: Database, seconds: float, stop: threading.Event) -> Held:
    """Write and read for so many seconds, then compare.

    Raises what any thread raises, KeyboardInterrupt on `stop`.
    """
    server, over, begin = broken.servers.of(database), threading.Event(), time.monotonic()
    written, read, still = TABLE.renamed("framehaul_held"), TABLE.renamed("framehaul_held_still"), _frame(0, STILL_ROWS)
    tables = tables_of(server)
    for table in (written, read):
        tables.create(table)
    tables.load(read, from_polars(still, TABLE))

    async def write(at: int) -> list[pl.DataFrame]:
        """Write frames with ids that no other frame has."""
        sent: list[pl.DataFrame] = []
        async with opened(fast(database, "write"), server) as client:
            while not over.is_set():
                frame = _frame((len(sent) * WRITERS + at) * FRAME_ROWS, FRAME_ROWS)
                await called(fast(database, "write"), client, written, frame)
                sent.append(frame)
                await asyncio.sleep(max(0.0, begin + len(sent) * EVERY_SECONDS - time.monotonic()))
        return sent

    async def check() -> list[bool]:
        """Read a table that nobody writes, and compare each frame."""
        right: list[bool] = []
        async with opened(fast(database, "read"), server) as client:
            while not over.is_set():
                frame = await called(fast(database, "read"), client, read)
                right.append(frame.sort("id").equals(still))
        return right

    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        writing = [pool.submit(asyncio.run, write(at)) for at in range(WRITERS)]
        reading = [pool.submit(asyncio.run, check()) for _ in range(READERS)]
        threads: list[Future[Any]] = [*writing, *reading]
        while time.monotonic() < begin + seconds and not any(thread.done() for thread in threads):
            if stop.wait(0.05):
                break
        over.set()
    elapsed = time.monotonic() - begin
    if stop.is_set():
        raise KeyboardInterrupt
    frames = [frame for thread in writing for frame in thread.result()]
    right = [one for thread in reading for one in thread.result()]
    sent, found = pl.concat(frames), tables.content(written)
    lost = len(sent.join(found, on=sent.columns, how="anti"))
    return Held(
        database, elapsed, len(frames), len(sent), lost, len(found) - len(sent) + lost, len(right), right.count(False)
    )  # fmt: skip


def survives_a_crash(broken: BreakableServers) -> dict[str, tuple[int, int]]:
    """For each database, the rows acknowledged before both servers were killed, and those there after recovery."""
    table, frame = TABLE.renamed("framehaul_acknowledged"), _frame(0, STILL_ROWS)
    for database in BOTH:
        server = broken.servers.of(database)
        tables_of(server).create(table)
        asyncio.run(_write(fast(database, "write"), server, table, frame))
    broken.kill(*BOTH)
    broken.start(*BOTH)
    contents = {database: tables_of(broken.servers.of(database)).content(table) for database in BOTH}
    return {
        database: (len(frame), len(content.join(frame, on=frame.columns, how="semi")))
        for database, content in contents.items()
    }


async def _write(technique: Technique, server: Server, table: Table, frame: pl.DataFrame) -> None:
    async with opened(technique, server) as client:
        await called(technique, client, table, frame)


def _frame(first: int, rows: int) -> pl.DataFrame:
    ids = pl.int_range(first, first + rows, dtype=pl.Int64, eager=True).alias("id")
    return pl.DataFrame([ids, pl.Series("label", [f"row {number}" for number in ids]), (ids / 8).alias("value")])
