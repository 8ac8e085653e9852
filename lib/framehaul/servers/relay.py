"""Put a relay, a network's delay and rate, TLS or PgBouncer between clients and servers on loopback.

Wire bytes are counted on the discarded warm-up pass, whose connections run through a `Relay`. Timed passes run through
a relay only where networks are compared, and then in a process of its own.

`python -m framehaul.servers.relay CERTIFICATE POSTGRES_PORT PORT...` listens on a loopback port for each port of a
server, and prints the new ports in one line. Each line `DELAY_S BYTES_PER_S` on standard input sets delay and rate; the
answer is one line. The process ends when its standard input closes. Opening a connection takes no round trip, because
TCP connections end in the process.
"""

import asyncio
import contextlib
import os
import re
import selectors
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import ClickHouseServer, PostgresServer, Server
from framehaul.servers.local import ACCOUNT_FOR_ROOT, choose_port, give, when_ready, write_private

CHUNK_BYTES = 1 << 16
WINDOW_BYTES = 4 << 20
"""Maximum bytes of a connection in transit: about the limit of a receiver's window on Linux (tcp_rmem)."""
TLS_REQUEST, TLS_ACCEPTED = (8).to_bytes(4) + (80877103).to_bytes(4), b"S"
"""PostgreSQL's SSLRequest and its answer: https://www.postgresql.org/docs/18/protocol-message-formats.html"""
POOLED_CONNECTIONS = 4  # minimum, in the pool of PgBouncer

type Address = tuple[str, int]


class Relay:
    """Listen on a loopback port for each target `(host, port)` and forward every connection there.

    As a context manager the relay runs in its own thread, which ends with the block and closes all connections.
    Subclasses override `_lets_through`.
    """

    _new_loop: Callable[[], asyncio.AbstractEventLoop] = staticmethod(asyncio.new_event_loop)

    def __init__(self, *targets: Address) -> None:
        self.ports: list[int] = []
        self.total_bytes = 0
        self.connections = 0
        """Number of connections accepted so far."""
        self._targets = targets
        self._tls: dict[Address, ssl.SSLContext | None] = {}
        """TLS contexts of targets whose clients begin with TLS."""
        self._listeners: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._loop = self._new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run[T](self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end_connections(self) -> None:
        """Shut down every open connection; later connections are forwarded as before."""
        self._loop.call_soon_threadsafe(self._shut, socket.SHUT_RDWR)

    async def _listen(self) -> None:
        for target in self._targets:
            serve, tls = partial(self._serve, target), self._tls.get(target)
            listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
            self._listeners.append(listener)
            self.ports.append(listener.sockets[0].getsockname()[1])

    async def _finish(self) -> None:
        for sock in [sock for listener in self._listeners for sock in listener.sockets]:
            self._loop.remove_reader(sock)  # close() fails for connections accepted in the same iteration of the loop
        await asyncio.sleep(0.01)  # until connections that were just accepted are served, and can be cancelled
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        await asyncio.sleep(0)  # asyncio closes the sockets in the next iteration

    def _shut(self, how: int) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):  # it has ended already
                connection.get_extra_info("socket").shutdown(how)

    async def _serve(self, target: Address, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Forward both directions until both end; close the client's connection if the target does not accept."""
        self.connections += 1  # before the client gets any answer
        with self._registered(to_client), contextlib.suppress(OSError, asyncio.CancelledError):
            server, to_server = await asyncio.open_connection(*target)
            with self._registered(to_server):
                async with asyncio.TaskGroup() as directions:  # if one fails, the other is cancelled
                    directions.create_task(self._forward(client, to_server, from_client=True))
                    directions.create_task(self._forward(server, to_client, from_client=False))
                for sink in (to_client, to_server):
                    sink.close()
                    await sink.wait_closed()

    @contextmanager
    def _registered(self, connection: asyncio.StreamWriter) -> Iterator[None]:
        """Keep a connection in `_open` while the block lasts, then close it."""
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)
            connection.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool) -> None:
        while chunk := await source.read(CHUNK_BYTES):
            self.total_bytes += len(chunk)
            if await self._lets_through(len(chunk), from_client=from_client):
                sink.write(chunk)
                await sink.drain()
        self._write_end(sink)

    def _write_end(self, sink: asyncio.StreamWriter) -> None:
        """Half-close a connection; TLS cannot, so the whole connection ends."""
        if not sink.can_write_eof():
            raise ConnectionResetError
        sink.write_eof()

    async def _lets_through(self, count: int, *, from_client: bool) -> bool:  # noqa: ARG002  subclasses use them
        """Return whether to forward a chunk of `count` bytes; raises OSError to cut the connection."""
        return True


@contextmanager
def relayed[R: Relay](server: Server, kind: Callable[..., R]) -> Iterator[tuple[Server, R | None]]:
    """Yield the server's address behind a relay of this kind, with the relay.

    Yields the server itself and None if it cannot be relayed: TLS or `hostaddr` binds the connection to the host, and a
    Unix socket has no port.
    """
    if isinstance(server, ClickHouseServer):
        if server.secure:
            yield server, None
            return
        with kind((server.host, server.http_port), (server.host, server.native_port)) as relay:
            yield replace(server, host="127.0.0.1", http_port=relay.ports[0], native_port=relay.ports[1]), relay
    elif server.over_socket or any(key.startswith(("ssl", "hostaddr")) for key, _ in server.options):
        yield server, None
    else:
        with kind((server.host, server.port)) as relay:
            yield replace(server, host="127.0.0.1", port=relay.ports[0]), relay


class Link(NamedTuple):
    """A network between a client and a server."""

    name: str
    rtt_ms: float = 0.0
    mbit_per_s: float = 0.0
    """The rate of each direction, shared by all connections; 0 is no limit."""


def certificate(directory: Path) -> Path:
    """Return the path of a new authority, next to `server.pem`: a certificate of it for 127.0.0.1, with the key."""
    try:
        import trustme
    except ImportError:
        remedy = "uv sync --extra network, or pip install 'framehaul[network]'"
        raise UnavailableError(f"trustme, which makes certificates, is not installed: {remedy}") from None
    authority, path = trustme.CA(), directory / "authority.pem"
    authority.cert_pem.write_to_path(str(path))
    made = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    write_private(path.with_name("server.pem"), made.bytes().decode())
    return path


class Relaying(NamedTuple):
    """A relay process and its port for each port of a server."""

    process: subprocess.Popen[bytes]
    ports: dict[int, int]

    def use(self, link: Link) -> None:
        """Apply a network's delay and rate from now on; raises BrokenPipeError if the process has ended."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{link.rtt_ms / 2000} {link.mbit_per_s * 1e6 / 8}\n".encode())
        self.process.stdout.readline()


@contextmanager
def relaying(*ports: int, authority: Path | None = None, postgres: int = 0) -> Iterator[Relaying]:
    """Run a relay process for loopback ports while the block lasts; with an authority its clients use TLS.

    Clients of the port `postgres` request TLS by PostgreSQL's protocol. Raises ServerError if the process cannot start.
    """
    options = [authority.with_name("server.pem") if authority else "", postgres, *ports]
    command, pipe = [sys.executable, "-m", __name__, *map(str, options)], subprocess.PIPE
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
        self._tls = dict.fromkeys(self._targets, tls)
        self._tls_on_request = {target: self._tls.pop(target) for target in self._targets if target[1] == postgres}
        self._free_at = {True: 0.0, False: 0.0}

    async def _serve(self, target: Address, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if context := self._tls_on_request.get(target):
            try:
                if await client.readexactly(len(TLS_REQUEST)) != TLS_REQUEST:
                    raise ConnectionAbortedError
                to_client.write(TLS_ACCEPTED)
                await to_client.start_tls(context)
            except (OSError, EOFError):
                to_client.transport.abort()
                return
        await super()._serve(target, client, to_client)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool) -> None:
        in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW_BYTES // CHUNK_BYTES)

        async def deliver() -> None:
            while True:
                due, chunk = await in_transit.get()
                await asyncio.sleep(due - time.perf_counter())
                if not chunk:
                    return self._write_end(sink)
                sink.write(chunk)
                await sink.drain()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            chunk = b"."
            while chunk:
                chunk = await source.read(CHUNK_BYTES)
                leaves = time.perf_counter()
                if self.bytes_per_s:
                    leaves = max(leaves, self._free_at[from_client]) + len(chunk) / self.bytes_per_s
                    self._free_at[from_client] = leaves
                await in_transit.put((leaves + self.delay_s, chunk))


class Pooler(NamedTuple):
    """A PgBouncer with its address and version."""

    server: PostgresServer
    version: str


@contextmanager
def pooling(server: PostgresServer) -> Iterator[Pooler]:
    """Run PgBouncer in front of a server on this machine; raises UnavailableError if it is not installed."""
    program = shutil.which("pgbouncer")
    if program is None:
        raise UnavailableError("PgBouncer is not on the PATH: install the package pgbouncer (apt, dnf, brew)")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="framehaul-pgbouncer-") as name:
        users, configuration, log = (Path(name) / file for file in ("users.txt", "pgbouncer.ini", "log"))
        write_private(users, f'"{server.user}" "{server.password}"\n')
        pooled, options = replace(server, port=choose_port()), []
        # PgBouncer tracks prepared statements by default since 1.24: https://www.pgbouncer.org/changelog.html
        if [int(part) for part in re.findall(r"\d+", version)[:2]] >= [1, 21]:
            options = ["max_prepared_statements = 0"]
        if os.geteuid() == 0:  # PgBouncer refuses to run as root
            options.append(f"user = {ACCOUNT_FOR_ROOT}")
        for path in (Path(name), users):
            give(path)
        # Other settings are PgBouncer's defaults: https://www.pgbouncer.org/config.html. By default, a single client
        # gets the same connection for each transaction; here each gets the next one, unchecked, as in a busy pool.
        options += ["pool_mode = transaction", "server_round_robin = 1", "server_check_delay = 86400"]
        options += [f"min_pool_size = {POOLED_CONNECTIONS}", "auth_type = scram-sha-256", f"auth_file = {users}"]
        options += ["listen_addr = 127.0.0.1", f"listen_port = {pooled.port}", "unix_socket_dir ="]
        database = f"{server.database} = host=127.0.0.1 port={server.port}"
        configuration.write_text("\n".join(["[databases]", database, "[pgbouncer]", *options, ""]))
        # The shell kills PgBouncer when its standard input closes, at the latest when this process ends.
        shell = f'"{program}" "{configuration}" </dev/null >"{log}" 2>&1 & cat >/dev/null; kill -KILL $!; wait'
        command = ["/bin/sh", "-c", shell]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
            when_ready("PgBouncer", log, lambda: fill(pooled))
            yield Pooler(pooled, version.splitlines()[0])


def fill(pooled: PostgresServer) -> None:
    """Open all connections of the pool and deallocate their prepared statements.

    Drivers number their statements from one: otherwise a client would use another client's statement of that name.
    """
    with ExitStack() as stack:
        for _ in range(POOLED_CONNECTIONS):
            stack.enter_context(psycopg.connect(pooled.dsn())).execute("DEALLOCATE ALL")


if __name__ == "__main__":
    certificate_path, postgres_port, *plain_ports = sys.argv[1:]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH) if certificate_path else None
    if context is not None:
        context.load_cert_chain(certificate_path)
    with _Network([int(port) for port in plain_ports], context, int(postgres_port)) as network:
        print(*network.ports, flush=True)
        for line in sys.stdin:
            network.delay_s, network.bytes_per_s = map(float, line.split())
            print("set", flush=True)
