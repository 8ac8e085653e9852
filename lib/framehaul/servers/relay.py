"""Relay connections between clients and servers and count their bytes, for any driver and protocol.

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
from dataclasses import replace
from functools import partial
from typing import Any, Self

from framehaul.servers import ClickHouseServer, Server

CHUNK_BYTES = 1 << 18

type Address = tuple[str, int]
"""A host and a port."""


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
            serve = partial(self._serve, target)
            listener = await asyncio.start_server(serve, "127.0.0.1", 0, limit=CHUNK_BYTES, ssl=self._tls.get(target))
            self._listeners.append(listener)
            self.ports.append(listener.sockets[0].getsockname()[1])

    async def _finish(self) -> None:
        for listener in self._listeners:
            # asyncio's close() fails for connections that are accepted in the same iteration of the loop.
            for sock in listener.sockets:
                self._loop.remove_reader(sock)
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
            server, to_server = await asyncio.open_connection(*target, limit=CHUNK_BYTES)
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
