"""Read a COPY from the socket of an open psycopg connection, without libpq and without an object for each message.

The protocol: https://www.postgresql.org/docs/18/protocol-flow.html#PROTOCOL-COPY
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg

from framehaul.codecs.compiled import COPY_DATA, MESSAGE_HEAD_BYTES, SLACK
from framehaul.codecs.copy_binary import CopyDecoder, moved

if TYPE_CHECKING:
    from framehaul.codecs.compiled import Bytes

ROWS_AT_ONCE = 4096
"""The rows that are decoded together where psycopg gives each one by itself."""
WAIT_BYTES = 1 << 17
"""The bytes to wait for: a server sends 8 KiB at a time, and a wakeup for each part costs both sides."""
WAIT_MILLISECONDS = 1
"""The longest wait for these bytes, because the last part is smaller."""
READY = b"Z\0\0\0\5"
"""A ReadyForQuery without its last byte, the state of the transaction."""
SKIPPED = b"HNSAcC"
"""Messages to skip: CopyOutResponse, notices, notifications, settings, CopyDone, CommandComplete."""


def receiving(connection: psycopg.Connection[Any], query: str, decoder: CopyDecoder) -> Iterator[None]:
    """Run a binary COPY ... TO STDOUT and yield once per batch, which is decoded while the server sends the next.

    Where the socket does not hold the rows as they are, psycopg hands them over. Otherwise libpq sends the query but
    does not read the response. It reads the response of an empty query that follows, after which the connection is
    ready again. When the decoder rejects a row the query is cancelled, and the connection stays open. A lost
    connection, or ending early, closes it. Raises psycopg's errors for errors of the server, and ValueError for rows
    that the decoder rejects.
    """
    pgconn = connection.pgconn
    if not reads_socket(connection):
        with connection.cursor() as cursor, cursor.copy(query.encode()) as copy:
            rows = iter(copy)
            while data := b"".join(islice(rows, ROWS_AT_ONCE)):
                decoder.feed(data)
                yield
        return
    with connection.lock:
        try:
            pgconn.send_query(query.encode())
            while pgconn.flush():
                _poll(pgconn.socket, select.POLLOUT).poll()
            with socket.socket(fileno=os.dup(pgconn.socket)) as wire:
                # https://man7.org/linux/man-pages/man7/socket.7.html
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAIT_BYTES)
                error = yield from decode_answer(wire, decoder, connection.cancel)
                wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                wire.send(b"Q\0\0\0\5\0")  # an empty query
            while pgconn.is_busy() or pgconn.get_result():
                if pgconn.is_busy():  # libpq's own wait would hold the interpreter's lock
                    _poll(pgconn.socket, select.POLLIN).poll()
                    pgconn.consume_input()
        except BaseException:
            connection.close()  # its state is unknown
            raise
    if error is not None:
        raise error


def reads_socket(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a connection is neither encrypted nor in pipeline mode: its socket holds the rows as they are."""
    return not connection.pgconn.ssl_in_use and connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF


def _poll(descriptor: int, until: int) -> select.poll:
    """Return an object that waits until a descriptor is ready to read or to write."""
    ready = select.poll()
    ready.register(descriptor, until)
    return ready


def decode_answer(
    wire: socket.socket, decoder: CopyDecoder, cancel: Callable[[], object]
) -> Generator[None, None, Exception | None]:
    """Decode until the server is ready for another query; yield once per batch and return the error, if any.

    After an error of the decoder `cancel` is called, and the rows that still come are skipped.
    """
    buffer, first, end = np.empty(2 * decoder.batch_bytes + len(SLACK), np.uint8), 0, 0
    error: Exception | None = None
    while True:
        before, end = end, _receive(wire, memoryview(buffer)[: -len(SLACK)], end, decoder.batch_bytes)
        if end == before:
            raise error or psycopg.OperationalError("the server closed the connection in the middle of a COPY")
        while end - first >= MESSAGE_HEAD_BYTES:
            size = 1 + int.from_bytes(buffer[first + 1 : first + MESSAGE_HEAD_BYTES].tobytes())
            kind, whole = bytes(buffer[first : first + 1]), first + size <= end
            if kind[0] == COPY_DATA and error is None:
                try:
                    taken = _decoded(decoder, buffer[first:], end - first, whole=whole)
                except ValueError as refused:
                    error = refused
                    cancel()
                    continue
            elif kind not in b"dEZ" + SKIPPED:
                raise error or ValueError(f"{kind!r} is no message of PostgreSQL after a COPY: is it encrypted?")
            else:
                taken = size if whole else 0
                if whole and kind == b"E":
                    error = error or _error(buffer[first + MESSAGE_HEAD_BYTES : first + size].tobytes())
                elif whole and kind == b"Z":
                    return error
            if not taken:
                break
            first += taken
        buffer = moved(buffer, first, end, max(2 * decoder.batch_bytes, 2 * (end - first)))
        first, end = 0, end - first
        yield


def _decoded(decoder: CopyDecoder, data: Bytes, size: int, *, whole: bool) -> int:
    """Decode rows, the first of which may be `whole`; return how many bytes they took."""
    taken = decoder.decode(data, size, messages=True)
    if whole and not taken:
        raise ValueError("rows follow the trailer of a binary COPY")
    return taken


def _receive(wire: socket.socket, buffer: memoryview, end: int, enough: int) -> int:
    """Receive enough bytes to decode, or the last bytes, without blocking; return the new end of the data."""
    ready, begun = _poll(wire.fileno(), select.POLLIN), end
    while end < begun + enough // 2 or end < enough:
        ready.poll(WAIT_MILLISECONDS)
        with contextlib.suppress(BlockingIOError):
            received = wire.recv_into(buffer[end:])
            end += received
            if not received or end == len(buffer) or bytes(buffer[max(end - len(READY) - 1, 0) : end - 1]) == READY:
                break
    return end


def _error(fields: bytes) -> psycopg.Error:
    """Return psycopg's error for an ErrorResponse."""
    # https://www.postgresql.org/docs/18/protocol-error-fields.html
    values = {field[:1]: field[1:].decode(errors="replace") for field in fields.split(b"\0")}
    kind: type[psycopg.Error] = psycopg.DatabaseError
    with contextlib.suppress(KeyError):
        kind = psycopg.errors.lookup(values[b"C"])
    return kind(values.get(b"M", "an error without a message"))
