"""Partitions in PostgreSQL: staging tables that become the partitions of one table, and ranges of pages to read."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.data.schema import COMMENT, POSTGRES_NAME_BYTES, Table, quote_postgres, quote_postgres_text
from framehaul.errors import ServerError
from framehaul.servers import PostgresServer
from framehaul.servers.tables import PostgresTables
from framehaul.studies.scale_out.partitions import Partition, Piece, spread
from framehaul.studies.scale_out.targets import Staged
from framehaul.techniques import Technique
from framehaul.techniques.clients import open_psycopg
from framehaul.techniques.registry import Database

CLIENTS = ("asyncpg", "psycopg")
"""The clients whose session can take over a snapshot, so that their techniques read a piece."""


@dataclass(frozen=True)
class PostgresPiece:
    """Pages of the table, or of its partitions, as one snapshot sees them."""

    snapshot: str
    query: str


@dataclass(frozen=True)
class PostgresTarget:
    """A `Target` on PostgreSQL.

    Where the files do not overlap, staging tables are attached as partitions by range: no row is copied, the primary
    key holds for all of them, and a CHECK that the rows met when they came spares the scan of each:
    https://www.postgresql.org/docs/18/ddl-partitioning.html#DDL-PARTITIONING-DECLARATIVE-MAINTENANCE
    Where they do overlap there is no such table: an INSERT ... SELECT for each copies its rows, in one transaction.
    """

    server: PostgresServer = field(repr=False)
    table: Table
    run: str

    @property
    def database(self) -> Database:
        return "postgres"

    @property
    def _new(self) -> Table:
        return self.table.renamed(f"{self.table.name}_{self.run}")

    @property
    def _workers(self) -> PostgresServer:
        """The server as workers log in: what they do can be told from what others do."""
        return replace(self.server, options=(*self.server.options, ("application_name", f"framehaul {self.run}")))

    def begin(self, *, ranged: bool) -> None:
        longest = f"{self._new.name}_p{10**6}_123456_pkey"
        if len(longest.encode()) > POSTGRES_NAME_BYTES:
            raise ServerError(f"the name {self.table.name} is too long: that of a staging table would be cut")
        assert not ranged or self.table.partition_by_month_of is not None
        by = f" PARTITION BY RANGE ({quote_postgres(self.table.partition_by_month_of or '')})" if ranged else ""
        PostgresTables(self.server).create_as(self._new.name, self._new.postgres_ddl + by)

    def stage(self, partition: Partition, name: str) -> None:
        # LIKE locks the table of the run until the transaction ends: when that table is gone, so is the run, and a
        # worker that comes too late makes nothing.
        staging = quote_postgres(name)
        with open_psycopg(self._workers) as connection, connection.transaction():
            connection.execute(f"CREATE TABLE {staging} (LIKE {self._new.postgres_name} INCLUDING ALL)".encode())
            connection.execute(f"COMMENT ON TABLE {staging} IS {quote_postgres_text(COMMENT)}".encode())
            if condition := self._range(partition):
                connection.execute(f"ALTER TABLE {staging} ADD CONSTRAINT framehaul_range CHECK ({condition})".encode())

    def _range(self, partition: Partition) -> str:
        day = quote_postgres(self.table.partition_by_month_of or "")
        bounds = ((partition.low, ">="), (partition.high, "<"))
        return " AND ".join(f"{day} {than} '{bound}'" for bound, than in bounds if bound is not None)

    def rows_in(self, name: str) -> int:
        return int(PostgresTables(self._workers).run(f"SELECT count(*) FROM {quote_postgres(name)}")[0][0])

    @property
    def for_workers(self) -> PostgresServer:
        """Where techniques of workers connect to."""
        return self._workers

    def commit(self, staged: Sequence[Staged]) -> None:
        new, target = self._new.postgres_name, self.table.postgres_name
        with open_psycopg(self.server) as connection, connection.transaction():
            for one in staged:
                for statement in self._adopted(one):
                    connection.execute(statement.encode())
            row = connection.execute(
                "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%s)", (target,)
            ).fetchone()
            if row is not None:
                if row[0] != COMMENT:
                    raise ServerError(f"PostgreSQL holds a table {self.table.name} that framehaul did not make")
                # Whoever reads it now is waited for; whoever asks from now on waits for the new one.
                connection.execute(f"DROP TABLE {target}".encode())
            connection.execute(f"ALTER TABLE {new} RENAME TO {target}".encode())

    def _adopted(self, staged: Staged) -> Iterator[str]:
        staging, partition = quote_postgres(staged.name), staged.partition
        if not partition.ranged:
            columns = self.table.postgres_columns
            yield f"INSERT INTO {self._new.postgres_name} ({columns}) SELECT {columns} FROM {staging}"
            yield f"DROP TABLE {staging}"
            return
        low = "MINVALUE" if partition.low is None else f"'{partition.low}'"
        high = "MAXVALUE" if partition.high is None else f"'{partition.high}'"
        yield f"ALTER TABLE {self._new.postgres_name} ATTACH PARTITION {staging} FOR VALUES FROM ({low}) TO ({high})"
        yield f"ALTER TABLE {staging} DROP CONSTRAINT IF EXISTS framehaul_range"

    def end(self) -> None:
        tables = PostgresTables(self.server)
        application = quote_postgres_text(f"framehaul {self.run}")
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = {application}"
        # Twice: a worker may have connected before the table of the run was gone, and hold what comes next.
        tables.run(ended)
        tables.drop_named(self._new.name)
        tables.run(ended)
        prefix = quote_postgres_text(f"{self._new.name}_p")
        for (name,) in tables.run(
            f"SELECT relname FROM pg_class WHERE starts_with(relname, {prefix}) AND relkind = 'r' "
            "AND NOT relispartition AND pg_table_is_visible(oid)"
        ):
            tables.drop_named(name)

    def drop(self) -> None:
        PostgresTables(self.server).drop(self.table)

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[PostgresPiece]]:
        with open_psycopg(self.server) as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            [(snapshot,)] = connection.execute("SELECT pg_export_snapshot()").fetchall()
            # A table without partitions has no tree. Pages added from now on hold nothing that the snapshot sees.
            name = quote_postgres_text(self.table.postgres_name)
            leaves = connection.execute(
                "SELECT leaf::regclass::text, pg_relation_size(leaf) / current_setting('block_size')::int FROM ("
                f"SELECT relid AS leaf FROM pg_partition_tree({name}) WHERE isleaf UNION SELECT {name}::regclass"
                ") AS leaves ORDER BY leaf::oid".encode()
            ).fetchall()
            sizes = {str(leaf): int(pages) for leaf, pages in leaves}
            yield [PostgresPiece(snapshot, self._query(piece)) for piece in spread(sizes, pieces)]

    def _query(self, pieces: list[Piece]) -> str:
        select = f"SELECT {self.table.postgres_columns} FROM"
        return " UNION ALL ".join(
            f"{select} ONLY {piece.name} WHERE ctid >= '({piece.start},0)' AND ctid < '({piece.stop},0)'"
            for piece in pieces
        ) or f"{select} {self.table.postgres_name} WHERE false"  # fmt: skip

    async def read(self, technique: Technique, piece: PostgresPiece) -> pl.DataFrame:
        view = self.table.renamed(f"framehaul_piece_{self.run}")
        async with opened(technique, self._workers) as client:
            for statement in (
                "BEGIN ISOLATION LEVEL REPEATABLE READ",
                f"SET TRANSACTION SNAPSHOT {quote_postgres_text(piece.snapshot)}",
                # The technique reads a table by its name; this one only this session sees, and it goes with it.
                f"CREATE TEMPORARY VIEW {view.postgres_name} AS {piece.query}",
            ):
                await _executed(client, statement)
            frame: pl.DataFrame = await called(technique, client, view)
            await _executed(client, "ROLLBACK")
        return frame


async def _executed(client: Any, statement: str) -> None:
    returned = client.execute(statement)
    if inspect.isawaitable(returned):
        await returned
