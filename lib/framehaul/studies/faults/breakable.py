"""Run separate embedded servers that may be killed, and make the rows that are sent to them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import psutil

from framehaul.data.schema import Column, ColumnType, Table
from framehaul.servers import PostgresServer, Server, Servers
from framehaul.servers.local import EmbeddedClickHouse, EmbeddedPostgres, choose_port, remove
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.techniques.registry import Database

BOTH: tuple[Database, ...] = ("postgres", "clickhouse")
TABLE = Table(
    "framehaul_faults",
    (Column("id", ColumnType.INT64), Column("label", ColumnType.TEXT), Column("value", ColumnType.FLOAT64)),
    ("id",),
)

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
    """Both embedded servers, which can be killed and started again."""

    postgres_process: EmbeddedPostgres
    clickhouse_process: EmbeddedClickHouse
    servers: Servers

    def kill(self, *databases: Database) -> None:
        """Kill servers as a crash would, without a warning to clients and without a flush."""
        for database in databases:
            process_id = self.servers.of(database).process_id
            assert process_id is not None
            server = psutil.Process(process_id)
            processes = [server, *server.children(recursive=True)]
            # All are suspended before the first is killed. Otherwise PostgreSQL's backends clean up after the
            # postmaster: they removed a file of an unlogged table that recovery needed, and the server never started.
            for end in (psutil.Process.suspend, psutil.Process.kill):
                for process in processes:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        end(process)
            psutil.wait_procs(processes, timeout=30)

    def start(self, *databases: Database, **clickhouse_settings: str | int) -> None:
        """Start the servers again, ClickHouse with these additional settings, and wait for recovery."""
        postgres, clickhouse = self.servers.postgres, self.servers.clickhouse
        if "postgres" in databases:
            self.postgres_process.stop()  # removes what a killed server left
            postgres = self.postgres_process.start()
        if "clickhouse" in databases:
            self.clickhouse_process.stop()
            self.clickhouse_process.profile = SMALL_BLOCKS | clickhouse_settings
            clickhouse = self.clickhouse_process.start()
        self.servers = Servers(postgres, clickhouse, "embedded")


@contextmanager
def breakable(extensions: Path | None = None) -> Iterator[BreakableServers]:
    """Run both servers in a temporary directory while the block lasts."""
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="framehaul-faults-"))
        stack.callback(remove, home)
        home.chmod(0o711)  # the account that runs PostgreSQL has to enter it
        postgres = EmbeddedPostgres(home, choose_port(None, ""), extensions)
        stack.callback(postgres.stop)
        clickhouse = EmbeddedClickHouse(home, choose_port(None, ""), choose_port(None, ""), profile=SMALL_BLOCKS)
        stack.callback(clickhouse.stop)
        yield BreakableServers(postgres, clickhouse, Servers(postgres.start(), clickhouse.start(), "embedded"))


def frame_of(first: int, rows: int) -> pl.DataFrame:
    """Return rows of TABLE with ascending ids from `first` on."""
    ids = pl.select(id=pl.int_range(first, first + rows, dtype=pl.Int64))
    return ids.with_columns(label=pl.format("row number {} of many", "id"), value=pl.col("id") / 8)


def run_on(server: Server, *statements: str) -> list[Any]:
    """Run statements and return the values of the last result, which are text from ClickHouse.

    The time limit that is a fault for techniques does not apply. Raises ServerError.
    """
    if isinstance(server, PostgresServer):
        unlimited = PostgresTables(replace(server, options=(("options", "-c statement_timeout=0"),)))
        return [value for row in [unlimited.run(statement) for statement in statements][-1] for value in row]
    tables = ClickHouseTables(server)
    return [tables.run(statement, max_execution_time=0) for statement in statements][-1].decode().split()
