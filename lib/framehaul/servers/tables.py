"""Our tables on a server: made, marked, emptied, fingerprinted and dropped, always outside the clock.

Only tables that carry our comment are ever dropped. Each operation opens a connection of its own, so that it works
again as soon as a server that died is back.
"""

from __future__ import annotations

import contextlib
import io
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import httpx
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.ipc

from framehaul.data.documents import with_documents
from framehaul.data.schema import COMMENT, Column, ColumnType, Table, quote_clickhouse, quote_postgres
from framehaul.errors import AnswerError, ServerError
from framehaul.servers import ClickHouseServer, PostgresServer

OUR_MERGES = f"""
SELECT count() FROM system.merges WHERE database = currentDatabase()
    AND table IN (SELECT name FROM system.tables WHERE database = currentDatabase() AND comment = '{COMMENT}')
"""
LONG_QUERY = 8_000
"""Characters from which on a query goes before its data, not into the address: httpx has none of more than 65,536.
https://github.com/encode/httpx/blob/master/httpx/_urlparse.py"""
LOAD_ROWS = 2_500_000
"""Rows that ClickHouse takes as one block when a table is loaded: some 300 bytes of memory for each."""

type Fingerprint = tuple[int, ...]
"""Row count and sums of 64-bit hashes: equal for the same rows in any order."""
HASHED_TO_THE_BIT = {"uuid", "text", "bytea", "boolean", "smallint", "integer", "bigint", "date"}
"""PostgreSQL's types of which what differs in anything has another hash; its float -0.0 has that of 0.0."""


class Tables(Protocol):
    """What measuring needs of a database."""

    def ping(self) -> None:
        """Ask for an answer; raises ServerError when none comes."""

    def create(self, table: Table) -> None:
        """Drop our table of that name, if there is one, and make it anew; raises ServerError when it is not ours."""

    def drop(self, table: Table) -> None:
        """Drop our table of that name, if there is one; raises ServerError when it is not ours."""

    def quiesce(self) -> None:
        """Let no work of an earlier pass run into the next one."""

    def load(self, table: Table, content: pa.Table) -> None:
        """Fill a new table by a path that no technique uses, and ready it for reading.

        A column of text may come as binary: its bytes are stored as they are, text or not, where the server lets them.
        """

    def content(self, table: Table) -> pl.DataFrame:
        """The whole table, by a path that no technique uses; a column of text that is not all UTF-8 stays bytes."""

    def rows_fingerprint(self, table: Table) -> Fingerprint:
        """Fingerprint of whole rows."""

    def column_fingerprints(self, table: Table) -> dict[str, Fingerprint]:
        """Fingerprint of each column."""

    def metadata(self) -> dict[str, Any]:
        """Version and the settings that matter, for the record of a run."""

    def kept(self) -> AbstractContextManager[None]:
        """One connection for all that one thread does in the block: for many small operations, of which it is most."""


class PostgresTables:
    """`Tables` on PostgreSQL."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._kept: psycopg.Connection[Any] | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """One connection for all that one thread does in the block."""
        with self._connection() as connection:
            self._kept = connection
            try:
                yield
            finally:
                self._kept = None

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        if self._kept is not None and not self._kept.closed:
            yield self._kept
            return
        try:
            connection = psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=10)
        except psycopg.OperationalError as error:
            where = f"{self._server.host}:{self._server.port}"
            raise ServerError(f"PostgreSQL at {where} cannot be used: {_one_line(error)}") from error
        with connection:
            yield connection

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows that a statement gives, if it gives any; raises ServerError."""
        with self._connection() as connection, connection.cursor() as cursor:
            try:
                cursor.execute(statement.encode())
            except psycopg.Error as error:
                raise ServerError(f"PostgreSQL answered: {_one_line(error)}") from error
            return cursor.fetchall() if cursor.description else []

    def ping(self) -> None:
        self.run("SELECT 1")

    def create(self, table: Table) -> None:
        self.create_as(table.name, table.postgres_ddl)

    def create_as(self, name: str, ddl: str) -> None:
        """As `create`, with a statement of one's own."""
        self.drop_named(name)
        with self._connection() as connection, connection.transaction():
            connection.execute(ddl.encode())
            connection.execute(f"COMMENT ON TABLE {quote_postgres(name)} IS '{COMMENT}'".encode())

    def drop(self, table: Table) -> None:
        self.drop_named(table.name)

    def drop_named(self, name: str) -> None:
        """As `drop`."""
        quoted = quote_postgres(name)
        with self._connection() as connection:
            ours = connection.execute(
                "SELECT obj_description(oid, 'pg_class') = %s FROM pg_class WHERE oid = to_regclass(%s)",
                (COMMENT, quoted),
            ).fetchone()
            if ours is None:
                return
            if not ours[0]:
                raise ServerError(_not_ours("PostgreSQL", name))
            connection.execute(f"DROP TABLE {quoted}".encode())

    def quiesce(self) -> None:
        with self._connection() as connection:
            allowed = connection.execute(
                "SELECT rolsuper OR pg_has_role(current_user, 'pg_checkpoint', 'MEMBER') "
                "FROM pg_roles WHERE rolname = current_user"
            ).fetchone()
            # Somebody else's server may not let us; then its own checkpoints fall where they fall: `metadata` says so.
            if allowed is not None and allowed[0]:
                connection.execute("CHECKPOINT")

    def load(self, table: Table, content: pa.Table) -> None:
        raw = [
            column.type is ColumnType.TEXT and pa.types.is_binary(kind)
            for column, kind in zip(table.columns, content.schema.types, strict=True)
        ]
        content = with_documents(content, table)
        options = " WITH (FORMAT binary)" if any(raw) else ""
        statement = f"COPY {table.postgres_name} ({table.postgres_columns}) FROM STDIN{options}".encode()
        with self._connection() as connection:
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                if any(raw):  # in COPY's binary format text is its bytes, as bytea is
                    names = [column.types.postgres.partition("(")[0] for column in table.columns]
                    copy.set_types(["bytea" if is_raw else name for name, is_raw in zip(names, raw, strict=True)])
                for batch in content.to_batches(max_chunksize=50_000):
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        copy.write_row(row)
            # Hint bits and the visibility map are written now, not by the first technique that reads.
            connection.execute(f"VACUUM (ANALYZE) {table.postgres_name}".encode())

    def content(self, table: Table) -> pl.DataFrame:
        with (
            self._connection() as connection,
            connection.transaction(),
            connection.cursor(name="framehaul_content") as cursor,
        ):
            # Of a database without an encoding, SQL_ASCII, psycopg gives text as bytes.
            as_bytes = connection.info.encoding == "ascii"
            kinds = pa.schema([(column.name, column.postgres_arrow) for column in table.columns])
            schema = pl.DataFrame(kinds.empty_table()).schema | dict.fromkeys(
                table.columns_of(ColumnType.TEXT, ColumnType.UUID) if as_bytes else [], pl.Binary()
            )
            parts = [pl.DataFrame(schema=schema)]
            cursor.execute(f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}".encode())
            while rows := cursor.fetchmany(50_000):
                parts.append(pl.DataFrame(rows, schema=schema, orient="row"))
        uuids = pl.col(table.columns_of(ColumnType.UUID)).cast(pl.String)
        frame = pl.concat(parts).with_columns(uuids)
        return _with_text(frame.cast(dict.fromkeys(table.columns_of(ColumnType.UINT64), pl.UInt64)), table)

    def rows_fingerprint(self, table: Table) -> Fingerprint:
        # Of somebody's own types, which may ignore case or blanks, a whole row as text is unambiguous: every value is
        # quoted where it must be, and NULL differs from ''. To hash values takes a third of the time. A row's hash is a
        # sum of theirs, and a sum over rows would not tell whose they are: it is hashed once more.
        row = ", ".join(_as_in_frames(one) if table.postgres_body else _to_be_hashed(one) for one in table.columns)
        text = f"ROW({row})::text" if table.postgres_body else f"hash_record_extended(ROW({row}), 0)::text"
        return self._sums(table, {"": (f"hashtextextended({text}, 0)", "*")})[""]

    def column_fingerprints(self, table: Table) -> dict[str, Fingerprint]:
        return self._sums(table, {
            column.name: (f"hashtextextended(({_as_in_frames(column)})::text, 0)", quote_postgres(column.name))
            for column in table.columns
        })  # fmt: skip

    def _sums(self, table: Table, hashes: dict[str, tuple[str, str]]) -> dict[str, Fingerprint]:
        """Of each hash, with what is counted for it."""
        sums = ", ".join(f"count({counted}), coalesce(sum({value}), 0)" for value, counted in hashes.values())
        with self._connection() as connection:
            row = connection.execute(f"SELECT count(*), {sums} FROM {table.postgres_name}".encode()).fetchone()
        assert row is not None
        values = [int(value) for value in row]
        return {name: (values[0], *values[1 + 2 * i : 3 + 2 * i]) for i, name in enumerate(hashes)}

    def metadata(self) -> dict[str, Any]:
        with self._connection() as connection:
            version = connection.execute("SELECT version()").fetchone()
            settings = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s) ORDER BY name",
                (["autovacuum", "checkpoint_timeout", "data_checksums", "fsync", "full_page_writes", "max_wal_size",
                  "max_parallel_workers_per_gather", "shared_buffers", "shared_preload_libraries", "synchronous_commit",
                  "wal_compression", "wal_level", "work_mem", "lc_collate"],),
            ).fetchall()  # fmt: skip
            extensions = connection.execute("SELECT extname, extversion FROM pg_extension ORDER BY 1").fetchall()
        assert version is not None
        transport = "Unix socket" if self._server.over_socket else "TCP"
        known = {"settings": dict(settings), "extensions": dict(extensions)}
        return {"version": version[0], "transport": transport, **known}


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes longer than a query."""
    return httpx.create_ssl_context(trust_env=False)


def _client() -> httpx.Client:
    return httpx.Client(timeout=600, trust_env=False, verify=_tls())


class ClickHouseTables:
    """`Tables` on ClickHouse."""

    def __init__(self, server: ClickHouseServer) -> None:
        self._server = server
        self._kept: httpx.Client | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """One connection for all that one thread does in the block."""
        with _client() as client:
            self._kept = client
            try:
                yield
            finally:
                self._kept = None

    def run(self, query: str, body: bytes = b"", **settings: str | int) -> bytes:
        """What the server answers; raises ServerError."""
        where = f"{self._server.host}:{self._server.http_port}"
        asked: dict[str, str | int] = {"query": query}
        if len(query) > LONG_QUERY:
            asked, body = {}, query.encode() + b"\n" + body
        try:
            with contextlib.nullcontext(self._kept) if self._kept else _client() as client:
                response = client.post(
                    self._server.url, auth=(self._server.user, self._server.password), content=body,
                    params={"database": self._server.database, **asked, **settings},
                )  # fmt: skip
        except httpx.TransportError as error:
            raise ServerError(f"ClickHouse at {where} cannot be used: {_one_line(error)}") from error
        if response.is_error:
            raise AnswerError(f"ClickHouse at {where} answered: {_one_line(response.text)}")
        return response.content

    def rows(self, query: str, **parameters: str) -> list[list[Any]]:
        """The rows that a query gives, its `{name:Type}` parameters bound; raises ServerError."""
        bound: dict[str, str | int] = {f"param_{key}": value for key, value in parameters.items()}
        answer = self.run(f"{query} FORMAT JSONCompact", b"", **bound)
        rows: list[list[Any]] = json.loads(answer)["data"]
        return rows

    def ping(self) -> None:
        self.run("SELECT 1")

    def create(self, table: Table) -> None:
        self.create_as(table.name, table.clickhouse_ddl)

    def create_as(self, name: str, ddl: str) -> None:
        """As `create`, with a statement of one's own, which gives the table our comment."""
        self.drop_named(name)
        self.run(ddl)

    def drop(self, table: Table) -> None:
        self.drop_named(table.name)

    def drop_named(self, name: str) -> None:
        """As `drop`."""
        comments = self.rows(
            "SELECT comment FROM system.tables WHERE database = currentDatabase() AND name = {name:String}", name=name
        )
        if not comments:
            return
        if comments[0][0] != COMMENT:
            raise ServerError(_not_ours("ClickHouse", name))
        self.run(f"DROP TABLE {quote_clickhouse(name)} SYNC")

    def drop_beside(self, table: Table) -> int:
        """Drop what of ours a client that was killed has left beside a table, to take its place; how many there were.

        Such a table has the name of the one, a blank, and digits.
        """
        found = self.rows(
            "SELECT name FROM system.tables WHERE database = currentDatabase() AND comment = {ours:String} "
            "AND startsWith(name, {beside:String})",
            ours=COMMENT, beside=f"{table.name} ",
        )  # fmt: skip
        for (name,) in found:
            self.drop_named(name)
        return len(found)

    def quiesce(self) -> None:
        # Of our tables alone: a database that others use may merge for ever.
        while int(self.rows(OUR_MERGES)[0][0]):
            time.sleep(0.02)

    def load(self, table: Table, content: pa.Table) -> None:
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, content.schema) as stream:
            stream.write_table(content, max_chunksize=65_536)  # a record batch is whole in the server's memory
        columns = f"{table.clickhouse_name} ({table.clickhouse_columns})"
        # One block, so that each partition is one part and no merge starts; a few of them where one would not fit.
        self.run(
            f"INSERT INTO {columns} FORMAT ArrowStream", buffer.getvalue(),
            min_insert_block_size_rows=max(1, min(content.num_rows, LOAD_ROWS)), min_insert_block_size_bytes=0,
            async_insert=0,
        )  # fmt: skip
        self.quiesce()

    def content(self, table: Table) -> pl.DataFrame:
        answer = self.run(
            f"SELECT {table.clickhouse_columns_as_in_frames} FROM {table.clickhouse_name} FORMAT ArrowStream",
            output_format_arrow_string_as_string=0, output_format_json_quote_64bit_integers=0,
            output_format_json_quote_64bit_floats=0,
        )  # fmt: skip
        frame = pl.from_arrow(pa.ipc.open_stream(answer).read_all())
        assert isinstance(frame, pl.DataFrame)
        return _with_text(frame, table)

    def rows_fingerprint(self, table: Table) -> Fingerprint:
        # Numbers become text first: that tells -0.0 from 0.0, and a NULL's flag tells it from any text.
        parts = ", ".join(f"isNull({name}), ifNull(toString({name}), '')" for name in _quoted(table))
        return self._sums(table, {"": f"cityHash64({parts})"})[""]

    def column_fingerprints(self, table: Table) -> dict[str, Fingerprint]:
        hashes = {
            name: f"cityHash64(isNull({quoted}), ifNull(toString({quoted}), ''))"
            for name, quoted in zip(table.column_names, _quoted(table), strict=True)
        }
        return self._sums(table, hashes)

    def _sums(self, table: Table, hashes: dict[str, str]) -> dict[str, Fingerprint]:
        sums = ", ".join(f"sum({value})" for value in hashes.values())
        row = self.rows(f"SELECT count(), {sums} FROM {table.clickhouse_name}")[0]
        return {name: (int(row[0]), int(row[1 + i])) for i, name in enumerate(hashes)}

    def metadata(self) -> dict[str, Any]:
        names = ("async_insert", "fsync_metadata", "max_insert_threads", "max_threads", "max_block_size",
                 "max_insert_block_size", "output_format_arrow_use_native_writer",
                 "output_format_parquet_use_custom_encoder", "input_format_parquet_use_native_reader_v3",
                 "output_format_parquet_compression_method")  # fmt: skip
        wanted = ", ".join(f"'{name}'" for name in names)
        settings = self.rows(
            f"SELECT name, value FROM system.settings WHERE name IN ({wanted}) OR changed ORDER BY name"
        )
        return {"version": self.rows("SELECT version()")[0][0], "settings": dict(settings)}


def tables_of(server: PostgresServer | ClickHouseServer) -> Tables:
    """The tables of a server."""
    return PostgresTables(server) if isinstance(server, PostgresServer) else ClickHouseTables(server)


def _as_in_frames(column: Column) -> str:
    """A column for PostgreSQL, as what it is in a frame: there an interval of a day is one of 24 hours."""
    return column.types.postgres_select.format(quote_postgres(column.name))


def _to_be_hashed(column: Column) -> str:
    """The same, as what has another hash wherever it differs."""
    exact = column.types.postgres in HASHED_TO_THE_BIT
    return quote_postgres(column.name) if exact else f"({_as_in_frames(column)})::text"


AS_TEXT: dict[pl.DataType, pl.DataType] = {pl.Binary(): pl.String(), pl.List(pl.Binary()): pl.List(pl.String())}


def _with_text(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The frame with its bytes as text in the columns of text, and of lists of it, where all of them are UTF-8."""
    for column in table.columns:
        text = AS_TEXT.get(frame[column.name].dtype) if column.innermost.types.arrow == pa.string() else None
        if text is not None:
            with contextlib.suppress(pl.exceptions.ComputeError):  # the cast checks every value
                frame = frame.with_columns(pl.col(column.name).cast(text))
    return frame


def _quoted(table: Table) -> list[str]:
    return [quote_clickhouse(name) for name in table.column_names]


def _not_ours(database: str, name: str) -> str:
    return (
        f"{database} holds a table {name} that framehaul did not make; it stays as it is. "
        "Rename it, or give framehaul another database"
    )


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__
