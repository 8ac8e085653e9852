from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import httpx
import psycopg
import pyarrow as pa
import pytest

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, COMMENT, Column, ColumnType, Table
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.ports import choose_port
from framehaul.servers.tables import OUR_MERGES, ClickHouseTables, tables_of

THEIRS = ANALYTICS_METRICS.renamed("somebody's table")
BOTH_DATABASES = pytest.mark.parametrize("database", ["postgres", "clickhouse"])

type Run = Callable[[str], object]


@pytest.fixture
def run(servers: Servers, database: str) -> Run:
    """Runs a statement with a client of its own and gives the first value of its answer."""

    def on_postgres(statement: str) -> object:
        with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None

    def on_clickhouse(statement: str) -> object:
        login = servers.clickhouse.user, servers.clickhouse.password
        response = httpx.post(servers.clickhouse.url, auth=login, content=statement.encode(), trust_env=False)
        text = response.raise_for_status().text.strip()
        return int(text) if text else None

    return on_postgres if database == "postgres" else on_clickhouse


def assert_untouchable(server: PostgresServer | ClickHouseServer) -> None:
    for refused in (tables_of(server).drop, tables_of(server).create):
        with pytest.raises(ServerError, match=f"holds a table {THEIRS.name} that framehaul did not make"):
            refused(THEIRS)


@BOTH_DATABASES
@pytest.mark.parametrize("comment", ["", "precious", f"not {COMMENT}"])
def test_table_of_our_name_that_is_not_ours_is_refused_and_stays(
    servers: Servers, database: str, comment: str, run: Run
) -> None:
    if database == "postgres":
        name = THEIRS.postgres_name
        run(f"CREATE TABLE {name} AS SELECT 7 AS a")
        run(f"COMMENT ON TABLE {name} IS '{comment}'")
    else:
        name = THEIRS.clickhouse_name
        run(f"CREATE TABLE {name} ENGINE = MergeTree ORDER BY a COMMENT '{comment}' AS SELECT 7 AS a")
    assert_untouchable(getattr(servers, database))
    assert run(f"SELECT a FROM {name}") == 7
    run(f"DROP TABLE {name}")


@BOTH_DATABASES
def test_view_of_our_name_is_refused_and_stays(servers: Servers, database: str, run: Run) -> None:
    name = getattr(THEIRS, f"{database}_name")
    run(f"CREATE VIEW {name} AS SELECT 7 AS a")
    assert_untouchable(getattr(servers, database))
    assert run(f"SELECT a FROM {name}") == 7
    run(f"DROP VIEW {name}")


@BOTH_DATABASES
def test_our_own_table_is_made_anew_and_dropped_as_often_as_asked(servers: Servers, database: str, run: Run) -> None:
    table, tables = ANALYTICS_METRICS.renamed("framehaul_ours"), tables_of(getattr(servers, database))
    for _ in range(2):
        tables.create(table)
        tables.load(table, generator.arrow_table(table, 10, 1))
        assert len(tables.content(table)) == 10
    tables.create(table)
    assert run(f"SELECT count(*) FROM {getattr(table, f'{database}_name')}") == 0
    for _ in range(2):
        tables.drop(table)


@BOTH_DATABASES
def test_settling_and_asking_for_facts_tells_the_version(servers: Servers, database: str) -> None:
    tables = tables_of(getattr(servers, database))
    tables.quiesce()
    tables.ping()
    metadata = tables.metadata()
    assert any(character.isdigit() for character in metadata["version"])
    assert metadata["settings"]["fsync" if database == "postgres" else "async_insert"] in {"on", "0"}


@BOTH_DATABASES
def test_wrong_password_is_an_error_that_names_the_server_and_not_the_password(servers: Servers, database: str) -> None:
    server = getattr(servers, database)
    port = server.port if database == "postgres" else server.http_port
    with pytest.raises(ServerError, match=rf"at 127\.0\.0\.1:{port} .*(password|Authentication failed)") as raised:
        tables_of(replace(server, password="wrong-secret")).drop(ANALYTICS_METRICS)
    assert "wrong-secret" not in str(raised.value)


@BOTH_DATABASES
def test_unreachable_port_is_an_error_that_names_the_server_and_not_the_password(
    servers: Servers, database: str
) -> None:
    server, port = getattr(servers, database), choose_port(None, "")
    unreachable = replace(server, **{"port" if database == "postgres" else "http_port": port})
    with pytest.raises(ServerError, match=rf"at 127\.0\.0\.1:{port} cannot be used: .*refused") as raised:
        tables_of(unreachable).drop(ANALYTICS_METRICS)
    assert server.password not in str(raised.value)


def test_nobody_waits_for_the_merges_of_others(servers: Servers) -> None:
    tables = tables_of(servers.clickhouse)
    assert isinstance(tables, ClickHouseTables)
    tables.run("CREATE TABLE merging (n UInt64, text String) ENGINE = MergeTree ORDER BY text")
    try:
        for _ in range(2):
            tables.run("INSERT INTO merging SELECT number, toString(rand()) FROM numbers(1000000)")
        merge = threading.Thread(target=lambda: tables.run("OPTIMIZE TABLE merging FINAL"))
        merge.start()
        seen = False
        while merge.is_alive():
            counts = tables.rows(f"SELECT (SELECT count() FROM system.merges WHERE table = 'merging'), ({OUR_MERGES})")
            seen |= int(counts[0][0]) == 1
            assert int(counts[0][1]) == 0
        merge.join()
        assert seen, "the merge was over too soon: nothing was tried"
    finally:
        tables.run("DROP TABLE merging SYNC")


def test_our_own_merges_are_waited_for(servers: Servers) -> None:
    tables, table = tables_of(servers.clickhouse), ANALYTICS_METRICS.renamed("framehaul_merging")
    assert isinstance(tables, ClickHouseTables)
    tables.create(table)
    try:
        tables.load(table, generator.arrow_table(table, 200_000, 1))
        # Of one partition, so that no other merge begins when it ends.
        part = tables.rows(f"SELECT any(partition_id) FROM system.parts WHERE active AND table = '{table.name}'")[0][0]
        optimize, seen = f"OPTIMIZE TABLE {table.clickhouse_name} PARTITION ID '{part}' FINAL", False
        for _ in range(20):  # one may be over before it is seen
            merge = threading.Thread(target=lambda: tables.run(optimize))
            merge.start()
            while merge.is_alive() and not seen:
                seen = int(tables.rows(OUR_MERGES)[0][0]) > 0
            tables.quiesce()
            if seen:
                assert int(tables.rows(OUR_MERGES)[0][0]) == 0
            merge.join()
            if seen:
                break
        assert seen, "every merge was over too soon: nothing was tried"
    finally:
        tables.drop(table)


@pytest.mark.parametrize("database", ["postgres"])
def test_a_fingerprint_tells_values_apart_that_somebodys_type_takes_for_one(servers: Servers, run: Run) -> None:
    run("CREATE EXTENSION citext")  # whose values are one in upper and in lower case
    table = replace(
        Table("framehaul_any_case", (Column("id", ColumnType.INT64), Column("name", ColumnType.TEXT)), ("id",)),
        postgres_body="(id bigint PRIMARY KEY, name citext)",
    )
    tables, fingerprints = tables_of(servers.postgres), set()
    for name in ("framehaul", "Framehaul"):
        tables.create(table)
        tables.load(table, pa.table({"id": [1], "name": [name]}))
        fingerprints.add(tables.rows_fingerprint(table))
    tables.drop(table)
    run("DROP EXTENSION citext")
    assert len(fingerprints) == 2
