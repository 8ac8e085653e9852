"""The process in place of a network: delay, rate and TLS are what was asked for, and nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import psycopg
import pytest

from framehaul.errors import UnavailableError
from framehaul.servers import Servers, network
from framehaul.servers.network import Link, Relaying, relaying
from framehaul.techniques.clients import open_http_client

LOOPBACK = "127.0.0.1"
BULK_BYTES = 4 << 20


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that answers one connection."""
    with socket.create_server((LOOPBACK, 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def received(connection: socket.socket) -> bytes:
    got = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(1 << 16):
            got += piece
    return bytes(got)


@pytest.mark.parametrize("link", [Link("near", 1, 1000), Link("far", 20), Link("slow", 2, 100)])
def test_a_network_is_no_nearer_and_no_faster_than_was_asked_for(link: Link) -> None:
    with answering(lambda one: one.sendall(received(one))) as port, relaying(port) as relay:
        relay.use(link)
        sent = os.urandom(BULK_BYTES)
        begun = time.perf_counter()
        with socket.create_connection((LOOPBACK, relay.ports[port])) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            assert received(client) == sent
        seconds = time.perf_counter() - begun
    sending_s = 2 * BULK_BYTES * 8 / link.mbit_per_s / 1e6 if link.mbit_per_s else 0.0
    assert seconds >= 0.99 * sending_s + link.rtt_ms / 1e3


def test_a_network_is_not_much_farther_than_was_asked_for() -> None:
    def echo(connection: socket.socket) -> None:
        while connection.recv(1):
            connection.sendall(b".")

    with answering(echo) as port, relaying(port) as relay:
        relay.use(Link("near", 1))
        times = []
        with socket.create_connection((LOOPBACK, relay.ports[port])) as client:
            for _ in range(50):
                begun = time.perf_counter()
                client.sendall(b".")
                client.recv(1)
                times.append(time.perf_counter() - begun)
    assert 1e-3 <= min(times) < 2e-3  # a clock of whole milliseconds takes two, or more


def test_it_ends_with_whoever_started_it_whatever_its_connections_do() -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        with relaying(port) as relay:
            client = socket.create_connection((LOOPBACK, relay.ports[port]))
            process = psutil.Process(relay.process.pid)
        assert not process.is_running()
        client.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network.certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def tls(made: Path, servers: Servers) -> Iterator[Relaying]:
    postgres = servers.postgres.port
    with relaying(postgres, servers.clickhouse.http_port, authority=made, postgres=postgres) as there:
        yield there


def dsn(servers: Servers, tls: Relaying, authority: Path, host: str = LOOPBACK) -> str:
    options = (("sslmode", "verify-full"), ("sslrootcert", str(authority)))
    return replace(servers.postgres, host=host, port=tls.ports[servers.postgres.port], options=options).dsn()


def test_postgres_is_reached_with_its_certificate_verified(servers: Servers, tls: Relaying, made: Path) -> None:
    with psycopg.connect(dsn(servers, tls, made)) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)


def test_a_certificate_of_another_authority_or_host_is_refused(
    servers: Servers, tls: Relaying, made: Path, tmp_path: Path
) -> None:
    another = network.certificate(tmp_path)
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(dsn(servers, tls, another))
    context = ssl.create_default_context(cafile=another)
    plain = socket.create_connection((LOOPBACK, tls.ports[servers.clickhouse.http_port]))
    with plain, pytest.raises(ssl.SSLError, match="verify"):
        context.wrap_socket(plain, server_hostname=LOOPBACK)
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        psycopg.connect(dsn(servers, tls, made, host="localhost"))


def test_clickhouse_is_reached_with_its_certificate_verified(
    servers: Servers, tls: Relaying, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    server = replace(servers.clickhouse, http_port=tls.ports[servers.clickhouse.http_port], secure=True)
    with open_http_client(server) as connection:
        kept = connection.connection.sock
        for _ in range(3):  # what TLS has to say beside what was asked, such as tickets, is no end of the connection
            assert connection.post("SELECT 1").read() == b"1\n"
            assert connection.connection.sock is kept


def test_the_key_is_private_and_that_of_the_authority_is_not_kept(made: Path) -> None:
    assert made.with_name("server.pem").stat().st_mode & 0o077 == 0
    assert {path.name for path in made.parent.iterdir()} == {"authority.pem", "server.pem"}
    assert "PRIVATE" not in made.read_text()


def test_without_trustme_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(UnavailableError, match="--extra network"):
        network.certificate(tmp_path)
