"""Tables of ours on both servers, and the ports that servers are given."""

import secrets
import socket
import threading
from dataclasses import replace

import pyarrow as pa
import pytest

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, COMMENT, Column, ColumnType, Table
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.local import choose_port
from framehaul.servers.tables import OUR_MERGES, ClickHouseTables, tables_of
from tests.conftest import table_on

THEIRS = ANALYTICS_METRICS.renamed("somebody's table")
BOTH_DATABASES = pytest.mark.parametrize("database", ["postgres", "clickhouse"])


def assert_untouchable(server: PostgresServer | ClickHouseServer) -> None:
    refused = f"holds a table {THEIRS.name} that framehaul did not make"
    with pytest.raises(ServerError, match=refused):
        tables_of(server).drop(THEIRS.name)
    with pytest.raises(ServerError, match=refused):
        tables_of(server).create(THEIRS)


@BOTH_DATABASES
def test_a_table_or_view_of_our_name_that_is_not_ours_is_refused_and_stays(servers: Servers, database: str) -> None:
    name, server = getattr(THEIRS, f"{database}_name"), getattr(servers, database)
    run, seven = tables_of(server).run, [(7,)] if database == "postgres" else b"7\n"
    for comment in ("", f"not {COMMENT}"):
        if database == "postgres":
            run(f"CREATE TABLE {name} AS SELECT 7 AS a; COMMENT ON TABLE {name} IS '{comment}'")
        else:
            run(f"CREATE TABLE {name} ENGINE = MergeTree ORDER BY a COMMENT '{comment}' AS SELECT 7 AS a")
        assert_untouchable(server)
        assert run(f"SELECT a FROM {name}") == seven
        run(f"DROP TABLE {name}")
    run(f"CREATE VIEW {name} AS SELECT 7 AS a")
    assert_untouchable(server)
    assert run(f"SELECT a FROM {name}") == seven
    run(f"DROP VIEW {name}")


@BOTH_DATABASES
def test_a_server_that_cannot_be_used_is_named_and_its_password_is_not(servers: Servers, database: str) -> None:
    server, free = getattr(servers, database), choose_port()
    field = "port" if database == "postgres" else "http_port"
    for changed, said in (
        (replace(server, password="wrong-secret"), rf"{getattr(server, field)} .*(password|Authentication failed)"),
        (replace(server, **{field: free}), f"{free} cannot be used: .*refused"),
    ):
        with pytest.raises(ServerError, match=rf"at 127\.0\.0\.1:{said}") as raised:
            tables_of(changed).drop(ANALYTICS_METRICS.name)
        assert changed.password not in str(raised.value)


def test_our_own_merges_are_waited_for_and_those_of_others_are_not(servers: Servers) -> None:
    tables, ours = ClickHouseTables(servers.clickhouse), ANALYTICS_METRICS.renamed("framehaul_merging")
    tables.run("CREATE TABLE merging (n UInt64, text String) ENGINE = MergeTree ORDER BY text")
    with table_on(servers.clickhouse, ours, generator.arrow_table(ours, 200_000, 1)):
        for _ in range(2):
            tables.run("INSERT INTO merging SELECT number, toString(rand()) FROM numbers(1000000)")
        # Of one partition, so that no other merge begins when it ends.
        part = tables.rows(f"SELECT any(partition_id) FROM system.parts WHERE active AND table = '{ours.name}'")[0][0]
        for name, of_ours in (("merging", False), (f"{ours.clickhouse_name} PARTITION ID '{part}'", True)):
            seen, table = False, ours.name if of_ours else "merging"
            counted = f"SELECT (SELECT count() FROM system.merges WHERE table = '{table}'), ({OUR_MERGES})"
            for _ in range(20):  # one may be over before it is seen
                merge = threading.Thread(target=lambda name=name: tables.run(f"OPTIMIZE TABLE {name} FINAL"))
                merge.start()
                while merge.is_alive() and not seen:
                    at_work, waited_for = map(int, tables.rows(counted)[0])
                    assert of_ours or not waited_for
                    seen = at_work > 0
                if seen and of_ours:
                    tables.quiesce()
                    assert int(tables.rows(OUR_MERGES)[0][0]) == 0
                merge.join()
                if seen:
                    break
            assert seen, "every merge was over too soon: nothing was tried"
    tables.run("DROP TABLE merging SYNC")


def test_a_fingerprint_tells_values_apart_that_somebodys_type_takes_for_one(servers: Servers) -> None:
    run = tables_of(servers.postgres).run
    run("CREATE EXTENSION citext")  # whose values are one in upper and in lower case
    table = replace(
        Table("framehaul_any_case", (Column("id", ColumnType.INT64), Column("name", ColumnType.TEXT)), ("id",)),
        postgres_body="(id bigint PRIMARY KEY, name citext)",
    )
    fingerprints = set()
    for name in ("framehaul", "Framehaul"):
        with table_on(servers.postgres, table, pa.table({"id": [1], "name": [name]})) as tables:
            fingerprints.add(tables.rows_fingerprint(table))
    run("DROP EXTENSION citext")
    assert len(fingerprints) == 2


def test_a_port_is_given_once_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever chooses begins at the same one, as two processes may.
    monkeypatch.setattr(secrets, "randbelow", lambda _: 7)
    assert len({choose_port() for _ in range(5)}) == 5
    with socket.create_server(("127.0.0.1", choose_port())) as server:
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()
        with pytest.raises(ServerError, match=rf"port {server.getsockname()[1]} is occupied"):
            choose_port(server.getsockname()[1], "PORT")
