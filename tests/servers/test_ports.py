"""Ports that servers are given: free, and given once."""

from __future__ import annotations

import errno
import random
import socket
from typing import Any

import pytest

from framehaul.errors import ServerError
from framehaul.servers.ports import choose_port


class _SameEachTime(random.Random):
    """Whoever chooses gets the same order, as two processes may."""

    def sample(self, population: Any, k: int, *, counts: Any = None) -> list[Any]:
        return random.Random(7).sample(population, k, counts=counts)


def test_a_port_is_given_once_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "SystemRandom", _SameEachTime)
    assert len({choose_port(None, "") for _ in range(5)}) == 5


def test_a_server_can_listen_on_the_port_that_it_was_given() -> None:
    with socket.create_server(("127.0.0.1", choose_port(None, ""))) as server:
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()
        with pytest.raises(ServerError, match=rf"port {server.getsockname()[1]} is occupied"):
            choose_port(server.getsockname()[1], "PORT")


def test_what_asks_for_a_port_without_the_option_of_servers_does_not_get_one_that_is_given() -> None:
    with socket.socket() as other, pytest.raises(OSError) as refused:
        other.bind(("127.0.0.1", choose_port(None, "")))
    assert refused.value.errno == errno.EADDRINUSE
