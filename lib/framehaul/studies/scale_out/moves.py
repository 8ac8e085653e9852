"""Partitions of a table by its date: Parquet files, the databases that hold the table, and the functions of workers."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import polars as pl
import pyarrow.parquet as pq

from framehaul.bench.measure import called, opened
from framehaul.data import generator
from framehaul.data.schema import COMMENT, Table, quote_clickhouse, quote_postgres
from framehaul.errors import ServerError, WrongResultError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.studies.scale_out.cluster import Cluster
from framehaul.techniques import Technique
from framehaul.techniques.clients import open_psycopg


@dataclass(frozen=True)
class Range:
    """The rows whose date is at least `low` and less than `high`; None means no bound."""

    low: dt.date | None
    high: dt.date | None

    def condition(self, column: str) -> str:
        """Return the range as a condition in SQL."""
        bounds = ((self.low, ">="), (self.high, "<"))
        return " AND ".join(f"{column} {than} '{bound}'" for bound, than in bounds if bound is not None) or "true"

    @property
    def postgres_bounds(self) -> str:
        """The range as the bounds of a partition in PostgreSQL."""
        low, high = (f"'{day}'" if day else f"{end}VALUE" for day, end in ((self.low, "MIN"), (self.high, "MAX")))
        return f"FROM ({low}) TO ({high})"


@dataclass(frozen=True)
class Partition:
    """A Parquet file with all rows of a range."""

    number: int
    path: Path
    rows: int
    range: Range


@dataclass(frozen=True)
class _Target:
    """A table of a database during one run; workers receive it, and its representation shows no password.

    The name of the run is part of every name that it creates. The subclasses have these methods:

    - Write: `begin` creates the empty table of the run. `stage` creates an empty staging table, or raises an error when
      the run is over. `rows_in` counts the rows of a staging table. `commit` replaces the table by all partitions at
      once: readers see the old table or all partitions.
    - Read: `reading` yields pieces of one state of the table, `read` reads a piece on a worker.
    - `end`, which is always called, drops all tables of the run and ends the workers' statements; it undoes no commit.
    """

    server: Any = field(repr=False)
    table: Table
    run: str = field(default_factory=partial(secrets.token_hex, 4))

    @property
    def new(self) -> Table:
        """The table of the run, which replaces the table that readers see."""
        return self.table.renamed(f"{self.table.name}_{self.run}")

    @property
    def for_workers(self) -> Any:
        """The server with which workers connect."""
        return self.server

    def staging_name(self, partition: Partition) -> str:
        """Return a new name for the staging table of one attempt."""
        return f"{self.new.name}_p{partition.number}_{secrets.token_hex(3)}"


def ranges(count: int) -> list[Range]:
    """Return ranges of nearly equal length that cover the days of the generated data."""
    cuts = [generator.FIRST_DAY + dt.timedelta(generator.DAYS * at // count) for at in range(1, count)]
    return [Range(low, high) for low, high in itertools.pairwise([None, *cuts, None])]


def make(directory: Path, table: Table, rows: int, seed: int, partitions: int) -> list[Partition]:
    """Write the rows of a seed to a new directory, one Parquet file per range of dates."""
    directory.mkdir()
    content = generator.arrow_table(table, rows, seed)
    dates = pl.Series(values=content[date_of(table)])
    made = []
    for number, each in enumerate(ranges(partitions)):
        inside = (dates >= (each.low or dt.date.min)) & (dates < (each.high or dt.date.max))
        path, part = directory / f"part-{number:05}.parquet", content.filter(inside.to_arrow())
        pq.write_table(part, path)
        made.append(Partition(number, path, part.num_rows, each))
    return made


def date_of(table: Table) -> str:
    """Return the column of dates by which a table is partitioned."""
    assert table.partition_by_month_of is not None
    return table.partition_by_month_of


def frame_of(path: Path, table: Table) -> pl.DataFrame:
    """Return the rows of a file in the table's dtypes."""
    return pl.read_parquet(path).select(table.column_names).cast(pl.Schema(table.polars_schema))


@dataclass(frozen=True)
class PostgresTarget(_Target):
    """A table on PostgreSQL, to which staging tables are attached as partitions by range.

    No row is copied, and the primary key holds for all partitions. A CHECK on the staging table saves a scan:
    https://www.postgresql.org/docs/18/ddl-partitioning.html#DDL-PARTITIONING-DECLARATIVE-MAINTENANCE
    """

    server: PostgresServer = field(repr=False)

    @property
    def for_workers(self) -> PostgresServer:
        """The server with an application name, which identifies the sessions of workers."""
        return replace(self.server, options=(*self.server.options, ("application_name", f"framehaul {self.run}")))

    def begin(self) -> None:
        ddl = f"{self.new.postgres_ddl} PARTITION BY RANGE ({quote_postgres(date_of(self.table))})"
        PostgresTables(self.server).create_as(self.new.name, ddl)

    def stage(self, partition: Partition, name: str) -> None:
        # LIKE locks the table of the run until the transaction ends, and fails for a late worker after the run.
        staging, condition = quote_postgres(name), partition.range.condition(date_of(self.table))
        with open_psycopg(self.for_workers) as connection, connection.transaction():
            connection.execute(f"CREATE TABLE {staging} (LIKE {self.new.postgres_name} INCLUDING ALL)".encode())
            connection.execute(f"COMMENT ON TABLE {staging} IS '{COMMENT}'".encode())
            connection.execute(f"ALTER TABLE {staging} ADD CONSTRAINT framehaul_range CHECK ({condition})".encode())

    def rows_in(self, name: str) -> int:
        return int(PostgresTables(self.for_workers).run(f"SELECT count(*) FROM {quote_postgres(name)}")[0][0])

    def commit(self, staged: Mapping[str, Partition]) -> None:
        new, target = self.new.postgres_name, self.table.postgres_name
        with open_psycopg(self.server) as connection, connection.transaction():
            for name, partition in staged.items():
                staging, bounds = quote_postgres(name), partition.range.postgres_bounds
                connection.execute(f"ALTER TABLE {new} ATTACH PARTITION {staging} FOR VALUES {bounds}".encode())
                connection.execute(f"ALTER TABLE {staging} DROP CONSTRAINT framehaul_range".encode())
            found = "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)"
            for (comment,) in connection.execute(found, (target,)).fetchall():
                if comment != COMMENT:
                    raise ServerError(f"PostgreSQL holds a table {self.table.name} that framehaul did not make")
                # This waits for current readers; later readers wait for the new table.
                connection.execute(f"DROP TABLE {target}".encode())
            connection.execute(f"ALTER TABLE {new} RENAME TO {target}".encode())

    def end(self) -> None:
        tables = PostgresTables(self.server)
        mine = f"application_name = 'framehaul {self.run}'"
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}"
        # Twice, because a worker may connect before the table of the run is dropped, and lock it.
        tables.run(ended)
        tables.drop_named(self.new.name)
        tables.run(ended)
        staging = f"starts_with(relname, '{self.new.name}_p') AND relkind = 'r' AND NOT relispartition"
        for (name,) in tables.run(f"SELECT relname FROM pg_class WHERE {staging} AND pg_table_is_visible(oid)"):
            tables.drop_named(name)

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[tuple[str, Range]]]:
        with open_psycopg(self.server) as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            [(snapshot,)] = connection.execute("SELECT pg_export_snapshot()").fetchall()
            # The lock prevents that another session replaces the table.
            connection.execute(f"LOCK TABLE {self.table.postgres_name} IN ACCESS SHARE MODE".encode())
            yield [(snapshot, each) for each in ranges(pieces)]

    async def read(self, technique: Technique, piece: tuple[str, Range]) -> pl.DataFrame:
        snapshot, cut = piece
        view, condition = self.table.renamed(f"framehaul_piece_{self.run}"), cut.condition(date_of(self.table))
        query = f"SELECT {self.table.postgres_columns} FROM {self.table.postgres_name} WHERE {condition}"
        async with opened(technique, self.for_workers) as client:
            assert isinstance(client, asyncpg.Connection)
            await client.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await client.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            # The technique reads a table by its name. A temporary view is visible to this session only.
            await client.execute(f"CREATE TEMPORARY VIEW {view.postgres_name} AS {query}")
            frame: pl.DataFrame = await called(technique, client, view)
            await client.execute("ROLLBACK")
        return frame


@dataclass(frozen=True)
class ClickHouseTarget(_Target):
    """A table on ClickHouse, which EXCHANGE TABLES replaces atomically."""

    server: ClickHouseServer = field(repr=False)

    @property
    def _tables(self) -> ClickHouseTables:
        return ClickHouseTables(self.server)

    def begin(self) -> None:
        self._tables.create_as(self.new.name, self.new.clickhouse_ddl)

    def stage(self, partition: Partition, name: str) -> None:  # noqa: ARG002  ATTACH accepts parts of any range
        # AS fails for a late worker after the run, when the table of the run is gone.
        self._tables.run(f"CREATE TABLE {quote_clickhouse(name)} AS {self.new.clickhouse_name}")
        # The run may have ended, and dropped its staging tables before this table existed.
        if not int(self._tables.run(f"EXISTS TABLE {self.new.clickhouse_name}")):
            self._tables.drop_named(name)
            raise ServerError(f"the run of {name} has ended")

    def rows_in(self, name: str) -> int:
        return int(self._tables.run(f"SELECT count() FROM {quote_clickhouse(name)}"))

    def commit(self, staged: Mapping[str, Partition]) -> None:
        new, name = self.new.clickhouse_name, self.table.clickhouse_name
        for staging in staged:
            self._tables.run(f"ALTER TABLE {new} ATTACH PARTITION ALL FROM {quote_clickhouse(staging)}")
        query = "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {name:String}"
        comments = self._tables.rows(query, name=self.table.name)
        if comments not in ([], [[COMMENT]]):
            raise ServerError(f"ClickHouse holds a table {self.table.name} that framehaul did not make")
        self._tables.run(f"EXCHANGE TABLES {new} AND {name}" if comments else f"RENAME TABLE {new} TO {name}")

    def end(self) -> None:
        self._tables.drop_named(self.new.name)  # from now on no worker can create a staging table
        others = "query_kind != 'KillQuery' AND query_id != queryID()"
        mine = f"user = currentUser() AND position(query, '{self.new.name}') > 0 AND {others}"
        self._tables.run(f"KILL QUERY WHERE {mine} ASYNC")
        left = f"database = currentDatabase() AND startsWith(name, '{self.new.name}')"
        for (name,) in self._tables.rows(f"SELECT name FROM system.tables WHERE {left} ORDER BY engine != 'View'"):
            self._tables.drop_named(name)

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[str]]:
        # Each piece is a view of a range of a copy, whose parts are links, so that later writes change no piece.
        copy, live = self.new.clickhouse_name, self.table.clickhouse_name
        self._tables.run(f"CREATE TABLE {copy} AS {live}")
        self._tables.run(f"ALTER TABLE {copy} ATTACH PARTITION ALL FROM {live}")
        views = {f"{self.new.name}_v{number}": each for number, each in enumerate(ranges(pieces))}
        for view, each in views.items():
            self._tables.run(
                f"CREATE VIEW {quote_clickhouse(view)} AS SELECT {self.table.clickhouse_columns} FROM {copy} "
                f"WHERE {each.condition(date_of(self.table))} COMMENT '{COMMENT}'"
            )
        yield [*views]

    async def read(self, technique: Technique, piece: str) -> pl.DataFrame:
        async with opened(technique, self.server) as client:
            frame: pl.DataFrame = await called(technique, client, self.table.renamed(piece))
        return frame


type Target = PostgresTarget | ClickHouseTarget


def stage(target: Target, technique: Technique, partition: Partition) -> str:
    """Write one partition, on a worker, to a staging table of this attempt, and return the table's name.

    Raises WrongResultError when the staging table has another number of rows than the file.
    """
    name = target.staging_name(partition)
    target.stage(partition, name)
    frame = frame_of(partition.path, target.table)

    async def write_frame() -> None:
        async with opened(technique, target.for_workers) as client:
            await called(technique, client, target.table.renamed(name), frame)

    if len(frame):
        asyncio.run(write_frame())
    if (rows := target.rows_in(name)) != partition.rows:
        raise WrongResultError(f"{rows} rows of partition {partition.number} arrived instead of {partition.rows}")
    return name


def write(
    target: Target, technique: Technique, partitions: Sequence[Partition], cluster: Cluster, workers: int | None = None
) -> None:
    """Replace the table by all partitions, each exactly once, or leave it unchanged.

    The staging table of the attempt whose result the scheduler returns is committed. Staging tables of other attempts,
    by workers that died or seemed dead, are dropped. Raises a worker's error, Dask's error when the workers are lost,
    and KeyboardInterrupt when `cluster.stop` was set.
    """
    try:
        target.begin()
        names = cluster.map(partial(stage, target, technique), partitions, f"write-{target.run}", workers)
        target.commit(dict(zip(names, partitions, strict=True)))
    finally:
        target.end()


def fetch(target: Target, technique: Technique, piece: Any) -> pl.DataFrame:
    """Read one piece, on a worker."""
    return asyncio.run(target.read(technique, piece))


def fetch_into(target: Target, technique: Technique, directory: Path, numbered: tuple[int, Any]) -> None:
    """Read one piece, on a worker, to a file that appears when it is complete.

    All attempts use the same file name and read the same rows.
    """
    number, piece = numbered
    path = directory / f"part-{number:05}.parquet"
    unfinished = directory / f".{path.name}.{secrets.token_hex(4)}"
    fetch(target, technique, piece).write_parquet(unfinished)
    unfinished.replace(path)


def read(
    target: Target, technique: Technique, pieces: int, directory: Path, cluster: Cluster, workers: int | None = None
) -> None:
    """Read one state of the table to `pieces` Parquet files in an empty directory; raises the errors of `write`."""
    try:
        with target.reading(pieces) as snapshot:
            into = partial(fetch_into, target, technique, directory)
            cluster.map(into, [*enumerate(snapshot)], f"read-{target.run}", workers)
    finally:
        target.end()
