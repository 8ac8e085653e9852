"""The relay: what it counts, and that whatever its two sides do, it forwards on, ends, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from framehaul.servers.relay import Relay
from framehaul.studies.faults.wire import Break, BreakingRelay

SECONDS = 10
"""What must come comes sooner."""


def connected(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.ports[0]), SECONDS)


def reset(connection: socket.socket) -> None:
    """Close it so that the other side gets an RST."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def received(connection: socket.socket) -> int:
    """How many bytes come until the other side's end."""
    return sum(map(len, iter(lambda: connection.recv(1 << 16), b"")))


@contextmanager
def target(serve: Callable[[socket.socket], object]) -> Iterator[tuple[str, int]]:
    """A server that does this with each connection, in a thread of its own; all of them end with the block."""
    threads: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def served(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=served, args=(connection,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def echo(connection: socket.socket) -> None:
    while piece := connection.recv(1 << 16):
        connection.sendall(piece)


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    process, threads = psutil.Process(), set(threading.enumerate())
    files = process.num_fds()
    yield
    assert set(threading.enumerate()) <= threads
    assert process.num_fds() <= files


def test_every_byte_of_both_directions_is_counted() -> None:
    def answer(connection: socket.socket) -> None:
        assert len(connection.recv(100_000, socket.MSG_WAITALL)) == 100_000
        connection.sendall(b"y" * 7)

    with target(answer) as address, Relay(address) as relay, connected(relay) as client:
        client.sendall(b"x" * 100_000)
        assert client.recv(100) == b"y" * 7
        assert relay.total_bytes == 100_007


def test_a_relay_to_nowhere_closes_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nowhere = listener.getsockname()
    with Relay(nowhere) as relay, connected(relay) as client:
        assert client.recv(1) == b""


def test_a_client_that_half_closes_gets_the_rest_of_its_answer() -> None:
    with target(lambda connection: connection.sendall(b"y" * received(connection))) as address:
        with Relay(address) as relay, connected(relay) as client:
            client.sendall(b"x" * 300_000)
            client.shutdown(socket.SHUT_WR)
            assert received(client) == 300_000
        assert relay.total_bytes == 600_000


@pytest.mark.parametrize("first", ["client", "server"])
def test_when_one_side_is_reset_the_other_one_ends(first: str) -> None:
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(1)
        if first == "server":
            reset(connection)
        else:
            with contextlib.suppress(OSError):
                received(connection)
            ended.set()

    with target(serve) as address, Relay(address) as relay, connected(relay) as client:
        client.sendall(b"x")
        if first == "client":
            reset(client)
            assert ended.wait(SECONDS)
        else:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""


def test_clients_that_say_nothing_and_servers_that_take_nothing_end_with_the_relay() -> None:
    until = threading.Event()
    with target(lambda _: until.wait(SECONDS)) as address, contextlib.ExitStack() as stack:
        with Relay(address) as relay:
            clients = [stack.enter_context(connected(relay)) for _ in range(20)]
            clients[0].setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    clients[0].send(b"x" * 100_000)
        for client in clients[1:]:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        until.set()


def test_an_idle_connection_is_reset_and_the_next_is_forwarded() -> None:
    with target(echo) as address, BreakingRelay(address) as relay:
        with connected(relay) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            relay.reset()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with connected(relay) as client:
            client.sendall(b"y")
            assert client.recv(1) == b"y"


BREAKS: tuple[Break, ...] = ("cut", "swallow", "hold")


def misbehave(connection: socket.socket, chance: random.Random) -> None:
    """Send, receive, half-close, reset or do nothing, as chance will have it."""
    for _ in range(chance.randrange(6)):
        match chance.randrange(6):
            case 0 | 1:
                connection.sendall(chance.randbytes(chance.choice([1, 100, 70_000, 600_000])))
            case 2 | 3:
                connection.settimeout(0.05)
                connection.recv(chance.choice([1, 100_000]))
            case 4:
                connection.shutdown(socket.SHUT_WR)
            case 5:
                time.sleep(chance.random() / 100)
    if chance.random() < 0.5:
        reset(connection)


@pytest.mark.parametrize("kind", [Relay, BreakingRelay])
@pytest.mark.parametrize("seed", range(len(BREAKS)))
def test_whatever_both_sides_do_nothing_is_left_and_the_count_stands(seed: int, kind: type[Relay]) -> None:
    chances = [random.Random(f"{seed}/{at}") for at in range(40)]
    taken = iter(random.Random(seed).sample(range(1000), 1000))

    def serve(connection: socket.socket) -> None:
        misbehave(connection, random.Random(next(taken)))

    def use(chance: random.Random) -> None:
        with contextlib.suppress(OSError), connected(relay) as client:
            misbehave(client, chance)

    with target(serve) as address:
        with kind(address) as relay:
            if isinstance(relay, BreakingRelay):
                relay.strike(BREAKS[seed], 100_000, in_client_bytes=bool(seed))
            threads = [threading.Thread(target=use, args=(chance,)) for chance in chances]
            for thread in threads:
                thread.start()
            for thread in threads[: len(threads) * (seed + 1) // 4]:
                thread.join()
            relay.end_connections()
        counted = relay.total_bytes
        for thread in threads:
            thread.join()
        assert relay.total_bytes == counted
