"""A query that fails midway must raise: a short frame would look like a whole one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError

import httpx
import psycopg
import pytest

from framehaul.data.schema import Column, ColumnType, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.studies.faults.breakable import numbers, run_on
from framehaul.techniques import Technique, techniques
from tests.conftest import call, lacks, mostly_slow, one_for_each_driver

# More than any buffer on the way holds, so that much of it has been sent when the last row fails.
ROWS = 300_000
FAILING = Table(
    "framehaul_failing", (Column("id", ColumnType.INT64), Column("text", ColumnType.TEXT)), ("id",)
)  # fmt: skip
WHOLE = FAILING.renamed("framehaul_whole")


@pytest.fixture(scope="module")
def views(servers: Servers) -> Iterator[None]:
    """Views that look like tables: one fails in its last row, the other is the same without failing."""
    postgres = f"SELECT g::bigint AS id, repeat('x', 100) AS text FROM generate_series(1, {ROWS}) AS g"
    clickhouse = f"SELECT toInt64(number + 1) AS id, repeat('x', 100) AS text FROM numbers({ROWS})"
    condition = {FAILING: (f"1 / ({ROWS} - g) >= 0", f"throwIf(number + 1 = {ROWS}) = 0"), WHOLE: ("true", "true")}
    with psycopg.connect(servers.postgres.dsn(), autocommit=True) as connection:
        for view, (in_postgres, in_clickhouse) in condition.items():
            connection.execute(f"CREATE VIEW {view.postgres_name} AS {postgres} WHERE {in_postgres}".encode())
            run_clickhouse(servers, f"CREATE VIEW {view.clickhouse_name} AS {clickhouse} WHERE {in_clickhouse}")
        yield
        for view in condition:
            connection.execute(f"DROP VIEW {view.postgres_name}".encode())
            run_clickhouse(servers, f"DROP VIEW {view.clickhouse_name}")


def run_clickhouse(servers: Servers, query: str) -> None:
    server = servers.clickhouse
    httpx.post(server.url, auth=(server.user, server.password), params={"query": query}).raise_for_status()


def readers() -> list[Any]:
    every = [found for found in techniques(direction="read") if found.origin != "baseline"]
    return mostly_slow(every, one_for_each_driver, lambda found: f"{found.database}-{found.origin}-{found.name}")


@pytest.mark.parametrize("found", readers())
def test_a_query_that_fails_midway_raises(found: Technique, servers: Servers, views: None) -> None:
    try:
        with pytest.raises(Exception, match=r"\w") as raised:
            call(found, servers, FAILING)
        if isinstance(raised.value, UnavailableError):
            raise raised.value
        if isinstance(raised.value, HTTPError):
            raised.value.close()  # urllib's error is the response as well
    except UnavailableError as error:
        assert lacks(found), "it was named and is not there"
        pytest.skip(str(error))


@pytest.mark.parametrize("found", readers())
def test_the_same_query_without_the_failure_gives_all_rows(found: Technique, servers: Servers, views: None) -> None:
    if "_two_" in found.name:
        pytest.skip("splits by pages or partitions, which a view does not have")
    try:
        assert len(call(found, servers, WHOLE)) == ROWS
    except UnavailableError as error:
        assert lacks(found), "it was named and is not there"
        pytest.skip(str(error))


def test_a_time_limit_of_those_who_are_tried_is_none_of_who_looks(servers: Servers) -> None:
    limited = replace(servers.postgres, user="framehaul_limited", password="of a test")
    run_on(
        servers.postgres, "CREATE ROLE framehaul_limited LOGIN PASSWORD 'of a test'",
        "ALTER ROLE framehaul_limited SET statement_timeout = '1ms'",
    )  # fmt: skip
    try:
        with psycopg.connect(limited.dsn()) as connection, pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT pg_sleep(0.1)")
        assert numbers(limited, "SELECT count(pg_sleep(0.1)), 2") == [1, 2]
    finally:
        run_on(servers.postgres, "DROP ROLE framehaul_limited")
