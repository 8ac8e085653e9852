"""Run separate embedded servers that may be killed, crash them, and put a sustained load on them."""

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from framehaul.bench.measure import called, opened
from framehaul.data.frames import from_polars
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.servers import Servers
from framehaul.servers.local import FOR_TRANSFERS, EmbeddedClickHouse, EmbeddedPostgres, choose_port, remove
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.techniques.registry import DATABASES, Database, named

TABLE = Table(
    "framehaul_faults",
    (Column("id", ColumnType.INT64), Column("label", ColumnType.TEXT), Column("value", ColumnType.FLOAT64)),
    ("id",),
)
WRITERS = READERS = 2
FRAME_ROWS, STILL_ROWS = 2_000, 20_000
EVERY_SECONDS = 0.1
"""The interval between a writer's frames; readers make no pause."""
FAST: dict[Database, tuple[str, str]] = {
    "postgres": ("polars_pgpq_copy_binary", "polars_asyncpg_copy_decoded"),
    "clickhouse": ("polars_http_client_arrow_stream", "polars_http_client_arrow_preallocated"),
}
"""A fast write and a fast read of each database, which use one connection."""

# ClickHouse closes a block after this number of rows (default: a million), so that few rows behave like many millions.
BLOCK_ROWS = 16_384
SMALL_BLOCKS = {
    "max_insert_block_size": BLOCK_ROWS, "min_insert_block_size_rows": BLOCK_ROWS,
    "min_insert_block_size_bytes": 65_536, "input_format_parquet_max_block_size": BLOCK_ROWS,
    # Rows are sent in order, so that an error in the last row comes after the body has begun.
    "max_block_size": BLOCK_ROWS, "max_threads": 1,
}  # fmt: skip


@dataclass
class BreakableServers:
    """Both embedded servers, which can crash and be started again."""

    postgres_process: EmbeddedPostgres
    clickhouse_process: EmbeddedClickHouse
    servers: Servers = field(init=False)

    def start(self, limit_seconds: int = 0) -> None:
        """Start both servers (again), with a limit for the time of a statement, and wait for recovery."""
        self.postgres_process.stop()  # removes what a killed server left
        self.clickhouse_process.stop()
        self.postgres_process.configuration = {**FOR_TRANSFERS, "statement_timeout": f"{limit_seconds}s"}
        self.clickhouse_process.profile = {**SMALL_BLOCKS, "max_execution_time": limit_seconds}
        self.servers = Servers(self.postgres_process.start(), self.clickhouse_process.start(), "embedded")

    def crash(self) -> None:
        """Kill both servers, without a warning to clients and without a flush, and start them again."""
        processes: list[psutil.Process] = []
        for process_id in (self.servers.postgres.process_id, self.servers.clickhouse.process_id):
            assert process_id is not None
            server = psutil.Process(process_id)
            processes += [server, *server.children(recursive=True)]
        # All are suspended before the first is killed. Otherwise PostgreSQL's backends clean up after the postmaster:
        # they removed a file of an unlogged table that recovery needed, and the server never started.
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    end(process)
        psutil.wait_procs(processes, timeout=30)
        self.start()

    def survives_a_crash(self) -> dict[Database, tuple[int, int]]:
        """Crash after acknowledged writes; return the rows before and after recovery by database."""
        table, frame = TABLE.renamed("framehaul_acknowledged"), frame_of(0, STILL_ROWS)

        async def write(database: Database) -> None:
            technique = named(database, "write", FAST[database][0])
            async with opened(technique, self.servers.of(database)) as client:
                await called(technique, client, table, frame)

        for database in DATABASES:
            tables_of(self.servers.of(database)).create(table)
            asyncio.run(write(database))
        self.crash()
        contents = {database: tables_of(self.servers.of(database)).content(table) for database in DATABASES}
        kept = {database: found.join(frame, on=frame.columns, how="semi") for database, found in contents.items()}
        return {database: (len(frame), len(found)) for database, found in kept.items()}

    def run(self, database: str, statement: str) -> list[Any]:
        """Run a statement without a time limit and return its values, as text from ClickHouse; raises ServerError."""
        if database == "clickhouse":
            answer = ClickHouseTables(self.servers.clickhouse).run(statement, max_execution_time=0)
            return answer.decode().split()
        unlimited = replace(self.servers.postgres, options=(("options", "-c statement_timeout=0"),))
        return [value for row in PostgresTables(unlimited).run(statement) for value in row]


@contextmanager
def breakable(extensions: Path | None = None) -> Iterator[BreakableServers]:
    """Run both servers in a temporary directory while the block lasts."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="framehaul-faults-"))
        stack.callback(remove, home)
        home.chmod(0o711)  # the account that runs PostgreSQL has to enter it
        postgres = EmbeddedPostgres(home, choose_port(None, ""), extensions)
        stack.callback(postgres.stop)
        clickhouse = EmbeddedClickHouse(home, choose_port(None, ""), choose_port(None, ""))
        stack.callback(clickhouse.stop)
        broken = BreakableServers(postgres, clickhouse)
        broken.start()
        yield broken


def frame_of(first: int, rows: int) -> pl.DataFrame:
    """Return rows of TABLE with ascending ids from `first` on."""
    ids = pl.select(id=pl.int_range(first, first + rows, dtype=pl.Int64))
    return ids.with_columns(label=pl.format("row number {} of many", "id"), value=pl.col("id") / 8)


def hold_load(broken: BreakableServers, database: Database, seconds: float, stop: threading.Event) -> dict[str, Any]:
    """Write and read for a number of seconds, then compare the table with what was sent, and return the counts.

    `rows_lost` are written rows that are missing in the table or differ there. `rows_more` are rows in the table that
    no writer sent, or that are stored twice. Raises the error of any thread, and KeyboardInterrupt on `stop`.
    """
    server, over, begin = broken.servers.of(database), threading.Event(), time.monotonic()
    written, read = TABLE.renamed("framehaul_held"), TABLE.renamed("framehaul_held_still")
    writer, reader = named(database, "write", FAST[database][0]), named(database, "read", FAST[database][1])
    still, tables = frame_of(0, STILL_ROWS), tables_of(server)
    tables.create(written)
    tables.make(read, from_polars(still, TABLE))

    async def write(at: int) -> list[pl.DataFrame]:
        """Write frames that share no ids, and return them."""
        sent: list[pl.DataFrame] = []
        async with opened(writer, server) as client:
            while not sent or not over.is_set():  # one frame at least, also on a busy machine
                frame = frame_of((len(sent) * WRITERS + at) * FRAME_ROWS, FRAME_ROWS)
                await called(writer, client, written, frame)
                sent.append(frame)
                await asyncio.sleep(max(0.0, begin + len(sent) * EVERY_SECONDS - time.monotonic()))
        return sent

    async def check() -> list[bool]:
        """Read a table that no writer changes, and return for each frame whether it is right."""
        right: list[bool] = []
        async with opened(reader, server) as client:
            while not right or not over.is_set():
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
    if stop.is_set():
        raise KeyboardInterrupt
    elapsed = time.monotonic() - begin
    frames = [frame for thread in writing for frame in thread.result()]
    right = [each for thread in reading for each in thread.result()]
    sent, found = pl.concat(frames), tables.content(written)
    lost = len(sent.join(found, on=sent.columns, how="anti"))
    rows = {"rows_written": len(sent), "rows_lost": lost, "rows_more": len(found) - len(sent) + lost}
    read_frames = {"frames_read": len(right), "frames_read_wrong": right.count(False)}
    return {"database": database, "seconds": elapsed, "frames_written": len(frames)} | rows | read_frames
