"""A relay that counts the bytes between a client and a server, whatever driver or protocol they speak.

Wire bytes are counted on the discarded warm-up pass, whose connections run through a relay; timed passes never do.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from framehaul.servers import ClickHouseServer, PostgresServer

CHUNK_BYTES = 1 << 18


class Relay:
    """Listens on a loopback port of its own for each target `(host, port)` and forwards every connection there."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        self._listeners = {socket.create_server(("127.0.0.1", 0)): target for target in targets}
        self.ports: list[int] = [listener.getsockname()[1] for listener in self._listeners]
        self.total_bytes = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        for listener, target in self._listeners.items():
            threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for listener in self._listeners:
            _end(listener)
        self.end_connections()
        for listener in self._listeners:
            listener.close()

    def end_connections(self) -> None:
        """End every connection that is open; further ones are forwarded as before."""
        with self._lock:
            left = list(self._open)
        for connection in left:
            _end(connection)

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # closed: the relay is over
            try:
                server = socket.create_connection(target)
            except OSError:
                client.close()  # the client sees what it would see of a server that is not there
                continue
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        """Forward both ways until both have ended."""
        with client, server:
            with self._lock:
                self._open |= {client, server}
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=self._forward, args=(server, client), daemon=True)
            back.start()
            self._forward(client, server, from_client=True)
            back.join()
            with self._lock:
                self._open -= {client, server}

    def _forward(self, source: socket.socket, sink: socket.socket, *, from_client: bool = False) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while count := source.recv_into(buffer):
                with self._lock:
                    self.total_bytes += count
                if self._lets_through(count, from_client=from_client):
                    sink.sendall(buffer[:count])
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _end(source)  # either side is gone: so is the connection
            _end(sink)

    def _lets_through(self, count: int, *, from_client: bool) -> bool:  # noqa: ARG002  for relays that interfere
        """Whether these bytes go on; raises OSError to cut the connection."""
        return True


@contextmanager
def relayed[R: Relay](
    server: PostgresServer | ClickHouseServer, kind: type[R]
) -> Iterator[tuple[PostgresServer | ClickHouseServer, R | None]]:
    """The server as it is reached through a relay of this kind, or, where it cannot be, as it is and None.

    It cannot be when encryption binds the connection to its host name, nor when it is a Unix socket.
    """
    if isinstance(server, PostgresServer):
        if server.host.startswith("/") or any(key.startswith("ssl") for key, _ in server.options):
            yield server, None
        else:
            with kind((server.host, server.port)) as relay:
                yield server.through(*relay.ports), relay
    elif server.secure:
        yield server, None
    else:
        with kind((server.host, server.http_port), (server.host, server.native_port)) as relay:
            yield server.through(*relay.ports), relay


def _end(connection: socket.socket) -> None:
    """Wake whoever waits on the connection; its owner closes it."""
    with contextlib.suppress(OSError):  # it has ended already, or is a listener, which not every system shuts down
        connection.shutdown(socket.SHUT_RDWR)
