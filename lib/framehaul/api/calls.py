"""Write a frame to a table, and read the result of a query, by the technique that suits them."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from decimal import InvalidOperation
from http.client import HTTPException
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl
import pyarrow as pa

from framehaul.api import lookup
from framehaul.api.choice import FEW_ROWS, Choice, Mode, choose
from framehaul.api.create import Client, Frame, created, derived_table
from framehaul.api.lookup import Target
from framehaul.api.types import ServerColumn
from framehaul.codecs.compiled import numba_waits
from framehaul.codecs.native_format import NOT_DECODED, NotDecodedError, read_native, read_result
from framehaul.data.documents import nested_array, without_documents
from framehaul.data.frames import from_pandas, is_pandas, to_pandas, to_polars, validated, with_bytes
from framehaul.data.schema import Table
from framehaul.errors import FrameError, ServerError, TableError
from framehaul.servers import parse_clickhouse_url, parse_postgres_dsn
from framehaul.techniques.clients import UTF8, HttpConnection, QueryError, in_utf8, open_http_client, open_psycopg
from framehaul.techniques.registry import REGISTERED, Database

if TYPE_CHECKING:
    import psycopg

type Address = str | psycopg.Connection[Any] | HttpConnection
"""The URL of a server, or an open connection to it."""
SAME_BLOCKS = {
    "min_insert_block_size_rows": 1_048_576, "min_insert_block_size_bytes": 0, "max_insert_threads": 1,
    "insert_deduplicate": 1,
}  # fmt: skip
_PART = r"(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
WHOLE_URL = re.compile(
    rf"postgres(?:ql)?://{_PART}(?::{_PART})?@(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d+)?/{_PART}(?:\?sslmode=[\w-]+)?"
)
"""Addresses that need no parsing by psycopg: libpq's errors for others may show the password."""
NO_TEXT = ("int", "uint", "float", "double", "bool", "date", "time", "timestamp", "duration", "decimal")
"""The beginnings of the names of dtypes that hold no text, in either kind of frame."""
Kind = Literal["polars", "pandas", "arrow"]


def write(
    frame: object, target: Address, table: str, *, mode: Mode = "append", create: bool | Sequence[str] = False,
    token: str = "", technique: str = "",
) -> None:  # fmt: skip
    """Write a frame into a table: append its rows, replace all rows, or update those with the same key.

    `frame` is of Polars, pandas or pyarrow, or has `__arrow_c_stream__`. `target` is a URL, `postgresql://...` or
    `http(s)://user:password@host:port/database` of ClickHouse, or an open psycopg connection, whose transaction the
    write joins. `table` is a name as in SQL. PostgreSQL gets all rows or none; ClickHouse gets them block by block,
    and `mode="replace"` all at once. `create` makes a table that is missing: True one without a key, names of columns
    one with this key; the statement is logged by the logger `framehaul`. A `token` makes an append to ClickHouse safe
    to repeat, where the table deduplicates. `technique` names another technique than the one that `explain` shows.

    Raises FrameError for what the table cannot hold, before anything is stored, TableError for a table that cannot be
    written so, and ServerError with the server's own message.
    """
    with _errors(), _connected(target) as client:
        given = as_frame(frame)
        if token and (mode != "append" or not isinstance(client, HttpConnection)):
            raise TableError("a token is for appends to ClickHouse: elsewhere mode='upsert' is safe to repeat")
        if token and technique:
            raise TableError(f"technique={technique!r}: with a token the technique is given; leave one of them out")
        with created(client, given, table, create) as name:
            found, relation, choice = _prepared(given, client, name, mode, technique, token)
            if token and not found.deduplicates:
                remedy = f"ALTER TABLE {found.reference} MODIFY SETTING non_replicated_deduplication_window = 1000"
                raise TableError(f"table {found.reference} does not deduplicate: {remedy}, or use a replicated table")
            _call(client, relation, given, choice, mode, token)


def explain(
    frame: object, target: Address, table: str, *, mode: Mode = "append", create: bool | Sequence[str] = False
) -> Choice:
    """Return what `write` would do with this frame and table, why, and on what terms; nothing is written."""
    with _errors(), _connected(target) as client:
        if isinstance(frame, pa.RecordBatchReader):
            raise FrameError("a reader gives its rows once, and write needs them: explain what read_all() gives")
        given = as_frame(frame)
        if not create or lookup.exists(client, table):
            return _prepared(given, client, table, mode)[2]
        relation, ddl = derived_table(client, given, table, create)
        engine = "MergeTree" if isinstance(client, HttpConnection) else ""
        return replace(choose(given, relation, engine, mode, has_loops=not numba_waits()), ddl=ddl)


def read(target: Address, query: str, *, frame: Kind = "polars") -> Any:
    """Return the result of a query as a frame of Polars, pandas or pyarrow.

    Raises TableError for duplicate names and for types that are not supported, and ServerError with the server's own
    message.
    """
    _check_kind(frame)
    with _errors():
        if found := _few_rows(target, query):
            return _as_kind(*lookup.with_decimals(*found), frame)
        with _connected(target) as client:
            if isinstance(client, HttpConnection):
                content, relation = _select(client, query, frame)
            else:
                from framehaul.techniques.beyond.postgres_read import copy_from_wire

                relation = lookup.postgres_result(client, query)
                schema = None if frame == "polars" else relation.arrow_large_schema
                rows = copy_from_wire(client, relation, schema=schema)
                content, relation = lookup.with_decimals(rows, relation)
            return _as_kind(content, relation, frame)


def read_batches(target: Address, query: str, *, rows: int = 1_000_000, frame: Kind = "polars") -> Iterator[Any]:
    """Give the result of a query in frames of about so many rows, in bounded memory; raises as `read` does."""
    from framehaul.techniques.streaming import fetch_wire_batches, gathered, select_batches

    _check_kind(frame)
    if rows < 1:
        raise TableError(f"rows={rows}: give at least 1")
    with _errors(), _connected(target) as client:
        batches: Generator[pa.RecordBatch, None, None]
        if isinstance(client, HttpConnection):
            relation = lookup.clickhouse_result(client, query)
            batches = select_batches(client, relation)
        else:
            relation = lookup.postgres_result(client, query)
            if free := [one.name for one in relation.columns if one.types == lookup.FREE_NUMERIC]:
                remedy = "declare them, as in ::numeric(38, 10)"
                raise TableError(f"columns {', '.join(free)} are numeric without digits, which batches need: {remedy}")
            whole = isinstance(target, str)
            batches = fetch_wire_batches(client, relation) if whole else _cursor_batches(client, relation, rows)
        with contextlib.closing(batches):
            for content in gathered(batches, rows):
                yield _as_kind(content, relation, frame)


def _check_kind(frame: str) -> None:
    if frame not in get_args(Kind):
        raise TableError(f"frame={frame!r}: choose from {', '.join(get_args(Kind))}")


def as_frame(frame: object) -> Frame:
    """Return a frame of Polars or pandas; Arrow becomes Polars without a copy. Raises FrameError for what is none."""
    if is_pandas(frame) and ({*frame.index.names} != {None} or (len(frame) and frame.index.dtype.kind not in "iu")):
        names = ", ".join(map(repr, frame.index.names))
        raise FrameError(f"the index {names} would be left out: reset_index() makes columns of it, drop=True drops it")
    if is_pandas(frame) and (wrong := [name for name in frame.columns if not isinstance(name, str)]):
        raise FrameError(f"the column {wrong[0]!r} has no text as its name: frame.columns = frame.columns.astype(str)")
    if isinstance(frame, pl.DataFrame) or is_pandas(frame):
        return frame
    if isinstance(frame, pl.LazyFrame):
        raise FrameError("the frame is lazy: collect() it first")
    if hasattr(frame, "__arrow_c_stream__") or isinstance(frame, pa.RecordBatch):
        return pl.DataFrame(validated(pa.table(frame)))
    raise FrameError(f"a {type(frame).__name__} is no dataframe: give one of Polars, pandas or pyarrow")


@contextlib.contextmanager
def _connected(target: Address) -> Iterator[Client]:
    """Open a connection to an address; one that is open is used as it is.

    Without autocommit a call joins the caller's transaction, or begins it. The encoding of that transaction is set
    back: techniques set it to UTF-8 until the transaction ends.
    """
    if isinstance(target, HttpConnection):
        yield target
    elif not isinstance(target, str):
        if hasattr(target, "__aenter__") or not hasattr(target, "pgconn"):
            raise TableError(f"{type(target).__name__} is no target: give an address, or a connection of psycopg 3")
        before = (info := target.info).parameter_status("client_encoding")
        if not target.autocommit and info.transaction_status.name == "IDLE":
            target.execute("SELECT 1")
        try:
            yield target
        finally:
            if info.transaction_status.name == "INTRANS" and info.parameter_status("client_encoding") != before:
                target.execute(f"SET LOCAL client_encoding = '{before}'".encode())
    elif target.startswith(("http://", "https://")):
        with open_http_client(parse_clickhouse_url(target, None, "target")) as http:
            yield http
    elif target.startswith(("postgresql://", "postgres://")) or "=" in target:
        with open_psycopg(parse_postgres_dsn("target", target)) as connection:
            connection.prepare_threshold = None  # a pooler may lead each transaction to another session
            yield connection
    else:
        raise TableError("target is no address: give postgresql://... or http(s)://user:password@host:port/database")


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Raise FrameError for what a technique refuses, and ServerError for what a server answers."""
    try:
        yield
    except (FrameError, TableError, ServerError):
        raise
    except (QueryError, HTTPException, OSError) as error:
        said = re.search(rb"Code: \d+\. DB::Exception.*", getattr(error, "partial", b""), re.DOTALL)
        what = f"the query failed on its way: {said[0].decode(errors='replace')}" if said else str(error)
        raise ServerError(what.strip() or type(error).__name__) from error
    except InvalidOperation as error:
        raise FrameError("a column holds Decimal('sNaN'), on which pandas itself fails: replace it") from error
    except (ValueError, OverflowError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise FrameError(": ".join(map(str, error.args[::-1]))) from error  # Arrow's column comes last
    except BaseException as error:
        if type(error).__name__ == "PanicException":  # of Polars, and no Exception
            raise FrameError(str(error)) from error
        if type(error).__module__.startswith(("psycopg", "adbc_driver_manager")):  # which need not be imported
            raise ServerError(str(error).strip() or type(error).__name__) from error
        raise


def _prepared(
    frame: Frame, client: Client, table: str, mode: Mode, technique: str = "", token: str = ""
) -> tuple[Target, Table, Choice]:
    if isinstance(client, HttpConnection):
        much_text = len(frame) >= FEW_ROWS and any(not str(kind).lower().startswith(NO_TEXT) for kind in frame.dtypes)
        needs_key = mode != "append" or technique or token or much_text
        found = lookup.clickhouse_target(client, table, None if needs_key else [*map(str, frame.columns)])
    else:
        found = lookup.postgres_target(client, table)
    relation, columns = found.relation(frame)
    if mode == "upsert" and (absent := found.replaced - {*relation.column_names}):
        raise TableError(f"the frame lacks {', '.join(sorted(absent))}: table {found.reference} replaces whole rows")
    choice = choose(frame, relation, found.engine, mode, technique, has_loops=not numba_waits())
    _check_limits(frame, columns)
    return found, relation, choice


def _check_limits(frame: Frame, columns: list[ServerColumn]) -> None:
    """Raise FrameError for a value that the server would store as another one, with column and row."""
    for one in columns:
        if one.limit is None:
            continue
        values = pl.Series("values", frame[one.column.name]).cast(one.column.types.polars)
        kept = values.to_frame().select(one.limit.holds(pl.col("values")).fill_null(value=True)).to_series()
        if not kept.all():
            row = int((~kept).arg_max() or 0)
            raise FrameError(f"column {one.column.name}, row {row:,}: {values[row]!r} is not {one.limit.message}")


def _call(client: Client, relation: Table, frame: Frame, choice: Choice, mode: Mode, token: str) -> None:
    """Call the technique, within what replaces the rows that are there."""
    room: Any = contextlib.nullcontext(relation)
    database: Database = "clickhouse" if isinstance(client, HttpConnection) else "postgres"
    if isinstance(client, HttpConnection):
        from framehaul.techniques.beyond.clickhouse_write import exchanged, insert_arrow
        from framehaul.techniques.prepare import prepare

        if token:
            # The server numbers the blocks of a token: the same rows have to make the same blocks.
            content = prepare(frame, relation, "clickhouse").combine_chunks()
            newer = client.post("SELECT name FROM system.settings WHERE name = 'deduplicate_insert'").read().decode()
            settings = SAME_BLOCKS | dict.fromkeys(newer.split(), "enable")  # it goes before the older setting
            insert_arrow(client, relation, content, insert_deduplication_token=token, **settings)
            return
        room = exchanged(client, relation) if mode == "replace" else room
    elif mode == "replace":
        from framehaul.techniques.replacing import emptied

        room = emptied(client, relation)
    if choice.technique.startswith("polars_") and not isinstance(frame, pl.DataFrame):
        frame = to_polars(from_pandas(frame, relation), relation, valid=True)
    # Its module alone: others load drivers that are not needed here.
    import_module(f"framehaul.techniques.{'upsert' if mode == 'upsert' else 'beyond'}.{database}_write")
    with room as table:
        REGISTERED[database, "write", choice.technique].function(client, table, frame)


_rows_left: dict[Database, int] = {"postgres": 2_000_000, "clickhouse": 5_000_000}
"""The rows that a process may still read without numba, in about as much more time as numba takes to start."""
CONNECTED_ROWS = 100_000
"""The rows that ADBC reads in the time that it takes to connect, for which it asks the server for all types."""
_describes_first = threading.Event()
"""Set when an answer of ClickHouse had a column that compiled loops do not decode."""


def _select(connection: HttpConnection, query: str, kind: Kind) -> tuple[pa.Table, Table]:
    """Return the result of a query of ClickHouse, as Native where compiled loops decode it, else as Arrow.

    Where they have started, the answer itself names its columns, which saves DESCRIBE, as long as a query of few rows.
    A query with a column that they do not decode runs again: a process that had one describes each query first.
    """
    from framehaul.techniques.beyond.clickhouse_read import ARROW, LARGE_BLOCKS, NATIVE, select_arrow

    if not (numba_waits() or _describes_first.is_set()):
        select = f"SELECT * FROM {lookup.subquery(query)} FORMAT Native"
        with contextlib.suppress(NotDecodedError):
            with connection.post(select, settings=NATIVE | LARGE_BLOCKS) as response:
                found = read_result(response, lookup.decoded_column, plain=kind != "polars")
            if found is None:  # there are no rows
                relation = lookup.clickhouse_result(connection, query)
                return relation.arrow_large_schema.empty_table(), relation
            lookup.check_names(found[1].column_names)
            return found
        _describes_first.set()
    relation = lookup.clickhouse_result(connection, query)
    is_decoded = not relation.columns_of(*NOT_DECODED)
    if not is_decoded or (numba_waits() and _rows_left["clickhouse"] > 0):
        content = select_arrow(connection, relation, ARROW, preallocated=True)
        _rows_left["clickhouse"] -= content.num_rows * is_decoded
        return validated(with_bytes(content, relation)), relation
    with connection.post(f"{relation.clickhouse_select} FORMAT Native", settings=NATIVE | LARGE_BLOCKS) as response:
        schema = None if kind == "polars" else relation.arrow_large_schema
        return read_native(response, relation, schema), relation


def _few_rows(target: Address, query: str) -> tuple[pa.Table, Table] | None:
    """Return the result of a query of PostgreSQL by ADBC, without its DBAPI, which imports pandas.

    Few rows from an address take longer to start compiled loops, or to import psycopg, than to move. None where the
    loops have started, the planner expects many rows, ADBC does not name all types, or the address leaves out a part.
    """
    if not (isinstance(target, str) and WHOLE_URL.fullmatch(target) and _rows_left["postgres"] > 0 and numba_waits()):
        return None
    import adbc_driver_manager
    import adbc_driver_postgresql

    with (
        adbc_driver_postgresql.connect(target) as database,
        adbc_driver_manager.AdbcConnection(database) as connection,
        adbc_driver_manager.AdbcStatement(connection) as statement,
    ):

        def rows(sql: str) -> pa.Table:
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                return reader.read_all()

        connection.set_autocommit(enabled=False)
        statement.set_sql_query(UTF8)
        statement.execute_update()
        statement.set_sql_query(lookup.described(query))
        try:
            relation = lookup.adbc_result(pa.schema(statement.execute_schema()), query)
        except adbc_driver_manager.Error:
            return None  # psycopg's error for the query shows where it is
        if relation is None:
            _rows_left["postgres"] -= CONNECTED_ROWS  # a process with many such queries does without ADBC
            return None
        statement.set_options(**{"adbc.postgresql.use_copy": "false"})  # COPY takes no EXPLAIN
        (plan,) = rows(f"EXPLAIN (FORMAT JSON) SELECT * FROM {relation.postgres_name}").column(0).to_pylist()
        if json.loads(plan)[0]["Plan"]["Plan Rows"] >= _rows_left["postgres"]:
            return None
        statement.set_options(**{"adbc.postgresql.use_copy": "true"})
        content = rows(relation.postgres_select_as_in_frames)
        connection.commit()  # of what functions in the query have written
        _rows_left["postgres"] -= max(content.num_rows, CONNECTED_ROWS)
        return validated(without_documents(content, relation)), relation


def _cursor_batches(
    connection: psycopg.Connection[Any], relation: Table, rows: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield batches of at most `rows` rows of a relation.

    psycopg returns Python objects, which are converted without a loss, of binary values, whose form no setting of the
    session changes. The caller may use the connection between two batches, and commit: the server keeps the result.
    """
    from psycopg.postgres import register_default_adapters
    from psycopg.rows import tuple_row

    name = f"framehaul_{secrets.token_hex(8)}"
    with connection.transaction():
        connection.execute(UTF8)
        cursor = connection.cursor(name, binary=True, row_factory=tuple_row, withhold=True)
        register_default_adapters(cursor)  # the caller may have registered others
        cursor.execute(relation.postgres_select_as_in_frames.encode())
    with cursor:
        while True:
            with in_utf8(connection):
                fetched = cursor.fetchmany(rows)
            if not fetched:
                return
            arrays = [
                nested_array([*values], column.types.arrow)
                for values, column in zip(zip(*fetched, strict=True), relation.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=relation.arrow_schema)


def _as_kind(content: pa.Table, relation: Table, kind: Kind) -> Any:
    """Return the rows as a frame of a kind; in pandas a column without NULL has the plain dtype."""
    if kind == "polars":
        return to_polars(content, relation, valid=True)
    if kind == "arrow":
        return content.cast(relation.arrow_large_schema)
    columns = tuple(replace(column, nullable=content.column(column.name).null_count > 0) for column in relation.columns)
    return to_pandas(content, replace(relation, columns=columns), valid=True)
