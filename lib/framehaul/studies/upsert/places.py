"""The table of upserts on either server: created for every pass, and compared outside the clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self, cast

from framehaul.bench.verify import Expected
from framehaul.data.frames import from_polars
from framehaul.data.schema import Table
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, Server
from framehaul.servers.tables import ClickHouseTables, PostgresTables, Tables, tables_of
from framehaul.studies.upsert.frames import TABLE, Case, base, incoming, updated
from framehaul.techniques import Technique
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.upsert.rows import target

STAGING = """
SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relpersistence <> 't'
    AND (starts_with(relname, 'framehaul_staging_') OR starts_with(relname, 'framehaul_new_'))
"""
BUSY = """
SELECT (SELECT count() FROM system.processes
        WHERE position(query, {table:String}) > 0 AND position(query, 'system.processes') = 0)
    + (SELECT count() FROM system.mutations
       WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done)
"""


class FinalTables(ClickHouseTables):
    """`ClickHouseTables` that are read with FINAL."""

    def run(self, query: str, body: bytes = b"", **settings: str | int) -> bytes:
        return super().run(query, body, **settings, final=1)


def as_read(technique: Technique, server: Server) -> Tables:
    """Return the tables of a server, which are read with FINAL if the technique requires it."""
    return FinalTables(server) if technique.final and isinstance(server, ClickHouseServer) else tables_of(server)


def count_marks(tables: Tables) -> tuple[int, int]:
    """Return the number of rows in the table of the study, and the sum of their marks."""
    query = f"SELECT count(*), sum(mark) FROM {TABLE.name}"
    ((rows, marks),) = tables.rows(query) if isinstance(tables, ClickHouseTables) else tables.run(query)
    return int(rows), int(marks or 0)


def wait(tables: Tables, table: Table) -> None:
    """Wait until no session uses the table."""
    if isinstance(tables, PostgresTables):  # a session that has changed the table locks it until it commits
        tables.run(f"DO $$ BEGIN LOCK TABLE {table.postgres_name} IN ACCESS EXCLUSIVE MODE; END $$")
    elif isinstance(tables, ClickHouseTables):
        while int(tables.rows(BUSY, table=table.name)[0][0]):
            time.sleep(0.02)


def count_staging_tables(tables: Tables, table: Table = TABLE) -> int:
    """Return the number of staging tables that are left of a table; on ClickHouse they are dropped."""
    if isinstance(tables, PostgresTables):
        return int(tables.run(STAGING)[0][0])
    assert isinstance(tables, ClickHouseTables)
    return tables.drop_beside(table)


class Bench:
    """The existing, incoming and expected rows of a case, on a server."""

    def __init__(self, server: Server, case: Case, seed: int) -> None:
        self.server, self.case, self.seed = server, case, seed
        self.there = base(case.target_rows, seed)
        self.come = incoming(self.there, case, seed)
        self.expected = updated(self.there, self.come)
        self.tables = tables_of(server)
        self._source, self._reference = (TABLE.renamed(f"{TABLE.name}_{name}") for name in ("before", "after"))
        self._right = Expected(TABLE, from_polars(self.expected, TABLE))

    @contextmanager
    def filled(self) -> Iterator[Self]:
        """Hold the existing and the expected rows in tables while the block lasts."""
        with self.tables.kept():
            try:
                count_staging_tables(self.tables)  # drops tables of a killed run
                self.tables.create(self._source)
                self.tables.load(self._source, from_polars(self.there, TABLE))
                self._right.keep_reference(self.tables, self._reference)
                yield self
            finally:
                with contextlib.suppress(ServerError):  # the server is down: the next run drops our tables
                    for table in (TABLE, self._source, self._reference):
                        self.tables.drop(table)
                    count_staging_tables(self.tables)

    def fresh(self, technique: Technique) -> Table:
        """Create the table that the technique needs, with the existing rows of the case, and return it."""
        table, columns = target(technique, TABLE), ", ".join(TABLE.column_names)  # no name needs quotes
        self.tables.create(table)
        self.tables.run(f"INSERT INTO {TABLE.name} ({columns}) SELECT {columns} FROM {self._source.name}")
        if isinstance(self.tables, PostgresTables):
            self.tables.run(f"VACUUM (ANALYZE) {TABLE.name}")
        self.tables.quiesce()
        return table

    def difference(self, technique: Technique) -> str | None:
        """Return how the table differs from the expected rows, or None."""
        read = as_read(technique, self.server) if technique.final else self.tables
        return self._right.difference_on_server(read)


def upsert(technique: Technique, server: Server, table: Table, *frames: Any) -> float:
    """Return the seconds of a technique with these frames, one after another, over an open connection."""
    with opened(technique, server) as client:
        begin = time.perf_counter()
        for frame in frames:
            technique.function(client, table, frame)
        return time.perf_counter() - begin


def opened(technique: Technique, server: Server) -> AbstractContextManager[Any]:
    """Open the client of a technique while the block lasts."""
    return cast("AbstractContextManager[Any]", CLIENTS[technique.client](server))  # no upsert is asynchronous
