"""Loopback ports for the servers that this project starts."""

from __future__ import annotations

import secrets
import socket
from itertools import chain

from framehaul.errors import ServerError

CHOSEN_FROM = range(20_000, 32_768)
"""Below those that Linux gives to outgoing connections, one of which may have a port before its server does.

https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)
"""


def choose_port(wanted: int | None, variable: str) -> int:
    """A free loopback port that nobody else is given within a minute, or `wanted` when that one is free.

    Raises ServerError when `wanted` is taken, or all are; `variable` is the setting to name in the message.
    """
    if wanted is None:
        begin = secrets.randbelow(len(CHOSEN_FROM))
        for port in chain(CHOSEN_FROM[begin:], CHOSEN_FROM[:begin]):
            if _reserve(port):
                return port
        raise ServerError(
            f"no port from {CHOSEN_FROM[0]} to {CHOSEN_FROM[-1]} is free: stop what listens there, or wait a minute, "
            "for which one that was given stays taken"
        )
    if reason := _occupied(wanted):
        raise ServerError(
            f"port {wanted} is occupied ({reason}); stop what listens there, choose another {variable}, "
            f"or unset {variable} for a free port"
        )
    return wanted


def _reserve(port: int) -> bool:
    """Whether a port was free; then it lingers in TIME_WAIT, as after a connection that its server has closed.

    That keeps everybody from it who asks as strictly as here, and no server, which starts later and sets SO_REUSEADDR:
    the way of https://github.com/Yelp/ephemeral-port-reserve.
    """
    with socket.socket() as listener, socket.socket() as client:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        # Not before: with it, two who ask at the same moment would both have the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(1)
        client.connect(("127.0.0.1", port))
        listener.accept()[0].close()
    return True


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
