"""A frame takes the place of all rows, at once or not at all, whichever technique writes it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest

from framehaul.bench.measure import IN_FRAMES
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import open_psycopg
from framehaul.techniques.registry import named
from framehaul.techniques.replacing import emptied, making_room, replacing
from tests.conftest import call, check_each, lacks
from tests.second_table import SECOND_TABLE as TABLE

NOT_AT_ONCE = "polars_pgpq_presorted_two_connections"
WRITERS = [one for one in techniques(direction="write") if one.origin in ("published", "beyond") and not lacks(one)]
REPLACING = [one for one in WRITERS if one.name != NOT_AT_ONCE]
CLIENTS = ("psycopg", "asyncpg", "adbc", "duckdb", "clickhouse_driver", "httpx")
FIRST = [next(one for one in REPLACING if one.client == client) for client in CLIENTS]
"""One for each way that the rows before it go."""
BEFORE, AFTER = (generator.arrow_table(TABLE, 60, seed) for seed in (1, 2))


def tables_there(servers: Servers) -> list[str]:
    """The names of ours on both servers."""
    postgres = PostgresTables(servers.postgres).run("SELECT relname FROM pg_class WHERE relkind = 'r' ORDER BY 1")
    clickhouse = ClickHouseTables(servers.clickhouse).rows("SHOW TABLES")
    return [name for (name,) in (*postgres, *clickhouse) if name.startswith("framehaul")]


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(FIRST, id="one for each way"), pytest.param(REPLACING, id="all", marks=pytest.mark.slow)],
)
def test_what_was_there_is_gone_and_stays_where_the_write_fails(chosen: list[Technique], servers: Servers) -> None:
    def check(one: Technique) -> None:
        tables, found = tables_of(servers.of(one.database)), replacing(one)
        assert found.contract is not None
        assert (found.name, found.contract.kind) == (one.name, "replace")
        tables.create(TABLE)
        tables.load(TABLE, BEFORE)
        there = tables_there(servers)
        for content in (AFTER, BEFORE):
            call(found, servers, TABLE, IN_FRAMES[one.frame](content, TABLE))
            assert Expected(TABLE, content).difference(tables.content(TABLE)) is None

        async def failing(*arguments: Any) -> None:
            """Writes rows, and fails behind them."""
            returned = one.function(*arguments)
            if inspect.isawaitable(returned):
                await returned
            raise ValueError("sent, and not well")

        broken, frame = found, IN_FRAMES[one.frame](AFTER, TABLE)
        if making_room(one) is None or one.client == "adbc":  # it exchanges, or commits, what it has written itself
            frame = frame[["Order"]]
        else:
            broken = replacing(replace(one, function=failing))
        with pytest.raises(ValueError, match=r"not well|does not have the columns"):
            call(broken, servers, TABLE, frame)
        assert Expected(TABLE, BEFORE).difference(tables.content(TABLE)) is None
        assert tables_there(servers) == there
        tables.drop(TABLE)

    check_each(chosen, check)


def test_two_connections_are_no_one_transaction_and_what_exchanges_tables_stays_as_it_is() -> None:
    with pytest.raises(UnavailableError, match="is not one transaction"):
        replacing(named("postgres", "write", NOT_AT_ONCE))
    exchange = named("clickhouse", "write", "polars_http_client_arrow_exchange")
    assert replacing(exchange).function is exchange.function
    assert making_room(exchange) is None


def test_a_reader_waits_and_finds_the_new_rows(servers: Servers) -> None:
    """The lock of TRUNCATE holds it off: nobody finds an empty table."""
    tables = PostgresTables(servers.postgres)
    tables.create(TABLE)
    try:
        tables.load(TABLE, BEFORE)
        with open_psycopg(servers.postgres) as writer, open_psycopg(servers.postgres) as reader:
            reader.execute("SET lock_timeout = '50ms'")
            with emptied(writer, TABLE), pytest.raises(Exception, match="lock timeout"):
                reader.execute(f"SELECT count(*) FROM {TABLE.postgres_name}".encode())
            assert reader.execute(f"SELECT count(*) FROM {TABLE.postgres_name}".encode()).fetchone() == (0,)
    finally:
        tables.drop(TABLE)
