"""What a technique opens: as many connections as its record says, before the clock starts unless it says otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from framehaul.bench.measure import called, opened
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.relay import Relay, relayed
from framehaul.servers.tables import tables_of
from framehaul.techniques import Technique, techniques
from tests.conftest import mostly_slow, one_for_each_driver

TABLE, SOURCE = (ANALYTICS_METRICS.renamed(f"framehaul_connections{suffix}") for suffix in ("", "_source"))
ROWS = 50


@pytest.fixture(scope="module", autouse=True)
def filled(servers: Servers) -> Iterator[None]:
    content = generator.arrow_table(TABLE, ROWS, 1)
    both = [tables_of(server) for server in (servers.postgres, servers.clickhouse)]
    for tables in both:
        tables.create(SOURCE)
        tables.load(SOURCE, content)
    yield
    for tables in both:
        for table in (TABLE, SOURCE):
            tables.drop(table)


async def opened_by(technique: Technique, servers: Servers, arguments: tuple[object, ...]) -> tuple[int, int]:
    """Connections that were there when the clock started, and that came while it ran."""
    with relayed(servers.of(technique.database), Relay) as (server, relay):
        assert relay is not None
        async with opened(technique, server) as client:
            # What was opened without waiting for an answer is accepted a moment later.
            deadline = time.monotonic() + 10
            while not technique.connects_inside and relay.connections < technique.connections:
                assert time.monotonic() < deadline
                time.sleep(0.001)  # noqa: ASYNC251  the relay has threads of its own
            before = relay.connections
            await called(technique, client, *arguments)
            return before, relay.connections - before


@pytest.mark.parametrize(
    "found",
    mostly_slow(
        techniques(),
        lambda found: found.connects_inside or found.connections > 1 or one_for_each_driver(found),
        lambda found: f"{found.database}-{found.name}",
    ),
)
def test_connecting_is_outside_the_clock_unless_it_is_said(found: Technique, servers: Servers) -> None:
    frames = {"polars": generator.polars_frame, "pandas": generator.pandas_frame}
    table: Table = SOURCE
    arguments: tuple[object, ...] = (SOURCE,)
    if found.direction == "write":
        table = TABLE
        tables_of(servers.of(found.database)).create(table)
        arguments = (table, SOURCE if found.frame == "none" else frames[found.frame](table, ROWS, 1))
    try:
        before, inside = asyncio.run(opened_by(found, servers, arguments))
    except UnavailableError as error:
        pytest.skip(str(error))
    assert (inside > 0) == found.connects_inside, (before, inside)
    assert before + inside >= found.connections  # some open more, to look up types
