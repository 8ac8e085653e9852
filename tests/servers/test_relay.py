"""A relay between clients and servers counts, delays and encrypts as asked, ends, and leaves nothing behind."""

import contextlib
import os
import socket
import ssl
import struct
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
from framehaul.servers import Servers
from framehaul.servers.local import choose_port
from framehaul.servers.relay import Link, Relay, Relaying, certificate, relaying
from framehaul.techniques.clients import open_http_client

LOOPBACK = "127.0.0.1"
SECONDS = 10  # what must come comes sooner


def connected(port: int) -> socket.socket:
    return socket.create_connection((LOOPBACK, port), SECONDS)


def reset(connection: socket.socket) -> None:
    """Close it so that the other side gets an RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side's end."""
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


@contextmanager
def target(serve: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """A server that does this with each connection, in a thread of its own; all of them end with the block."""
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def served(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connections.append(listener.accept()[0])
                threads.append(threading.Thread(target=served, args=connections[-1:]))
                threads[-1].start()

    with socket.create_server((LOOPBACK, 0), backlog=100) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def echo(connection: socket.socket) -> None:
    while piece := connection.recv(1 << 16):
        connection.sendall(piece)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    process, threads = psutil.Process(), set(threading.enumerate())
    files = process.num_fds()
    yield
    assert set(threading.enumerate()) <= threads
    assert process.num_fds() <= files


def test_a_relay_to_nowhere_closes_the_connection() -> None:
    with Relay((LOOPBACK, choose_port())) as relay, connected(relay.ports[0]) as client:
        assert client.recv(1) == b""


def test_a_client_that_half_closes_gets_the_rest_of_its_answer_and_every_byte_is_counted() -> None:
    with target(lambda connection: connection.sendall(b"y" * len(received(connection)))) as address:
        with Relay(address) as relay, connected(relay.ports[0]) as client:
            client.sendall(b"x" * 300_000)
            client.shutdown(socket.SHUT_WR)
            assert received(client) == b"y" * 300_000
        assert relay.total_bytes == 600_000


@pytest.mark.parametrize("first", ["client", "server"])
def test_when_one_side_is_reset_the_other_one_ends(first: str) -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(1)
        if first == "server":
            reset(connection)
        else:
            received(connection)
            ended.set()

    with target(serve) as address, Relay(address) as relay, connected(relay.ports[0]) as client:
        client.sendall(b"x")
        if first == "client":
            reset(client)
            assert ended.wait(SECONDS)
        else:
            assert received(client) == b""


def test_clients_that_say_nothing_and_servers_that_take_nothing_end_with_the_relay() -> None:
    until = threading.Event()
    with target(lambda _: until.wait(SECONDS)) as address, contextlib.ExitStack() as stack:
        with Relay(address) as relay:
            clients = [stack.enter_context(connected(relay.ports[0])) for _ in range(20)]
            clients[0].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    clients[0].send(b"x" * 100_000)
        for client in clients[1:]:
            assert received(client) == b""
        until.set()


@pytest.mark.parametrize("link", [Link("near", 1, 1000), Link("far", 20), Link("slow", 2, 100)])
def test_a_network_is_no_nearer_and_no_faster_than_was_asked_for(link: Link) -> None:
    with target(lambda one: one.sendall(received(one))) as (_, port), relaying(port) as relay:
        relay.use(link)
        sent = os.urandom(4 << 20)
        begun = time.perf_counter()
        with connected(relay.ports[port]) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            assert received(client) == sent
        seconds = time.perf_counter() - begun
    sending_s = 2 * len(sent) * 8 / link.mbit_per_s / 1e6 if link.mbit_per_s else 0.0
    assert seconds >= 0.99 * sending_s + link.rtt_ms / 1e3


def test_a_network_is_not_much_farther_than_was_asked_for() -> None:
    times = []
    with target(echo) as (_, port), relaying(port) as relay, connected(relay.ports[port]) as client:
        relay.use(Link("near", 1))
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
            client = connected(relay.ports[port])
            process = psutil.Process(relay.process.pid)
        assert not process.is_running()
        client.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    authority = certificate(tmp_path_factory.mktemp("tls"))
    assert {path.name for path in authority.parent.iterdir()} == {"authority.pem", "server.pem"}
    assert authority.with_name("server.pem").stat().st_mode & 0o077 == 0
    assert "PRIVATE" not in authority.read_text()  # its key is not kept
    return authority


@pytest.fixture(scope="module")
def tls(made: Path, servers: Servers) -> Iterator[Relaying]:
    postgres = servers.postgres.port
    with relaying(postgres, servers.clickhouse.http_port, authority=made, postgres=postgres) as there:
        yield there


def dsn(servers: Servers, tls: Relaying, authority: Path, host: str = LOOPBACK) -> str:
    options = (("sslmode", "verify-full"), ("sslrootcert", str(authority)))
    return replace(servers.postgres, host=host, port=tls.ports[servers.postgres.port], options=options).dsn()


def test_servers_are_reached_with_their_certificate_verified(
    servers: Servers, tls: Relaying, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(dsn(servers, tls, made)) as postgres:
        assert postgres.pgconn.ssl_in_use
        assert postgres.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    server = replace(servers.clickhouse, http_port=tls.ports[servers.clickhouse.http_port], secure=True)
    with open_http_client(server) as clickhouse:
        kept = clickhouse.connection.sock
        for _ in range(3):  # what TLS has to say beside what was asked, such as tickets, is no end of the connection
            assert clickhouse.post("SELECT 1").read() == b"1\n"
            assert clickhouse.connection.sock is kept


def test_a_certificate_of_another_authority_or_host_is_refused(
    servers: Servers, tls: Relaying, made: Path, tmp_path: Path
) -> None:
    another = certificate(tmp_path)
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(dsn(servers, tls, another))
    plain, context = connected(tls.ports[servers.clickhouse.http_port]), ssl.create_default_context(cafile=another)
    with plain, pytest.raises(ssl.SSLError, match="verify"):
        context.wrap_socket(plain, server_hostname=LOOPBACK)
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        psycopg.connect(dsn(servers, tls, made, host="localhost"))


def test_without_trustme_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(UnavailableError, match="--extra network"):
        certificate(tmp_path)
