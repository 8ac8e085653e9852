"""Every kind of client opens what an address may name."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import polars as pl
import psutil
import psycopg
import pytest
from psycopg import sql

from framehaul.bench.measure import called, opened
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import UnavailableError
from framehaul.servers import PostgresServer, Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import tables_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import CLIENTS

AWKWARD = "a b/%d?é'\"&="


@pytest.fixture(scope="module")
def oddly_named_database(servers: Servers) -> Iterator[PostgresServer]:
    name = sql.Identifier(AWKWARD)
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield replace(servers.postgres, database=AWKWARD)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.mark.parametrize(
    "found",
    {t.client: t for t in techniques("postgres") if t.family != "pg_parquet"}.values(),
    ids=lambda found: found.client,
)
def test_a_database_may_have_any_name(found: Technique, oddly_named_database: PostgresServer) -> None:
    async def open_and_close() -> None:
        async with opened(found, oddly_named_database) as client:
            assert client is not None

    asyncio.run(open_and_close())


def test_without_its_adbc_driver_clickhouse_is_skipped_with_the_remedy(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where driver managers look: this environment, and the account's own directory.
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UnavailableError, match=r"make tools builds it, .*dbc install clickhouse"):
        CLIENTS["adbc_clickhouse"](servers.clickhouse).__enter__()  # type: ignore[union-attr]


def is_connected(ports: list[int]) -> bool:
    """Whether this process has a connection to one of them whose end has not arrived."""
    connections = psutil.Process().net_connections("tcp")
    return any(one.status == psutil.CONN_ESTABLISHED and one.raddr.port in ports for one in connections)


@pytest.mark.parametrize(
    "found",
    {
        found.client: found
        for found in techniques("clickhouse", "read")
        # ADBC's driver raises, in a run that had it: results/faults.csv
        if found.frame != "none" and not found.connects_inside and found.client != "adbc_clickhouse"
    }.values(),
    ids=lambda found: found.client,
)
def test_a_connection_that_the_server_closed_meanwhile_is_opened_again(found: Technique, servers: Servers) -> None:
    """As ClickHouse does of HTTP after half a minute, which what is compiled for the first time may take."""
    table = ANALYTICS_METRICS.renamed("framehaul_closed_meanwhile")
    tables = tables_of(servers.clickhouse)
    tables.create(table)
    content = generator.arrow_table(table, 50, 1)
    tables.load(table, content)

    async def frame_read() -> pl.DataFrame | pd.DataFrame:
        with relayed(servers.clickhouse, Relay) as (server, relay):
            assert relay is not None
            async with opened(found, server) as client:
                before = relay.connections
                relay.end_connections()
                while is_connected(relay.ports):
                    time.sleep(0.001)  # noqa: ASYNC251  the relay has threads of its own
                await asyncio.sleep(0.001)  # clients of asyncio hear of it when their loop runs
                frame: pl.DataFrame | pd.DataFrame = await called(found, client, table)
                assert relay.connections > before
                return frame

    try:
        assert Expected(table, content).difference(asyncio.run(frame_read())) is None
    finally:
        tables.drop(table)


def test_psycopg_runs_in_c() -> None:
    """As `psycopg[binary]` has it; else psycopg takes its Python code without a word, at a fraction of the speed."""
    assert psycopg.pq.__impl__ in ("binary", "c")
