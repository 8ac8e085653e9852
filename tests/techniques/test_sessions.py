"""A session's settings that a format depends on are the technique's own affair: others change nothing, and stay."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
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
from framehaul.data.schema import Column, Table, quote_postgres_text
from framehaul.data.schema import ColumnType as T
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.clickhouse import EmbeddedClickHouse
from framehaul.servers.hostile import POSTGRES_SETTINGS
from framehaul.servers.ports import choose_port
from framehaul.servers.tables import tables_of
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.places import hostile_session
from framehaul.studies.fidelity.trial import difference_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond import clickhouse_read
from framehaul.techniques.clients import open_duckdb, open_http_client, open_psycopg, open_psycopg_adbc
from framehaul.techniques.registry import Database, Direction
from framehaul.techniques.streaming import (
    copy_batches,
    fetch_adbc_batches,
    fetch_batches,
    insert_batches,
    select_batches,
)
from tests.conftest import lacks

type Server = PostgresServer | ClickHouseServer

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
}
# clickhouse-connect, clickhouse-driver and chDB cannot even connect with these, and say so.
NATIVE_TYPES: dict[str, str | int] = {
    "output_format_native_encode_types_in_binary_format": 1,
    "input_format_native_decode_types_in_binary_format": 1,
    "max_execution_time": 1,
    "timeout_overflow_mode": "break",
}

MOMENTS = [dt.datetime.fromisoformat(text) for text in ("2026-03-29T01:30:00.000001", "1999-12-31T23:59:59.999999")]
UTC = [moment.replace(tzinfo=dt.UTC) for moment in MOMENTS]
# Of the texts, one has characters that LATIN1 has, and so comes through it as something else; the other has not.
VALUES: tuple[tuple[Column, list[Any]], ...] = (
    (Column("text", T.TEXT), ["é ü ß", "日本 €", "plain"]),
    (Column("nothing", T.TEXT, nullable=True), [None, "", "\\ ' \" \t"]),
    (Column("one_of_few", T.TEXT, low_cardinality=True), ["é", "é", "日本"]),
    (Column("date", T.DATE), [dt.date(2026, 2, 1), dt.date(2000, 12, 31), dt.date(1970, 1, 1)]),
    (Column("float", T.FLOAT64), [0.1 + 0.2, 1 / 3, 5e-324]),
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
MOMENTS_CASE = case_of("moments", *VALUES[8:11])
CASES = PLAIN, MOMENTS_CASE, case_of("decimal", VALUES[11]), case_of("flag and bytes", *VALUES[12:])
LONG = case_of("long", (Column("value", T.TEXT), ["é"] * LONG_ROWS))
CASED = case_of("names in two cases", (Column("a", T.INT32), [1, 2]), (Column("A", T.INT32), [3, 4]))


def beyond(database: Database, direction: Direction) -> list[Technique]:
    """Those that run here."""
    found = [found for found in techniques(database, direction) if found.origin == "beyond"]
    return [one for one in found if not lacks(one)]


# The sessions


async def session_of(client: Any) -> list[Any]:
    """The settings of all sessions of a client of PostgreSQL, as they are now."""
    names = ", ".join(map(quote_postgres_text, sorted(map(str.lower, POSTGRES_SETTINGS))))
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


def described(found: Technique, case: Case, said: object) -> str:
    return f"{found.database} {found.direction} {found.name}, {case.name}: {said}"


def content_of(server: Server, table: Table) -> pl.DataFrame:
    """The table, whatever the user's settings are."""
    if isinstance(server, PostgresServer):
        return tables_of(server).content(table)
    settings = clickhouse_read.ARROW | {"output_format_arrow_string_as_string": 0}
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT ArrowStream"
    with open_http_client(server) as connection:
        frame = pl.from_arrow(clickhouse_read.read_arrow(connection.post(query, settings=settings)))
    assert isinstance(frame, pl.DataFrame)
    return frame.cast(dict.fromkeys(table.columns_of(T.TEXT), pl.String()))


def create(server: Server, table: Table) -> None:
    """The table; ClickHouse's moments without a zone take that of the session which creates them, until a restart."""
    if isinstance(server, PostgresServer):
        tables_of(server).create(table)
        return
    tables_of(server).drop(table)
    with open_http_client(server) as connection:
        connection.post(table.clickhouse_ddl, settings={"session_timezone": "UTC"}).read()


def written_or_read(found: Technique, case: Case, usual: Server, server: Server) -> pl.DataFrame | pd.DataFrame:
    """What is in the table after a write in a session of `server`, or what was read there."""
    if found.direction == "read":
        frame: pl.DataFrame | pd.DataFrame = asyncio.run(run(found, server, case.table))
        return frame
    home = home_of(usual, server)
    create(home, case.table)
    asyncio.run(run(found, server, case.table, case.frame(found.frame)))
    return content_of(home, case.table)


def home_of(usual: Server, server: Server) -> Server:
    """Whose tables they are: roles of PostgreSQL share them, the other ClickHouse is another server."""
    return usual if isinstance(usual, PostgresServer) else server


def outcome(found: Technique, case: Case, usual: Server, server: Server) -> tuple[str | None, list[str]]:
    """What went wrong, if anything did, and the dtypes of the frame."""
    try:
        frame = written_or_read(found, case, usual, server)
    except Exception as error:  # noqa: BLE001  said where the usual session has none
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", []
    return difference_of(case, frame), list(map(str, frame.dtypes))


def difference_between(found: Technique, case: Case, usual: Server, server: Server) -> str | None:
    """What goes wrong in a session of `server` and not in one of `usual`, which is the same server."""
    said, dtypes = outcome(found, case, usual, server)
    if said is None and found.direction == "write":
        return None
    wrong_as_well, usual_dtypes = outcome(found, case, usual, usual)
    if wrong_as_well is not None:  # it does not carry the type
        return f"not carried in the usual session either: {wrong_as_well}" if case is PLAIN else None
    return said or (f"{dtypes} instead of {usual_dtypes}" if dtypes != usual_dtypes else None)


def everything_wrong(
    chosen: list[Technique], cases: tuple[Case, ...], usual: Server, server: Server
) -> list[tuple[str, str, str]]:
    """Techniques, cases and what went wrong."""
    homes = {usual, home_of(usual, server)}
    try:
        for home in homes:
            for case in cases:
                create(home, case.table)
                tables_of(home).load(case.table, case.content())
        with quiet_drivers():
            return [
                (f"{found.database} {found.direction} {found.name}", case.name, said)
                for found in chosen
                for case in cases
                if (said := difference_between(found, case, usual, server)) is not None
            ]
    finally:
        for tables in map(tables_of, homes):
            for case in cases:
                tables.drop(case.table)


# PostgreSQL


@pytest.fixture(scope="module")
def hostile_role(servers: Servers) -> Iterator[PostgresServer]:
    """The server, logged in as a role whose sessions have other settings."""
    with hostile_session(servers.postgres) as found:
        assert isinstance(found, PostgresServer)
        yield found


@pytest.mark.parametrize("direction", ["write", "read"])
def test_postgres_is_exact_in_any_session_and_leaves_it_as_it_was(
    direction: Direction, servers: Servers, hostile_role: PostgresServer
) -> None:
    assert everything_wrong(beyond("postgres", direction), CASES, servers.postgres, hostile_role) == []


def test_the_role_has_the_settings(hostile_role: PostgresServer) -> None:
    with open_psycopg(hostile_role) as connection:
        for name, value in POSTGRES_SETTINGS.items():
            assert connection.execute(f"SHOW {name}".encode()).fetchone() == (str(value),)


def test_batches_are_exact_in_any_session_of_postgres(servers: Servers, hostile_role: PostgresServer) -> None:
    tables = tables_of(servers.postgres)
    tables.create(PLAIN.table)
    try:
        with open_psycopg(hostile_role) as connection:
            copy_batches(connection, PLAIN.table, iter(PLAIN.content().cast(PLAIN.table.arrow_schema).to_batches()))
            assert connection.execute("SHOW client_encoding").fetchone() == ("LATIN1",)
        assert difference_of(PLAIN, tables.content(PLAIN.table)) is None
        with open_psycopg_adbc(hostile_role) as connections:
            connection, adbc = connections
            for batches in (fetch_batches(connections, PLAIN.table), fetch_adbc_batches(adbc, PLAIN.table)):
                frame = pl.from_arrow(pa.Table.from_batches(batches))
                assert isinstance(frame, pl.DataFrame)
                assert difference_of(PLAIN, frame) is None
            assert connection.execute("SHOW client_encoding").fetchone() == ("LATIN1",)
            with adbc.cursor() as cursor:
                cursor.execute("SELECT current_setting('client_encoding')")
                assert cursor.fetchone() == ("LATIN1",)
    finally:
        tables.drop(PLAIN.table)


@pytest.mark.parametrize("direction", ["write", "read"])
def test_duckdb_attached_in_another_encoding_is_refused(
    direction: Direction, servers: Servers, hostile_role: PostgresServer
) -> None:
    frame = [PLAIN.frame("polars")] if direction == "write" else []
    with open_duckdb(servers.postgres) as connection:
        connection.execute("DETACH pg")
        connection.execute(f"ATTACH {quote_postgres_text(hostile_role.dsn())} AS pg (TYPE postgres)")
        for found in beyond("postgres", direction):
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


@pytest.mark.parametrize("direction", ["write", "read"])
def test_clickhouse_is_exact_in_any_session(
    direction: Direction, servers: Servers, hostile_server: ClickHouseServer
) -> None:
    chosen = [found for found in beyond("clickhouse", direction) if (direction, found.name) not in SAY_SO]
    cases = (*CASES, CASED if direction == "write" else LONG)
    assert everything_wrong(chosen, cases, servers.clickhouse, hostile_server) == []


SAY_SO = {
    ("read", "pandas_clickhouse_connect_query_df_rust"): r'timezone.*; use native_codec="python" or "rust"',
    ("read", "polars_chdb_remote"): "^5,000 of 12,000 rows came: take limit and offset out of the user's profile",
}
"""Techniques whose driver cannot set what it depends on."""


def test_what_cannot_be_set_is_refused_with_the_remedy(servers: Servers, hostile_server: ClickHouseServer) -> None:
    tables = tables_of(hostile_server)
    tables.create(LONG.table)
    try:
        tables.load(LONG.table, LONG.content())
        for found in techniques("clickhouse"):
            if (pattern := SAY_SO.get((found.direction, found.name))) is not None:
                with pytest.raises(Exception, match=pattern):
                    asyncio.run(run(found, hostile_server, LONG.table))
    finally:
        tables.drop(LONG.table)
    remote = [found for found in techniques("clickhouse", "read") if found.driver == "chdb"]
    assert everything_wrong(remote, CASES, servers.clickhouse, hostile_server) == []


def test_batches_are_exact_in_any_session_of_clickhouse(hostile_server: ClickHouseServer) -> None:
    tables, batches = tables_of(hostile_server), LONG.content().cast(LONG.table.arrow_schema).to_batches()
    tables.create(LONG.table)
    try:
        with open_http_client(hostile_server) as connection:
            insert_batches(connection, LONG.table, iter(batches))
            frame = pl.from_arrow(pa.Table.from_batches(select_batches(connection, LONG.table)))
        assert isinstance(frame, pl.DataFrame)
        assert difference_of(LONG, frame) is None
    finally:
        tables.drop(LONG.table)


def test_no_read_ends_early_without_a_word(tmp_path: Path) -> None:
    with started(tmp_path, ENDS_EARLY) as server:
        tables_of(server).create(LONG.table)
        tables_of(server).load(LONG.table, LONG.content())
        short = []
        for found in beyond("clickhouse", "read"):
            try:
                frame = asyncio.run(run(found, server, LONG.table))
            except Exception as error:  # noqa: BLE001  looked at below
                if "TOO_MANY_ROWS" not in str(error) and "Limit for" not in str(error):
                    short.append((found.name, " ".join(str(error).split())[:300]))
            else:
                short.append((found.name, f"{len(frame)} rows and no error"))
        assert not short


def test_native_blocks_have_their_types_by_name_in_any_session(servers: Servers, tmp_path: Path) -> None:
    chosen = [
        found for direction in DIRECTIONS for found in beyond("clickhouse", direction) if found.driver in OVER_HTTP
    ]
    with started(tmp_path, NATIVE_TYPES) as server:
        assert everything_wrong(chosen, (PLAIN,), servers.clickhouse, server) == []


DIRECTIONS: tuple[Direction, ...] = ("write", "read")
OVER_HTTP = ("http_client", "urllib3", "aiohttp", "httpx")
