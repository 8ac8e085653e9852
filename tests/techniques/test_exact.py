"""What broke exactness once, by inputs that no other test has: each is exact now, or refused with a word."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pyarrow as pa
import pytest

from framehaul.bench.measure import opened
from framehaul.data import generator
from framehaul.data.frames import check_finite, from_polars, to_pandas
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.data.text import NotTextError
from framehaul.servers import ClickHouseServer, Servers
from framehaul.servers.tables import PostgresTables, tables_of
from framehaul.techniques import Technique, upserts
from framehaul.techniques.beyond import clickhouse_read, clickhouse_write
from framehaul.techniques.clients import QueryError, open_adbc, open_asyncpg_pair, open_http_client, open_psycopg_adbc
from framehaul.techniques.registry import named
from framehaul.techniques.replacing import replacing
from framehaul.techniques.streaming import fetch_adbc_batches
from framehaul.techniques.upsert.rows import check_keys, target
from tests.conftest import call, check_each
from tests.second_table import SECOND_TABLE
from tests.techniques.test_sessions import ENDS_EARLY, started

NAME = "framehaul_exact"
NUMBERS = Table(NAME, (Column("id", ColumnType.INT64), Column("value", ColumnType.INT64)), ("id",))


@contextmanager
def made(servers: Servers, table: Table, *statements: str) -> Iterator[Table]:
    """A table of PostgreSQL, with these statements carried out."""
    tables = PostgresTables(servers.postgres)
    tables.create(table)
    try:
        with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())
        yield table
    finally:
        tables.drop(table)


@pytest.mark.parametrize("kind", [ColumnType.DATE, ColumnType.TIMESTAMP, ColumnType.TIMESTAMP_UTC], ids=str)
@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_infinity_is_no_date_for_whoever_reads_arrow(kind: ColumnType, value: str, servers: Servers) -> None:
    table = Table(NAME, (Column("id", ColumnType.INT64), Column("at", kind)), ("id",))
    names = ("polars_adbc_fetch", "pandas_adbc_fetch", "polars_adbc_two_connections", "polars_duckdb_scan")
    with made(servers, table, f"INSERT INTO {NAME} VALUES (1, '2026-01-01'), (2, '{value}')"):
        for name in names:
            with pytest.raises(ValueError, match=r"column at, .*it holds infinity or -infinity"):
                call(named("postgres", "read", name), servers, table)
        with open_psycopg_adbc(servers.postgres) as (_, adbc), pytest.raises(ValueError, match="holds infinity"):
            list(fetch_adbc_batches(adbc, table))


def test_days_and_moments_that_there_are_pass_at_any_depth() -> None:
    first = pa.array([-2_440_588, 0, None, 2**31 - 2], pa.int32()).cast(pa.date32())
    moments = pa.array([-2_440_588 * 86_400 * 10**6, None, 2**63 - 2], pa.int64())
    nanoseconds = pa.array([-(2**63) + 1, 2**63 - 1], pa.int64()).cast(pa.timestamp("ns"))
    for good in (first, moments.cast(pa.timestamp("us")), moments.cast(pa.timestamp("us", "UTC")), nanoseconds):
        check_finite(good)
    for bad in (-2_440_589, 2**31 - 1):
        day = pa.array([0, bad], pa.int32()).cast(pa.date32())
        several = pa.ListArray.from_arrays([0, 2], day)
        for array in (day, several, pa.StructArray.from_arrays([day], ["a"])):
            with pytest.raises(pa.ArrowInvalid, match="infinity"):
                check_finite(array)


def test_what_adbc_failed_to_write_is_undone_and_committed_by_nobody(servers: Servers) -> None:
    other = NUMBERS.renamed(f"{NAME}_other")
    frame = pl.DataFrame({"id": [1, 2], "value": [1, 2]})
    writes = [named("postgres", "write", name) for name in ("polars_adbc_ingest", "polars_adbc_staging")]
    for way in writes:
        with (
            made(servers, NUMBERS, f"INSERT INTO {NAME} VALUES (1, 1), (5, 5), (7, 7)"), made(servers, other),
            open_adbc(servers.postgres) as connection,
        ):  # fmt: skip
            with pytest.raises(ValueError):
                asyncio.run(replacing(way).function(connection, NUMBERS, frame[["id"]]))
            with pytest.raises(Exception, match="duplicate key"):
                way.function(connection, NUMBERS, frame)
            way.function(connection, other, frame)
            tables = PostgresTables(servers.postgres)
            assert len(tables.content(NUMBERS)) == 3
            assert len(tables.content(other)) == 2


def test_a_table_may_have_the_name_of_what_is_staged(servers: Servers) -> None:
    table, frame = NUMBERS.renamed("framehaul_staging"), pl.DataFrame({"id": [1], "value": [1]})
    with made(servers, table):
        call(named("postgres", "write", "polars_adbc_staging"), servers, table, frame)
        assert len(PostgresTables(servers.postgres).content(table)) == 1


READ_TEXT = (
    "polars_psycopg_copy_text_typed", "pandas_psycopg_copy_text_typed", "polars_psycopg_copy_text_two_connections"
)  # fmt: skip


def test_copy_of_text_keeps_lines_that_are_empty_and_what_begins_like_a_file(servers: Servers) -> None:
    table = Table(NAME, (Column("value", ColumnType.TEXT, nullable=True),), ())
    texts = ["\ufeffx", None, "", "\ufeff\ufeff", "b"]
    values = ", ".join("(NULL)" if text is None else f"('{text}')" for text in texts)
    for rows, kept in ((values, texts), ("(NULL)", [None]), ("('')", [""])):
        with made(servers, table, f"INSERT INTO {NAME} VALUES {rows}"):
            for name in READ_TEXT:
                frame: Any = call(named("postgres", "read", name), servers, table)
                read = [None if text != text else text for text in frame["value"].to_list()]  # noqa: PLR0124  NaN
                assert read == kept, name
    with made(servers, table):
        for name in READ_TEXT:
            assert len(call(named("postgres", "read", name), servers, table)) == 0, name


U = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("kind", "texts"),
    [(ColumnType.UUID, (U, U.upper())), (ColumnType.IPV6, ("::1", "0:0::1")), (ColumnType.INT128, ("1", "01"))],
    ids=str,
)
def test_keys_that_are_written_otherwise_are_the_same(kind: ColumnType, texts: tuple[str, str]) -> None:
    table = Table(NAME, (Column("id", kind), Column("value", ColumnType.INT64)), ("id",))
    frame = pl.DataFrame({"id": texts, "value": [1, 2]})
    with pytest.raises(ValueError, match="2 rows share their key with another"):
        check_keys(frame, table)
    check_keys(frame[:1], table)
    check_keys(frame.with_columns(id=pl.Series(["no such thing", "nor this"])), table)  # said where it is sent


def test_no_half_of_a_read_is_left_in_the_midst_of_its_transaction(servers: Servers) -> None:
    table = Table(NAME, (Column("id", ColumnType.INT64), Column("at", ColumnType.DATE)), ("id",))
    rows = f"INSERT INTO {NAME} SELECT n, '2026-01-01'::date + n % 99 FROM generate_series(1, 400000) AS n"
    first = f"INSERT INTO {NAME} VALUES (0, 'infinity')"
    read = named("postgres", "read", "polars_asyncpg_copy_decoded_two_connections").function

    async def check() -> None:
        async with open_asyncpg_pair(servers.postgres) as connections:
            for _ in range(2):
                with pytest.raises(ValueError, match="holds infinity"):
                    await read(connections, table)
                assert not any(one.is_in_transaction() for one in connections)
            for one in connections:
                assert await one.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL")

    with made(servers, table, first, rows):
        asyncio.run(check())


LONG = Table(NAME, (Column("id", ColumnType.INT64), Column("text", ColumnType.TEXT)), ("id",))


def test_a_connection_goes_on_after_a_read_that_failed_half_way(servers: Servers) -> None:
    tables = tables_of(servers.clickhouse)
    tables.create(LONG)
    try:
        with open_http_client(servers.clickhouse) as connection:
            odd = "if(number = 3, unhex('ff'), repeat(toString(number), 20))"
            connection.post(f"INSERT INTO {NAME} SELECT number, {odd} FROM numbers(300000)").read()
            for read in (
                clickhouse_read.polars_http_client_native_decoded,
                clickhouse_read.polars_http_client_arrow_stream,
            ):
                for _ in range(2):
                    with pytest.raises((NotTextError, ValueError)):
                        read(connection, LONG)
                    assert connection.post("SELECT 1").read() == b"1\n"
            with connection.post("SELECT number FROM numbers(1000000)") as response:
                response.read(10)
            assert connection.post("SELECT 2").read() == b"2\n"
    finally:
        tables.drop(LONG)


def test_a_connection_goes_on_after_a_server_that_did_not_answer(servers: Servers) -> None:
    with open_http_client(servers.clickhouse) as connection, socket.create_server(("127.0.0.1", 0)) as deaf:
        port, connection.connection.timeout = connection.connection.port, 0.2
        connection.connection.close()
        connection.connection.port = deaf.getsockname()[1]
        for body in (b"", iter([b"x"])):
            with pytest.raises(TimeoutError):
                connection.post("SELECT 1", body=body)
        connection.connection.port, connection.connection.timeout = port, 60
        assert connection.post("SELECT 1").read() == b"1\n"


def test_what_the_rows_come_from_is_not_taken_for_the_server(servers: Servers) -> None:
    def broken(before: list[bytes]) -> Iterator[bytes]:
        yield from before
        raise ConnectionResetError("of another connection")

    with open_http_client(servers.clickhouse) as connection:
        with pytest.raises(ConnectionResetError, match="of another connection"):
            connection.post("SELECT 1", body=broken([]))
        assert connection.post("SELECT 1").read() == b"1\n"


def test_the_same_rows_are_appended_twice_where_the_table_knows_their_block(servers: Servers) -> None:
    tables, frame = tables_of(servers.clickhouse), generator.polars_frame(SECOND_TABLE, 50, 1)
    table = SECOND_TABLE.renamed(NAME)
    tables.create(table)
    try:
        with open_http_client(servers.clickhouse) as connection:
            for _ in range(2):
                clickhouse_write.polars_http_client_arrow_deduplicated(connection, table, frame)
            assert tables.rows_fingerprint(table)[0] == 50
            for name in ("polars_http_client_arrow_stream", "polars_http_client_native_presorted"):
                for again in (1, 2):
                    before = tables.rows_fingerprint(table)[0]
                    call(named("clickhouse", "write", name), servers, table, frame)
                    assert tables.rows_fingerprint(table)[0] == before + 50, (name, again)
            rows = tables.rows_fingerprint(table)[0]
            clickhouse_write.insert_parquet(connection, table, frame)
            assert tables.rows_fingerprint(table)[0] == rows + 50
    finally:
        tables.drop(table)


@pytest.mark.slow
def test_no_upsert_loses_rows_where_what_it_reads_may_end_early(tmp_path: Path) -> None:
    there = pl.DataFrame({"id": range(20_000), "value": range(20_000)})
    come = pl.DataFrame({"id": [7, 20_000], "value": [70, 1]})
    early = ENDS_EARLY | {"max_rows_in_set": 1, "set_overflow_mode": "break", "distinct_overflow_mode": "break"}
    whole = {"max_rows_to_read": 0, "max_result_rows": 0}

    async def upsert(way: Technique, server: ClickHouseServer, table: Table) -> None:
        async with opened(way, server) as client:
            way.function(client, table, come)

    def check(way: Technique) -> None:
        table, tables = target(way, NUMBERS), tables_of(server)
        tables.create(table)
        try:
            tables.load(table, from_polars(there, table))
            wanted = 20_001
            try:
                asyncio.run(upsert(way, server, table))
            except QueryError as error:
                assert "TOO_MANY_ROWS" in str(error) or "Limit for" in str(error) or "SET_SIZE" in str(error)
                wanted = 20_000
            with open_http_client(server) as connection:
                answer = connection.post(f"SELECT uniqExact(id) FROM {NAME}", settings=whole).read()
            assert int(answer) >= wanted
        finally:
            tables.drop(table)

    with started(tmp_path, early) as server:
        check_each(upserts("clickhouse"), check)


def test_a_key_that_would_come_back_as_another_is_refused(servers: Servers) -> None:
    frame = pl.DataFrame({"id": [1], "value": [1]})
    way = named("postgres", "write", "polars_pgpq_key_last")
    keys = (
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p' AND conrelid = '{}'::regclass"
    )
    drop = f"ALTER TABLE {NAME} DROP CONSTRAINT {NAME}_pkey"
    for key, takes in (
        ("PRIMARY KEY (id)", True), ("PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED", False),
        ("PRIMARY KEY (id) INCLUDE (value)", False), ("PRIMARY KEY (id, value)", False),
        ("PRIMARY KEY (id) WITH (fillfactor = 50)", False), ("", False),
    ):  # fmt: skip
        added = [f"ALTER TABLE {NAME} ADD {key}"] if key else []
        with made(servers, NUMBERS, drop, *added):
            with psycopg.connect(servers.postgres.dsn()) as connection:
                before = connection.execute(keys.format(NAME).encode()).fetchall()
            if takes:
                call(way, servers, NUMBERS, frame)
            else:
                with pytest.raises(ValueError, match="it would become another"):
                    call(way, servers, NUMBERS, frame)
            with psycopg.connect(servers.postgres.dsn()) as connection:
                assert connection.execute(keys.format(NAME).encode()).fetchall() == before


def test_null_is_not_taken_for_false() -> None:
    for kind in (ColumnType.BOOL, ColumnType.FLOAT64):
        table = Table("t", (Column("flag", kind),), ())
        values = pa.table({"flag": pa.array([True, None], pa.bool_()).cast(kind.value.arrow)})
        with pytest.raises(ValueError, match="column flag holds NULL, which its dtype"):
            to_pandas(values, table)
        nullable = Table("t", (Column("flag", kind, nullable=True),), ())
        assert to_pandas(values, nullable)["flag"].isna().to_list() == [False, True]


def test_nothing_of_these_is_left(servers: Servers) -> None:
    found = PostgresTables(servers.postgres).run("SELECT count(*) FROM pg_class WHERE relname LIKE 'framehaul_exact%'")
    assert found == [(0,)]
