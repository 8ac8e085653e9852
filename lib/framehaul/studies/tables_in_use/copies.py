"""Kept tables with rows and indexes, and copies of them by the server: every pass finds the same state."""

from __future__ import annotations

import asyncio
import gc
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Self

from framehaul.bench.measure import IN_FRAMES, Frame, called, opened
from framehaul.bench.rounds import right
from framehaul.bench.verify import Expected
from framehaul.data.frames import to_polars
from framehaul.data.schema import COMMENT, Table, quote_postgres
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, PostgresServer, Server
from framehaul.servers.tables import ClickHouseTables, Fingerprint, PostgresTables, Tables
from framehaul.studies.tables_in_use.layouts import INDEXES, SEED_STEP, TABLE, TABLES, Case, content
from framehaul.studies.tables_in_use.others import WRITER
from framehaul.techniques import Technique
from framehaul.techniques.registry import named

APPENDS, NAME = 10, TABLE.name
"""The number of appends that make the existing rows, and the name of every copy."""
SESSIONS = """SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
COUNTERS = f"""SELECT pg_indexes_size('{NAME}'), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,
pg_stat_get_dead_tuples('{NAME}'::regclass)"""
OURS = f"database = currentDatabase() AND table = '{NAME}'"
PARTS = f"SELECT count(), (SELECT count() FROM system.merges WHERE {OURS}) FROM system.parts WHERE active AND {OURS}"


async def append(technique: Technique, server: Server, table: Table, frame: Frame) -> tuple[float, float]:
    """Append a frame over a new connection, and return the times of begin and end."""
    async with opened(technique, server) as client:
        gc.collect()
        begin = time.perf_counter()
        await called(technique, client, table, frame)
        return begin, time.perf_counter()


class InPostgres:
    """Databases of one table: the server copies their files, so that pages of indexes are as they have grown.

    https://www.postgresql.org/docs/18/sql-createdatabase.html#CREATE-DATABASE-STRATEGY
    """

    grown_by, settle = named("postgres", "write", "polars_pgpq_copy_binary"), "VACUUM (ANALYZE) {}"

    def __init__(self, server: PostgresServer) -> None:
        self.tables, self._server = PostgresTables(server), server
        # A run that uses another database of the server has other names.
        self._copy = f"{NAME}_{zlib.crc32(server.database.encode()):08x}"

    def _create(self, name: str, template: str) -> tuple[PostgresServer, PostgresTables]:
        self.tables.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")  # after a checkpoint
        self.tables.run(f"COMMENT ON DATABASE {name} IS '{COMMENT}'")
        server = replace(self._server, database=name)
        return server, PostgresTables(server)

    def keep(self, case: Case) -> tuple[Server, Tables, Table]:
        """Create the kept table of a case; raise UnavailableError if the user may not create databases."""
        if not self.tables.run("SELECT 1 FROM pg_roles WHERE rolname = current_user AND (rolcreatedb OR rolsuper)"):
            remedy = f"ALTER ROLE {quote_postgres(self._server.user)} CREATEDB"
            raise UnavailableError(f"every pass needs a copy of the table, which is a database of its own: {remedy}")
        server, tables = self._create(f"{self._copy}_{case.layout}_{case.existing_rows}", "template0")
        tables.create(TABLES[case.layout])
        for columns in INDEXES.get(case.layout, ()):
            tables.run(f"CREATE INDEX ON {NAME} ({columns})")
        return server, tables, TABLES[case.layout]

    def fresh(self, case: Case) -> tuple[Server, Tables]:
        """Copy a kept table in place of the last copy."""
        self.tables.run(f"DROP DATABASE IF EXISTS {self._copy} WITH (FORCE)")
        server, tables = self._create(self._copy, f"{self._copy}_{case.layout}_{case.existing_rows}")
        self._counted = tables.run(COUNTERS)[0]
        return server, tables

    def costs(self, tables: Tables) -> dict[str, int]:
        """Return what an append has left to the server, as columns of results."""
        while tables.run(SESSIONS):  # a session counts its dead rows when it ends
            time.sleep(0.01)
        ((index_bytes, wal, dead_rows),) = tables.run(COUNTERS)
        grown, wal_bytes = index_bytes - self._counted[0], wal - self._counted[1]
        return {"index_bytes": index_bytes, "index_growth_bytes": grown, "wal_bytes": wal_bytes, "dead_rows": dead_rows}

    def drop(self) -> None:
        """Drop all databases; raise ServerError for one that framehaul did not make."""
        which = f"starts_with(datname, '{self._copy}')"
        found = f"SELECT datname, shobj_description(oid, 'pg_database') FROM pg_database WHERE {which}"
        for name, comment in self.tables.run(found):
            if comment != COMMENT:
                raise ServerError(f"PostgreSQL has a database {name} that framehaul did not make: rename or drop it")
            self.tables.run(f"DROP DATABASE {name} WITH (FORCE)")
        self.tables.drop_named(f"{NAME} sent")


class InClickHouse:
    """Tables, with the methods of `InPostgres`: the server makes hard links to the files of their parts.

    https://clickhouse.com/docs/sql-reference/statements/create/table
    """

    grown_by, settle = named("clickhouse", "write", "polars_http_client_arrow_stream"), "OPTIMIZE TABLE {} FINAL"

    def __init__(self, server: ClickHouseServer) -> None:
        self.tables, self._server = ClickHouseTables(server), server

    def keep(self, case: Case) -> tuple[Server, Tables, Table]:
        """Create the kept table of a case."""
        kept = TABLES[case.layout].renamed(f"{NAME} {case.layout} {case.existing_rows}")
        self.tables.create(kept)
        return self._server, self.tables, kept

    def fresh(self, case: Case) -> tuple[Server, Tables]:
        """Clone a kept table in place of the last copy."""
        kept = f"`{NAME} {case.layout} {case.existing_rows}`"
        self.tables.create_as(NAME, f"CREATE TABLE {NAME} CLONE AS {kept} COMMENT '{COMMENT}'")
        self.tables.quiesce()
        return self._server, self.tables

    def costs(self, _: Tables) -> dict[str, int]:
        """Return what an append has left to the server, as columns of results."""
        ((parts, merges),) = self.tables.rows(PARTS)
        return {"parts": int(parts), "merges": int(merges)}

    def drop(self) -> None:
        """Drop all tables; raise ServerError for one that framehaul did not make."""
        self.tables.drop_beside(TABLE)
        self.tables.drop(TABLE)


class Copies:
    """A context with kept tables that have rows, a copy of one of them at a time, and the rows that are appended."""

    def __init__(self, server: Server, seed: int) -> None:
        self.at = InPostgres(server) if isinstance(server, PostgresServer) else InClickHouse(server)
        self.frames, self.keys, self._seed = dict[tuple[Table, str], Frame](), list[str](), seed
        self._before, self._sent = dict[Case, Fingerprint](), dict[Table, Fingerprint]()

    def __enter__(self) -> Self:
        self.at.drop()  # what a killed run has left
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ServerError):  # the server is down: the next run drops them
            self.at.drop()

    def grow(self, cases: Iterable[Case]) -> None:
        """Make kept tables by several appends each, and do what the server does with such a table in time."""
        for case in cases:
            table, (server, tables, kept) = TABLES[case.layout], self.at.keep(case)
            for start, end in pairwise(case.existing_rows * part // APPENDS for part in range(APPENDS + 1)):
                if start < end:
                    part = content(table, end - start, self._seed + (start + 1) * SEED_STEP, start)
                    self.keys = part["entity_key"][:1000].to_pylist()
                    asyncio.run(append(self.at.grown_by, server, kept, to_polars(part, table)))
            tables.run(self.at.settle.format(quote_postgres(kept.name)))
            self._before[case] = tables.rows_fingerprint(kept)
            if table not in self._sent:
                sent, reference = content(table, case.rows, self._seed), table.renamed(f"{NAME} sent")
                self.frames |= {(table, kind): of(sent, table) for kind, of in IN_FRAMES.items()}
                Expected(table, sent).keep_reference(self.at.tables, reference)
                self._sent[table] = self.at.tables.rows_fingerprint(reference)

    def check(self, case: Case, tables: Tables, written_rows: int) -> None:
        """Raise WrongResultError unless exactly the sent rows, and those of the writer, were added to the copy."""
        table = TABLES[case.layout]
        parts = (f"(SELECT * FROM {NAME} WHERE source_id {which} {WRITER}) AS r" for which in ("<>", "="))
        others, writer = (tables.rows_fingerprint(replace(table, reference=part)) for part in parts)
        sums = zip(others, self._before[case], self._sent[table], strict=True)
        wrong = [(after - before - sent) % 2**64 for after, before, sent in sums]  # ClickHouse's sums wrap
        rows = f"{others[0] - self._before[case][0]} rows were added instead of {case.rows}" if wrong[0] else ""
        right(None, rows or ("the rows are not those that were there and those that were sent" if any(wrong) else ""))
        right(None, f"{writer[0]} rows of the writer, not {written_rows}" if writer[0] != written_rows else "")
