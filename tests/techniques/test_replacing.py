"""A frame takes the place of all rows, at once or not at all, whichever technique writes it."""

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from framehaul.bench.measure import IN_FRAMES
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.studies.upsert.measure import count_staging_tables
from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import open_psycopg
from framehaul.techniques.contract import REPLACED
from framehaul.techniques.registry import named
from framehaul.techniques.replacing import emptied, replacing
from tests.conftest import call, check_each, table_on
from tests.second_table import SECOND_TABLE as TABLE

CLIENTS = ("psycopg", "http_client")
WRITERS = [one for one in techniques(direction="write") if one.origin in ("published", "beyond")]
REPLACING = [one for one in WRITERS if one.client in CLIENTS]
EXCHANGE = named("clickhouse", "write", "polars_http_client_arrow_exchange")
FIRST = [EXCHANGE, *(next(one for one in REPLACING if one.client == client) for client in CLIENTS)]
BEFORE, AFTER = (generator.arrow_table(TABLE, 60, seed) for seed in (1, 2))


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(FIRST, id="one for each way"), pytest.param(REPLACING, id="all", marks=pytest.mark.slow)],
)
def test_what_was_there_is_gone_and_stays_where_the_write_fails(chosen: list[Technique], servers: Servers) -> None:
    def check(one: Technique) -> None:
        def failing(*arguments: Any) -> None:
            """Writes rows, and fails behind them."""
            one.function(*arguments)
            raise ValueError("sent, and not well")

        found, broken = replacing(one), replacing(replace(one, function=failing))
        frame = IN_FRAMES[one.frame](AFTER, TABLE)
        assert found.contract is not None
        assert (found.name, found.contract.kind) == (one.name, "replace")
        with table_on(servers.of(one.database), TABLE, BEFORE) as tables:
            for content in (AFTER, BEFORE):
                call(found, servers, TABLE, IN_FRAMES[one.frame](content, TABLE))
                assert Expected(TABLE, content).difference(tables.content(TABLE)) is None
            if one.contract == REPLACED:  # it exchanges what it has written itself
                broken, frame = found, frame[["Order"]]
            with pytest.raises(ValueError, match=r"not well|does not have the columns"):
                call(broken, servers, TABLE, frame)
            assert Expected(TABLE, BEFORE).difference(tables.content(TABLE)) is None
            assert count_staging_tables(tables, TABLE) == 0

    check_each(chosen, check)


def test_another_client_cannot_replace() -> None:
    for name in ("polars_pgpq_presorted_two_connections", "polars_asyncpg_copy_binary"):
        with pytest.raises(UnavailableError, match=r"over one connection of psycopg or http\.client"):
            replacing(named("postgres", "write", name))


def test_a_reader_waits_and_finds_the_new_rows(servers: Servers) -> None:
    """The lock of TRUNCATE holds it off: nobody finds an empty table."""
    at, count = servers.postgres, f"SELECT count(*) FROM {TABLE.postgres_name}".encode()
    with table_on(at, TABLE, BEFORE), open_psycopg(at) as writer, open_psycopg(at) as reader:
        reader.execute("SET lock_timeout = '50ms'")
        with emptied(writer, TABLE), pytest.raises(psycopg.errors.LockNotAvailable):
            reader.execute(count)
        assert reader.execute(count).fetchone() == (0,)
