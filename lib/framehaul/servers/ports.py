"""Loopback ports for the servers that this project starts."""

from __future__ import annotations

import random
import socket

from framehaul.errors import ServerError

CHOSEN_FROM = range(20_000, 32_768)
"""Below those that Linux gives to outgoing connections, one of which may have a port before its server does.

https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)
"""


def choose_port(wanted: int | None, variable: str) -> int:
    """A free loopback port, or `wanted` when that one is free.

    Raises ServerError when `wanted` is taken; `variable` is the setting to name in the message.
    """
    if wanted is None:
        ports = random.SystemRandom().sample(CHOSEN_FROM, len(CHOSEN_FROM))
        return next(port for port in ports if _occupied(port) is None)
    if reason := _occupied(wanted):
        raise ServerError(
            f"port {wanted} is occupied ({reason}); stop what listens there, choose another {variable}, "
            f"or unset {variable} for a free port"
        )
    return wanted


def _occupied(port: int) -> str | None:
    """Why a server could not listen on a port, or None when it could."""
    with socket.socket() as probe:
        # As the servers themselves do: a port whose old connections linger in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror
    return None
