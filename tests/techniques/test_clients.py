"""Every kind of client opens what an address may name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from framehaul.errors import UnavailableError
from framehaul.harness.measure import opened
from framehaul.servers import PostgresServer, Servers
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


def test_psycopg_runs_in_c() -> None:
    """As `psycopg[binary]` has it; else psycopg takes its Python code without a word, at a fraction of the speed."""
    assert psycopg.pq.__impl__ in ("binary", "c")
