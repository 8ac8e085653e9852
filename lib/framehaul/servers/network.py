"""Put a network's delay and rate, TLS or PgBouncer between clients and servers on loopback.

`python -m framehaul.servers.network CERTIFICATE POSTGRES_PORT PORT...` listens on a loopback port for each port of a
server, and prints the new ports in one line. Each line `DELAY_S BYTES_PER_S` on standard input sets delay and rate; the
answer is one line. The process ends when its standard input closes. Opening a connection takes no round trip, because
TCP connections end in the process. PgBouncer runs in transaction mode: one server connection per transaction.
"""

from __future__ import annotations

import asyncio
import os
import re
import selectors
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import docker
from framehaul.servers.address import PostgresServer
from framehaul.servers.local import choose_port, when_ready, write_private
from framehaul.servers.postgres import ACCOUNT_FOR_ROOT
from framehaul.servers.relay import Address, Relay
from framehaul.settings import Settings

CHUNK_BYTES = 1 << 16
WINDOW_BYTES = 4 << 20
"""Maximum bytes of a connection in transit: about the limit of a receiver's window on Linux (tcp_rmem)."""
CERTIFICATE = "server.pem"
"""The file with the certificate and its key, next to that of the authority."""
TLS_REQUEST, TLS_ACCEPTED = (8).to_bytes(4) + (80877103).to_bytes(4), b"S"
"""PostgreSQL's SSLRequest and its answer: https://www.postgresql.org/docs/18/protocol-message-formats.html"""

CONNECTIONS = 4
"""Minimum number of connections in the pool."""

# Other settings are PgBouncer's defaults: https://www.pgbouncer.org/config.html. By default, a single client gets the
# same connection for each transaction; here each transaction gets the next connection, unchecked, as in a busy pool.
CONFIGURATION = """[databases]
{database} = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
server_round_robin = 1
server_check_delay = 86400
min_pool_size = {connections}
{more}"""
# It exists since PgBouncer 1.21; tracking is the default since 1.24: https://www.pgbouncer.org/changelog.html
WITHOUT_PREPARED = "max_prepared_statements = 0\n"
"""The setting that disables tracking of prepared statements."""


@dataclass(frozen=True)
class Link:
    """A network between a client and a server."""

    name: str
    rtt_ms: float = 0.0
    mbit_per_s: float = 0.0
    """The rate of each direction, shared by all connections; 0 is no limit."""


def certificate(directory: Path) -> Path:
    """Write a new authority, a certificate of it for 127.0.0.1 and its key, and return the path of the authority.

    Raises UnavailableError without trustme.
    """
    try:
        import trustme
    except ImportError:
        raise UnavailableError(
            "trustme, which makes certificates, is not installed: uv sync --extra network, or "
            "pip install 'framehaul[network]'"
        ) from None
    authority, path = trustme.CA(), directory / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    made = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    write_private(path.with_name(CERTIFICATE), made.bytes().decode())
    return path


@dataclass(frozen=True)
class Relaying:
    """A relay process and its port for each port of a server."""

    process: subprocess.Popen[bytes]
    ports: dict[int, int]

    def use(self, link: Link) -> None:
        """Apply a network's delay and rate from now on; raises BrokenPipeError if the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{link.rtt_ms / 2000} {link.mbit_per_s * 1e6 / 8}\n".encode())
        self.process.stdout.readline()


@contextmanager
def relaying(*ports: int, authority: Path | None = None, postgres: int = 0) -> Iterator[Relaying]:
    """Run a relay process for loopback ports while the block lasts; with an authority its clients use TLS.

    Clients of the port `postgres` request TLS by PostgreSQL's protocol. Raises ServerError if the process cannot start.
    """
    options = [authority.with_name(CERTIFICATE) if authority else "", postgres, *ports]
    command, pipe = [sys.executable, "-m", "framehaul.servers.network", *map(str, options)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True) as process:
        assert process.stdout is not None
        listening = [int(port) for port in process.stdout.readline().split()]
        if not listening:
            raise ServerError(f"the relay process of a network did not start: status {process.wait()}")
        yield Relaying(process, dict(zip(ports, listening, strict=True)))


class _Network(Relay):
    """A relay that delays and limits traffic and may terminate TLS."""

    # The default selector, epoll, has timeouts of whole milliseconds.
    _new_loop = staticmethod(lambda: asyncio.SelectorEventLoop(selectors.SelectSelector()))

    def __init__(self, ports: list[int], tls: ssl.SSLContext | None, postgres: int) -> None:
        super().__init__(*(("127.0.0.1", port) for port in ports))
        self.delay_s = self.bytes_per_s = 0.0
        self._postgres: Address = "127.0.0.1", postgres
        self._tls = dict.fromkeys(self._targets, tls)
        self._tls_on_request = self._tls.pop(self._postgres, None)
        self._free_at = {True: 0.0, False: 0.0}

    async def _serve(self, target: Address, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self._tls_on_request is not None and target == self._postgres:
            try:
                if await client.readexactly(len(TLS_REQUEST)) != TLS_REQUEST:
                    raise ConnectionAbortedError
                to_client.write(TLS_ACCEPTED)
                await to_client.start_tls(self._tls_on_request)
            except (OSError, EOFError):
                to_client.transport.abort()
                return
        await super()._serve(target, client, to_client)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool) -> None:
        in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW_BYTES // CHUNK_BYTES)

        async def deliver() -> None:
            while True:
                due, chunk = await in_transit.get()
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                if not chunk:
                    break
                sink.write(chunk)
                await sink.drain()
            self._write_end(sink)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            chunk = b"."
            while chunk:
                chunk = await source.read(CHUNK_BYTES)
                await in_transit.put((self._due(len(chunk), from_client=from_client), chunk))

    def _due(self, count: int, *, from_client: bool) -> float:
        """Return the time at which `count` bytes that were received now arrive at the other side."""
        leaves = time.perf_counter()
        if self.bytes_per_s:
            leaves = max(leaves, self._free_at[from_client]) + count / self.bytes_per_s
            self._free_at[from_client] = leaves
        return leaves + self.delay_s


@dataclass(frozen=True)
class Pooler:
    """A PgBouncer with its address and version."""

    server: PostgresServer
    version: str


@contextmanager
def pooling(server: PostgresServer) -> Iterator[Pooler]:
    """Run PgBouncer in front of a server on this machine; raises UnavailableError if it is not installed."""
    program = shutil.which("pgbouncer")
    if program is None:
        raise UnavailableError("PgBouncer is not on the PATH: install the package pgbouncer (apt, dnf, brew)")
    with tempfile.TemporaryDirectory(prefix="framehaul-pgbouncer-") as name:
        users, configuration, log = (Path(name) / file for file in ("users.txt", "pgbouncer.ini", "log"))
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        more = WITHOUT_PREPARED if [int(part) for part in re.findall(r"\d+", version)[:2]] >= [1, 21] else ""
        write_private(users, f'"{server.user}" "{server.password}"\n')
        if os.geteuid() == 0:  # PgBouncer refuses to run as root
            more += f"user = {ACCOUNT_FOR_ROOT}\n"
            for path in (Path(name), users):
                shutil.chown(path, ACCOUNT_FOR_ROOT)
        pooled = replace(server, port=choose_port())
        values = {"database": server.database, "server_port": server.port, "port": pooled.port, "users": users}
        configuration.write_text(CONFIGURATION.format(**values, connections=CONNECTIONS, more=more))
        # The shell kills PgBouncer when its standard input closes, at the latest when this process ends.
        shell = f'"{program}" "{configuration}" </dev/null >"{log}" 2>&1 & cat >/dev/null; kill -KILL $!; wait'
        command = ["/bin/sh", "-c", shell]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
            when_ready("PgBouncer", log, lambda: fill(pooled))
            yield Pooler(pooled, version.splitlines()[0])


def of_docker(settings: Settings) -> Pooler:
    """Return the PgBouncer of the compose file; raises UnavailableError if its profile is not up."""
    pooled = docker.pooled(settings)
    try:
        fill(pooled)
    except psycopg.OperationalError:
        raise UnavailableError("PgBouncer is not up: COMPOSE_PROFILES=pgbouncer make all SERVERS=docker") from None
    return Pooler(pooled, "PgBouncer of docker-compose.yml")


def fill(pooled: PostgresServer) -> None:
    """Open all connections of the pool and deallocate their prepared statements.

    Drivers number their statements from one: otherwise a client would use another client's statement of that name.
    """
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(psycopg.connect(pooled.dsn())).execute("DEALLOCATE ALL")


def _main(certificate_path: str, postgres: str, *ports: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if certificate_path else None
    if context is not None:
        context.load_cert_chain(certificate_path)
    with _Network([int(port) for port in ports], context, int(postgres)) as relay:
        print(*relay.ports, flush=True)
        for line in sys.stdin:
            relay.delay_s, relay.bytes_per_s = map(float, line.split())
            print("set", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
