"""Ports that servers are given: free, and given once."""

from __future__ import annotations

import secrets
import socket

import pytest

from framehaul.errors import ServerError
from framehaul.servers import ports
from framehaul.servers.ports import choose_port


def test_a_port_is_given_once_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever chooses begins at the same one, as two processes may.
    monkeypatch.setattr(secrets, "randbelow", lambda _: 7)
    assert len({choose_port(None, "") for _ in range(5)}) == 5


def test_where_no_port_is_left_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    first = choose_port(None, "")
    monkeypatch.setattr(ports, "CHOSEN_FROM", range(first, first + 1))
    with pytest.raises(
        ServerError, match=f"no port from {first} to {first} is free: stop what listens there, or wait a minute"
    ):
        choose_port(None, "")


def test_a_server_can_listen_on_the_port_that_it_was_given() -> None:
    with socket.create_server(("127.0.0.1", choose_port(None, ""))) as server:
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()
        with pytest.raises(ServerError, match=rf"port {server.getsockname()[1]} is occupied"):
            choose_port(server.getsockname()[1], "PORT")
