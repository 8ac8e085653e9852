"""What a server sent to a client, kept and sent again: a client's work without a server's noise.

A conversation is kept connection by connection, as a relay sees it: what the server sent, and how much the client had
sent before. Sent again, each part waits until the client has sent as much. Of PostgreSQL that is counted in messages,
for the name of a statement may be longer the next time, and the login is left out, which is another one each time:
whoever asks is let in. Of ClickHouse it is counted in bytes.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from framehaul.servers import PostgresServer, Server
from framehaul.servers.relay import CHUNK_BYTES, Relay, relayed

ENCRYPTION = {80877103, 80877104}
"""What a client of PostgreSQL sends in place of a version to ask for TLS, or for GSSAPI.
https://www.postgresql.org/docs/18/protocol-message-formats.html"""
CANCEL = 80877102
LET_IN = b"R" + struct.pack("!II", 8, 0)
LOGIN = ord("p")
FLUSH = ord("H")
TERMINATE = ord("X")
UNCOUNTED = {LOGIN, FLUSH}
"""Messages that another run of the same work may have more or fewer of: psycopg leaves a pipeline with a Flush, unless
all of its answers came before. https://github.com/psycopg/psycopg/blob/3.3.9/psycopg/psycopg/_pipeline_base.py#L98"""
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
    """What a client of PostgreSQL sends, as it comes in pieces: how many that are counted are whole."""

    def __init__(self, *, started: bool = False) -> None:
        self._held = bytearray()
        self._started = started
        self.sent = self.run = 0
        self.last = 0
        """The type of the last."""

    def feed(self, piece: bytes) -> None:
        """Count what is whole by now, after the start-up, which has no types."""
        self._held += piece
        while (end := self._end()) and end <= len(self._held):
            if self._started:
                self.last = self._held[0]
                self.sent += self.last not in UNCOUNTED
                self.run += self.last in RUNS
            else:
                self._started = int.from_bytes(self._held[4:8]) not in ENCRYPTION
            del self._held[:end]

    def _end(self) -> int:
        """Where the first message ends; 0 while its length is not there."""
        at = 1 if self._started else 0
        return at + int.from_bytes(self._held[at : at + 4]) if len(self._held) >= at + 4 else 0


class Recorder(Relay):
    """A relay that keeps all that passes, in its order, by connection."""

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self._events: dict[socket.socket, tuple[int, list[tuple[bool, bytes]]]] = {}
        """By the client's end: which listener it came to, and what passed, with whether the client sent it."""
        self._of: dict[socket.socket, list[tuple[bool, bytes]]] = {}
        """The same by either end."""

    def _forward(self, source: socket.socket, sink: socket.socket, *, from_client: bool = False) -> None:
        client = source if from_client else sink
        with self._lock:
            _, self._of[source] = self._events.setdefault(client, (self._listener_of(client), []))
        super()._forward(source, sink, from_client=from_client)

    def _receive(self, source: socket.socket, buffer: memoryview, *, from_client: bool) -> int:
        count = super()._receive(source, buffer, from_client=from_client)
        if count:
            with self._lock:  # an answer stands behind what it answers, for it is kept before it goes on
                self._of[source].append((from_client, bytes(buffer[:count])))
        return count

    def _so_far(self) -> list[tuple[int, list[tuple[bool, bytes]]]]:
        with self._lock:
            return [(listener, [*events]) for listener, events in self._events.values() if events]

    def conversations(self, server: Server) -> list[Conversation]:
        """What was said so far, in the order of the connections; raises ReplayError for what cannot be said again."""
        made = _postgres if isinstance(server, PostgresServer) else _in_bytes
        return [made(listener, events) for listener, events in self._so_far()]

    def counts(self, server: Server) -> Counts:
        """What went over the wire so far."""
        kept = [events for _, events in self._so_far()]
        sent, received = (
            sum(len(piece) for events in kept for client, piece in events if client is which) for which in (True, False)
        )
        trips = sum(
            client and (at == 0 or not events[at - 1][0]) for events in kept for at, (client, _) in enumerate(events)
        )
        statements = None
        if isinstance(server, PostgresServer):
            statements = sum(_sent(events).run for events in kept)
        return Counts(sent, received, trips, statements)


def _sent(events: list[tuple[bool, bytes]]) -> _Messages:
    """All that a client sent."""
    messages = _Messages()
    for client, piece in events:
        if client:
            messages.feed(piece)
    return messages


def _postgres(listener: int, events: list[tuple[bool, bytes]]) -> Conversation:
    """A conversation from where the server lets the client in."""
    found = Conversation(listener)
    messages, before, let_in = _Messages(), b"", False
    for client, piece in events:
        if client:
            messages.feed(piece)
            if let_in and len(found.beginning) < BEGINNING_BYTES:
                found.beginning += piece
        elif let_in:
            found.answers.append((messages.sent, piece))
        else:
            before += piece
            if (at := before.find(LET_IN)) >= 0:
                let_in = True
                found.answers.append((0, before[at:]))
    if not let_in:
        raise ReplayError("the server let nobody in, or the connection is encrypted")
    found.sent = messages.sent
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


class Replayer(Relay):
    """In place of targets, has the conversations that a recorder of them kept, again and again.

    A connection is taken for that which began alike, and was had the fewest times. `failures` are clients that ended,
    or fell silent, before they had sent what was kept.
    """

    def __init__(self, *targets: tuple[str, int], conversations: list[Conversation], postgres: bool) -> None:
        super().__init__(*targets)
        self._conversations, self._had, self._postgres = conversations, [0] * len(conversations), postgres
        self.failures: list[str] = []

    def _serve(self, client: socket.socket, target: tuple[str, int]) -> None:  # noqa: ARG002  nothing goes there
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.settimeout(PATIENCE_SECONDS)
        with self._kept(client):
            try:
                self._converse(client, self._listener_of(client))
            except TimeoutError:
                self.failures.append(f"the client said nothing for {PATIENCE_SECONDS} s where it had gone on before")
            except OSError as error:
                self.failures.append(f"the client left: {error}")

    def _converse(self, client: socket.socket, which: int) -> None:
        messages = _Messages(started=True) if self._postgres else None
        said, count, at = b"", 0, 0
        if messages:
            if not _welcomed(client):
                return
            client.sendall(b"".join(piece for behind, piece in self._conversations[0].answers if not behind))
        found: Conversation | None = None
        buffer = bytearray(CHUNK_BYTES)
        while received := client.recv_into(buffer):
            piece = bytes(memoryview(buffer)[:received])
            if messages:
                messages.feed(piece)
            count = messages.sent if messages else count + received
            if found is None:
                said += piece
                found = self._like(said, which)
                at = sum(not behind for behind, _ in found.answers)
            while at < len(found.answers) and found.answers[at][0] <= count:
                client.sendall(found.answers[at][1])
                at += 1
            if messages and messages.last == TERMINATE:  # the server hangs up, and some clients wait for that
                break
        if found and at < len(found.answers):
            unit = "messages" if messages else "bytes"
            self.failures.append(f"the client sent {count:,} {unit}, where it had sent {found.sent:,}")

    def _like(self, beginning: bytes, which: int) -> Conversation:
        """The conversation that began so."""
        with self._lock:
            among = [at for at, one in enumerate(self._conversations) if one.listener == which]
            best = max(
                among or range(len(self._had)),
                key=lambda at: (-self._had[at], _alike(beginning, self._conversations[at].beginning), -at),
            )
            self._had[best] += 1
            return self._conversations[best]


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes two beginnings share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _welcomed(client: socket.socket) -> bool:
    """Whether a client has started up, without any encryption that it asks for; some want no conversation."""
    while len(head := _exactly(client, 8)) == 8:  # noqa: PLR2004  a length and a number
        length, number = struct.unpack("!II", head)
        _exactly(client, length - 8)
        if number not in ENCRYPTION:
            return bool(number != CANCEL)
        client.sendall(b"N")
    return False


def _exactly(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (piece := client.recv(count - len(found))):
        found += piece
    return found


@contextmanager
def recorded(server: Server) -> Iterator[Recorder]:
    """A recorder in front of a server; raises ReplayError where what passes cannot be read."""
    with relayed(server, Recorder) as (_, recorder):
        yield _there(recorder)


@contextmanager
def replayed(server: Server, conversations: list[Conversation]) -> Iterator[Replayer]:
    """What answers in place of the server, as it did; raises ReplayError where it had no conversation."""
    if not conversations:
        raise ReplayError("nothing passed the relay: the client keeps its own connection")
    kind = partial(Replayer, conversations=conversations, postgres=isinstance(server, PostgresServer))
    with relayed(server, kind) as (_, replayer):
        yield _there(replayer)


def _there[R: Relay](relay: R | None) -> R:
    if relay is None:
        raise ReplayError("the server is reached over TLS or a Unix socket")
    return relay
