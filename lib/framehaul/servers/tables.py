"""Create, fill, fingerprint and drop our tables on a server, always outside the clock.

Only tables with our comment are dropped. Each operation opens its own connection, so that it works again as soon as a
server that died has restarted.
"""

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import httpx
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.ipc

from framehaul.data.documents import with_documents
from framehaul.data.schema import COMMENT, Column, ColumnType, Table, quote_clickhouse, quote_postgres
from framehaul.errors import AnswerError, ServerError
from framehaul.servers import TIMEOUT_SECONDS, ClickHouseServer, PostgresServer

OUR_MERGES = f"""
SELECT count() FROM system.merges WHERE database = currentDatabase()
    AND table IN (SELECT name FROM system.tables WHERE database = currentDatabase() AND comment = '{COMMENT}')
"""
LOAD_ROWS = 2_500_000
"""Maximum rows of the blocks in which ClickHouse loads a table; a row takes about 300 bytes of memory."""
POSTGRES_SETTINGS = """
SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(string_to_array(
    'autovacuum checkpoint_timeout data_checksums fsync full_page_writes max_wal_size max_parallel_workers_per_gather '
    'shared_buffers shared_preload_libraries synchronous_commit wal_compression wal_level work_mem lc_collate', ' '))
"""
CLICKHOUSE_SETTINGS = """
SELECT name, value FROM system.settings WHERE changed OR has(splitByChar(' ',
    'async_insert fsync_metadata max_insert_threads max_threads max_block_size max_insert_block_size '
    || 'output_format_arrow_use_native_writer output_format_parquet_use_custom_encoder '
    || 'input_format_parquet_use_native_reader_v3 output_format_parquet_compression_method'), name)
"""

type Fingerprint = tuple[int, ...]
"""Row count and sums of 64-bit hashes: equal for the same rows in any order."""
HASHED_TO_THE_BIT = {"uuid", "text", "bytea", "boolean", "smallint", "integer", "bigint", "date"}
"""PostgreSQL types whose hashes differ for different values; for floats, -0.0 and 0.0 have the same hash."""


class Tables:
    """Operations on our tables on one server."""

    product: ClassVar[str]
    database: ClassVar[str]
    comments: ClassVar[str]
    """A query for the comment of a table or view, without a row if it does not exist."""
    marking: ClassVar[str]
    dropping: ClassVar[str]
    """The statement that gives a new table our comment, and the statement that drops it."""
    settings: ClassVar[str]
    """A query for the names and values of relevant settings."""
    quoted: Callable[[str], str]
    run: Callable[..., Any]
    """Run a statement and return its answer; raises ServerError."""
    rows: Callable[..., Any]
    """Return the rows of a query with parameters in the form of the server; raises ServerError."""
    quiesce: Callable[[], None]
    """Wait for the server's background work, so that it does not slow the next pass down."""
    load: Callable[[Table, pa.Table], None]
    """Fill a new table by a path that no technique uses, and prepare it for reading.

    A text column may be binary: its bytes are stored unchanged, if the server allows invalid text.
    """
    content: Callable[[Table], pl.DataFrame]
    """Return the whole table by a path that no technique uses; a text column that is not all UTF-8 stays binary."""
    _hash: Callable[[Table, Sequence[Column]], str]
    """Return the SQL of a 64-bit hash of these columns in a row."""
    _connection: Callable[[], AbstractContextManager[Any]]
    """Return the kept connection, or a new connection that is closed after one operation."""
    _kept: Any = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Use one connection for all operations of one thread while the block lasts."""
        with self._connection() as connection:
            self._kept = connection
            try:
                yield
            finally:
                self._kept = None

    def create(self, table: Table) -> None:
        """Create a table and first drop our table of that name; raises ServerError for a table that is not ours."""
        self.create_as(table.name, getattr(table, f"{self.database}_ddl"))

    def create_as(self, name: str, ddl: str) -> None:
        """Create a table like `create`, with a statement that for ClickHouse must contain our comment."""
        self.drop(name)
        self.run(ddl + self.marking.format(self.quoted(name)))

    def drop(self, name: str) -> None:
        """Drop the table of a name if it exists; raises ServerError if it is not ours."""
        for (comment,) in self.rows(self.comments, name=name):
            if comment != COMMENT:
                remedy = "it stays as it is. Rename it, or give framehaul another database"
                raise ServerError(f"{self.product} holds a table {name} that framehaul did not make; {remedy}")
            self.run(self.dropping.format(self.quoted(name)))

    @contextmanager
    def loaded(self, table: Table, content: pa.Table | None = None) -> Iterator[Self]:
        """Make a table as `make` does, and drop it at the end of the block."""
        try:
            self.make(table, content)
            yield self
        finally:
            self.drop(table.name)

    def make(self, table: Table, content: pa.Table | None) -> None:
        """Create a table anew, fill it and wait until the server has no work left of it or an older one."""
        self.create(table)
        if content is not None:
            self.load(table, content)
        self.quiesce()

    def rows_fingerprint(self, table: Table) -> Fingerprint:
        """Return the fingerprint of whole rows."""
        return self._fingerprints(table, [table.columns])[0]

    def column_fingerprints(self, table: Table) -> dict[str, Fingerprint]:
        """Return the fingerprint of each column."""
        fingerprints = self._fingerprints(table, [[column] for column in table.columns])
        return dict(zip(table.column_names, fingerprints, strict=True))

    def _fingerprints(self, table: Table, parts: Sequence[Sequence[Column]]) -> list[Fingerprint]:
        name = getattr(table, f"{self.database}_name")
        sums = ", ".join(f"coalesce(sum({self._hash(table, columns)}), 0)" for columns in parts)
        rows, *values = map(int, self.rows(f"SELECT count(*), {sums} FROM {name}")[0])
        return [(rows, value) for value in values]

    def metadata(self) -> dict[str, Any]:
        """Return the server's version and relevant settings."""
        return {"version": self.rows("SELECT version()")[0][0], "settings": dict(self.rows(self.settings))}


@dataclass(eq=False, repr=False)
class PostgresTables(Tables):
    """Operations on our tables on PostgreSQL."""

    server: PostgresServer
    product, database, settings = "PostgreSQL", "postgres", POSTGRES_SETTINGS
    comments = "SELECT obj_description(oid) FROM pg_class WHERE relname = %(name)s AND pg_table_is_visible(oid)"
    marking, dropping = f"; COMMENT ON TABLE {{}} IS '{COMMENT}'", "DROP TABLE {}"  # PostgreSQL runs both or none
    quoted = staticmethod(quote_postgres)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if self._kept is not None and not self._kept.closed:
            yield self._kept
            return
        try:
            connection = psycopg.connect(self.server.dsn(), autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            where = f"{self.server.host}:{self.server.port}"
            raise ServerError(f"PostgreSQL at {where} cannot be used: {_one_line(error)}") from error
        with connection:
            yield connection

    def run(self, query: str, **parameters: str) -> list[tuple[Any, ...]]:
        with self._connection() as connection:
            try:
                cursor = connection.execute(query.encode(), parameters or None)
            except psycopg.Error as error:
                raise ServerError(f"PostgreSQL answered: {_one_line(error)}") from error
            return cursor.fetchall() if cursor.description else []

    rows = run

    def quiesce(self) -> None:
        with contextlib.suppress(ServerError):  # a role of an external server may lack the privilege
            self.run("CHECKPOINT")

    def load(self, table: Table, content: pa.Table) -> None:
        types = [column.types.postgres.partition("(")[0] for column in table.columns]
        # In COPY's binary format the bytes of text are the same as those of bytea.
        sent = [
            "bytea" if column.type is ColumnType.TEXT and pa.types.is_binary(kind) else name
            for column, kind, name in zip(table.columns, content.schema.types, types, strict=True)
        ]
        binary = sent != types
        statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN"
        statement += " WITH (FORMAT binary)" if binary else ""
        with self._connection() as connection:
            with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
                if binary:
                    copy.set_types(sent)
                for batch in with_documents(content, table).to_batches(max_chunksize=50_000):
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        copy.write_row(row)
            # VACUUM writes hint bits and the visibility map, which the first read would otherwise write.
            connection.execute(f"VACUUM (ANALYZE) {table.postgres_name}".encode())

    def content(self, table: Table) -> pl.DataFrame:
        with self._connection() as connection, connection.transaction(), connection.cursor("framehaul") as cursor:
            kinds = pa.schema([(column.name, column.postgres_arrow) for column in table.columns])
            schema = dict(pl.DataFrame(kinds.empty_table()).schema)
            if connection.info.encoding == "ascii":  # psycopg returns text as bytes if the database is SQL_ASCII
                schema |= dict.fromkeys(table.columns_of(ColumnType.TEXT, ColumnType.UUID), pl.Binary())
            parts = [pl.DataFrame(schema=schema)]
            cursor.execute(table.postgres_select_as_in_frames.encode())
            while rows := cursor.fetchmany(50_000):
                parts.append(pl.DataFrame(rows, schema=schema, orient="row"))
        frame = pl.concat(parts).with_columns(pl.col(table.columns_of(ColumnType.UUID)).cast(pl.String))
        return _with_text(frame.cast(dict.fromkeys(table.columns_of(ColumnType.UINT64), pl.UInt64)), table)

    def _hash(self, table: Table, columns: Sequence[Column]) -> str:
        def value(column: Column) -> str:
            name = quote_postgres(column.name)
            # User-defined types may ignore case or blanks.
            exact = column.types.postgres in HASHED_TO_THE_BIT and not table.postgres_body
            return name if exact else f'({column.types.postgres_select.format(name)})::text COLLATE "C"'

        # A record's hash is hashed again, because it is a sum over values. Hashing records takes a third of the time of
        # hashing text.
        return f"hashtextextended(hash_record_extended(ROW({', '.join(map(value, columns))}), 0)::text, 0)"

    def metadata(self) -> dict[str, Any]:
        extensions = dict(self.run("SELECT extname, extversion FROM pg_extension ORDER BY 1"))
        transport = "Unix socket" if self.server.over_socket else "TCP"
        return {**super().metadata(), "transport": transport, "extensions": extensions}


_tls = cache(httpx.create_ssl_context)
"""A context for all connections, because reading certificates takes longer than a query."""


@dataclass(eq=False, repr=False)
class ClickHouseTables(Tables):
    """Operations on our tables on ClickHouse."""

    server: ClickHouseServer
    product, database, settings = "ClickHouse", "clickhouse", CLICKHOUSE_SETTINGS
    comments = "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {name:String}"
    marking, dropping = "", "DROP TABLE {} SYNC"
    quoted = staticmethod(quote_clickhouse)

    def _connection(self) -> AbstractContextManager[httpx.Client]:
        if self._kept is not None:
            return contextlib.nullcontext(self._kept)
        return httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False, verify=_tls(trust_env=False))

    def run(self, query: str, body: bytes = b"", **settings: str | int) -> bytes:
        server, where = self.server, f"{self.server.host}:{self.server.http_port}"
        # The query is in the body, because httpx limits addresses to 65,536 characters:
        # https://github.com/encode/httpx/blob/master/httpx/_urlparse.py
        content, params = iter([query.encode() + b"\n", body]), {"database": server.database, **settings}
        try:
            with self._connection() as client:
                response = client.post(server.url, auth=(server.user, server.password), content=content, params=params)
        except httpx.TransportError as error:
            raise ServerError(f"ClickHouse at {where} cannot be used: {_one_line(error)}") from error
        if response.is_error:
            raise AnswerError(f"ClickHouse at {where} answered: {_one_line(response.text)}")
        return response.content

    def rows(self, query: str, **parameters: str) -> list[list[Any]]:
        bound: dict[str, str | int] = {f"param_{key}": value for key, value in parameters.items()}
        return list(json.loads(self.run(f"{query} FORMAT JSONCompact", b"", **bound))["data"])

    def drop_beside(self, table: Table) -> int:
        """Drop staging tables (table, blank, digits) that a killed client has left, and return their number."""
        ours = "database = currentDatabase() AND comment = {ours:String} AND startsWith(name, {prefix:String})"
        found = self.rows(f"SELECT name FROM system.tables WHERE {ours}", ours=COMMENT, prefix=f"{table.name} ")
        for (name,) in found:
            self.drop(name)
        return len(found)

    def quiesce(self) -> None:
        # Only merges of our tables count, because a database with other users may always merge.
        while int(self.rows(OUR_MERGES)[0][0]):
            time.sleep(0.02)

    def load(self, table: Table, content: pa.Table) -> None:
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, content.schema) as stream:
            stream.write_table(content, max_chunksize=65_536)  # the server holds a whole record batch in memory
        statement = f"{table.clickhouse_insert} FORMAT ArrowStream"
        # With one block, each partition is one part and no merge starts; a larger table takes several blocks.
        blocks = {"min_insert_block_size_rows": LOAD_ROWS, "min_insert_block_size_bytes": 0}
        self.run(statement, buffer.getvalue(), **blocks, async_insert=0)
        self.quiesce()

    def content(self, table: Table) -> pl.DataFrame:
        query = f"{table.clickhouse_select_as_in_frames} FORMAT ArrowStream"
        names = ("arrow_string_as_string", "json_quote_64bit_integers", "json_quote_64bit_floats")
        answer = self.run(query, b"", **dict.fromkeys((f"output_format_{name}" for name in names), 0))
        frame = pl.from_arrow(pa.ipc.open_stream(answer).read_all())
        assert isinstance(frame, pl.DataFrame)
        return _with_text(frame, table)

    def _hash(self, _: Table, columns: Sequence[Column]) -> str:
        # The text distinguishes -0.0 from 0.0, the flag distinguishes NULL.
        names = [quote_clickhouse(column.name) for column in columns]
        return f"cityHash64({', '.join(f"isNull({name}), ifNull(toString({name}), '')" for name in names)})"


def tables_of(server: PostgresServer | ClickHouseServer) -> Tables:
    """Return an object for operations on our tables on a server."""
    return PostgresTables(server) if isinstance(server, PostgresServer) else ClickHouseTables(server)


def _with_text(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the frame with bytes (or lists of bytes) cast to text in each text column that is all UTF-8."""
    texts: dict[pl.DataType, pl.DataType] = {pl.Binary(): pl.String(), pl.List(pl.Binary()): pl.List(pl.String())}
    for column in table.columns:
        text = texts.get(frame[column.name].dtype) if column.innermost.types.arrow == pa.string() else None
        if text is not None:
            with contextlib.suppress(pl.exceptions.ComputeError):  # the cast checks every value
                frame = frame.with_columns(pl.col(column.name).cast(text))
    return frame


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
