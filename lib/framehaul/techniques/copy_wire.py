"""Read a COPY from the socket of an open psycopg connection, without libpq and without an object per message.

The protocol: https://www.postgresql.org/docs/18/protocol-flow.html#PROTOCOL-COPY
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import psycopg

from framehaul.codecs.compiled import COPY_DATA, MESSAGE_HEAD_BYTES
from framehaul.codecs.copy_binary import CopyDecoder, moved
from framehaul.data.text import SLACK

AT_ONCE = 1 << 17
"""Bytes to wait for: a server sends 8 KiB at a time, and waking up for each costs both sides."""
LAST_MILLISECONDS = 1
"""How long to wait for them: the last bytes are fewer."""
READY = b"Z\0\0\0\5"
"""A ReadyForQuery, without the state of the transaction behind it."""
EMPTY_QUERY = b"Q\0\0\0\5\0"
PASSED_OVER = b"HNSAcC"
"""Messages to skip: CopyOutResponse, notices, notifications, settings, CopyDone, CommandComplete."""


def receive_copy(connection: psycopg.Connection[Any], query: str, decoder: CopyDecoder) -> None:
    """Run a binary COPY ... TO STDOUT and decode all of it; raises as `receiving` does."""
    deque(receiving(connection, query, decoder), maxlen=0)


def receiving(connection: psycopg.Connection[Any], query: str, decoder: CopyDecoder) -> Iterator[None]:
    """Run a binary COPY ... TO STDOUT and decode each batch while the server sends the next; yields once per batch.

    libpq sends the query and never sees the response. An empty query behind it, whose response libpq reads, makes the
    connection ready again. An error, or ending early, closes the connection. Raises psycopg's errors for the server's,
    and ValueError for an encrypted connection and for what the decoder rejects.
    """
    pgconn = connection.pgconn
    if pgconn.ssl_in_use:
        raise ValueError("the connection is encrypted, so that its socket holds no rows: read with asyncpg's COPY")
    with connection.lock:
        try:
            pgconn.send_query(query.encode())
            while pgconn.flush():
                _wait(pgconn.socket, select.POLLOUT)
            with socket.socket(fileno=os.dup(pgconn.socket)) as wire:
                error = yield from decode_answer(wire, decoder)
                wire.send(EMPTY_QUERY)
            _take_answer(pgconn)
        except BaseException:
            connection.close()  # its state is unknown
            raise
    if error is not None:
        raise error


def _take_answer(pgconn: psycopg.pq.abc.PGconn) -> None:
    """Let libpq read the response to the empty query; its own wait would hold the interpreter's lock."""
    while True:
        while pgconn.is_busy():
            _wait(pgconn.socket, select.POLLIN)
            pgconn.consume_input()
        if pgconn.get_result() is None:
            return


def _wait(descriptor: int, until: int) -> None:
    """Wait until a descriptor can be read from, or written to."""
    ready = select.poll()
    ready.register(descriptor, until)
    ready.poll()


def decode_answer(wire: socket.socket, decoder: CopyDecoder) -> Generator[None, None, psycopg.Error | None]:
    """Decode until the server is ready for another query; yields once per batch, returns the server's error."""
    buffer, first, end = np.empty(2 * decoder.batch_bytes + len(SLACK), np.uint8), 0, 0
    error = None
    with _woken_for(wire, AT_ONCE):
        while True:
            before, end = end, _receive(wire, memoryview(buffer)[: -len(SLACK)], end, decoder.batch_bytes)
            if end == before:
                raise error or psycopg.OperationalError("the server closed the connection in the middle of a COPY")
            while end - first >= MESSAGE_HEAD_BYTES:
                size = 1 + int.from_bytes(buffer[first + 1 : first + MESSAGE_HEAD_BYTES].tobytes())
                kind, whole = bytes(buffer[first : first + 1]), first + size <= end
                if kind[0] == COPY_DATA:
                    taken = decoder.decode(buffer[first:], end - first, messages=True)
                    if whole and not taken:
                        raise ValueError("rows follow the trailer of a binary COPY")
                elif kind not in b"EZ" + PASSED_OVER:
                    raise ValueError(f"{kind!r} is no message of PostgreSQL that follows a COPY: is it encrypted?")
                else:
                    taken = size if whole else 0
                    if whole and kind == b"E":
                        error = _error(buffer[first + MESSAGE_HEAD_BYTES : first + size].tobytes())
                    elif whole and kind == b"Z":
                        return error
                if not taken:
                    break
                first += taken
            buffer = moved(buffer, first, end, max(2 * decoder.batch_bytes, 2 * (end - first)))
            first, end = 0, end - first
            yield


def _receive(wire: socket.socket, buffer: memoryview, end: int, enough: int) -> int:
    """Receive enough bytes to decode, or the last ones, without blocking; returns the new end of the data."""
    ready = select.poll()
    ready.register(wire, select.POLLIN)
    begun = end
    while end < begun + enough // 2 or end < enough:
        ready.poll(LAST_MILLISECONDS)
        with contextlib.suppress(BlockingIOError):
            received = wire.recv_into(buffer[end:])
            end += received
            if not received or end == len(buffer) or bytes(buffer[max(end - len(READY) - 1, 0) : end - 1]) == READY:
                break
    return end


@contextlib.contextmanager
def _woken_for(wire: socket.socket, size: int) -> Iterator[None]:
    """Wake up waits for the socket when this many bytes are there.

    https://man7.org/linux/man-pages/man7/socket.7.html
    """
    before = wire.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    try:
        yield
    finally:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, before)


def _error(fields: bytes) -> psycopg.Error:
    """Return psycopg's error for an ErrorResponse.

    https://www.postgresql.org/docs/18/protocol-error-fields.html
    """
    said = {field[:1]: field[1:].decode(errors="replace") for field in fields.split(b"\0")}
    try:
        kind = psycopg.errors.lookup(said.get(b"C", ""))
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(said.get(b"M", "an error without a message"))
