"""Every kind of client opens what an address names, as often as its technique says, before the clock starts."""

import asyncio
import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import IncompleteRead
from unittest.mock import Mock

import duckdb
import psutil
import psycopg
import pytest
from psycopg import sql

from framehaul.bench.measure import IN_FRAMES, called, opened
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import tables_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import CLIENTS, OwnedResponse, attached_name, entered
from tests.conftest import mostly_slow, one_for_each_driver, table_on

TABLE, SOURCE = (ANALYTICS_METRICS.renamed(f"framehaul_connections{suffix}") for suffix in ("", "_source"))
CONTENT = generator.arrow_table(TABLE, 50, 1)
AWKWARD = "a b/%d?é'\"&="
CONNECT_IN_CALL = ("connectorx", "adbc_uri", "urllib", "chdb")
"""Drivers that connect on the clock, within the call that moves rows."""


@pytest.fixture(scope="module")
def source(servers: Servers) -> Iterator[Expected]:
    """What is in `SOURCE` on both servers."""
    with table_on(servers.postgres, SOURCE, CONTENT) as one, table_on(servers.clickhouse, SOURCE, CONTENT) as other:
        yield Expected(SOURCE, CONTENT)
        for tables in (one, other):
            tables.drop(TABLE.name)


@pytest.mark.parametrize(
    "found",
    mostly_slow(
        techniques(),
        lambda found: found.driver in CONNECT_IN_CALL or found.connections > 1 or one_for_each_driver(found),
        lambda found: f"{found.database}-{found.name}",
    ),
)
def test_connecting_is_outside_the_clock_unless_it_is_said(
    found: Technique, servers: Servers, source: Expected
) -> None:
    arguments: tuple[object, ...] = (SOURCE,)
    if found.direction == "write":
        tables_of(servers.of(found.database)).create(TABLE)
        arguments = (TABLE, SOURCE if found.frame == "none" else IN_FRAMES[found.frame](CONTENT, TABLE))

    async def connections() -> tuple[int, int]:
        """How many were there when the clock started, and how many came while it ran."""
        with relayed(servers.of(found.database), Relay) as (server, relay):
            assert relay is not None
            async with opened(found, server) as client:
                # What was opened without waiting for an answer is accepted a moment later.
                deadline = time.monotonic() + 10
                while found.driver not in CONNECT_IN_CALL and relay.connections < found.connections:
                    assert time.monotonic() < deadline
                    time.sleep(0.001)  # noqa: ASYNC251  the relay has threads of its own
                before = relay.connections
                await called(found, client, *arguments)
                return before, relay.connections - before

    try:
        before, inside = asyncio.run(connections())
    except UnavailableError as error:
        pytest.skip(str(error))
    assert (inside > 0) == (found.driver in CONNECT_IN_CALL), (before, inside)
    assert before + inside >= found.connections  # some open more, to look up types


@pytest.mark.parametrize(
    "found",
    {
        found.client: found
        for found in techniques("clickhouse", "read")
        # ADBC's driver raises, in a run that had it: results/faults.csv
        if found.frame != "none" and found.driver not in CONNECT_IN_CALL
    }.values(),
    ids=lambda found: found.client,
)
def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(
    found: Technique, servers: Servers, source: Expected
) -> None:
    """As ClickHouse does of HTTP after half a minute, which what is compiled for the first time may take."""

    async def difference() -> str | None:
        with relayed(servers.clickhouse, Relay) as (server, relay):
            assert relay is not None
            async with opened(found, server) as client:
                before = relay.connections
                relay.end_connections()
                # Until their ends have arrived.
                while any(one.status == psutil.CONN_ESTABLISHED and one.raddr.port in relay.ports
                          for one in psutil.Process().net_connections("tcp")):  # fmt: skip
                    time.sleep(0.001)  # noqa: ASYNC251  the relay has threads of its own
                await asyncio.sleep(0.001)  # clients of asyncio hear of it when their loop runs
                frame = await called(found, client, SOURCE)
                assert relay.connections > before
                return source.difference(frame)

    assert asyncio.run(difference()) is None


@pytest.mark.parametrize("read", [lambda answer: answer.read(2), lambda answer: answer.readinto(bytearray(2))])
def test_an_answer_that_ends_before_its_length_is_an_error(read: Callable[[OwnedResponse], object]) -> None:
    sent = io.BytesIO(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
    (answer := OwnedResponse(Mock(**{"makefile.return_value": sent}), method="POST")).begin()
    assert read(answer) and read(answer)
    with pytest.raises(IncompleteRead):
        read(answer)


def test_a_database_may_have_any_name(servers: Servers) -> None:
    async def open_and_close(client: str) -> None:
        async with entered(CLIENTS[client](replace(servers.postgres, database=AWKWARD))):
            pass

    name = sql.Identifier(AWKWARD)
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            for client in {one.client for one in techniques("postgres") if one.family != "pg_parquet"}:
                asyncio.run(open_and_close(client))
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_duckdb_does_not_read_one_column_in_place_of_another() -> None:
    table = Table("t", tuple(Column(name, ColumnType.INT32) for name in ("MixedCase", "mixedcase")), ())
    with duckdb.connect() as connection, pytest.raises(ValueError, match="differ in case alone"):
        attached_name(connection, table)
