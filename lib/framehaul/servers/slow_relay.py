"""A relay in place of a network, where no namespace is to be had: what comes is held for half the RTT, at the rate.

`python -m framehaul.servers.slow_relay PORT...` listens at a loopback port for each loopback port of a server, says in
a line which those are, and is told of networks, and ends, as `forwarder` is. TCP ends here: a connection is split in
two, acknowledged before what it carries has arrived, and never slow to start.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

from framehaul.servers.address import ClickHouseServer, PostgresServer
from framehaul.servers.forwarder import Carried
from framehaul.servers.network import Joined
from framehaul.servers.relay import Relay

PIECE_BYTES = 1 << 16
WINDOW_BYTES = 4 << 20
"""How much of a connection is on its way at most: about what Linux lets a receiver's window grow to (tcp_rmem)."""


class SlowRelay(Relay):
    """Forwards every connection late and at a rate that all of them share."""

    delay_s = bytes_per_s = 0.0

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self.carried = Carried()
        self._free_at = {True: 0.0, False: 0.0}
        self._server_spoke: dict[frozenset[int], bool] = {}

    def _forward(self, source: socket.socket, sink: socket.socket, *, from_client: bool = False) -> None:
        connection = frozenset((source.fileno(), sink.fileno()))
        if from_client:
            with self._lock:
                self.carried.round_trips += 1  # to connect
                self._server_spoke[connection] = True
        on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
        room = threading.Semaphore(WINDOW_BYTES // PIECE_BYTES)
        sender = threading.Thread(target=_send, args=(on_the_way, room, sink, source), daemon=True)
        sender.start()
        piece = b"."
        try:
            while piece:
                room.acquire()
                try:
                    piece = source.recv(PIECE_BYTES)
                except OSError:  # the other side is gone
                    piece = b""
                on_the_way.put((self._due(len(piece), connection, from_client=from_client), piece))
        finally:
            sender.join()

    def _due(self, count: int, connection: frozenset[int], *, from_client: bool) -> float:
        """When so many bytes that have just come are on the other side."""
        leaves = time.perf_counter()
        with self._lock:
            if self.bytes_per_s:
                leaves = max(leaves, self._free_at[from_client]) + count / self.bytes_per_s
                self._free_at[from_client] = leaves
            if count:
                self.carried.packets += 1
                self.carried.wire_bytes += count
                self.carried.round_trips += from_client and self._server_spoke.get(connection, False)
                self._server_spoke[connection] = not from_client
        return leaves + self.delay_s


def _send(
    on_the_way: queue.Queue[tuple[float, bytes]], room: threading.Semaphore, sink: socket.socket, source: socket.socket
) -> None:
    """Send each piece when it is due; where that fails, the connection is at its end."""
    open_ = True
    while True:
        due, piece = on_the_way.get()
        time.sleep(max(0.0, due - time.perf_counter()))
        try:
            if open_ and piece:
                sink.sendall(piece)
            elif open_:
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            open_ = False
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        room.release()
        if not piece:
            return


class Relayed(Joined):
    """The relay as it is seen from here."""

    def __init__(self, process: subprocess.Popen[bytes], ports: dict[int, int]) -> None:
        super().__init__(process)
        self._ports = ports

    def far[S: PostgresServer | ClickHouseServer](self, server: S) -> S:
        """The same server, through the relay."""
        if isinstance(server, PostgresServer):
            return replace(server, port=self._ports[server.port])
        http_port, native_port = self._ports[server.http_port], self._ports[server.native_port]
        return replace(server, http_port=http_port, native_port=native_port)

    def port(self, port: int) -> int:
        """The same port, through the relay."""
        return self._ports[port]


@contextmanager
def relayed_slowly(*ports: int) -> Iterator[Relayed]:
    """A relay to these loopback ports, for as long as the block lasts."""
    command = [sys.executable, "-m", "framehaul.servers.slow_relay", *map(str, ports)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
    ) as process:
        assert process.stdout is not None
        listening = map(int, process.stdout.readline().split())
        yield Relayed(process, dict(zip(ports, listening, strict=True)))


def main(*ports: str) -> None:
    """Relay until standard input ends."""
    with SlowRelay(*(("127.0.0.1", int(port)) for port in ports)) as relay:
        print(*relay.ports, flush=True)
        for line in sys.stdin:
            if line.strip():
                relay.delay_s, relay.bytes_per_s = map(float, line.split())
            print(json.dumps(asdict(relay.carried)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
