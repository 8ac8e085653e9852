"""Partitions in ClickHouse, one server or shards: parts that change tables without a copy, and views to read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import polars as pl

from framehaul.data.schema import COMMENT, Table, quote_clickhouse, quote_clickhouse_text
from framehaul.errors import ServerError
from framehaul.harness.measure import called, opened
from framehaul.servers import ClickHouseServer
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.scale_out.partitions import Partition, Piece, spread
from framehaul.studies.scale_out.targets import Staged
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database

CLUSTER = "framehaul_shards"
"""The cluster's name in `remote_servers` of its servers."""
LOCAL = "_local"
"""Ends the names of tables that a Distributed one of the same name is over."""
# No part is ever merged: the bytes that a merge may have are those of no part.
# https://clickhouse.com/docs/operations/settings/merge-tree-settings#max_bytes_to_merge_at_max_space_in_pool
NEVER_MERGED = "max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1"


@dataclass(frozen=True)
class ClickHouseTarget:
    """A `Target` on ClickHouse: one server, or the shards of CLUSTER, of which the first is asked and answers for all.

    Over shards every table is a Distributed one on the first of them, over a local one on each; rows go to shards by a
    hash of the key. What readers see changes by one EXCHANGE TABLES on the server that they ask, shards or not.
    """

    servers: tuple[ClickHouseServer, ...] = field(repr=False)
    table: Table
    run: str

    @property
    def database(self) -> Database:
        return "clickhouse"

    @property
    def for_workers(self) -> ClickHouseServer:
        """Where techniques of workers connect to."""
        return self.servers[0]

    @property
    def _sharded(self) -> bool:
        return len(self.servers) > 1

    @property
    def _all(self) -> list[ClickHouseTables]:
        return [ClickHouseTables(server) for server in self.servers]

    @property
    def _first(self) -> ClickHouseTables:
        return ClickHouseTables(self.servers[0])

    @property
    def _new(self) -> str:
        return f"{self.table.name}_{self.run}"

    def _stored(self, name: str) -> str:
        """Of a table of this run, the one that holds its rows on each server."""
        return name + LOCAL if self._sharded else name

    def begin(self, *, ranged: bool) -> None:  # noqa: ARG002  parts change tables whatever they hold
        stored = self.table.renamed(self._stored(self._new))
        for tables in self._all:
            tables.create_as(stored.name, stored.clickhouse_ddl)
        self._distribute(self._new)

    def stage(self, partition: Partition, name: str) -> None:  # noqa: ARG002
        # AS fails when the table of the run is gone, and with it the run: who comes too late makes nothing.
        stored, new = quote_clickhouse(self._stored(name)), quote_clickhouse(self._stored(self._new))
        for tables in self._all:
            tables.run(f"CREATE TABLE {stored} AS {new}")
        self._distribute(name)
        # The end of the run may have come in between, and have looked for staging tables before this one was there.
        if not all(int(tables.run(f"EXISTS TABLE {new}")) for tables in self._all):
            self._first.drop_named(name)
            for tables in self._all:
                tables.drop_named(self._stored(name))
            raise ServerError(f"the run does not exist any more that {name} was for")

    def _distribute(self, name: str) -> None:
        if not self._sharded:
            return
        local = name + LOCAL
        self._first.run(
            f"CREATE TABLE {quote_clickhouse(name)} AS {quote_clickhouse(local)} ENGINE = Distributed("
            f"{quote_clickhouse_text(CLUSTER)}, currentDatabase(), {quote_clickhouse_text(local)}, "
            f"cityHash64({self.table.clickhouse_key})) COMMENT {quote_clickhouse_text(COMMENT)}"
        )

    def rows_in(self, name: str) -> int:
        if self._sharded:
            # An INSERT may return before the other shards have its rows; they have them after this.
            # https://clickhouse.com/docs/engines/table-engines/special/distributed
            self._first.run(f"SYSTEM FLUSH DISTRIBUTED {quote_clickhouse(name)}")
        return int(self._first.run(f"SELECT count() FROM {quote_clickhouse(name)}"))

    def commit(self, staged: Sequence[Staged]) -> None:
        new = quote_clickhouse(self._stored(self._new))
        for tables in self._all:
            for one in staged:
                tables.run(f"ALTER TABLE {new} ATTACH PARTITION ALL FROM {quote_clickhouse(self._stored(one.name))}")
        run, name = quote_clickhouse(self._new), self.table.clickhouse_name
        comment = self._first.run(
            "SELECT comment FROM system.tables WHERE database = currentDatabase() AND "
            f"name = {quote_clickhouse_text(self.table.name)} FORMAT TSVRaw"
        )
        if not comment:
            self._first.run(f"RENAME TABLE {run} TO {name}")
        elif comment.decode().strip("\n") == COMMENT:
            self._first.run(f"EXCHANGE TABLES {run} AND {name}")
        else:
            raise ServerError(f"ClickHouse holds a table {self.table.name} that framehaul did not make")

    def end(self) -> None:
        kept = self._live()
        # The table that was there before has the name of the run now; its rows on shards are in tables of an older one.
        before = self._local_of(self._new)
        mine = quote_clickhouse_text(self._new)
        query = "query"
        if self._stored(self._new) != kept:
            for tables in self._all:
                tables.drop_named(self._stored(self._new))  # from now on nobody makes another staging table
        else:  # what a shard is asked for readers names the table that is kept, which begins as all names of the run do
            query = f"replaceAll(query, {quote_clickhouse_text(kept)}, '')"
        for tables in self._all:
            tables.run(
                f"KILL QUERY WHERE user = currentUser() AND position({query}, {mine}) > 0 "
                "AND query_kind != 'KillQuery' AND query_id != queryID() ASYNC"
            )
            # Again until there are none: a Distributed table can still come while the one that it is over is there.
            while left := self._left(tables, kept):
                for name in left:
                    tables.drop_named(name)
            if before is not None and before != kept:
                tables.drop_named(before)

    def _left(self, tables: ClickHouseTables, kept: str) -> list[str]:
        """What a server still has of the run, but for what is kept; views and Distributed tables first."""
        names = tables.run(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND "
            f"startsWith(name, {quote_clickhouse_text(self._new)}) AND name != {quote_clickhouse_text(kept)} "
            "ORDER BY engine != 'View', engine != 'Distributed' FORMAT TSVRaw"
        )
        return names.decode().split()

    def drop(self) -> None:
        live = self._live()
        self._first.drop(self.table)
        for tables in self._all if live else []:
            tables.drop_named(live)

    def _live(self) -> str:
        """The table that holds the rows that readers see, on each server."""
        return (self._local_of(self.table.name) if self._sharded else self.table.name) or ""

    def _local_of(self, name: str) -> str | None:
        """What a Distributed table is over; None for another table, and for none."""
        local_name = self._first.run(
            "SELECT extract(engine_full, '\\'([^\\']+)\\', cityHash64') FROM system.tables WHERE "
            f"database = currentDatabase() AND engine = 'Distributed' AND name = {quote_clickhouse_text(name)} "
            "FORMAT TSVRaw"
        )
        return local_name.decode().strip("\n") or None

    @contextmanager
    def reading(self, pieces: int) -> Iterator[list[str]]:
        # Each piece is a view of some rows of some parts of a copy. Its parts are links to those of the
        # table, and are never merged: nothing that is written or merged meanwhile changes what a piece is. Between
        # shards there is no such moment in common.
        stored, live = self._stored(self._new), self._live()
        if not live:
            raise ServerError(f"ClickHouse holds no table {self.table.name} over the cluster {CLUSTER}")
        for tables in self._all:
            tables.run(f"CREATE TABLE {quote_clickhouse(stored)} AS {quote_clickhouse(live)}")
            tables.run(f"ALTER TABLE {quote_clickhouse(stored)} MODIFY SETTING {NEVER_MERGED}")
            tables.run(f"ALTER TABLE {quote_clickhouse(stored)} ATTACH PARTITION ALL FROM {quote_clickhouse(live)}")
        self._distribute(self._new)
        shard = "toString(_shard_num)" if self._sharded else "''"
        answer = self._first.run(
            f"SELECT {shard} AS shard, _part AS part, count() FROM {quote_clickhouse(self._new)} "
            "GROUP BY shard, part ORDER BY ALL FORMAT JSONCompactEachRow"
        )
        sizes: dict[tuple[str, ...], int] = {
            (number, part): int(rows) for number, part, rows in map(json.loads, answer.splitlines())
        }
        views = [f"{self._new}_v{number}" for number in range(pieces)]
        for view, piece in zip(views, spread(sizes, pieces), strict=True):
            self._first.run(
                f"CREATE VIEW {quote_clickhouse(view)} AS SELECT {self.table.clickhouse_columns} "
                f"FROM {quote_clickhouse(self._new)} WHERE {_condition(piece)} COMMENT {quote_clickhouse_text(COMMENT)}"
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
    parts = ", ".join(sorted({quote_clickhouse_text(piece.name[1]) for piece in pieces}))
    rows = " OR ".join(
        (f"_shard_num = {piece.name[0]} AND " if piece.name[0] else "")
        + f"_part = {quote_clickhouse_text(piece.name[1])} "
        f"AND _part_offset >= {piece.start} AND _part_offset < {piece.stop}"
        for piece in pieces
    )
    return f"_part IN ({parts}) AND ({rows})"
