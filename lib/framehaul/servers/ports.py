"""Loopback ports for the servers that this project starts."""

from __future__ import annotations

import socket

from framehaul.errors import ServerError


def choose_port(wanted: int | None, variable: str) -> int:
    """A free loopback port, or `wanted` when that one is free.

    Raises ServerError when `wanted` is taken; `variable` is the setting to name in the message.
    """
    with socket.socket() as probe:
        # As the servers themselves do: a port whose old connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted or 0))
        except OSError as error:
            raise ServerError(
                f"port {wanted} is occupied ({error.strerror}); stop what listens there, choose another {variable}, "
                f"or unset {variable} for a free port"
            ) from error
        port: int = probe.getsockname()[1]
        return port
