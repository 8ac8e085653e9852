"""A session's settings that a format depends on are the technique's own affair: others change nothing, and stay."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import duckdb
import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection

from framehaul.bench.measure import called, opened, quiet_drivers
from framehaul.bench.trials import all_techniques
from framehaul.data.frames import from_polars
from framehaul.data.schema import Column, Table, quote_postgres_text
from framehaul.data.schema import ColumnType as T
from framehaul.servers import ClickHouseServer, PostgresServer, Server, Servers, hostile
from framehaul.servers.clickhouse import EmbeddedClickHouse
from framehaul.servers.ports import choose_port
from framehaul.servers.tables import tables_of
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.places import hostile_session
from framehaul.studies.fidelity.trial import difference_of
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.beyond import clickhouse_read
from framehaul.techniques.clients import QueryError, open_duckdb, open_http_client, open_psycopg
from framehaul.techniques.registry import Database, Direction
from framehaul.techniques.upsert.rows import target
from tests.conftest import check_each, lacks

# clickhouse-connect reads some 1,500 rows of settings when it connects, and the server's first block has 8,192 rows.
SHORT_ROWS, LONG_ROWS = 5_000, 12_000
CLICKHOUSE_SETTINGS: dict[str, str | int] = {
    "session_timezone": "America/St_Johns",
    "limit": SHORT_ROWS,
    "wait_for_async_insert": 0,
    "async_insert_busy_timeout_min_ms": 10_000,
    "async_insert_busy_timeout_max_ms": 10_000,
    "async_insert_use_adaptive_busy_timeout": 0,
    "date_time_input_format": "best_effort_us",
    "date_time_output_format": "unix_timestamp",
    "low_cardinality_allow_in_native_format": 0,
    "input_format_arrow_case_insensitive_column_matching": 1,
    "input_format_parquet_case_insensitive_column_matching": 1,
    "input_format_parquet_local_time_as_utc": 0,
    "output_format_arrow_string_as_string": 0,
    "output_format_arrow_compression_method": "zstd",
    "output_format_arrow_date_as_uint16": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 1,
    "output_format_arrow_use_64_bit_indexes_for_dictionary": 1,
    "output_format_arrow_use_signed_indexes_for_dictionary": 0,
    "output_format_json_quote_64bit_integers": 1,
    "output_format_json_quote_64bit_floats": 1,
    "output_format_json_escape_forward_slashes": 0,
    "json_type_escape_dots_in_keys": 1,
    "input_format_json_try_infer_numbers_from_strings": 1,
    "input_format_json_read_bools_as_numbers": 1,
    "input_format_try_infer_integers": 0,
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
OVER_HTTP = ("http_client", "httpx")
DIRECTIONS: tuple[Direction, ...] = ("write", "read")

MOMENTS = [dt.datetime.fromisoformat(text) for text in ("2026-03-29T01:30:00.000001", "1999-12-31T23:59:59.999999")]
UTC = [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS]
# Of the texts, one has characters that LATIN1 has, and so comes through it as something else; the other has not.
VALUES: tuple[tuple[Column, list[Any]], ...] = (
    (Column("text", T.TEXT), ["é ü ß", "日本 €", "plain"]),
    (Column("nothing", T.TEXT, nullable=True), [None, "", "\\ ' \" \t"]),
    (Column("one_of_few", T.TEXT, low_cardinality=True), ["é", "é", "日本"]),
    (Column("date", T.DATE), [dt.date(2026, 2, 1), dt.date(2000, 12, 31), dt.date(1970, 1, 1)]),
    (Column("float", T.FLOAT64), [0.1 + 0.2, -0.0, 5e-324]),
    (Column("real", T.FLOAT32), [0.10000000149011612, 3.4028234663852886e38, 1e-45]),
    (Column("number", T.INT64, nullable=True), [2**53 + 1, None, -(2**63)]),
    (Column("uuid", T.UUID), ["01234567-89ab-cdef-0123-456789abcdef"] * 3),
    (Column("naive", T.TIMESTAMP, nullable=True), [*MOMENTS, None]),
    (Column("utc", T.TIMESTAMP_UTC, nullable=True), [*UTC, None]),
    (Column("berlin", T.TIMESTAMP_BERLIN, nullable=True), [*UTC, None]),
    (Column("décimal", T.DECIMAL, nullable=True), [Decimal("1.1"), Decimal("9" * 28 + "." + "9" * 10), None]),
    (Column("flag", T.BOOL), [True, False, True]),
    (Column("bytes", T.BYTES, nullable=True), [b"\\x41", b"\xff\x00", None]),
)


def case_of(name: str, *columns: tuple[Column, list[Any]]) -> Case:
    arrays = tuple(pa.array(values, column.types.arrow) for column, values in columns)
    return Case(f"session, {name}", tuple(column for column, _ in columns), arrays)


# What all techniques carry, and what some do not.
PLAIN = case_of("plain", *VALUES[:8])
SOME = case_of("moments", *VALUES[8:11]), case_of("others", *VALUES[11:])
LONG = case_of("long", (Column("value", T.TEXT), ["é"] * LONG_ROWS))
CASED = case_of("names in two cases", (Column("a", T.INT32), [1, 2]), (Column("A", T.INT32), [3, 4]))


def exact_techniques(database: Database, direction: Direction) -> list[Technique]:
    """Those beyond the published ones, and the streamed ones, that run here."""
    chosen = [one for one in all_techniques() if one.origin in ("beyond", "streamed") and not lacks(one)]
    return [one for one in chosen if (one.database, one.direction) == (database, direction)]


async def session_of(client: Any) -> list[Any]:
    """The settings of all sessions of a client of PostgreSQL, as they are now."""
    names = ", ".join(map(quote_postgres_text, sorted(map(str.lower, hostile.POSTGRES_SETTINGS))))
    query = (
        f"SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE lower(name) IN ({names})"
    )
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


async def run(found: Technique, server: Server, *arguments: object) -> Any:
    """What the technique returns, and that the client's sessions have the settings that they had."""
    async with opened(found, server) as client:
        if isinstance(client, asyncpg.Connection):
            # asyncpg asks for UTF-8 when it connects; who else has the session may have changed that.
            await client.execute("SET client_encoding = 'LATIN1'")
        of_postgres = client if isinstance(server, PostgresServer) else None
        before = await session_of(of_postgres)
        returned = await called(found, client, *arguments)
        assert await session_of(of_postgres) == before, f"{found.name} changed the session"
        return returned


def create(server: Server, table: Table) -> None:
    """The table; ClickHouse's moments without a zone take that of the session which creates them, until a restart."""
    if isinstance(server, PostgresServer):
        tables_of(server).create(table)
        return
    tables_of(server).drop(table)
    with open_http_client(server) as connection:
        connection.post(table.clickhouse_ddl, settings={"session_timezone": "UTC"}).read()


def content(server: Server, table: Table) -> pl.DataFrame:
    """The table, whatever the user's settings are."""
    if isinstance(server, PostgresServer):
        return tables_of(server).content(table)
    settings = clickhouse_read.ARROW | {"output_format_arrow_string_as_string": 0}
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT ArrowStream"
    with open_http_client(server) as connection:
        frame = pl.from_arrow(clickhouse_read.read_arrow(connection.post(query, settings=settings)))
    assert isinstance(frame, pl.DataFrame)
    return frame.cast(dict.fromkeys(table.columns_of(T.TEXT), pl.String()))


def outcome(found: Technique, case: Case, server: Server, home: Server) -> tuple[str | None, list[str]]:
    """What went wrong in a session of `server`, whose tables are those of `home`, and the dtypes that were read."""
    try:
        if found.direction == "write":
            create(home, case.table)
            asyncio.run(run(found, server, case.table, case.frame(found.frame)))
            return difference_of(case, content(home, case.table)), []
        frame: pl.DataFrame | pd.DataFrame = asyncio.run(run(found, server, case.table))
        return difference_of(case, frame), list(map(str, frame.dtypes))
    except Exception as error:  # noqa: BLE001  said where the usual session has none
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", []


def wrong_in(
    server: Server, home: Server, usual: Server, chosen: list[Technique], cases: tuple[Case, ...]
) -> list[tuple[str, str, str | None]]:
    """What is exact in a session of `usual`, and is not, or has other dtypes, in one of `server`."""
    wrong = []
    try:
        for case in cases:
            for one in {home, usual}:
                create(one, case.table)
                tables_of(one).load(case.table, case.content())
            with quiet_drivers():
                for found in chosen:
                    there = outcome(found, case, server, home)
                    if found.direction == "write" and there[0] is None:
                        continue
                    here = outcome(found, case, usual, usual)
                    if there != here if here[0] is None else case is PLAIN:
                        wrong.append((f"{found.direction} {found.name}", case.name, there[0] or here[0]))
    finally:
        for one in {home, usual}:
            for case in cases:
                tables_of(one).drop(case.table)
    return wrong


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
    home, chosen = servers.postgres, exact_techniques("postgres", direction)
    assert wrong_in(hostile_role, home, home, chosen, (PLAIN,)) == []


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_duckdb_attached_in_another_encoding_is_refused(
    direction: Direction, servers: Servers, hostile_role: PostgresServer
) -> None:
    frame = [PLAIN.frame("polars")] if direction == "write" else []
    with open_duckdb(servers.postgres) as connection:
        connection.execute("DETACH pg")
        connection.execute(f"ATTACH {quote_postgres_text(hostile_role.dsn())} AS pg (TYPE postgres)")
        for found in exact_techniques("postgres", direction):
            if found.client == "duckdb":
                with pytest.raises(ValueError, match="as LATIN1: attach PostgreSQL with client_encoding=utf8"):
                    found.function(connection, PLAIN.table, *frame)


# ClickHouse


@contextmanager
def started(state_dir: Path, profile: dict[str, str | int]) -> Iterator[ClickHouseServer]:
    """A server whose user has these settings."""
    ports = choose_port(None, "http_port"), choose_port(None, "native_port")
    server = EmbeddedClickHouse(state_dir, *ports, profile=profile)
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def hostile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    with started(tmp_path_factory.mktemp("hostile"), CLICKHOUSE_SETTINGS) as server:
        yield server


SAY_SO = {
    ("read", "pandas_clickhouse_connect_query_df_rust"): r'timezone.*; use native_codec="python" or "rust"',
    ("read", "polars_chdb_remote"): "^5,000 of 12,000 rows came: take limit and offset out of the user's profile",
}
"""Techniques whose driver cannot set what it depends on."""


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_clickhouse_is_exact_in_any_session(
    direction: Direction, servers: Servers, hostile_server: ClickHouseServer
) -> None:
    chosen = exact_techniques("clickhouse", direction)
    able = [found for found in chosen if (direction, found.name) not in SAY_SO]
    cases = (PLAIN, *SOME, CASED if direction == "write" else LONG)
    assert wrong_in(hostile_server, hostile_server, servers.clickhouse, able, cases) == []
    remote = [found for found in chosen if found.name == "polars_chdb_remote"]  # of a few rows it is exact
    assert wrong_in(hostile_server, hostile_server, servers.clickhouse, remote, (PLAIN, *SOME)) == []


def all_refuse(server: Server, chosen: Iterable[Technique], said: Callable[[Technique], str]) -> None:
    """Each of them fails to read a long table, and says so."""

    def check(found: Technique) -> None:
        with pytest.raises(Exception, match=said(found)):
            asyncio.run(run(found, server, LONG.table))

    tables_of(server).create(LONG.table)
    tables_of(server).load(LONG.table, LONG.content())
    try:
        check_each(chosen, check)
    finally:
        tables_of(server).drop(LONG.table)


def test_what_cannot_be_set_is_refused_with_the_remedy(hostile_server: ClickHouseServer) -> None:
    chosen = [found for found in techniques("clickhouse") if (found.direction, found.name) in SAY_SO]
    all_refuse(hostile_server, chosen, lambda found: SAY_SO[found.direction, found.name])


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClickHouseServer]:
    """A server on which reads may end early without an error."""
    with started(tmp_path_factory.mktemp("early"), ENDS_EARLY) as server:
        yield server


def test_no_read_ends_early_without_a_word(early: ClickHouseServer) -> None:
    all_refuse(early, exact_techniques("clickhouse", "read"), lambda _: "TOO_MANY_ROWS|Limit for")


def test_no_upsert_loses_rows_where_what_it_reads_may_end_early(early: ClickHouseServer) -> None:
    numbers = Table("framehaul_early", (Column("id", T.INT64), Column("value", T.INT64)), ("id",))
    there, come = (pl.DataFrame({"id": ids, "value": ids}) for ids in (range(20_000), [7, 20_000]))
    whole = {"max_rows_to_read": 0, "max_result_rows": 0}

    def check(way: Technique) -> None:
        table, tables, wanted = target(way, numbers), tables_of(early), 20_001
        tables.create(table)
        try:
            tables.load(table, from_polars(there, table))
            try:
                asyncio.run(run(way, early, table, come))
            except QueryError as error:
                assert "TOO_MANY_ROWS" in str(error) or "Limit for" in str(error) or "SET_SIZE" in str(error)
                wanted = 20_000
            with open_http_client(early) as connection:
                answer = connection.post(f"SELECT uniqExact(id) FROM {table.clickhouse_name}", settings=whole).read()
            assert int(answer) >= wanted
        finally:
            tables.drop(table)

    check_each(upserts("clickhouse"), check)


def test_native_blocks_have_their_types_by_name_in_any_session(servers: Servers, tmp_path: Path) -> None:
    chosen = [one for direction in DIRECTIONS for one in exact_techniques("clickhouse", direction)]
    with started(tmp_path, NATIVE_TYPES) as server:
        over_http = [found for found in chosen if found.driver in OVER_HTTP]
        assert wrong_in(server, server, servers.clickhouse, over_http, (PLAIN,)) == []
