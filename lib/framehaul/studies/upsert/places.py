"""A table to be upserted on either server: made anew for every pass, looked at from outside, never on the clock."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, Self

import polars as pl

from framehaul.bench.verify import Expected
from framehaul.data.frames import from_polars
from framehaul.data.schema import (
    Table,
    quote_postgres_text,
)
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer, Server
from framehaul.servers.tables import ClickHouseTables, PostgresTables, Tables
from framehaul.studies.upsert.frames import TABLE
from framehaul.techniques import Technique
from framehaul.techniques.clients import CLIENTS, open_http_client, open_psycopg
from framehaul.techniques.upsert.rows import target

type Read = Callable[[], tuple[int, int]]
"""Reads how many rows there are, and the sum of their marks."""

BYTES_WRITTEN = "WriteBufferFromFileDescriptorWriteBytes"
"""https://clickhouse.com/docs/operations/system-tables/events"""


class FinalTables(ClickHouseTables):
    """`ClickHouseTables` that are read with FINAL."""

    def run(self, query: str, body: bytes = b"", **settings: str | int) -> bytes:
        return super().run(query, body, **settings, final=1)


class Place(Protocol):
    """What the study needs of a database."""

    server: Server
    plain: Tables

    def tables(self, technique: Technique) -> Tables:
        """The tables as who reads after this technique has to."""

    def fill(self, table: Table, source: Table) -> None:
        """Put all rows of another table into a new one."""

    def counted(self, table: Table) -> dict[str, int]:
        """What has been written so far, and what the table takes now."""

    def excess(self, table: Table, rows: int) -> dict[str, int]:
        """What is in the table beside these rows, for who looks closer."""

    def reader(self, table: Table, *, final: bool) -> AbstractContextManager[Read]:
        """What reads the rows, over a connection of its own, with FINAL or without."""

    def wait(self, table: Table) -> None:
        """Until nobody works on the table, nor beside it."""

    def beside(self, table: Table = TABLE) -> int:
        """How many tables ways have left beside one; on ClickHouse they are dropped, PostgreSQL never keeps any."""


class PostgresPlace:
    """`Place` on PostgreSQL."""

    def __init__(self, server: PostgresServer) -> None:
        self.server: Server = server
        self._postgres, self._tables = server, PostgresTables(server)
        self.plain: Tables = self._tables

    def tables(self, technique: Technique) -> Tables:  # noqa: ARG002  all read alike
        return self._tables

    def fill(self, table: Table, source: Table) -> None:
        columns = table.postgres_columns
        self._tables.run(f"INSERT INTO {table.postgres_name} ({columns}) SELECT {columns} FROM {source.postgres_name}")
        self._tables.run(f"VACUUM (ANALYZE) {table.postgres_name}")

    def counted(self, table: Table) -> dict[str, int]:
        name = quote_postgres_text(table.postgres_name)
        ((written, size),) = self._tables.run(
            f"SELECT pg_current_wal_lsn() - '0/0', ({_of_parts('pg_total_relation_size', name)})"
        )
        return {"written_bytes": int(written), "grown_bytes": int(size)}

    def excess(self, table: Table, rows: int) -> dict[str, int]:  # noqa: ARG002  PostgreSQL counts them itself
        # ANALYZE counts dead rows, and estimates them from 30,000 pages on. What the session of the upsert counted may
        # be added afterwards, when that ends: not twice. Of one column, for the rows are counted whatever it looks at.
        name = quote_postgres_text(table.postgres_name)

        def dead() -> int:
            self._tables.run(f"ANALYZE {table.postgres_name} ({table.postgres_key})")
            ((found,),) = self._tables.run(_of_parts("pg_stat_get_dead_tuples", name))
            return int(found)

        return {"dead_rows": min(dead(), dead())}

    @contextmanager
    def reader(self, table: Table, *, final: bool) -> Iterator[Read]:  # noqa: ARG002  all read alike
        query = f"SELECT count(*), coalesce(sum(mark), 0) FROM {table.postgres_name}".encode()
        with open_psycopg(self._postgres) as connection:

            def read() -> tuple[int, int]:
                row = connection.execute(query).fetchone()
                assert row is not None
                return int(row[0]), int(row[1])

            yield read

    def wait(self, table: Table) -> None:
        # Who has changed it holds a lock until its transaction is over.
        self._tables.run(f"DO $$ BEGIN LOCK TABLE {table.postgres_name} IN ACCESS EXCLUSIVE MODE; END $$")

    def beside(self, table: Table = TABLE) -> int:  # noqa: ARG002  they have names of their own
        ((found,),) = self._tables.run(
            "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relpersistence <> 't' AND "
            "(starts_with(relname, 'framehaul_staging_') OR starts_with(relname, 'framehaul_new_'))"
        )
        return int(found)


def _of_parts(function: str, name: str) -> str:
    """The sum of what a function of PostgreSQL says of each partition of a table, or of the table where it has none."""
    tree = f"SELECT relid FROM pg_partition_tree({name}) UNION SELECT {name}::regclass"
    return f"SELECT sum({function}(relid)) FROM ({tree}) AS parts"


class ClickHousePlace:
    """`Place` on ClickHouse."""

    def __init__(self, server: ClickHouseServer) -> None:
        self.server: Server = server
        self._clickhouse, self._tables, self._final = server, ClickHouseTables(server), FinalTables(server)
        self.plain: Tables = self._tables

    def tables(self, technique: Technique) -> Tables:
        return self._final if technique.final else self._tables

    def fill(self, table: Table, source: Table) -> None:
        columns = table.clickhouse_columns
        self._tables.run(
            f"INSERT INTO {table.clickhouse_name} ({columns}) SELECT {columns} FROM {source.clickhouse_name}"
        )
        self._tables.quiesce()

    def counted(self, table: Table) -> dict[str, int]:
        ((parts, size),) = self._tables.rows(
            "SELECT count(), sum(bytes_on_disk) FROM system.parts "
            "WHERE active AND database = currentDatabase() AND table = {table:String}",
            table=table.name,
        )
        ((written,),) = self._tables.rows(f"SELECT sum(value) FROM system.events WHERE event = '{BYTES_WRITTEN}'")
        return {"written_bytes": int(written), "grown_bytes": int(size), "parts": int(parts)}

    def excess(self, table: Table, rows: int) -> dict[str, int]:
        ((stored,),) = self._tables.rows(
            "SELECT sum(rows) FROM system.parts "
            "WHERE active AND database = currentDatabase() AND table = {table:String}",
            table=table.name,
        )
        ((plain,),) = self._tables.rows(f"SELECT count() FROM {table.clickhouse_name}")
        return {"dead_rows": int(stored) - rows, "surplus_rows": int(plain) - rows}

    @contextmanager
    def reader(self, table: Table, *, final: bool) -> Iterator[Read]:
        query = f"SELECT count(), sum(mark) FROM {table.clickhouse_name}{' FINAL' if final else ''}"
        with open_http_client(self._clickhouse) as connection:

            def read() -> tuple[int, int]:
                rows, marks = connection.post(query).read().split()
                return int(rows), int(marks)

            yield read

    def wait(self, table: Table) -> None:
        busy = (
            "SELECT count() FROM system.processes "
            "WHERE position(query, {table:String}) > 0 AND position(query, 'system.processes') = 0"
        )
        changing = (
            "SELECT count() FROM system.mutations "
            "WHERE database = currentDatabase() AND table = {table:String} AND NOT is_done"
        )
        while any(int(self._tables.rows(query, table=table.name)[0][0]) for query in (busy, changing)):
            time.sleep(0.02)

    def beside(self, table: Table = TABLE) -> int:
        return self._tables.drop_beside(table)


def place_of(server: Server) -> Place:
    """The place on a server."""
    return PostgresPlace(server) if isinstance(server, PostgresServer) else ClickHousePlace(server)


class Bench:
    """Rows that are there, and what has to be there afterwards, kept on a server while the block lasts."""

    def __init__(self, place: Place, there: pl.DataFrame, expected: pl.DataFrame) -> None:
        self.place, self.there, self.expected = place, there, expected
        self._plain, self._stack = place.plain, contextlib.ExitStack()
        self._source, self._reference = (TABLE.renamed(f"{TABLE.name}_{name}") for name in ("before", "after"))
        self._right = Expected(TABLE, from_polars(expected, TABLE))

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._plain.kept())
            stack.callback(self._drop)
            self.place.beside()  # what a run has left that was killed
            self._plain.create(self._source)
            self._plain.load(self._source, from_polars(self.there, TABLE))
            self._right.keep_reference(self._plain, self._reference)
            self._stack = stack.pop_all()  # from here on it is for the end of the block
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _drop(self) -> None:
        # Where the server is gone for good, the next run drops what is ours.
        with contextlib.suppress(ServerError):
            for table in (TABLE, self._source, self._reference):
                self._plain.drop(table)
            self.place.beside()

    def fresh(self, technique: Technique) -> Table:
        """The table as this technique asks for it, with the rows that are there."""
        table = target(technique, TABLE)
        self._plain.create(table)
        self.place.fill(table, self._source)
        return table

    def difference(self, technique: Technique) -> str | None:
        """What differs from the same update done in Polars, or None."""
        return self._right.difference_on_server(self.place.tables(technique))


def upsert(technique: Technique, server: Server, table: Table, *frames: pl.DataFrame) -> float:
    """Seconds that a technique takes for these frames, one after another, over a connection that is open."""
    with opened(technique, server) as client:
        begin = time.perf_counter()
        for frame in frames:
            technique.function(client, table, frame)
        return time.perf_counter() - begin


@contextmanager
def opened(technique: Technique, server: Server) -> Iterator[Any]:
    """The client of a technique."""
    opening = CLIENTS[technique.client](server)
    assert isinstance(opening, AbstractContextManager)  # none of them is asynchronous
    with opening as client:
        yield client
