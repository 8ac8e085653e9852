"""A COPY read from the socket of an open psycopg connection: no message passes through libpq or becomes an object.

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
"""Bytes that are waited for: a server sends 8 KiB at a time, and to be woken for each costs both sides."""
LAST_MILLISECONDS = 1
"""How long so many are waited for, as the last are fewer."""
READY = b"Z\0\0\0\5"
"""A ReadyForQuery, without the state of the transaction behind it."""
EMPTY_QUERY = b"Q\0\0\0\5\0"
PASSED_OVER = b"HNSAcC"
"""Messages that say nothing of the rows: what begins, notices, settings, what is ended."""


def receive_copy(connection: psycopg.Connection[Any], query: str, decoder: CopyDecoder) -> None:
    """Run a binary COPY ... TO STDOUT and have all of it decoded. Raises as `receiving` does."""
    deque(receiving(connection, query, decoder), maxlen=0)


def receiving(connection: psycopg.Connection[Any], query: str, decoder: CopyDecoder) -> Iterator[None]:
    """Run a binary COPY ... TO STDOUT and have each batch decoded while the server sends the next; a step for each.

    libpq sends the query and never sees the answer; an empty one behind it, which it does see, tells it that the
    connection is ready again. Where receiving or decoding fails, or nobody asks for the rest, the connection is closed.
    Raises psycopg's errors for the server's, and ValueError for an encrypted connection and for what the decoder
    refuses.
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
            connection.close()  # nobody knows what comes next
            raise
    if error is not None:
        raise error


def _take_answer(pgconn: psycopg.pq.abc.PGconn) -> None:
    """Have libpq read the answer to the empty query; it would hold the interpreter's lock while it waits."""
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
    """Decode what comes, a step for each time, until the server is ready for another query.

    Gives its error, if that is its answer.
    """
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
    """Receive so much that decoding pays, or all there is; gives where it ends, which nothing moves after the last.

    The socket does not block.
    """
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
    """Who waits for the socket is woken when so many bytes are there.

    https://man7.org/linux/man-pages/man7/socket.7.html
    """
    before = wire.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    try:
        yield
    finally:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, before)


def _error(fields: bytes) -> psycopg.Error:
    """What an ErrorResponse says.

    https://www.postgresql.org/docs/18/protocol-error-fields.html
    """
    said = {field[:1]: field[1:].decode(errors="replace") for field in fields.split(b"\0")}
    try:
        kind = psycopg.errors.lookup(said.get(b"C", ""))
    except KeyError:
        kind = psycopg.DatabaseError
    return kind(said.get(b"M", "an error without a message"))
