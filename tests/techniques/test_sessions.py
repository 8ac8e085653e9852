"""A session's settings that a format depends on are the technique's own affair: others change nothing, and stay."""

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import duckdb
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection

from framehaul.bench.measure import called, opened
from framehaul.bench.trials import all_techniques
from framehaul.data.frames import from_polars
from framehaul.data.schema import Column, Table, quote_postgres_text
from framehaul.data.schema import ColumnType as T
from framehaul.servers import PostgresServer, Servers, hostile
from framehaul.servers.local import EmbeddedClickHouse, choose_port
from framehaul.servers.tables import tables_of
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.trial import difference_of, hostile_session
from framehaul.techniques import Technique, upserts
from framehaul.techniques.clients import QueryError, open_duckdb, open_http_client, open_psycopg
from framehaul.techniques.registry import Database, Direction, named
from framehaul.techniques.upsert.rows import target
from tests.conftest import call, check_each, lacks, table_on

# clickhouse-connect reads some 1,500 rows of settings when it connects, and the server's first block has 8,192 rows.
SHORT_ROWS, LONG_ROWS = 5_000, 12_000
# What the matrix does not have: its hostile session has other settings, of which each type is tried.
CLICKHOUSE_SETTINGS: dict[str, str | int] = {
    "limit": SHORT_ROWS,
    "session_timezone": "America/St_Johns",
    "input_format_arrow_case_insensitive_column_matching": 1,
    "input_format_parquet_case_insensitive_column_matching": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 1,
    "output_format_arrow_use_64_bit_indexes_for_dictionary": 1,
    "output_format_arrow_use_signed_indexes_for_dictionary": 0,
}
ENDS_EARLY: dict[str, str | int] = {
    "max_rows_to_read": SHORT_ROWS,
    "read_overflow_mode": "break",
    "max_result_rows": SHORT_ROWS,
    "result_overflow_mode": "break",
    "max_rows_in_set": 1,
    "set_overflow_mode": "break",
    "distinct_overflow_mode": "break",
}
# clickhouse-connect, clickhouse-driver and chDB cannot even connect with these, and say so.
NATIVE_TYPES: dict[str, str | int] = {
    "output_format_native_encode_types_in_binary_format": 1,
    "input_format_native_decode_types_in_binary_format": 1,
    "max_execution_time": 1,
    "timeout_overflow_mode": "break",
}
DIRECTIONS: tuple[Direction, ...] = ("write", "read")


def case_of(name: str, values: dict[Column, list[Any]]) -> Case:
    arrays = tuple(pa.array(some, column.types.arrow) for column, some in values.items())
    return Case(f"session, {name}", tuple(values), arrays)


# Of the texts, one has characters that LATIN1 has, and so comes through it as something else; the other has not.
PLAIN = case_of(
    "plain",
    {
        Column("text", T.TEXT): ["é ü ß", "日本 €", "plain"],
        Column("nothing", T.TEXT, nullable=True): [None, "", "\\ ' \" \t"],
        Column("one_of_few", T.TEXT, low_cardinality=True): ["é", "é", "日本"],
        Column("date", T.DATE): [dt.date(2026, 2, 1), dt.date(2000, 12, 31), dt.date(1970, 1, 1)],
        Column("float", T.FLOAT64): [0.1 + 0.2, -0.0, 5e-324],
        Column("real", T.FLOAT32): [0.10000000149011612, 3.4028234663852886e38, 1e-45],
        Column("number", T.INT64, nullable=True): [2**53 + 1, None, -(2**63)],
        Column("uuid", T.UUID): ["01234567-89ab-cdef-0123-456789abcdef"] * 3,
    },
)
LONG = case_of("long", {Column("value", T.TEXT, low_cardinality=True): ["é", "日本"] * (LONG_ROWS // 2)})
CASED = case_of("names in two cases", {Column("a", T.INT32): [1, 2], Column("A", T.INT32): [3, 4]})


def exact_techniques(database: Database, direction: Direction) -> list[Technique]:
    """Those beyond the published ones, and the streamed ones, that run here."""
    chosen = [one for one in all_techniques() if one.origin in ("beyond", "streamed") and not lacks(one)]
    return [one for one in chosen if (one.database, one.direction) == (database, direction)]


async def session_of(client: Any) -> list[Any]:
    """The settings of all sessions of a client of PostgreSQL, as they are now."""
    names = ", ".join(map(quote_postgres_text, sorted(map(str.lower, hostile.POSTGRES_SETTINGS))))
    query = f"SELECT name, setting FROM pg_settings WHERE lower(name) IN ({names}) ORDER BY name"
    match client:
        case tuple():
            return [found for one in client for found in await session_of(one)]
        case psycopg.Connection():
            return client.execute(query.encode()).fetchall()
        case AdbcConnection():
            with client.cursor() as cursor:
                cursor.execute(query)
                found = cursor.fetchall()
            client.rollback()
            return list(found)
        case asyncpg.Connection():
            return list(map(tuple, await client.fetch(query)))
        case duckdb.DuckDBPyConnection():
            return client.execute(f"FROM postgres_query('pg', {quote_postgres_text(query)})").fetchall()
    return []  # an address, or nothing of PostgreSQL


# PostgreSQL


@pytest.fixture(scope="module")
def hostile_role(servers: Servers) -> Iterator[PostgresServer]:
    """The server, logged in as a role whose sessions have other settings."""
    with hostile_session(servers.postgres) as found:
        assert isinstance(found, PostgresServer)
        with open_psycopg(found) as connection:
            for name, value in hostile.POSTGRES_SETTINGS.items():
                assert connection.execute(f"SHOW {name}".encode()).fetchone() == (str(value),)
        yield found


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_postgres_is_exact_in_any_session_and_leaves_it_as_it_was(
    direction: Direction, servers: Servers, hostile_role: PostgresServer
) -> None:
    """The matrix has each type in such a session; here is asked what is left of the session."""

    async def run(found: Technique) -> Any:
        async with opened(found, hostile_role) as client:
            if isinstance(client, asyncpg.Connection):
                # asyncpg asks for UTF-8 when it connects; who else has the session may have changed that.
                await client.execute("SET client_encoding = 'LATIN1'")
            before = await session_of(client)
            frame = [PLAIN.frame(found.frame)] if direction == "write" else []
            returned = await called(found, client, PLAIN.table, *frame)
            assert await session_of(client) == before
            return tables.content(PLAIN.table) if direction == "write" else returned

    def check(found: Technique) -> None:
        tables.create(PLAIN.table)
        if direction == "read":
            tables.load(PLAIN.table, PLAIN.content())
        assert difference_of(PLAIN, asyncio.run(run(found))) is None

    with table_on(servers.postgres, PLAIN.table) as tables:
        check_each(exact_techniques("postgres", direction), check)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_duckdb_attached_in_another_encoding_is_refused(
    direction: Direction, servers: Servers, hostile_role: PostgresServer
) -> None:
    frame = [PLAIN.frame("polars")] if direction == "write" else []
    (found,) = (one for one in exact_techniques("postgres", direction) if one.client == "duckdb")
    with open_duckdb(servers.postgres) as connection:
        connection.execute(f"DETACH pg; ATTACH {quote_postgres_text(hostile_role.dsn())} AS pg (TYPE postgres)")
        with pytest.raises(ValueError, match="as LATIN1: attach PostgreSQL with client_encoding=utf8"):
            found.function(connection, PLAIN.table, *frame)


def test_duckdb_uses_the_table_that_the_session_finds(servers: Servers) -> None:
    """DuckDB looks in `public`, where there may be another table of the name."""
    write, read = named("postgres", "write", "polars_duckdb_insert"), named("postgres", "read", "polars_duckdb_scan")
    hidden = PLAIN.table.postgres_ddl.replace(PLAIN.table.postgres_name, f"framehaul_found.{PLAIN.table.postgres_name}")
    with table_on(servers.postgres, PLAIN.table) as tables:
        tables.run(f"CREATE SCHEMA framehaul_found; {hidden}")
        found = replace(servers.postgres, options=(("options", "-c search_path=framehaul_found,public"),))
        try:
            with open_duckdb(found) as connection:
                write.function(connection, PLAIN.table, PLAIN.frame("polars"))
                assert difference_of(PLAIN, read.function(connection, PLAIN.table)) is None
            assert tables.run(f"SELECT count(*) FROM {PLAIN.table.postgres_name}") == [(0,)]
        finally:
            tables.run("DROP SCHEMA framehaul_found CASCADE")


# ClickHouse


def test_columns_that_hide_or_feed_those_of_the_server(servers: Servers) -> None:
    table = Table("framehaul_own", (Column("_partition_id", T.INT64), Column("text", T.TEXT)), ())
    frame, tables = pl.DataFrame({"_partition_id": [1, 2, 3], "text": ["a", "b", "c"]}), tables_of(servers.clickhouse)
    ddl = table.clickhouse_ddl.replace(
        "`text` String DEFAULT ''", "`text` String EPHEMERAL, `n` UInt8 MATERIALIZED length(text)"
    )
    read = named("clickhouse", "read", "polars_http_client_arrow_two_connections")
    try:
        tables.create(table)
        call(named("clickhouse", "write", "polars_http_client_arrow_stream"), servers, table, frame)
        assert call(read, servers, table).sort("text").equals(frame)
        with pytest.raises(ValueError, match="the column _partition_id hides ClickHouse's own"):
            call(named("clickhouse", "write", "polars_http_client_replace_partition"), servers, table, frame)
        tables.create_as(table.name, ddl)
        with pytest.raises(ValueError, match="column text is EPHEMERAL"):
            call(named("clickhouse", "write", "polars_chdb_remote"), servers, table, frame)
    finally:
        tables.drop(table.name)


@contextmanager
def started(servers: Servers, state_dir: Path, profile: dict[str, str | int]) -> Iterator[Servers]:
    """The servers, with another ClickHouse, whose user has these settings."""
    server = EmbeddedClickHouse(state_dir, choose_port(None, "http_port"), choose_port(None, "native_port"), profile)
    try:
        yield replace(servers, clickhouse=server.start())
    finally:
        server.stop()


def all_exact(servers: Servers, chosen: Iterable[Technique], case: Case) -> None:
    def check(found: Technique) -> None:
        if found.direction == "write":
            tables.create(case.table)
            call(found, servers, case.table, case.frame(found.frame))
            assert difference_of(case, tables.content(case.table)) is None
        else:
            assert difference_of(case, call(found, servers, case.table)) is None

    with table_on(servers.clickhouse, case.table, case.content()) as tables:
        check_each(chosen, check)


SAY_SO = {
    "pandas_clickhouse_connect_query_df_rust": r'timezone.*; use native_codec="python" or "rust"',
    "polars_chdb_remote": "^5,000 of 12,000 rows came: take limit and offset out of the user's profile",
}
"""Reads whose driver cannot set what it depends on."""


def all_refuse(servers: Servers, chosen: Iterable[Technique], said: Callable[[Technique], str]) -> None:
    """Each of them fails to read a long table, and says so."""
    with table_on(servers.clickhouse, LONG.table, LONG.content()):
        for found in chosen:
            with pytest.raises(Exception, match=said(found)):
                call(found, servers, LONG.table)


def test_clickhouse_is_exact_in_any_session_or_says_what_cannot_be_set(servers: Servers, tmp_path: Path) -> None:
    reads = exact_techniques("clickhouse", "read")
    with started(servers, tmp_path, CLICKHOUSE_SETTINGS) as server:
        all_exact(server, exact_techniques("clickhouse", "write"), CASED)
        all_exact(server, [found for found in reads if found.name not in SAY_SO], LONG)
        few_rows = [found for found in reads if found.name == "polars_chdb_remote"]
        all_exact(server, few_rows, PLAIN)
        all_refuse(server, (one for one in reads if one.name in SAY_SO), lambda found: SAY_SO[found.name])


def test_no_read_ends_early_and_no_upsert_loses_rows_without_a_word(servers: Servers, tmp_path: Path) -> None:
    numbers = Table("framehaul_early", (Column("id", T.INT64), Column("value", T.INT64)), ("id",))
    there, come = (pl.DataFrame({"id": ids, "value": ids}) for ids in (range(20_000), [7, 20_000]))
    whole = {"max_rows_to_read": 0, "max_result_rows": 0}

    def check(way: Technique) -> None:
        table, wanted = target(way, numbers), 20_001
        with table_on(early.clickhouse, table, from_polars(there, table)):
            try:
                call(way, early, table, come)
            except QueryError as error:
                assert any(said in str(error) for said in ("TOO_MANY_ROWS", "Limit for", "SET_SIZE"))
                wanted = 20_000
            with open_http_client(early.clickhouse) as connection:
                answer = connection.post(f"SELECT uniqExact(id) FROM {table.clickhouse_name}", settings=whole).read()
            assert int(answer) >= wanted

    with started(servers, tmp_path, ENDS_EARLY) as early:
        all_refuse(early, exact_techniques("clickhouse", "read"), lambda _: "TOO_MANY_ROWS|Limit for")
        check_each(upserts("clickhouse"), check)


def test_native_blocks_have_their_types_by_name_in_any_session(servers: Servers, tmp_path: Path) -> None:
    chosen = (one for direction in DIRECTIONS for one in exact_techniques("clickhouse", direction))
    with started(servers, tmp_path, NATIVE_TYPES) as found:
        all_exact(found, (one for one in chosen if one.driver == "http_client"), PLAIN)
