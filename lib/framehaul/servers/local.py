"""Files, ports and logs of servers on this machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import psycopg

from framehaul.errors import ServerError

START_SECONDS = 60
PORTS = range(20_000, 32_768)
"""Ports below those of Linux's outgoing connections, which could take a chosen port.

https://docs.kernel.org/networking/ip-sysctl.html (ip_local_port_range)
"""


def write_private(path: Path, text: str) -> None:
    """Write `text` to the file at `path` atomically, with mode 0600 from the first byte on."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def password_in(path: Path) -> str:
    """Return the password in `path`; a missing file is created with a random password."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24))
    return path.read_text()


def end_of(log: Path) -> str:
    """Return the last ten lines of a log."""
    return "\n".join(log.read_text(errors="replace").strip().splitlines()[-10:])


def when_ready[T](name: str, log: Path, answer: Callable[[], T], is_running: Callable[[], bool] = lambda: True) -> T:
    """Return the first result of `answer` that is no connection error; raises ServerError with the end of the log."""
    deadline = time.monotonic() + START_SECONDS
    while is_running() and time.monotonic() < deadline:
        with contextlib.suppress(OSError, psycopg.OperationalError):
            return answer()
        time.sleep(0.02)
    raise ServerError(f"{name} did not start; its log ends:\n{end_of(log)}")


def choose_port(wanted: int | None = None, variable: str = "") -> int:
    """Return a free loopback port that no other caller gets within a minute, or `wanted` if it is given.

    Raises ServerError when `wanted` or every port is taken; the message names the setting `variable`.
    """
    if wanted is not None:
        with socket.socket() as probe:
            # Servers set this option too, for which a port with old connections in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError as error:
                raise ServerError(
                    f"port {wanted} is occupied ({error.strerror}); stop what listens there, choose another "
                    f"{variable}, or unset {variable} for a free port"
                ) from error
        return wanted
    begin = secrets.randbelow(len(PORTS))
    for port in chain(PORTS[begin:], PORTS[:begin]):
        with socket.socket() as listener, socket.socket() as client, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            # A connection that ends here first leaves the port in TIME_WAIT. Other callers cannot bind it then, but a
            # server can, because it sets SO_REUSEADDR: https://github.com/Yelp/ephemeral-port-reserve. Set after
            # binding, because two processes with this option could bind the same port at the same time.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.listen(1)
            client.connect(("127.0.0.1", port))
            listener.accept()[0].close()
            return port
    raise ServerError(f"no port from {PORTS[0]} to {PORTS[-1]} is free: stop what listens there, or wait a minute")
