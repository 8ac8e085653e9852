"""A load held for a while: writers and readers at once, every row accounted for, the client's memory watched."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import polars as pl
import psutil

from framehaul.bench.measure import called, opened
from framehaul.data.frames import from_polars
from framehaul.data.schema import Table
from framehaul.servers import Server
from framehaul.servers.tables import tables_of
from framehaul.studies.faults.breakable import BOTH, TABLE, BreakableServers, numbers
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, Direction, named

WRITERS = READERS = 2
FRAME_ROWS, STILL_ROWS = 2_000, 20_000
EVERY_SECONDS = 0.1
"""Each writer has a frame so often; readers read as fast as they can."""
WRITER: dict[Database, str] = {"postgres": "polars_pgpq_copy_binary", "clickhouse": "polars_http_client_arrow_stream"}
READER: dict[Database, str] = {
    "postgres": "polars_asyncpg_copy_decoded", "clickhouse": "polars_http_client_arrow_preallocated",
}  # fmt: skip
"""Of the fastest that write and read over one connection."""


@dataclass(frozen=True)
class Held:
    """What came of a load: the fields tell it."""

    database: str
    seconds: float
    writers: int
    readers: int
    frames_written: int
    rows_written: int
    rows_found: int
    ids_found: int
    sum_found_is_sum_sent: bool
    frames_read: int
    frames_read_wrong: int
    first_rss_bytes: int
    """Client memory when a third of the time was over: caches and pools are filled by then."""
    last_rss_bytes: int


class _Load:
    """What the threads of a load do, until it is over."""

    def __init__(self, server: Server, database: Database) -> None:
        self.over, self._begin = threading.Event(), time.monotonic()
        self._server = server
        self._writer, self._reader = fast(database, "write"), fast(database, "read")
        self._written, self._read = TABLE.renamed("framehaul_held"), TABLE.renamed("framehaul_held_still")
        self._still = _frame(0, STILL_ROWS)
        tables = tables_of(server)
        for table in (self._written, self._read):
            tables.create(table)
        tables.load(self._read, from_polars(self._still, TABLE))

    async def write(self, at: int) -> int:
        """Write frames with ids that no other writer has; gives how many."""
        count = 0
        async with opened(self._writer, self._server) as client:
            while not self.over.is_set():
                await called(self._writer, client, self._written, _frame(_first_id(at, count), FRAME_ROWS))
                count += 1
                await asyncio.sleep(max(0.0, self._begin + count * EVERY_SECONDS - time.monotonic()))
        return count

    async def read(self) -> tuple[int, int]:
        """Read a table that nobody writes; gives how many frames came and how many of them were wrong."""
        frames = wrong = 0
        async with opened(self._reader, self._server) as client:
            while not self.over.is_set():
                frame = await called(self._reader, client, self._read)
                frames += 1
                wrong += not frame.sort("id").equals(self._still)
        return frames, wrong

    def stored(self) -> list[int]:
        """Rows, different ids and the sum of the ids in the table that was written."""
        return numbers(self._server, f"SELECT count(*), count(DISTINCT id), sum(id) FROM {self._written.postgres_name}")


def hold_load(broken: BreakableServers, database: Database, seconds: float, stop: threading.Event) -> Held:
    """Write and read for so many seconds, then count. An error in any thread is raised, KeyboardInterrupt on `stop`."""
    load = _Load(broken.servers.of(database), database)
    memory: list[int] = []
    begin = time.monotonic()
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        writing = [pool.submit(asyncio.run, load.write(at)) for at in range(WRITERS)]
        reading = [pool.submit(asyncio.run, load.read()) for _ in range(READERS)]
        threads: list[Future[Any]] = [*writing, *reading]
        while time.monotonic() < begin + seconds and not any(thread.done() for thread in threads) and not stop.is_set():
            stop.wait(0.05)
            memory.append(psutil.Process().memory_info().rss)
        load.over.set()
    elapsed = time.monotonic() - begin
    if stop.is_set():
        raise KeyboardInterrupt
    counts = [thread.result() for thread in writing]
    read = [thread.result() for thread in reading]
    rows, ids, total = load.stored()
    sent = sum(
        FRAME_ROWS * _first_id(at, number) + FRAME_ROWS * (FRAME_ROWS - 1) // 2
        for at, written in enumerate(counts)
        for number in range(written)
    )
    return Held(
        database, elapsed, WRITERS, READERS, sum(counts), sum(counts) * FRAME_ROWS, rows, ids, total == sent,
        sum(frames for frames, _ in read), sum(wrong for _, wrong in read), memory[len(memory) // 3], memory[-1],
    )  # fmt: skip


def _first_id(writer: int, number: int) -> int:
    """Of a writer's frame of this number: no two frames have an id in common."""
    return (number * WRITERS + writer) * FRAME_ROWS


def fast(database: Database, direction: Direction) -> Technique:
    """The technique of the load."""
    return named(database, direction, (WRITER if direction == "write" else READER)[database])


def _frame(first: int, rows: int) -> pl.DataFrame:
    ids = pl.int_range(first, first + rows, dtype=pl.Int64, eager=True).alias("id")
    return pl.DataFrame([ids, pl.Series("label", [f"row {number}" for number in ids]), (ids / 8).alias("value")])


def survives_a_crash(broken: BreakableServers) -> dict[str, tuple[int, int]]:
    """For each database, the rows acknowledged before both servers were killed, and those there after recovery."""
    table, frame = TABLE.renamed("framehaul_acknowledged"), _frame(0, STILL_ROWS)
    for database in BOTH:
        server = broken.servers.of(database)
        tables_of(server).create(table)
        asyncio.run(_write(fast(database, "write"), server, table, frame))
    broken.kill(*BOTH)
    broken.start(*BOTH)
    outlived: dict[str, tuple[int, int]] = {}
    for database in BOTH:
        content = tables_of(broken.servers.of(database)).content(table)
        outlived[database] = len(frame), len(content.join(frame, on=["id", "label", "value"], how="semi"))
    return outlived


async def _write(technique: Technique, server: Server, table: Table, frame: pl.DataFrame) -> None:
    async with opened(technique, server) as client:
        await called(technique, client, table, frame)
