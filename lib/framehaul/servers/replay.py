"""What a server sent to a client, kept and sent again: a client's work without a server's noise.

A conversation is kept connection by connection, as a relay sees it: what the server sent, and how much the client had
sent before. Sent again, each part waits until the client has sent as much. Of PostgreSQL that is counted in messages,
for the name of a statement may be longer the next time, and the login is left out, which is another one each time:
whoever asks is let in. Of ClickHouse it is counted in bytes.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from framehaul.servers import PostgresServer, Server
from framehaul.servers.relay import CHUNK_BYTES, Relay

ENCRYPTION = {80877103, 80877104}
"""What a client of PostgreSQL sends in place of a version to ask for TLS, or for GSSAPI.
https://www.postgresql.org/docs/18/protocol-message-formats.html"""
CANCEL = 80877102
LET_IN = b"R" + struct.pack("!II", 8, 0)
LOGIN = ord("p")
TERMINATE = ord("X")
RUNS = {ord("Q"), ord("E")}
"""Messages that run a statement: a simple query, and a prepared one's execution."""
BEGINNING_BYTES = 4096
"""So much of what a client says first tells its connections apart."""
PATIENCE_SECONDS = 60
"""How long a client that is answered from memory may say nothing."""


class ReplayError(RuntimeError):
    """A conversation cannot be had again; the message says why."""


@dataclass
class Conversation:
    """One connection to one of the targets: each part that the server sent, with how much the client had sent then."""

    listener: int
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    beginning: bytes = b""
    """What the client said first, after its login."""
    sent: int = 0
    """How much it sent: messages to PostgreSQL, bytes to ClickHouse."""


class Counts(NamedTuple):
    """What went over the wire, logins included."""

    bytes_sent: int
    bytes_received: int
    round_trips: int
    """How often the client sent something after an answer, or at first."""
    statements: int | None
    """How many PostgreSQL ran; of ClickHouse it is not known."""


class _Messages:
    """Messages of PostgreSQL as they come in pieces: how many are whole, and of which types."""

    def __init__(self) -> None:
        self._held = bytearray()
        self.types: list[int] = []

    def feed(self, piece: bytes) -> None:
        self._held += piece
        at, size = 0, len(self._held)
        while size - at >= 5:  # noqa: PLR2004  a type and a length
            end = at + 1 + int.from_bytes(self._held[at + 1 : at + 5])
            if end > size:
                break
            self.types.append(self._held[at])
            at = end
        del self._held[:at]


class Recorder(Relay):
    """A relay that keeps all that passes, in its order, by connection."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self._events: dict[socket.socket, list[tuple[bool, bytes]]] = {}
        self._of: dict[socket.socket, list[tuple[bool, bytes]]] = {}
        self._listener_of: dict[int, int] = {}

    def _forward(self, source: socket.socket, sink: socket.socket, *, from_client: bool = False) -> None:
        client = source if from_client else sink
        with self._lock:
            self._of[source] = self._events.setdefault(client, [])
            self._listener_of[id(self._events[client])] = self.ports.index(client.getsockname()[1])
        super()._forward(source, sink, from_client=from_client)

    def _receive(self, source: socket.socket, buffer: memoryview, *, from_client: bool) -> int:
        count = super()._receive(source, buffer, from_client=from_client)
        if count:
            with self._lock:  # an answer stands behind what it answers, for it is kept before it goes on
                self._of[source].append((from_client, bytes(buffer[:count])))
        return count

    def conversations(self, server: Server) -> list[Conversation]:
        """What was said so far, in the order of the connections; raises ReplayError for what cannot be said again."""
        with self._lock:
            kept = [(self._listener_of[id(events)], [*events]) for events in self._events.values()]
        made = _postgres if isinstance(server, PostgresServer) else _in_bytes
        return [made(listener, events) for listener, events in kept if events]

    def counts(self, server: Server) -> Counts:
        """What went over the wire so far."""
        with self._lock:
            kept = [[*events] for events in self._events.values()]
        sent, received = (
            sum(len(piece) for events in kept for client, piece in events if client is which) for which in (True, False)
        )
        trips = sum(
            client and (at == 0 or not events[at - 1][0]) for events in kept for at, (client, _) in enumerate(events)
        )
        statements = None
        if isinstance(server, PostgresServer):
            statements = sum(one in RUNS for events in kept for one in _types(events))
        return Counts(sent, received, trips, statements)


def _types(events: list[tuple[bool, bytes]]) -> list[int]:
    """The types of a client's messages after its start-up."""
    messages = _Messages()
    _, rest = _after_startup(b"".join(piece for client, piece in events if client))
    messages.feed(rest)
    return messages.types


def _after_startup(said: bytes) -> tuple[int, bytes]:
    """How many bytes a client's start-up takes, requests for encryption included, and what follows it."""
    at = 0
    while len(said) - at >= 8:  # noqa: PLR2004  a length and a number
        length, number = struct.unpack_from("!II", said, at)
        at += length
        if number not in ENCRYPTION:
            break
    return at, said[at:]


def _postgres(listener: int, events: list[tuple[bool, bytes]]) -> Conversation:
    """A conversation from where the server lets the client in."""
    found = Conversation(listener)
    startup, _ = _after_startup(b"".join(piece for client, piece in events if client))
    messages, behind, before, let_in = _Messages(), startup, b"", False
    for client, piece in events:
        if client:
            said, behind = piece[behind:], max(0, behind - len(piece))
            messages.feed(said)
            if let_in and len(found.beginning) < BEGINNING_BYTES:
                found.beginning += said
        elif let_in:
            found.answers.append((sum(one != LOGIN for one in messages.types), piece))
        else:
            before += piece
            if (at := before.find(LET_IN)) >= 0:
                let_in = True
                found.answers.append((0, before[at:]))
    if not let_in:
        raise ReplayError("the server let nobody in, or the connection is encrypted")
    found.sent = sum(one != LOGIN for one in messages.types)
    return found


def _in_bytes(listener: int, events: list[tuple[bool, bytes]]) -> Conversation:
    found = Conversation(listener)
    for client, piece in events:
        if client:
            found.sent += len(piece)
            found.beginning += piece[: BEGINNING_BYTES - len(found.beginning)]
        else:
            found.answers.append((found.sent, piece))
    return found


class Replayer:
    """Listens on a loopback port for each target of a recorder and has the conversations that it kept, again and again.

    A connection is taken for that which began alike, and was had the fewest times. `failures` are clients that ended,
    or fell silent, before they had sent what was kept.
    """

    def __init__(self, server: Server, conversations: list[Conversation]) -> None:
        if not conversations:
            raise ReplayError("nothing passed the relay: the client keeps its own connection")
        self._postgres = isinstance(server, PostgresServer)
        self._kept, self._had = conversations, [0] * len(conversations)
        self._listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 if self._postgres else 2)]
        self.ports = [listener.getsockname()[1] for listener in self._listeners]
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads = [
            threading.Thread(target=self._accept, args=pair, daemon=True) for pair in enumerate(self._listeners)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End all connections; nothing listens any more."""
        for each in self._listeners:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in [*self._threads]:
            thread.join()

    def _accept(self, which: int, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # it is closed
                return
            thread = threading.Thread(target=self._serve, args=(client, which), daemon=True)
            with self._lock:
                self._open.add(client)
                thread.start()
                self._threads = [*filter(threading.Thread.is_alive, self._threads), thread]

    def _serve(self, client: socket.socket, which: int) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(PATIENCE_SECONDS)
        try:
            with client:
                self._converse(client, which)
        except TimeoutError:
            self.failures.append(f"the client said nothing for {PATIENCE_SECONDS} s where it had gone on before")
        except OSError as error:
            self.failures.append(f"the client left: {error}")
        finally:
            with self._lock:
                self._open.discard(client)

    def _converse(self, client: socket.socket, which: int) -> None:
        said, messages, count, at = b"", _Messages(), 0, 0
        if self._postgres:
            if not _welcomed(client):
                return
            client.sendall(b"".join(piece for behind, piece in self._kept[0].answers if not behind))
        found: Conversation | None = None
        buffer = bytearray(CHUNK_BYTES)
        while received := client.recv_into(buffer):
            piece = bytes(memoryview(buffer)[:received])
            if self._postgres:
                messages.feed(piece)
                count = sum(one != LOGIN for one in messages.types)
            else:
                count += received
            if found is None:
                said += piece
                found = self._like(said, which)
                at = sum(not behind for behind, _ in found.answers)
            while at < len(found.answers) and found.answers[at][0] <= count:
                client.sendall(found.answers[at][1])
                at += 1
            if TERMINATE in messages.types[-1:]:  # the server hangs up, and some clients wait for that
                break
        if found and at < len(found.answers):
            unit = "messages" if self._postgres else "bytes"
            self.failures.append(f"the client sent {count:,} {unit}, where it had sent {found.sent:,}")

    def _like(self, beginning: bytes, which: int) -> Conversation:
        """The conversation that began so."""
        with self._lock:
            among = [at for at, one in enumerate(self._kept) if one.listener == which] or [*range(len(self._kept))]
            best = max(among, key=lambda at: (-self._had[at], _alike(beginning, self._kept[at].beginning), -at))
            self._had[best] += 1
            return self._kept[best]


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two beginnings share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _welcomed(client: socket.socket) -> bytes:
    """A client's start-up, without any encryption that it asks for; nothing where it wants no conversation."""
    while True:
        head = _exactly(client, 8)
        if len(head) < 8:  # noqa: PLR2004  a length and a number
            return b""
        length, number = struct.unpack("!II", head)
        rest = _exactly(client, length - 8)
        if number == CANCEL:
            return b""
        if number not in ENCRYPTION:
            return head + rest
        client.sendall(b"N")


def _exactly(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := client.recv(count - len(found))):
        found += piece
    return found


@contextmanager
def recorded(server: Server) -> Iterator[Recorder]:
    """A recorder in front of a server; raises ReplayError where what passes cannot be read."""
    if isinstance(server, PostgresServer):
        if server.over_socket or any(key.startswith("ssl") for key, _ in server.options):
            raise ReplayError("PostgreSQL is reached over a Unix socket or TLS")
        targets = [(server.host, server.port)]
    else:
        if server.secure:
            raise ReplayError("ClickHouse is reached over TLS")
        targets = [(server.host, server.http_port), (server.host, server.native_port)]
    with Recorder(*targets) as recorder:
        yield recorder


@contextmanager
def replayed(server: Server, conversations: list[Conversation]) -> Iterator[Replayer]:
    """What answers in place of the server, as it did."""
    replayer = Replayer(server, conversations)
    try:
        yield replayer
    finally:
        replayer.close()
