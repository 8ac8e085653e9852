"""Choose loopback ports for the servers that this project starts."""

from __future__ import annotations

import secrets
import socket

from framehaul.errors import ServerError

PORTS = range(20_000, 32_768)
"""Ports to choose from: below those that Linux gives to outgoing connections, which could take a chosen port.

https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)
"""


def choose_port(wanted: int | None = None, variable: str = "") -> int:
    """Return a free loopback port that no other caller gets within a minute, or `wanted` if that port is free.

    Raises ServerError when `wanted` is taken, or all are; `variable` is the setting to name in the message.
    """
    if wanted is None:
        begin = secrets.randbelow(len(PORTS))
        for step in range(len(PORTS)):
            if _reserve(port := PORTS[(begin + step) % len(PORTS)]):
                return port
        raise ServerError(
            f"no port from {PORTS[0]} to {PORTS[-1]} is free: stop what listens there, or wait a minute, "
            "after which ports that were chosen before are free again"
        )
    with socket.socket() as probe:
        # Servers set it as well: a port whose old connections are in TIME_WAIT is free.
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
    """Return whether a port was free, and leave it in TIME_WAIT, as after a connection that its server has closed.

    Another call cannot bind it then, but a server can, because it sets SO_REUSEADDR:
    https://github.com/Yelp/ephemeral-port-reserve.
    """
    with socket.socket() as listener, socket.socket() as client:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        # After binding: set before, it would let two processes bind the same port at the same moment.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(1)
        client.connect(("127.0.0.1", port))
        listener.accept()[0].close()
    return True
