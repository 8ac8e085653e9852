"""Partitions in ClickHouse: parts that change tables without a copy, and views to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.data.schema import COMMENT, Table, quote_clickhouse, quote_clickhouse_text
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.scale_out.partitions import Partition, Piece, spread
from framehaul.studies.scale_out.targets import Staged
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database

# No part is ever merged: the bytes that a merge may have are those of no part.
# https://clickhouse.com/docs/operations/settings/merge-tree-settings#max_bytes_to_merge_at_max_space_in_pool
NEVER_MERGED = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"


@dataclass(frozen=True)
class ClickHouseTarget:
    """A `Target` on ClickHouse: what readers see changes by one EXCHANGE TABLES."""

    server: ClickHouseServer = field(repr=False)
    table: Table
    run: str

    @property
    def database(self) -> Database:
        return "clickhouse"

    @property
    def for_workers(self) -> ClickHouseServer:
        """Where techniques of workers connect to."""
        return self.server

    @property
    def _tables(self) -> ClickHouseTables:
        return ClickHouseTables(self.server)

    @property
    def _new(self) -> str:
        return f"{self.table.name}_{self.run}"

    def begin(self, *, ranged: bool) -> None:  # noqa: ARG002  parts change tables whatever they hold
        new = self.table.renamed(self._new)
        self._tables.create_as(new.name, new.clickhouse_ddl)

    def stage(self, partition: Partition, name: str) -> None:  # noqa: ARG002
        # AS fails when the table of the run is gone, and with it the run: who comes too late makes nothing.
        new = quote_clickhouse(self._new)
        self._tables.run(f"CREATE TABLE {quote_clickhouse(name)} AS {new}")
        # The end of the run may have come in between, and have looked for staging tables before this one was there.
        if not int(self._tables.run(f"EXISTS TABLE {new}")):
            self._tables.drop_named(name)
            raise ServerError(f"the run does not exist any more that {name} was for")

    def rows_in(self, name: str) -> int:
        return int(self._tables.run(f"SELECT count() FROM {quote_clickhouse(name)}"))

    def commit(self, staged: Sequence[Staged]) -> None:
        new, name = quote_clickhouse(self._new), self.table.clickhouse_name
        for one in staged:
            self._tables.run(f"ALTER TABLE {new} ATTACH PARTITION ALL FROM {quote_clickhouse(one.name)}")
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
        mine = quote_clickhouse_text(self._new)
        self._tables.drop_named(self._new)  # from now on nobody makes another staging table
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

    def drop(self) -> None:
        self._tables.drop(self.table)

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[str]]:
        # Each piece is a view of some rows of some parts of a copy. Its parts are links to those of the
        # table, and are never merged: nothing that is written or merged meanwhile changes what a piece is.
        copy, live = quote_clickhouse(self._new), self.table.clickhouse_name
        self._tables.run(f"CREATE TABLE {copy} AS {live}")
        self._tables.run(f"ALTER TABLE {copy} MODIFY SETTING {NEVER_MERGED}")
        self._tables.run(f"ALTER TABLE {copy} ATTACH PARTITION ALL FROM {live}")
        answer = self._tables.run(
            f"SELECT _part AS part, count() FROM {copy} GROUP BY part ORDER BY ALL FORMAT JSONCompactEachRow"
        )
        sizes = {part: int(rows) for part, rows in map(json.loads, answer.splitlines())}
        views = [f"{self._new}_v{number}" for number in range(pieces)]
        for view, piece in zip(views, spread(sizes, pieces), strict=True):
            self._tables.run(
                f"CREATE VIEW {quote_clickhouse(view)} AS SELECT {self.table.clickhouse_columns} "
                f"FROM {copy} WHERE {_condition(piece)} COMMENT {quote_clickhouse_text(COMMENT)}"
            )
        yield views

    async def read(self, technique: Technique, piece: str) -> pl.DataFrame:
        async with opened(technique, self.for_workers) as client:
            frame: pl.DataFrame = await called(technique, client, self.table.renamed(piece))
        return frame


def _condition(pieces: list[Piece]) -> str:
    """Which rows of which parts; the list of parts comes first, for others need not be opened."""
    if not pieces:
        return "false"
    parts = ", ".join(sorted({quote_clickhouse_text(piece.name) for piece in pieces}))
    rows = " OR ".join(
        f"_part = {quote_clickhouse_text(piece.name)} AND _part_offset >= {piece.start} AND _part_offset < {piece.stop}"
        for piece in pieces
    )
    return f"_part IN ({parts}) AND ({rows})"
