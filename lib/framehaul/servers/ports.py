"""Choose loopback ports for the servers that this project starts."""

from __future__ import annotations

import secrets
import socket
from itertools import chain

from framehaul.errors import ServerError

PORTS = range(20_000, 32_768)
"""Ports below those of Linux's outgoing connections, which could take a chosen port.

https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)
"""


def choose_port(wanted: int | None = None, variable: str = "") -> int:
    """Return a free loopback port that no other caller gets within a minute, or `wanted` if it is given.

    Raises ServerError when `wanted` or every port is taken; the message names the setting `variable`.
    """
    if wanted is None:
        begin = secrets.randbelow(len(PORTS))
        for port in chain(PORTS[begin:], PORTS[:begin]):
            if _reserve(port):
                return port
        raise ServerError(f"no port from {PORTS[0]} to {PORTS[-1]} is free: stop what listens there, or wait a minute")
    with socket.socket() as probe:
        # Servers set this option too, for which a port with old connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError as error:
            raise ServerError(
                f"port {wanted} is occupied ({error.strerror}); stop what listens there, choose another {variable}, "
                f"or unset {variable} for a free port"
            ) from error
    return wanted


def _reserve(port: int) -> bool:
    """Return whether a port was free, and leave it in TIME_WAIT.

    Other callers cannot bind such a port, but a server can, because it sets SO_REUSEADDR:
    https://github.com/Yelp/ephemeral-port-reserve.
    """
    with socket.socket() as listener, socket.socket() as client:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        # Set after binding, because two processes with this option could bind the same port at the same time.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(1)
        client.connect(("127.0.0.1", port))
        listener.accept()[0].close()
    return True
