"""Tables in use: appends into tables with rows and indexes, which others may read and write at the same time.

Every pass appends to a copy of a kept table that the server makes, so that all passes find the same state.
"""

import asyncio
import gc
import itertools
import math
import time
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from framehaul.bench import store
from framehaul.bench.children import child, context
from framehaul.bench.measure import IN_FRAMES, Frame, called, opened
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Ok, Pass, Rounds, attempt, columns_of, describe, in_rounds, right, value_of
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, COMMENT, Column, ColumnType, Table, quote_postgres
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, PostgresServer, Server
from framehaul.servers.tables import ClickHouseTables, Fingerprint, PostgresTables, Tables, tables_of
from framehaul.studies.registry import TABLES_IN_USE
from framehaul.techniques import Technique
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import Database, named
from framehaul.techniques.streaming import one_ahead

TABLE = ANALYTICS_METRICS.renamed("framehaul_in_use")
NAME = TABLE.name
"""The name of every copy."""
BIGINT, UUID = (
    replace(TABLE, columns=(Column("id", kind), *TABLE.columns), key=("id",))
    for kind in (ColumnType.INT64, ColumnType.UUID)
)
# https://clickhouse.com/docs/sql-reference/statements/alter/projection
PROJECTION = TABLE.clickhouse_definition("MergeTree", "", "PROJECTION sorted (SELECT * ORDER BY source_id, event_date)")
TABLES = dict.fromkeys(("nine_columns", "one_index", "three_indexes"), TABLE)
TABLES |= {"bigint_in_order": BIGINT, "random_uuid": UUID, "projection": replace(TABLE, clickhouse_body=PROJECTION)}
"""The tables by name: the key is the published one of nine columns, or a further column `id`."""
INDEXES = {"one_index": ("event_date",), "three_indexes": ("event_date", "source_id, event_date", "dimension_f")}
"""The columns of PostgreSQL's secondary indexes."""
LAYOUTS: dict[Database, list[str]] = {
    "postgres": ["nine_columns", "bigint_in_order", "random_uuid", "one_index", "three_indexes"],
    "clickhouse": ["nine_columns", "bigint_in_order", "random_uuid", "projection"],
}
FIRST_ID, SEED_STEP = 10**12, 10**9
"""The first id of appended rows, which is higher than those of existing rows; and the distance between seeds, because
adjacent seeds generate the same rows, shifted by one, whose keys would collide."""
APPENDS = 10
"""The number of appends that make the existing rows."""

COMPARED: dict[Database, tuple[str, ...]] = {
    "postgres": (
        "polars_asyncpg_copy_binary", "polars_pgpq_copy_binary", "polars_pgpq_presorted",
        "polars_pgpq_presorted_two_connections", "polars_framehaul_write", "pandas_sqlalchemy_to_sql",
    ),
    "clickhouse": (
        "polars_httpx_parquet", "polars_http_client_arrow_stream", "polars_http_client_native_presorted",
        "polars_framehaul_write", "pandas_clickhouse_connect_insert_df",
    ),
}  # fmt: skip
IN_ALL_TABLES = 3
"""The number of appends into all tables: the best published one, one as it is and one presorted."""
BUSY: dict[Database, tuple[str, ...]] = {
    "postgres": ("polars_asyncpg_copy_binary", "polars_pgpq_presorted", "polars_pgpq_key_last"),
    "clickhouse": ("polars_httpx_parquet", "polars_http_client_native_presorted"),
}
BUSY_LAYOUT: dict[Database, str] = {"postgres": "one_index", "clickhouse": "nine_columns"}
"""Appends, and a bulk load, into a table that others use; it has an index or partitions for their aggregate."""
MOST_ROWS, BUSY_TIMES, BEFORE_SECONDS = 10_000_000, 10, 0.5
"""The most existing rows; those of the table that others use, as a multiple; the time of others before an append."""
APPEND, ALONE, TOGETHER = "append", "alone", "together"

RATES = {"lookup": 50, "aggregate": 10, "write": 5}
"""The requests per second of each other client."""
WRITTEN_ROWS, WRITER = 100, -1_000_000
"""The rows of a request of the writer, and their `source_id`, which no other row has."""
READ = f"SELECT count(*), sum(metric_value) FROM {NAME} WHERE "
INSERT = f"INSERT INTO {NAME} SELECT {{}}, '2025-06-15', {WRITER}, '', '', '', '', '', '', n, n, n, n FROM {{}}"
WRITES = {
    "psycopg": INSERT.format("gen_random_uuid()", f"generate_series(1, {WRITTEN_ROWS}) AS n"),
    "http_client": INSERT.format("generateUUIDv4()", f"(SELECT number AS n FROM numbers({WRITTEN_ROWS}))"),
}

SESSIONS = """SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
COUNTERS = f"""SELECT pg_indexes_size('{NAME}'), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,
pg_stat_get_dead_tuples('{NAME}'::regclass)"""
OURS = f"database = currentDatabase() AND table = '{NAME}'"
PARTS = f"SELECT count(), (SELECT count() FROM system.merges WHERE {OURS}) FROM system.parts WHERE active AND {OURS}"


type Request = tuple[float, float, str | None]
"""A request of another client: the time when it was due, its latency since then, and its error."""


class Case(NamedTuple):
    """A table, its number of existing rows, and the number of rows that are appended."""

    layout: str
    existing_rows: int
    rows: int


class Task(NamedTuple):
    """An append in a case, alone or together with other clients."""

    technique: Technique
    case: Case
    part: str


@dataclass(frozen=True)
class Row(store.Timed):
    """A pass of an append, alone or together with other clients, or what a client saw of such a pass."""

    database: str
    technique: str
    label: str
    origin: str
    layout: str
    existing_rows: int
    rows: int
    part: str
    """`append`; `alone` or `together` for the table that others use; or the name of another client."""
    index_bytes: int | None = None
    index_growth_bytes: int | None = None
    wal_bytes: int | None = None
    dead_rows: int | None = None
    parts: int | None = None
    merges: int | None = None
    requests: int | None = None
    errors: int | None = None
    error: str | None = None
    before_p50_s: float | None = None
    before_p95_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    longest_s: float | None = None


def groups(
    database: Database, appended: list[int], times: list[int], names: list[str], busy_rows: int
) -> list[list[Task]]:
    """Return the tasks of each number of rows, and those of the table that others use; a group shares its rounds.

    The fewest rows are appended to all tables, more rows to the first table alone and not by everyday calls.
    """
    found, known = [], [name for name in LAYOUTS[database] if name in names]
    compared, busy = ([named(database, "write", one) for one in by[database]] for by in (COMPARED, BUSY))
    for size in sorted({*appended}):
        few = size == min(appended)
        cases = [Case(name, size * by, size) for name in known[: None if few else 1] for by in sorted({*times})]
        found.append([
            Task(one, case, APPEND)
            for case in cases
            for one in compared[: None if case.layout == known[0] else IN_ALL_TABLES]
            if case.existing_rows <= MOST_ROWS and (few or one.origin != "everyday")
        ])  # fmt: skip
    case = Case(BUSY_LAYOUT[database], busy_rows * BUSY_TIMES, busy_rows)
    return [*found, [Task(one, case, part) for one in busy for part in (ALONE, TOGETHER)]]


@recorded(TABLES_IN_USE, Row)
def run(
    this_run: Recording, *, appended: list[int], times: list[int], layouts: str, busy_rows: int, rounds: int, seed: int
) -> None:
    """Measure appends of `appended` rows into tables with `times` as many; of `busy_rows` while others use a table.

    `layouts` are names of tables, or empty for all. Raises ValueError for an unknown name.
    """
    names = layouts.split() or [*TABLES]
    if unknown := {*names} - {*TABLES}:
        raise ValueError(f"LAYOUTS={layouts!r}: there is no {min(unknown)}; choose from {', '.join(TABLES)}")
    both = this_run.servers()
    sizes = ", ".join(f"{one:,}" for one in sorted({*appended, busy_rows}))
    this_run.metadata["what"] = f"appends of {sizes} rows, {rounds} rounds"
    every = [(one, group) for one in LAYOUTS for group in groups(one, appended, times, names, busy_rows)]
    this_run.expect(rounds * sum(len(group) for _, group in every))
    for database, group in every:
        measure(this_run, both.of(database), group, Rounds(rounds, 0, seed))


def measure(this_run: Recording, server: Server, group: list[Task], rounds: Rounds) -> None:
    """Measure tasks in rounds and record every pass, after each technique has run once."""

    def row(task: Task, number: int, outcome: Pass[dict[str, Any]], part: str = "") -> Row:
        one = task.technique
        values = task.case._asdict() | {"database": one.database, "technique": one.name, "label": one.label}
        values |= {"origin": one.origin, "part": part or task.part} | columns_of(outcome)
        return Row(run_id=this_run.run_id, pass_=number, **values)

    def measured(task: Task, number: int) -> dict[str, Any]:
        value_of(grown)
        columns, seen = one_pass(copies, task)
        for client, of_client in seen.items():
            this_run.write(row(task, number, Ok(of_client), client))
        return columns

    log = this_run.log(row, "{0.technique.name} ({0.case.layout})".format)
    if not log.left(group, rounds):
        return
    with Copies(server, rounds.seed) as copies:
        grown = attempt(lambda: copies.grow(dict.fromkeys(task.case for task in group)))
        for technique in dict.fromkeys(task.technique for task in group):
            # It imports drivers and compiles loops. If it fails, so does the pass that is recorded.
            attempt(partial(one_pass, copies, Task(technique, group[0].case, ALONE)))
        in_rounds(group, rounds, measured, log)


def one_pass(copies: "Copies", task: Task) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Append to a copy; return columns of results, and of each other client; raise WrongResultError for other rows."""
    table, server = TABLES[task.case.layout], copies.at.fresh(task.case)
    arguments = task.technique, server, table, copies.frames[table, task.technique.frame]
    seen, written = dict[str, dict[str, Any]](), 0
    if task.part != TOGETHER:
        begin, end = asyncio.run(append(*arguments))
    else:
        with child(context(__name__), "the other clients", use, server, copies.keys) as others:
            others.receive()
            time.sleep(BEFORE_SECONDS)
            begin, end = asyncio.run(append(*arguments))
            requests = others.ask(end)
        seen = summary(requests, begin, end)
        written = WRITTEN_ROWS * sum(error is None for *_, error in requests["write"])
    columns = {"seconds": end - begin, "rows_per_s": task.case.rows / (end - begin), **copies.at.costs(server)}
    copies.check(task.case, tables_of(server), written)
    return columns, seen


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

    def _create(self, name: str, template: str) -> PostgresServer:
        self.tables.run(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")  # after a checkpoint
        self.tables.run(f"COMMENT ON DATABASE {name} IS '{COMMENT}'")
        return replace(self._server, database=name)

    def keep(self, case: Case) -> tuple[Server, Table]:
        """Create the kept table of a case; raise UnavailableError if the user may not create databases."""
        if not self.tables.run("SELECT 1 FROM pg_roles WHERE rolname = current_user AND (rolcreatedb OR rolsuper)"):
            remedy = f"ALTER ROLE {quote_postgres(self._server.user)} CREATEDB"
            raise UnavailableError(f"every pass needs a copy of the table, which is a database of its own: {remedy}")
        server = self._create(f"{self._copy}_{case.layout}_{case.existing_rows}", "template0")
        PostgresTables(server).create(TABLES[case.layout])
        for columns in INDEXES.get(case.layout, ()):
            PostgresTables(server).run(f"CREATE INDEX ON {NAME} ({columns})")
        return server, TABLES[case.layout]

    def fresh(self, case: Case) -> Server:
        """Copy a kept table in place of the last copy."""
        self.tables.run(f"DROP DATABASE IF EXISTS {self._copy} WITH (FORCE)")
        server = self._create(self._copy, f"{self._copy}_{case.layout}_{case.existing_rows}")
        self._counted = PostgresTables(server).run(COUNTERS)[0]
        return server

    def costs(self, server: Server) -> dict[str, int]:
        """Return what an append has left to the server, as columns of results."""
        while tables_of(server).run(SESSIONS):  # a session counts its dead rows when it ends
            time.sleep(0.01)
        ((index_bytes, wal, dead_rows),) = tables_of(server).run(COUNTERS)
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
        self.tables.drop(f"{NAME} sent")


class InClickHouse:
    """Tables, with the methods of `InPostgres`: the server makes hard links to the files of their parts.

    https://clickhouse.com/docs/sql-reference/statements/create/table
    """

    grown_by, settle = named("clickhouse", "write", "polars_http_client_arrow_stream"), "OPTIMIZE TABLE {} FINAL"

    def __init__(self, server: ClickHouseServer) -> None:
        self.tables, self._server = ClickHouseTables(server), server

    def keep(self, case: Case) -> tuple[Server, Table]:
        """Create the kept table of a case."""
        kept = TABLES[case.layout].renamed(f"{NAME} {case.layout} {case.existing_rows}")
        self.tables.create(kept)
        return self._server, kept

    def fresh(self, case: Case) -> Server:
        """Clone a kept table in place of the last copy."""
        kept = f"`{NAME} {case.layout} {case.existing_rows}`"
        self.tables.create_as(NAME, f"CREATE TABLE {NAME} CLONE AS {kept} COMMENT '{COMMENT}'")
        self.tables.quiesce()
        return self._server

    def costs(self, _: Server) -> dict[str, int]:
        """Return what an append has left to the server, as columns of results."""
        ((parts, merges),) = self.tables.rows(PARTS)
        return {"parts": int(parts), "merges": int(merges)}

    def drop(self) -> None:
        """Drop all tables; raise ServerError for one that framehaul did not make."""
        self.tables.drop_beside(TABLE)
        self.tables.drop(NAME)


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
            table, (server, kept) = TABLES[case.layout], self.at.keep(case)
            parts = itertools.pairwise(case.existing_rows * part // APPENDS for part in range(APPENDS + 1))
            seeds = ((end - start, self._seed + (start + 1) * SEED_STEP, start) for start, end in parts if start < end)
            for part in one_ahead(content(table, *given) for given in seeds):
                self.keys = part["entity_key"][:1000].to_pylist()
                asyncio.run(append(self.at.grown_by, server, kept, to_polars(part, table)))
            tables_of(server).run(self.at.settle.format(quote_postgres(kept.name)))
            self._before[case] = tables_of(server).rows_fingerprint(kept)
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


def content(table: Table, rows: int, seed: int, first_id: int = FIRST_ID) -> pa.Table:
    """Return generated rows; an `id` is an integer from `first_id` on, or a random UUID."""
    made = generator.arrow_table(table, rows, seed)
    if table.key != ("id",):
        return made
    ids = pa.chunked_array([pa.array(np.arange(first_id, first_id + rows))])
    if table is UUID:  # the generator gives each UUID to several rows
        ids = generator.arrow_table(table, rows * generator.ROWS_PER_ENTITY, seed)["id"][:rows]
    return made.set_column(0, made.schema.field(0), ids)


def at_rate(client: str, connection: Any, statements: Sequence[str], end: Sequence[float]) -> list[Request]:
    """Send statements in turn at the client's rate, as long as they are due before `end[0]`, and return the requests.

    A latency counts from the due time, also if the request before was late: otherwise a long wait would count once.
    https://www.scylladb.com/2021/04/22/on-coordinated-omission/
    """
    begin, requests = time.perf_counter(), list[Request]()
    for number, statement in enumerate(itertools.cycle(statements)):
        due, error = begin + number / RATES[client], None
        time.sleep(max(0.0, due - time.perf_counter()))
        if due > end[0]:
            break
        try:
            send(connection, statement)
        except Exception as problem:  # noqa: BLE001  any error is a result, and the client goes on
            error = describe(problem)
        requests.append((due, time.perf_counter() - due, error))
    return requests


def send(connection: Any, statement: str) -> object:
    """Run a statement on either server."""
    return connection.post(statement).read() if hasattr(connection, "post") else connection.execute(statement.encode())


def use(requests: Connection, server: Server, keys: Sequence[str]) -> None:
    """Send an answer when all clients are connected, use the table until the time of a request, and send all requests.

    Times are those of `time.perf_counter`, which on Linux is the same clock in all processes.
    """
    kind, end = "psycopg" if isinstance(server, PostgresServer) else "http_client", [math.inf]
    aggregates = [f"{READ}event_date = '2025-06-{day:02}'" for day in range(1, 29)]
    statements = [f"{READ}entity_key = '{key}'" for key in keys], aggregates, [WRITES[kind]]
    with ExitStack() as stack, ThreadPoolExecutor(len(RATES)) as pool:
        made: list[Any] = [CLIENTS[kind](server) for _ in RATES]
        clients = list(zip(RATES, map(stack.enter_context, made), statements, strict=True))
        for _, connection, sent in clients[:2]:
            send(connection, sent[0])  # a connection's first query takes longer
        requests.send(None)
        running = [pool.submit(at_rate, *client, end) for client in clients]
        try:
            end[0] = requests.recv()  # raises EOFError when the parent is gone
        finally:
            end[0] = min(end[0], time.perf_counter())
        requests.send({client: one.result() for client, one in zip(RATES, running, strict=True)})


def summary(requests: dict[str, list[Request]], begin: float, end: float) -> dict[str, dict[str, Any]]:
    """Return for each client its errors, and the latencies of its other requests before and during an append."""
    columns: dict[str, dict[str, Any]] = {}
    for client, sent in requests.items():
        errors = [error for *_, error in sent if error is not None]
        before = [latency for due, latency, error in sent if error is None and due < begin]
        during = [latency for due, latency, error in sent if error is None and begin <= due <= end]
        columns[client] = {"requests": len(during), "errors": len(errors), "error": next(iter(errors), None)}
        columns[client]["longest_s"] = max(during, default=None)
        for name, latencies in (("before_", before), ("", during)):
            ends = np.quantile(latencies, (0.5, 0.95)).tolist() if latencies else (None, None)
            columns[client] |= dict(zip((f"{name}p50_s", f"{name}p95_s"), ends, strict=True))
    return columns
