"""What stands between a client and a server on loopback: a network's delay and rate, or the end of TLS.

`python -m framehaul.servers.network OPTIONS` listens on a loopback port of its own for each port of a server, and
prints those ports in a line. Each line on its standard input is `DELAY_S BYTES_PER_S`, or empty; it answers with the
bytes that it has carried so far. It ends with its standard input. TCP ends in it and begins anew, so that opening a
connection takes no round trip.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers.relay import Relay
from framehaul.servers.secret import write_private

PIECE_BYTES = 1 << 16
WINDOW_BYTES = 4 << 20
"""How much of a connection is on its way at most: about what Linux lets a receiver's window grow to (tcp_rmem)."""
HANDSHAKE_SECONDS = 30
TLS_WANTED, TLS_THERE = (8).to_bytes(4) + (80877103).to_bytes(4), b"S"
"""SSLRequest and its answer: https://www.postgresql.org/docs/18/protocol-message-formats.html"""


@dataclass(frozen=True)
class Link:
    """A network between a client and a server."""

    name: str
    rtt_ms: float = 0.0
    mbit_per_s: float = 0.0
    """The rate of each direction, which all connections share; 0: no limit."""


@dataclass(frozen=True)
class Certificate:
    """A certificate of 127.0.0.1 with its key, and the authority that clients trust: paths of PEM files."""

    authority: Path
    server: Path


def certificate(directory: Path) -> Certificate:
    """Make a new authority and a certificate in a directory; raises UnavailableError without trustme."""
    try:
        import trustme
    except ImportError:
        raise UnavailableError(
            "trustme, which makes certificates, is not installed: uv sync --extra network, or "
            "pip install 'framehaul[network]'"
        ) from None
    authority = trustme.CA()
    made = Certificate(directory / "authority.pem", directory / "server.pem")
    authority.cert_pem.write_to_path(str(made.authority))
    write_private(made.server, authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.bytes().decode())
    return made


class Relaying:
    """The process, as it is seen from the one that started it; `relaying` gives one."""

    def __init__(self, process: subprocess.Popen[bytes], ports: dict[int, int]) -> None:
        self._process, self._ports = process, ports
        self.process_id = process.pid

    def port(self, port: int) -> int:
        """The port at which a server's port is reached."""
        return self._ports[port]

    def use(self, link: Link) -> None:
        """Delay and limit what comes from now on."""
        self._ask(f"{link.rtt_ms / 2000} {link.mbit_per_s * 1e6 / 8}")

    def carried_bytes(self) -> int:
        """How many bytes have been carried so far, both ways."""
        return self._ask("")

    def _ask(self, line: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
        answer = self._process.stdout.readline()
        if not answer:
            raise ServerError(f"what stands in place of a network has ended, with status {self._process.wait()}")
        return int(answer)


@contextmanager
def relaying(*ports: int, made: Certificate | None = None, postgres: int | None = None) -> Iterator[Relaying]:
    """A process before these loopback ports, while the block lasts; with a certificate its clients speak TLS.

    Clients of the port `postgres` ask for TLS in PostgreSQL's way first. Raises ServerError where it does not start.
    """
    options = {"ports": ports, "certificate": str(made.server) if made else None, "postgres": postgres}
    with subprocess.Popen(
        [sys.executable, "-m", "framehaul.servers.network", json.dumps(options)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        listening = [int(port) for port in process.stdout.readline().split()]
        if len(listening) != len(ports):
            raise ServerError(f"what stands in place of a network did not start: status {process.wait()}")
        yield Relaying(process, dict(zip(ports, listening, strict=True)))


class _Network(Relay):
    """A relay with a delay and a rate, before which its clients may speak TLS."""

    def __init__(self, ports: list[int], tls: ssl.SSLContext | None, postgres: int | None) -> None:
        super().__init__(*(("127.0.0.1", port) for port in ports))
        self.delay_s = self.bytes_per_s = 0.0
        self._tls, self._postgres = tls, postgres
        self._free_at = {True: 0.0, False: 0.0}

    def _tls_of(self, target: tuple[str, int]) -> ssl.SSLContext | None:
        return None if target[1] == self._postgres else self._tls

    async def _serve(
        self, target: tuple[str, int], client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        if self._tls is not None and target[1] == self._postgres:  # its client asks for TLS first
            try:
                if await client.readexactly(len(TLS_WANTED)) != TLS_WANTED:
                    raise ConnectionAbortedError
                to_client.write(TLS_THERE)
                await to_client.start_tls(self._tls, ssl_handshake_timeout=HANDSHAKE_SECONDS)
            except (OSError, EOFError):
                to_client.transport.abort()
                return
        await super()._serve(target, client, to_client)

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool) -> None:
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW_BYTES // PIECE_BYTES)

        async def send() -> None:
            while True:
                due, piece = await on_the_way.get()
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                if not piece:
                    break
                sink.write(piece)
                await sink.drain()
            self._pass_end(sink)

        async with asyncio.TaskGroup() as both:
            both.create_task(send())
            piece = b"."
            while piece:
                piece = await source.read(PIECE_BYTES)
                await on_the_way.put((self._due(len(piece), from_client=from_client), piece))

    def _due(self, count: int, *, from_client: bool) -> float:
        """When so many bytes that have just come are on the other side."""
        self.total_bytes += count
        leaves = time.perf_counter()
        if self.bytes_per_s:
            leaves = max(leaves, self._free_at[from_client]) + count / self.bytes_per_s
            self._free_at[from_client] = leaves
        return leaves + self.delay_s


async def _main(options: str) -> None:
    wanted, context = json.loads(options), None
    if wanted["certificate"]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(wanted["certificate"])
    relay = _Network(wanted["ports"], context, wanted["postgres"])
    await relay.listen()
    print(*relay.ports, flush=True)

    def obey() -> None:
        for line in sys.stdin:
            if line.strip():
                relay.delay_s, relay.bytes_per_s = map(float, line.split())
            print(relay.total_bytes, flush=True)

    await asyncio.to_thread(obey)
    os._exit(0)  # whatever its connections do


if __name__ == "__main__":
    # Not epoll, whose timeouts are whole milliseconds.
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector())) as runner:
        runner.run(_main(sys.argv[1]))
