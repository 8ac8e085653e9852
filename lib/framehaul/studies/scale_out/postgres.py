"""Partitions in PostgreSQL: staging tables become partitions of a table, and a snapshot is read by ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import asyncpg
import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.data.schema import COMMENT, quote_postgres, quote_postgres_text
from framehaul.errors import ServerError
from framehaul.servers import PostgresServer
from framehaul.servers.tables import PostgresTables
from framehaul.studies.scale_out.partitions import Partition, Range, Target, date_of, ranges
from framehaul.techniques import Technique
from framehaul.techniques.clients import open_psycopg


@dataclass(frozen=True)
class PostgresTarget(Target):
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
            connection.execute(f"COMMENT ON TABLE {staging} IS {quote_postgres_text(COMMENT)}".encode())
            connection.execute(f"ALTER TABLE {staging} ADD CONSTRAINT framehaul_range CHECK ({condition})".encode())

    def rows_in(self, name: str) -> int:
        return int(PostgresTables(self.for_workers).run(f"SELECT count(*) FROM {quote_postgres(name)}")[0][0])

    def commit(self, staged: Mapping[str, Partition]) -> None:
        new, target = self.new.postgres_name, self.table.postgres_name
        with open_psycopg(self.server) as connection, connection.transaction():
            for name, partition in staged.items():
                staging, cut = quote_postgres(name), partition.range
                low = "MINVALUE" if cut.low is None else f"'{cut.low}'"
                high = "MAXVALUE" if cut.high is None else f"'{cut.high}'"
                attached = f"ALTER TABLE {new} ATTACH PARTITION {staging} FOR VALUES FROM ({low}) TO ({high})"
                connection.execute(attached.encode())
                connection.execute(f"ALTER TABLE {staging} DROP CONSTRAINT framehaul_range".encode())
            row = connection.execute(
                "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)", (target,)
            ).fetchone()
            if row is not None:
                if row[0] != COMMENT:
                    raise ServerError(f"PostgreSQL holds a table {self.table.name} that framehaul did not make")
                # This waits for current readers; later readers wait for the new table.
                connection.execute(f"DROP TABLE {target}".encode())
            connection.execute(f"ALTER TABLE {new} RENAME TO {target}".encode())

    def end(self) -> None:
        tables = PostgresTables(self.server)
        application = quote_postgres_text(f"framehaul {self.run}")
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = {application}"
        # Twice, because a worker may connect before the table of the run is dropped, and lock it.
        tables.run(ended)
        tables.drop_named(self.new.name)
        tables.run(ended)
        prefix = quote_postgres_text(f"{self.new.name}_p")
        for (name,) in tables.run(
            f"SELECT relname FROM pg_class WHERE starts_with(relname, {prefix}) AND relkind = 'r' "
            "AND NOT relispartition AND pg_table_is_visible(oid)"
        ):
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
            await client.execute(f"SET TRANSACTION SNAPSHOT {quote_postgres_text(snapshot)}")
            # The technique reads a table by its name. A temporary view is visible to this session only.
            await client.execute(f"CREATE TEMPORARY VIEW {view.postgres_name} AS {query}")
            frame: pl.DataFrame = await called(technique, client, view)
            await client.execute("ROLLBACK")
        return frame
