"""Put a sustained load of writers and readers on a server, then compare every row with what was sent."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.data.frames import from_polars
from framehaul.servers.tables import tables_of
from framehaul.studies.faults.breakable import BOTH, TABLE, BreakableServers, frame_of
from framehaul.techniques.registry import Database, named

WRITERS = READERS = 2
FRAME_ROWS, STILL_ROWS = 2_000, 20_000
EVERY_SECONDS = 0.1
"""The interval between a writer's frames; readers make no pause."""
FAST: dict[Database, tuple[str, str]] = {
    "postgres": ("polars_pgpq_copy_binary", "polars_asyncpg_copy_decoded"),
    "clickhouse": ("polars_http_client_arrow_stream", "polars_http_client_arrow_preallocated"),
}
"""A fast write and a fast read of each database, which use one connection."""


def hold_load(broken: BreakableServers, database: Database, seconds: float, stop: threading.Event) -> dict[str, Any]:
    """Write and read for a number of seconds, then compare the table with what was sent, and return the counts.

    `rows_lost` are written rows that are missing in the table or differ there. `rows_more` are rows in the table that
    no writer sent, or that are stored twice. Raises the error of any thread, and KeyboardInterrupt on `stop`.
    """
    server, over, begin = broken.servers.of(database), threading.Event(), time.monotonic()
    written, read = TABLE.renamed("framehaul_held"), TABLE.renamed("framehaul_held_still")
    writer, reader = named(database, "write", FAST[database][0]), named(database, "read", FAST[database][1])
    still, tables = frame_of(0, STILL_ROWS), tables_of(server)
    for table in (written, read):
        tables.create(table)
    tables.load(read, from_polars(still, TABLE))

    async def write(at: int) -> list[pl.DataFrame]:
        """Write frames that share no ids, and return them."""
        sent: list[pl.DataFrame] = []
        async with opened(writer, server) as client:
            while not over.is_set():
                frame = frame_of((len(sent) * WRITERS + at) * FRAME_ROWS, FRAME_ROWS)
                await called(writer, client, written, frame)
                sent.append(frame)
                await asyncio.sleep(max(0.0, begin + len(sent) * EVERY_SECONDS - time.monotonic()))
        return sent

    async def check() -> list[bool]:
        """Read a table that no writer changes, and return for each frame whether it is right."""
        right: list[bool] = []
        async with opened(reader, server) as client:
            while not over.is_set():
                frame = await called(reader, client, read)
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
    right = [each for thread in reading for each in thread.result()]
    sent, found = pl.concat(frames), tables.content(written)
    lost = len(sent.join(found, on=sent.columns, how="anti"))
    return {
        "database": database,
        "seconds": elapsed,
        "frames_written": len(frames),
        "rows_written": len(sent),
        "rows_lost": lost,
        "rows_more": len(found) - len(sent) + lost,
        "frames_read": len(right),
        "frames_read_wrong": right.count(False),
    }


def survives_a_crash(broken: BreakableServers) -> dict[str, tuple[int, int]]:
    """Kill both servers after acknowledged writes; return the rows before and after recovery by database."""
    table, frame = TABLE.renamed("framehaul_acknowledged"), frame_of(0, STILL_ROWS)

    async def write(database: Database) -> None:
        technique = named(database, "write", FAST[database][0])
        async with opened(technique, broken.servers.of(database)) as client:
            await called(technique, client, table, frame)

    for database in BOTH:
        tables_of(broken.servers.of(database)).create(table)
        asyncio.run(write(database))
    broken.kill(*BOTH)
    broken.start(*BOTH)
    contents = {database: tables_of(broken.servers.of(database)).content(table) for database in BOTH}
    return {
        database: (len(frame), len(content.join(frame, on=frame.columns, how="semi")))
        for database, content in contents.items()
    }
