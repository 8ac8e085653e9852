"""Certificates of a run, and the process that ends TLS before a server: who does not trust them gets nothing."""

from __future__ import annotations

import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import clickhouse_driver
import psutil
import psycopg
import pytest

from framehaul.errors import UnavailableError
from framehaul.servers import Servers, tls
from framehaul.servers.tls import Certificate, Terminator, ended_before
from framehaul.techniques.clients import open_http_client

LOOPBACK = "127.0.0.1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return tls.certificate(tmp_path_factory.mktemp("tls"), LOOPBACK)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return tls.certificate(tmp_path_factory.mktemp("another"), LOOPBACK)


@pytest.fixture(scope="module")
def terminator(made: Certificate, servers: Servers) -> Iterator[Terminator]:
    behind = servers.clickhouse.http_port, servers.clickhouse.native_port
    with ended_before(made, *behind, postgres=(servers.postgres.port,)) as there:
        yield there


def dsn(
    servers: Servers, terminator: Terminator, authority: Path, mode: str = "verify-full", host: str = LOOPBACK
) -> str:
    server = servers.postgres
    return (
        f"postgresql://{server.user}:{server.password}@{host}:{terminator.ports[2]}/{server.database}"
        f"?sslmode={mode}&sslrootcert={authority}"
    )


def test_postgres_is_reached_with_its_certificate_verified(
    servers: Servers, terminator: Terminator, made: Certificate
) -> None:
    with psycopg.connect(dsn(servers, terminator, made.authority)) as connection:
        assert connection.pgconn.ssl_in_use
        assert connection.execute("SELECT repeat('x', 1000000)").fetchone() == ("x" * 1_000_000,)


def test_a_certificate_of_another_authority_is_refused(
    servers: Servers, terminator: Terminator, another: Certificate
) -> None:
    with pytest.raises(psycopg.OperationalError, match="certificate verify failed"):
        psycopg.connect(dsn(servers, terminator, another.authority))
    context = ssl.create_default_context(cafile=another.authority)
    plain = socket.create_connection((LOOPBACK, terminator.ports[0]))
    with plain, pytest.raises(ssl.SSLError, match="verify"):
        context.wrap_socket(plain, server_hostname=LOOPBACK)
    with pytest.raises(clickhouse_driver.errors.NetworkError, match="verify"):
        client(servers, terminator, another).execute("SELECT 1")


def test_a_certificate_of_another_host_is_refused(servers: Servers, terminator: Terminator, made: Certificate) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not match host name"):
        psycopg.connect(dsn(servers, terminator, made.authority, host="localhost"))


def test_who_asks_for_no_tls_is_not_served(servers: Servers, terminator: Terminator, made: Certificate) -> None:
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn(servers, terminator, made.authority, mode="disable"))
    with socket.create_connection((LOOPBACK, terminator.ports[0])) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b"200" not in received(plain)


def received(connection: socket.socket) -> bytes:
    got = b""
    try:
        while piece := connection.recv(1 << 16):
            got += piece
    except ConnectionResetError:
        pass
    return got


def client(servers: Servers, terminator: Terminator, made: Certificate) -> clickhouse_driver.Client:
    server = servers.clickhouse
    return clickhouse_driver.Client(
        LOOPBACK, terminator.ports[1], user=server.user, password=server.password, secure=True,
        ca_certs=str(made.authority),
    )  # fmt: skip


def test_clickhouse_is_reached_with_its_certificate_verified(
    servers: Servers, terminator: Terminator, made: Certificate
) -> None:
    trusting = client(servers, terminator, made)
    try:
        assert trusting.execute("SELECT repeat('x', 1000000)") == [("x" * 1_000_000,)]
    finally:
        trusting.disconnect()


def test_a_kept_connection_is_kept(
    servers: Servers, terminator: Terminator, made: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What TLS has to say beside what was asked, such as tickets, is no end of the connection."""
    monkeypatch.setenv("SSL_CERT_FILE", str(made.authority))
    server = replace(servers.clickhouse, http_port=terminator.ports[0], secure=True)
    with open_http_client(server) as connection:
        kept = connection.connection.sock
        for _ in range(3):
            assert connection.post("SELECT 1").read() == b"1\n"
            assert connection.connection.sock is kept


def test_bytes_pass_unchanged_both_ways_at_once(made: Certificate) -> None:
    sent, back = os.urandom(5 << 20), os.urandom(5 << 20)
    with socket.create_server((LOOPBACK, 0)) as listener, ended_before(made, listener.getsockname()[1]) as there:
        got = bytearray()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                sending = threading.Thread(target=connection.sendall, args=(back,))
                sending.start()
                while len(got) < len(sent):
                    got.extend(connection.recv(1 << 16))
                sending.join()

        answering = threading.Thread(target=answer)
        answering.start()
        context = ssl.create_default_context(cafile=made.authority)
        plain = socket.create_connection((LOOPBACK, there.ports[0]))
        with context.wrap_socket(plain, server_hostname=LOOPBACK) as secure:
            received_back = bytearray()
            # One thread, as OpenSSL wants it: piece for piece.
            for at in range(0, len(sent), 1 << 18):
                secure.sendall(sent[at : at + (1 << 18)])
                received_back += secure.recv(1 << 18)
            while len(received_back) < len(back):
                received_back += secure.recv(1 << 18)
        answering.join()
    assert bytes(got) == sent
    assert bytes(received_back) == back


def test_it_ends_with_whoever_started_it(made: Certificate) -> None:
    with socket.create_server((LOOPBACK, 0)) as listener:
        with ended_before(made, listener.getsockname()[1]) as there:
            kept = socket.create_connection((LOOPBACK, there.ports[0]))
            process = psutil.Process(there.process_id)
        assert not process.is_running()
        kept.close()


def test_the_key_is_private_and_that_of_the_authority_is_not_kept(made: Certificate) -> None:
    assert made.key.stat().st_mode & 0o077 == 0
    files = {path.name for path in made.key.parent.iterdir()}
    assert files == {"authority.crt", "server.crt", "server.key"}


def test_without_cryptography_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UnavailableError, match="--extra network"):
        tls.certificate(tmp_path, LOOPBACK)
