"""A relay that counts the bytes between a client and a server, whatever driver or protocol they speak.

Wire bytes are counted on the discarded warm-up pass, whose connections run through a relay; timed passes never do.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from framehaul.servers import ClickHouseServer, PostgresServer

CHUNK_BYTES = 1 << 18
CONNECT_SECONDS = 10
"""How long a target may take to accept a connection."""
GRACE_SECONDS = 1
"""How long what has arrived may take to be passed on when the relay ends."""
POLL_SECONDS = 0.05


class Relay:
    """Listens on a loopback port of its own for each target `(host, port)` and forwards every connection there.

    As a context manager it runs in a thread of its own. When the block ends, what has arrived is counted and passed on;
    after it no thread and no socket is left.
    """

    def __init__(self, *targets: tuple[str, int]) -> None:
        self.ports: list[int] = []
        self.total_bytes = 0
        self.connections = 0
        """How many were accepted so far."""
        self._targets = targets
        self._listeners: list[asyncio.Server] = []
        self._open: set[asyncio.StreamWriter] = set()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self.listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the relay's thread, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end_connections(self) -> None:
        """End every connection that is open; further ones are forwarded as before."""

        async def end() -> None:
            self._shut(socket.SHUT_RDWR)

        self._run(end())

    async def listen(self) -> None:
        """Begin to listen, in the event loop that runs."""
        for target in self._targets:
            serve = partial(self._serve, target)
            listener = await asyncio.start_server(serve, "127.0.0.1", 0, limit=CHUNK_BYTES, ssl=self._tls_of(target))
            self._listeners.append(listener)
            self.ports.append(listener.sockets[0].getsockname()[1])

    async def _finish(self) -> None:
        for listener in self._listeners:  # which is closed when all that it has accepted is served
            for sock in listener.sockets:
                self._loop.remove_reader(sock)
        left, deadline = self._working(), self._loop.time() + GRACE_SECONDS
        while left and self._loop.time() < deadline:
            self._shut(socket.SHUT_RD)  # also of what was accepted just now
            await asyncio.wait(left, timeout=POLL_SECONDS)
            left = self._working()
        for task in left:  # of those whose other side takes nothing any more
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        await asyncio.sleep(0)  # for sockets to be closed

    @staticmethod
    def _working() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - {asyncio.current_task()}

    def _shut(self, how: int) -> None:
        for connection in self._open:
            with contextlib.suppress(OSError):  # it has ended already
                connection.get_extra_info("socket").shutdown(how)

    def _tls_of(self, target: tuple[str, int]) -> ssl.SSLContext | None:  # noqa: ARG002  for relays that have TLS
        """With what clients of a target speak TLS from their first byte on."""
        return None

    async def _serve(
        self, target: tuple[str, int], client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        """Forward both ways until both have ended; the client of a target that is not there sees its own end."""
        self.connections += 1  # before anybody is answered
        with self._kept(to_client), contextlib.suppress(OSError, asyncio.CancelledError):
            async with asyncio.timeout(CONNECT_SECONDS):
                server, to_server = await asyncio.open_connection(*target, limit=CHUNK_BYTES)
            with self._kept(to_server):
                async with asyncio.TaskGroup() as ways:  # where one fails, so does the other
                    ways.create_task(self._forward(client, to_server, from_client=True))
                    ways.create_task(self._forward(server, to_client, from_client=False))
                for sink in (to_client, to_server):
                    sink.close()
                    await sink.wait_closed()

    @contextmanager
    def _kept(self, connection: asyncio.StreamWriter) -> Iterator[None]:
        """The connection is among those that are open, for as long as the block lasts; then it is closed."""
        self._open.add(connection)
        try:
            yield
        finally:
            self._open.discard(connection)
            connection.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, from_client: bool) -> None:
        while piece := await source.read(CHUNK_BYTES):
            self.total_bytes += len(piece)
            if await self._lets_through(len(piece), from_client=from_client):
                sink.write(piece)
                await sink.drain()
        self._pass_end(sink)

    def _pass_end(self, sink: asyncio.StreamWriter) -> None:
        """Tell one side that the other has sent its last."""
        if not sink.can_write_eof():  # TLS has no half of a connection: its end is the end
            raise ConnectionResetError
        sink.write_eof()

    async def _lets_through(self, count: int, *, from_client: bool) -> bool:  # noqa: ARG002  for relays that interfere
        """Whether so many bytes go on; raises OSError to cut the connection."""
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
