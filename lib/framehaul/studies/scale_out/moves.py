"""Partitions of a table by its date: Parquet files, the databases that hold the table, and the functions of workers."""

import asyncio
import datetime as dt
import itertools
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import asyncpg
import polars as pl
import pyarrow.parquet as pq

from framehaul.bench.measure import called, opened
from framehaul.data import generator
from framehaul.data.schema import COMMENT, FIRST_DAY, LAST_DAY, Table, quote_clickhouse, quote_postgres
from framehaul.errors import ServerError, WrongResultError
from framehaul.servers import PostgresServer, Server
from framehaul.servers.tables import Tables, tables_of
from framehaul.techniques import Technique

type Range = tuple[dt.date, dt.date]
"""The rows whose date is at least the first one and less than the second one."""
type Partition = tuple[Path, Range]
"""A Parquet file with all rows of a range."""
type Piece = tuple[str, Table]
"""A part of a table to read, and the statement that begins a transaction of the same snapshot in PostgreSQL."""


def ranges(count: int) -> list[Range]:
    """Return ranges up to the last day of ClickHouse's `Date`, nearly equal in days of the generated data."""
    cuts = [generator.FIRST_DAY + dt.timedelta(generator.DAYS * at // count) for at in range(1, count)]
    return list(itertools.pairwise([FIRST_DAY, *cuts, LAST_DAY]))


def make(directory: Path, table: Table, rows: int, seed: int, partitions: int) -> list[Partition]:
    """Write the rows of a seed to a new directory, one Parquet file per range of dates."""
    directory.mkdir()
    content = generator.arrow_table(table, rows, seed)
    dates = pl.Series(values=content[table.partition_by_month_of])
    made = [(directory / f"part-{number:05}.parquet", each) for number, each in enumerate(ranges(partitions))]
    for path, each in made:
        pq.write_table(content.filter(dates.is_between(*each, "left").to_arrow()), path)
    return made


def frame_of(path: Path, table: Table) -> pl.DataFrame:
    """Return the rows of a file in the table's dtypes."""
    return pl.read_parquet(path).select(table.column_names).cast(pl.Schema(table.polars_schema))


@dataclass(frozen=True)
class _Target:
    """A table of a database during one run; workers receive it, and its representation shows no password.

    In its subclasses, `begin` creates the empty table of the run. `stage` creates an empty staging table, or raises an
    error when the run is over. `commit` replaces the table by all partitions at once: readers see the old table or all
    partitions. `reading` yields pieces of one state of the table.
    """

    server: Any = field(repr=False)
    table: Table
    new: Table
    """The table of the run, which replaces the table that readers see; its name begins all names of the run."""
    kill: ClassVar[str]
    left: ClassVar[str]
    """Statements that end the other statements of a run, and that return the names of the tables that it has left."""

    @property
    def tables(self) -> Tables:
        """The administration of the server's tables."""
        return tables_of(self.server)

    def within(self, each: Range) -> str:
        """Return a range as a condition in SQL."""
        date, (low, high) = self.table.partition_by_month_of, each
        return f"{date} >= '{low}' AND {date} < '{high}'"

    def pieces(self, count: int, source: str, begin: str = "") -> list[Piece]:
        """Return the ranges of a table."""
        return [
            (begin, replace(self.table, reference=f"(SELECT * FROM {source} WHERE {self.within(each)}) AS piece"))
            for each in ranges(count)
        ]

    def end(self) -> None:
        """Drop all tables of the run and end the workers' statements, at the end of every run; undo no commit."""
        # Twice, because a worker may connect before the table of the run is dropped, and lock it. Afterwards no worker
        # can create a staging table.
        self.tables.run(self.kill.format(self.new.name))
        self.tables.drop(self.new.name)
        self.tables.run(self.kill.format(self.new.name))
        for (name,) in self.tables.rows(self.left.format(self.new.name)):
            self.tables.drop(name)


class PostgresTarget(_Target):
    """A table on PostgreSQL, to which staging tables are attached as partitions by range.

    No row is copied, and the primary key holds for all partitions. A CHECK on the staging table saves a scan:
    https://www.postgresql.org/docs/18/ddl-partitioning.html#DDL-PARTITIONING-DECLARATIVE-MAINTENANCE
    """

    kill = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = '{}' AND pid <> pg_backend_pid()"""
    left = """SELECT relname FROM pg_class WHERE starts_with(relname, '{}_p') AND relkind = 'r' AND NOT relispartition
        AND pg_table_is_visible(oid)"""

    def begin(self) -> None:
        ddl = f"{self.new.postgres_ddl} PARTITION BY RANGE ({self.table.partition_by_month_of})"
        self.tables.create_as(self.new.name, ddl)

    def stage(self, partition: Partition, name: str) -> None:
        # LIKE locks the table of the run until the transaction ends, and fails for a late worker after the run.
        create = f"CREATE TABLE {quote_postgres(name)} (LIKE {self.new.postgres_name} INCLUDING ALL)"
        check = f"ADD CONSTRAINT framehaul_range CHECK ({self.within(partition[1])})"
        self.tables.create_as(name, f"{create}; ALTER TABLE {quote_postgres(name)} {check}")

    def commit(self, staged: Mapping[str, Partition]) -> None:
        new, tables = self.new.postgres_name, self.tables
        with tables.kept():
            tables.run("BEGIN")
            for name, (_, (low, high)) in staged.items():
                staging = quote_postgres(name)
                tables.run(f"ALTER TABLE {new} ATTACH PARTITION {staging} FOR VALUES FROM ('{low}') TO ('{high}')")
                tables.run(f"ALTER TABLE {staging} DROP CONSTRAINT framehaul_range")
            # This waits for current readers; later readers wait for the new table.
            tables.drop(self.table.name)
            tables.run(f"ALTER TABLE {new} RENAME TO {self.table.postgres_name}")
            tables.run("COMMIT")

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[Piece]]:
        tables, begin = self.tables, "BEGIN ISOLATION LEVEL REPEATABLE READ"
        with tables.kept():
            tables.run(begin)
            [(snapshot,)] = tables.run("SELECT pg_export_snapshot()")
            # The lock prevents that another session replaces the table.
            tables.run(f"LOCK TABLE {self.table.postgres_name} IN ACCESS SHARE MODE")
            yield self.pieces(pieces, self.table.postgres_name, f"{begin}; SET TRANSACTION SNAPSHOT '{snapshot}'")


class ClickHouseTarget(_Target):
    """A table on ClickHouse, which EXCHANGE TABLES replaces atomically."""

    kill = """KILL QUERY WHERE user = currentUser() AND position(query, '{}') > 0 AND query_kind != 'KillQuery'
        AND query_id != queryID() ASYNC"""
    left = "SELECT name FROM system.tables WHERE database = currentDatabase() AND startsWith(name, '{}')"

    def begin(self) -> None:
        self.tables.create(self.new)

    def stage(self, _: Partition, name: str) -> None:
        # AS fails for a late worker after the run, when the table of the run is gone.
        self.tables.run(f"CREATE TABLE {quote_clickhouse(name)} AS {self.new.clickhouse_name}")
        # The run may have ended, and dropped its staging tables before this table existed.
        if not int(self.tables.run(f"EXISTS TABLE {self.new.clickhouse_name}")):
            self.tables.drop(name)
            raise ServerError(f"the run of {name} has ended")

    def commit(self, staged: Mapping[str, Partition]) -> None:
        new, name = self.new.clickhouse_name, self.table.clickhouse_name
        for staging in staged:
            self.tables.run(f"ALTER TABLE {new} ATTACH PARTITION ALL FROM {quote_clickhouse(staging)}")
        comments = self.tables.rows(self.tables.comments, name=self.table.name)
        if comments not in ([], [[COMMENT]]):
            raise ServerError(f"ClickHouse holds a table {self.table.name} that framehaul did not make")
        self.tables.run(f"EXCHANGE TABLES {new} AND {name}" if comments else f"RENAME TABLE {new} TO {name}")

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[Piece]]:
        # The parts of the copy are links, so that later writes change no piece.
        copy = self.new.clickhouse_name
        ddl = f"CREATE TABLE {copy} CLONE AS {self.table.clickhouse_name} COMMENT '{COMMENT}'"
        self.tables.create_as(self.new.name, ddl)
        yield self.pieces(pieces, copy)


type Target = PostgresTarget | ClickHouseTarget


def target_on(server: Server, table: Table) -> Target:
    """Return the target of a new run for a table on a server; the sessions of PostgreSQL have the name of the run."""
    new = table.renamed(f"{table.name}_{secrets.token_hex(4)}")
    if isinstance(server, PostgresServer):
        named = replace(server, options=(*server.options, ("application_name", new.name)))
        return PostgresTarget(named, table, new)
    return ClickHouseTarget(server, table, new)


def moved(target: Target, technique: Technique, *arguments: object, begin: str = "") -> Any:
    """Call a technique over a new connection, on a worker, and return its result; `begin` is its first statement."""

    async def call() -> Any:
        async with opened(technique, target.server) as client:
            if begin:
                assert isinstance(client, asyncpg.Connection)
                await client.execute(begin)
            return await called(technique, client, *arguments)

    return asyncio.run(call())


def stage(target: Target, technique: Technique, partition: Partition) -> str:
    """Write one partition, on a worker, to a new staging table of this attempt, and return the table's name.

    Raises WrongResultError when the staging table has another number of rows than the file.
    """
    staging, (path, _) = target.table.renamed(f"{target.new.name}_p{secrets.token_hex(4)}"), partition
    target.stage(partition, staging.name)
    frame = frame_of(path, target.table)
    if len(frame):
        moved(target, technique, staging, frame)
    [[rows]] = target.tables.rows(f"SELECT count(*) FROM {getattr(staging, f'{target.tables.database}_name')}")
    if int(rows) != len(frame):
        raise WrongResultError(f"{rows} rows of {path.name} arrived instead of {len(frame)}")
    return staging.name


def fetch_into(target: Target, technique: Technique, directory: Path, numbered: tuple[int, Piece]) -> None:
    """Read one piece, on a worker, to a file that appears when it is complete.

    All attempts use the same file name and read the same rows.
    """
    number, (begin, piece) = numbered
    path = directory / f"part-{number:05}.parquet"
    unfinished = directory / f".{path.name}.{secrets.token_hex(4)}"
    moved(target, technique, piece, begin=begin).write_parquet(unfinished)
    unfinished.replace(path)
