"""Every kind of client opens what an address may name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql

from framehaul.harness.measure import opened
from framehaul.servers import PostgresServer, Servers
from framehaul.techniques import Technique, techniques

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
