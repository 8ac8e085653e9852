"""Ports that servers are given: free, and given once."""

from __future__ import annotations

import secrets
import socket

import pytest

from framehaul.errors import ServerError
from framehaul.servers.ports import choose_port


def test_a_port_is_given_once_before_its_server_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever chooses begins at the same one, as two processes may.
    monkeypatch.setattr(secrets, "randbelow", lambda _: 7)
    assert len({choose_port(None, "") for _ in range(5)}) == 5


def test_a_server_can_listen_on_the_port_that_it_was_given() -> None:
    with socket.create_server(("127.0.0.1", choose_port(None, ""))) as server:
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()
        with pytest.raises(ServerError, match=rf"port {server.getsockname()[1]} is occupied"):
            choose_port(server.getsockname()[1], "PORT")
