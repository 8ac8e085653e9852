"""COPY read from a socket: what comes in between, in pieces, or wrong; and the connection afterwards."""

import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pyarrow as pa
import pytest

from framehaul.codecs.copy_binary import CopyDecoder
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.techniques import clients, copy_wire
from framehaul.techniques.clients import open_psycopg
from tests.codecs.test_copy_binary import HEADER, NARROW, TRAILER, row

COMPLETE = b"c\0\0\0\4" + b"C\0\0\0\x0bCOPY 1\0" + b"Z\0\0\0\5I"
SEVEN = row(struct.pack(">i", 7))
NUMBERED = Table("numbered", (Column("n", ColumnType.INT32), Column("t", ColumnType.TEXT, nullable=True)), ())


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", 4 + len(body)) + body


def answer(*rows: bytes) -> bytes:
    """A binary COPY as the server sends it: the header with the first row, every other in a message of its own."""
    first, *others = rows or (b"",)
    parts = HEADER + first, *others, TRAILER
    return message(b"H", b"\1" + bytes(2)) + b"".join(message(b"d", part) for part in parts) + COMPLETE


def received(table: Table, data: bytes, size: int = 1 << 20) -> pa.Table:
    """What is made of an answer that comes so many bytes at a time."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs, suppress(OSError):  # of a reader that gave up
            for at in range(0, len(data), size):
                theirs.sendall(data[at : at + size])

    decoder = CopyDecoder(table)

    def decoded() -> Iterator[None]:
        if error := (yield from copy_wire.decode_answer(ours, decoder, lambda: None)):
            raise error

    with ThreadPoolExecutor(1) as pool, ours:
        ours.setblocking(False)
        pool.submit(send)
        assert not any(decoded())
        return decoder.finish()


def receive(connection: psycopg.Connection[Any], query: str, table: Table) -> list[dict[str, Any]]:
    """The rows of a query, by binary COPY."""
    decoder = CopyDecoder(table)
    assert {*copy_wire.receiving(connection, f"COPY ({query}) TO STDOUT WITH (FORMAT binary)", decoder)} <= {None}
    rows: list[dict[str, Any]] = decoder.finish().to_pylist()
    return rows


@pytest.fixture(params=["socket", "driver"])
def connection(
    request: pytest.FixtureRequest, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose rows come from its socket, or as psycopg gives them, as where it is encrypted."""
    if request.param == "driver":
        monkeypatch.setattr(copy_wire, "reads_socket", lambda _: False)
    with open_psycopg(servers.postgres) as connection:
        yield connection


@pytest.mark.parametrize(
    ("rows", "batch_bytes", "size"), [(0, 64, 7), (1, 64, 1), (200, 1 << 20, 1 << 20), (200, 64, 7)]
)
def test_an_answer_comes_in_any_pieces(rows: int, batch_bytes: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("framehaul.codecs.copy_binary.BATCH_BYTES", batch_bytes)
    texts = [f"é{n}" * n if n % 7 else None for n in range(rows)]
    data = [row(struct.pack(">i", n), None if text is None else text.encode()) for n, text in enumerate(texts)]
    expected = [{"n": n, "t": text} for n, text in enumerate(texts)]
    assert received(NUMBERED, answer(*data), size).to_pylist() == expected


def test_other_messages_may_come_between_rows() -> None:
    notice = message(b"N", b"SNOTICE\0Mrow\0\0")
    parts = (message(b"d", HEADER), notice, message(b"d", SEVEN), notice, message(b"d", TRAILER), notice, COMPLETE)
    assert received(NARROW, b"".join(parts)).to_pylist() == [{"n": 7}]


NOT_ONE_ROW = "a message of the binary COPY of narrow is not one row, after 0 rows"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (message(b"d", HEADER + SEVEN + SEVEN), NOT_ONE_ROW),
        (message(b"d", HEADER) + message(b"d", SEVEN[:-1]), NOT_ONE_ROW),
        (message(b"d", HEADER) + b"d\0\0\0\0" + message(b"d", SEVEN), NOT_ONE_ROW),
        (message(b"d", HEADER) + message(b"d", TRAILER + b"x"), NOT_ONE_ROW),
        (message(b"d", HEADER[:9]) + message(b"d", HEADER[9:]), "this is no binary COPY"),
        (message(b"d", HEADER[:-1]) + message(b"d", SEVEN), "header of the binary COPY .* is not in one message"),
        (message(b"d", HEADER) + message(b"d", TRAILER) + message(b"d", SEVEN), "rows follow the trailer"),
        (message(b"d", HEADER) + COMPLETE, "ended before its trailer, after 0 rows"),
        (b"\x17\x03\x03\x40\x00" + bytes(99), "no message of PostgreSQL after a COPY: is it encrypted"),
    ],
)
def test_what_is_no_answer_to_a_copy_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        received(NARROW, data + COMPLETE)


def test_an_answer_that_breaks_off_is_an_error() -> None:
    data = answer(SEVEN, SEVEN)
    for end in range(len(data) - 1):
        with pytest.raises(psycopg.OperationalError, match="closed the connection in the middle of a COPY"):
            received(NARROW, data[:end])


def test_a_row_may_be_longer_than_any_batch(connection: psycopg.Connection[Any]) -> None:
    table = Table("long", tuple(Column(name, ColumnType.TEXT) for name in "tu"), ())
    query = "SELECT repeat(chr(64 + n), 3000000) AS t, repeat('é', n) AS u FROM generate_series(1, 4) AS n"
    expected = [{"t": chr(64 + n) * 3_000_000, "u": "é" * n} for n in range(1, 5)]
    assert receive(connection, query, table) == expected


@pytest.mark.parametrize("rows", [0, 100_000])
def test_an_error_of_the_server_is_its_own_and_the_connection_goes_on(
    rows: int, connection: psycopg.Connection[Any]
) -> None:
    query = f"SELECT 1 / ({rows} - n) AS n FROM generate_series(0, {rows}) AS n"
    with pytest.raises(psycopg.errors.DivisionByZero, match="division by zero"), connection.transaction():
        receive(connection, query, NARROW)
    with connection.transaction():
        with pytest.raises(psycopg.errors.UndefinedTable):
            receive(connection, "SELECT FROM nowhere", NARROW)
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
        raise psycopg.Rollback
    assert receive(connection, "SELECT 7 AS n", NARROW) == [{"n": 7}]
    assert connection.execute("SELECT 8").fetchall() == [(8,)]


def test_a_connection_stays_open_after_a_row_that_is_refused(connection: psycopg.Connection[Any]) -> None:
    dates = Table("dates", (Column("d", ColumnType.DATE),), ())
    with pytest.raises(ValueError, match="column d holds infinity"):
        receive(connection, "SELECT '-infinity'::date FROM generate_series(1, 100000)", dates)
    assert receive(connection, "SELECT 7 AS n", NARROW) == [{"n": 7}]


def test_a_server_that_ends_the_connection_is_an_error_of_psycopg(
    connection: psycopg.Connection[Any], servers: Servers
) -> None:
    query = "SELECT n, pg_sleep(CASE n WHEN 100000 THEN 60 END) FROM generate_series(1, 200000) AS n"
    with open_psycopg(servers.postgres) as other:
        end = threading.Timer(0.5, other.execute, (f"SELECT pg_terminate_backend({connection.info.backend_pid})",))
        end.start()
        with pytest.raises(psycopg.errors.AdminShutdown, match="terminating connection"):
            receive(connection, query, NUMBERED)
        end.join()
    assert connection.closed


def test_an_encrypted_connection_is_not_opened_to_read_its_socket(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    encrypted = cast("psycopg.Connection[Any]", SimpleNamespace(pgconn=SimpleNamespace(ssl_in_use=True)))
    assert not copy_wire.reads_socket(encrypted)
    monkeypatch.setattr(clients, "open_psycopg", lambda _: nullcontext(encrypted))
    with pytest.raises(UnavailableError, match=r"is encrypted, .* add sslmode=disable"):
        clients.open_psycopg_plain_pair(servers.postgres).__enter__()
