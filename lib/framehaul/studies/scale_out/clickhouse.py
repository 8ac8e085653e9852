"""Partitions in ClickHouse: parts move between tables as links, without a copy, and are read through views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.data.schema import COMMENT, quote_clickhouse, quote_clickhouse_text
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.scale_out.partitions import Partition, Target, date_of, ranges
from framehaul.techniques import Technique


@dataclass(frozen=True)
class ClickHouseTarget(Target):
    """A table on ClickHouse, which EXCHANGE TABLES replaces atomically."""

    server: ClickHouseServer = field(repr=False)

    @property
    def for_workers(self) -> ClickHouseServer:
        """The server that techniques of workers connect to."""
        return self.server

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
        comment = self._tables.run(
            "SELECT comment FROM system.tables WHERE database = currentDatabase() AND "
            f"name = {quote_clickhouse_text(self.table.name)} FORMAT TSVRaw"
        )
        if not comment:
            self._tables.run(f"RENAME TABLE {new} TO {name}")
        elif comment.decode().strip("\n") == COMMENT:
            self._tables.run(f"EXCHANGE TABLES {new} AND {name}")
        else:
            raise ServerError(f"ClickHouse holds a table {self.table.name} that framehaul did not make")

    def end(self) -> None:
        mine = quote_clickhouse_text(self.new.name)
        self._tables.drop_named(self.new.name)  # from now on no worker can create a staging table
        self._tables.run(
            f"KILL QUERY WHERE user = currentUser() AND position(query, {mine}) > 0 "
            "AND query_kind != 'KillQuery' AND query_id != queryID() ASYNC"
        )
        left = self._tables.run(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND "
            f"startsWith(name, {mine}) ORDER BY engine != 'View' FORMAT TSVRaw"
        )
        for name in left.decode().split():
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
                f"WHERE {each.condition(date_of(self.table))} COMMENT {quote_clickhouse_text(COMMENT)}"
            )
        yield [*views]

    async def read(self, technique: Technique, piece: str) -> pl.DataFrame:
        async with opened(technique, self.server) as client:
            frame: pl.DataFrame = await called(technique, client, self.table.renamed(piece))
        return frame
