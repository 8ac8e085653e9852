"""What is replayed is what was recorded: every technique works against it as against the server."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.errors import UnavailableError
from framehaul.harness.measure import Passes, Way
from framehaul.harness.meter import Meter, settle, settled
from framehaul.servers import Server, Servers
from framehaul.servers.replay import Conversation, ReplayError, recorded, replayed
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import MODULES, Database, Direction
from tests.conftest import check_each, lacks

ANY_ORDER = {"polars_connectorx_two_partitions", "pandas_connectorx_two_partitions"}
"""Takes its connections from a pool, now this and now that one first."""


def reached(server: Server, ports: list[int]) -> Callable[[], AbstractContextManager[Way]]:
    @contextmanager
    def way() -> Iterator[Way]:
        yield Way(server.through(*ports), Meter())

    return way


def check_replay(servers: Servers, database: Database, direction: Direction, chosen: list[Technique]) -> None:
    """Each technique moves rows through a recorder, and twice without the server."""
    server = servers.of(database)
    table = ANALYTICS_METRICS.renamed(f"framehaul_replay_{direction}")
    content = generator.arrow_table(table, 300, 7)
    frames = {one.frame for one in chosen}
    with settled(), Passes(server, table, content, {direction}, frames) as passes, asyncio.Runner() as runner:

        def check(technique: Technique) -> None:
            try:
                runner.run(passes.one(technique, 1))
            except UnavailableError:
                return
            settle()
            with recorded(server) as recorder:
                moved = runner.run(passes.one(technique, 1, reached(server, recorder.ports)))
            counts = recorder.counts(server)
            assert counts.round_trips >= 1
            assert counts.bytes_sent + counts.bytes_received > 5_000
            assert (counts.statements is None) == (database == "clickhouse")
            with replayed(server, recorder.conversations(server)) as replayer:
                for _ in range(2):
                    try:
                        again = runner.run(passes.sent(technique, 1, reached(server, replayer.ports)))
                    except Exception as error:
                        error.add_note(f"What answered says: {replayer.failures}.")
                        raise
                    assert again is not None
                    for frame in again[0]:
                        if frame is not None:
                            assert passes.checked(frame, technique) == moved.dtypes
            assert not replayer.failures

        check_each([one for one in chosen if one.name not in ANY_ORDER], check)


@pytest.mark.parametrize("module", MODULES)
def test_techniques_find_in_a_replay_what_was_recorded(module: str, servers: Servers) -> None:
    database, _, direction = module.partition("_")
    every = [one for one in techniques(database, direction) if one.origin != "baseline" and not lacks(one)]  # type: ignore[arg-type]
    first = {(one.driver, one.family): one for one in reversed(every)}
    check_replay(servers, database, direction, [*first.values()])  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_technique_finds_in_a_replay_what_was_recorded(module: str, servers: Servers) -> None:
    database, _, direction = module.partition("_")
    every = [one for one in techniques(database, direction) if one.origin != "baseline" and not lacks(one)]  # type: ignore[arg-type]
    check_replay(servers, database, direction, every)  # type: ignore[arg-type]


def test_names_of_statements_may_become_longer(servers: Servers) -> None:
    async def fetched(ports: list[int], before: int) -> int:
        connection = await asyncpg.connect(servers.postgres.through(*ports).dsn())
        try:
            statement = await connection.prepare("SELECT 41 + 1", name=f"statement_{10**before}")
            return int(await statement.fetchval())
        finally:
            await connection.close()

    with recorded(servers.postgres) as recorder:
        assert asyncio.run(fetched(recorder.ports, 0)) == 42
    with replayed(servers.postgres, recorder.conversations(servers.postgres)) as replayer:
        assert asyncio.run(fetched(replayer.ports, 9)) == 42
        assert not replayer.failures


def test_a_client_may_find_its_answers_there_before_it_asks_for_them(servers: Servers) -> None:
    """What psycopg's pipeline does on a busy machine: everything was answered before it left, and it sent no Flush."""

    def fetched(ports: list[int], flushes: int) -> Any:
        with psycopg.connect(servers.postgres.through(*ports).dsn(), autocommit=True) as connection:
            with connection.pipeline():
                cursor = connection.execute("SELECT 41 + 1")
                for _ in range(flushes):
                    connection.pgconn.send_flush_request()
                assert cursor.fetchone() == (42,)
            return connection.execute("SELECT 43").fetchone()

    with recorded(servers.postgres) as recorder:
        assert fetched(recorder.ports, 3) == (43,)
    with replayed(servers.postgres, recorder.conversations(servers.postgres)) as replayer:
        for flushes in (0, 3, 9):
            assert fetched(replayer.ports, flushes) == (43,)
        assert not replayer.failures


def test_connections_are_told_apart_by_how_they_begin(servers: Servers) -> None:
    def answer(ports: list[int], number: int) -> Any:
        with psycopg.connect(servers.postgres.through(*ports).dsn(), autocommit=True) as connection:
            return connection.execute(f"SELECT {number}").fetchone()

    with recorded(servers.postgres) as recorder:
        assert [answer(recorder.ports, number) for number in (1, 2, 3)] == [(1,), (2,), (3,)]
    with replayed(servers.postgres, recorder.conversations(servers.postgres)) as replayer:
        for _ in range(2):
            assert [answer(replayer.ports, number) for number in (3, 1, 2)] == [(3,), (1,), (2,)]


def test_a_client_that_goes_before_its_time_is_told_of(servers: Servers) -> None:
    conversation = Conversation(0, [(5, b"HTTP/1.1 200 OK\r\n\r\n")], b"POST ", 5)
    with replayed(servers.clickhouse, [conversation]) as replayer:
        with socket.create_connection(("127.0.0.1", replayer.ports[0])) as client:
            client.sendall(b"POS")
        deadline = time.monotonic() + 10
        while not replayer.failures and time.monotonic() < deadline:
            time.sleep(0.01)
        assert replayer.failures == ["the client sent 3 bytes, where it had sent 5"]


def test_whoever_asks_only_to_cancel_has_no_conversation(servers: Servers) -> None:
    with replayed(servers.postgres, [Conversation(0, [(0, b"R")])]) as replayer:
        with socket.create_connection(("127.0.0.1", replayer.ports[0])) as client:
            client.sendall(struct.pack("!IIII", 16, 80877102, 1, 1))
            assert client.recv(1) == b""
        assert not replayer.failures


def test_nothing_listens_afterwards(servers: Servers) -> None:
    before = threading.active_count()
    with replayed(servers.clickhouse, [Conversation(0)]) as replayer:
        ports = replayer.ports
    assert threading.active_count() == before
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_what_cannot_be_recorded_is_said(servers: Servers) -> None:
    with pytest.raises(ReplayError, match="nothing passed the relay"), replayed(servers.postgres, []):
        pass
    with recorded(servers.postgres) as recorder, socket.create_connection(("127.0.0.1", recorder.ports[0])) as client:
        client.sendall(struct.pack("!II", 8, 80877103))
        assert client.recv(1) == b"N"
        client.close()
        with pytest.raises(ReplayError, match="let nobody in"):
            recorder.conversations(servers.postgres)
