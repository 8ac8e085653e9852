"""The process that ends TLS before a server; run as `python -m framehaul.servers.tls_terminator`.

Its arguments are the files of a certificate and its key, and loopback ports of servers. For each it listens on a port
of its own, on all addresses, and says which they are in a line. Before the handshake, clients of one that is given as
`postgres:PORT` ask whether there is TLS: only those that do are served. It ends with its standard input.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import sys
import threading

PIECE_BYTES = 1 << 16
RECORD_BYTES = 1 << 14
"""https://www.rfc-editor.org/rfc/rfc8446#section-5.1; what was begun is sent on with the same bytes, so in no more."""
HANDSHAKE_SECONDS = 30
TLS_WANTED, TLS_THERE = (8).to_bytes(4) + (80877103).to_bytes(4), b"S"
"""SSLRequest and its answer: https://www.postgresql.org/docs/18/protocol-message-formats.html"""


def main(certificate: str, key: str, *ports: str) -> None:
    """Serve until standard input ends."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    listeners = {socket.create_server(("", 0)): port for port in ports}
    for listener, port in listeners.items():
        kind, _, number = port.rpartition(":")
        threading.Thread(target=_accept, args=(listener, int(number), context, kind), daemon=True).start()
    print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # whatever its connections do


def _accept(listener: socket.socket, port: int, context: ssl.SSLContext, kind: str) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(client, port, context, kind), daemon=True).start()


def _serve(client: socket.socket, port: int, context: ssl.SSLContext, kind: str) -> None:
    # A client that does not trust the certificate, or speaks no TLS, sees its own end.
    with client, contextlib.suppress(OSError):
        client.settimeout(HANDSHAKE_SECONDS)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if kind == "postgres":
            if client.recv(len(TLS_WANTED), socket.MSG_WAITALL) != TLS_WANTED:
                return
            client.sendall(TLS_THERE)
        with context.wrap_socket(client, server_side=True) as secure, socket.create_connection(
            ("127.0.0.1", port), HANDSHAKE_SECONDS
        ) as plain:  # fmt: skip
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for connection in (secure, plain):
                connection.setblocking(False)
            _forward(secure, plain)


def _forward(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    """Both ways in one thread: OpenSSL lets no two use a connection at once."""
    inward, outward = (_Way(source, sink) for source, sink in ((secure, plain), (plain, secure)))
    while not (inward.over and outward.over):
        if inward.step() | outward.step():
            continue
        ways = [way for way in (inward, outward) if not way.over]
        readers = [way.waits_for_reading for way in ways if way.waits_for_reading]
        writers = [way.waits_for_writing for way in ways if way.waits_for_writing]
        select.select(readers, writers, ())


class _Way:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._space = memoryview(bytearray(PIECE_BYTES))
        self._left = self._space[:0]
        self.over = False
        self.waits_for_reading: socket.socket | None = None
        self.waits_for_writing: socket.socket | None = None

    def step(self) -> bool:
        """Read something or send something on; false where that has to wait."""
        if self.over:
            return False
        self.waits_for_reading = self.waits_for_writing = None
        using = self._sink if self._left else self._source
        try:
            if self._left:
                self._left = self._left[self._sink.send(self._left[:RECORD_BYTES]) :]
            elif count := self._source.recv_into(self._space):
                self._left = self._space[:count]
            else:
                self.over = True
                self._end()
        except ssl.SSLWantWriteError:
            self.waits_for_writing = using
            return False
        except ssl.SSLWantReadError:
            self.waits_for_reading = using
            return False
        except BlockingIOError:
            if self._left:
                self.waits_for_writing = using
            else:
                self.waits_for_reading = using
            return False
        return True

    def _end(self) -> None:
        """Nothing more comes this way; TLS has no half of a connection, so that its end is the end."""
        if isinstance(self._sink, ssl.SSLSocket):
            raise ConnectionResetError
        self._sink.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(*sys.argv[1:])
