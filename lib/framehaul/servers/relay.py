"""A relay that counts the bytes between a client and a server, whatever driver or protocol they speak.

Wire bytes are counted on the discarded warm-up pass, whose connections run through a relay; timed passes never do.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from framehaul.servers import ClickHouseServer, PostgresServer

CHUNK_BYTES = 1 << 18
CONNECT_SECONDS = 10
"""How long a target may take to accept a connection."""
GRACE_SECONDS = 1
"""How long what has arrived may take to be passed on when the relay ends."""
POLL_SECONDS = 0.5
"""How often a listener looks whether the relay is over: not every system lets it be woken."""


class Relay:
    """Listens on a loopback port of its own for each target `(host, port)` and forwards every connection there.

    When the block ends, what has arrived is counted and passed on; after it no thread and no socket is left.
    """

    def __init__(self, *targets: tuple[str, int]) -> None:
        self._listeners = {socket.create_server(("127.0.0.1", 0)): target for target in targets}
        self.ports: list[int] = [listener.getsockname()[1] for listener in self._listeners]
        self.total_bytes = 0
        self.connections = 0
        """How many were accepted so far."""
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._over = threading.Event()
        self._accepting = [
            threading.Thread(target=self._accept, args=pair, daemon=True) for pair in self._listeners.items()
        ]
        self._serving: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for thread in self._accepting:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for listener in self._listeners:
            _end(listener)
        for thread in self._accepting:
            thread.join()
        for listener in self._listeners:
            listener.close()
        self.end_connections(socket.SHUT_RD)
        deadline = time.monotonic() + GRACE_SECONDS
        for thread in self._serving:
            thread.join(max(0, deadline - time.monotonic()))
        self.end_connections()  # of those whose other side takes nothing any more
        for thread in self._serving:
            thread.join()

    def _listener_of(self, client: socket.socket) -> int:
        """Which of the targets a client came for."""
        return self.ports.index(client.getsockname()[1])

    def end_connections(self, how: int = socket.SHUT_RDWR) -> None:
        """End every connection that is open; further ones are forwarded as before."""
        with self._lock:  # none of them is closed meanwhile, and its number given to another
            for connection in self._open:
                _end(connection, how)

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        listener.settimeout(POLL_SECONDS)
        while not self._over.is_set():
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # the relay is over; or there is no file descriptor left, for now
                self._over.wait(POLL_SECONDS)
                continue
            with self._lock:
                self.connections += 1  # before anybody is answered
            thread = threading.Thread(target=self._serve, args=(client, target), daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads are to be had
                client.close()
                continue
            with self._lock:
                self._serving = [*filter(threading.Thread.is_alive, self._serving), thread]

    def _serve(self, client: socket.socket, target: tuple[str, int]) -> None:
        """Forward both ways until both have ended; the client of a target that is not there sees its own end."""
        with (
            self._kept(client),
            contextlib.suppress(OSError),
            self._kept(socket.create_connection(target, CONNECT_SECONDS)) as server,
        ):
            server.settimeout(None)
            for connection in (client, server):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._over.is_set():  # and nobody ends what was opened after that
                return
            back = threading.Thread(target=self._forward, args=(server, client), daemon=True)
            back.start()
            try:
                self._forward(client, server, from_client=True)
            finally:
                back.join()

    @contextmanager
    def _kept(self, connection: socket.socket) -> Iterator[socket.socket]:
        """The connection among those that are open, for as long as the block lasts; then it is closed."""
        with connection:
            with self._lock:
                self._open.add(connection)
            try:
                yield connection
            finally:
                with self._lock:
                    self._open.remove(connection)

    def _forward(self, source: socket.socket, sink: socket.socket, *, from_client: bool = False) -> None:
        try:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            while count := self._receive(source, buffer, from_client=from_client):
                with self._lock:
                    self.total_bytes += count
                if self._lets_through(count, from_client=from_client):
                    sink.sendall(buffer[:count])
            self._pass_end(sink)
        except BaseException as error:
            _end(source)  # either side is gone: so is the connection
            _end(sink)
            if not isinstance(error, OSError):
                raise

    def _receive(self, source: socket.socket, buffer: memoryview, *, from_client: bool) -> int:  # noqa: ARG002  as below
        """How many bytes have come into the buffer; none where one side has sent its last."""
        return source.recv_into(buffer)

    def _pass_end(self, sink: socket.socket) -> None:
        """Tell one side that the other has sent its last."""
        sink.shutdown(socket.SHUT_WR)

    def _lets_through(self, count: int, *, from_client: bool) -> bool:  # noqa: ARG002  for relays that interfere
        """Whether these bytes go on; raises OSError to cut the connection."""
        return True


@contextmanager
def relayed[R: Relay](
    server: PostgresServer | ClickHouseServer, kind: Callable[..., R]
) -> Iterator[tuple[PostgresServer | ClickHouseServer, R | None]]:
    """The server as it is reached through a relay of this kind, or, where it cannot be, as it is and None.

    It cannot be when encryption binds the connection to its host name, nor when it is a Unix socket.
    """
    if isinstance(server, PostgresServer):
        if server.over_socket or any(key.startswith("ssl") for key, _ in server.options):
            yield server, None
        else:
            with kind((server.host, server.port)) as relay:
                yield server.through(*relay.ports), relay
    elif server.secure:
        yield server, None
    else:
        with kind((server.host, server.http_port), (server.host, server.native_port)) as relay:
            yield server.through(*relay.ports), relay


def _end(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Wake whoever waits on the connection; its owner closes it."""
    with contextlib.suppress(OSError):  # it has ended already, or is a listener, which not every system shuts down
        connection.shutdown(how)
