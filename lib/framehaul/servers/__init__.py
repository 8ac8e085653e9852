"""Give access to the servers under test: embedded ones, those of docker compose, or servers of other people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framehaul.errors import ServerError
from framehaul.servers import docker, embedded, external
from framehaul.servers.address import ClickHouseServer, PostgresServer, Server, Servers
from framehaul.settings import Settings

__all__ = [
    "ClickHouseServer",
    "PostgresServer",
    "Server",
    "Servers",
    "reach_loopback_directly",
    "running",
    "running_apart",
    "start",
    "stop",
]

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MODES = {"embedded": embedded, "docker": docker, "external": external}


def reach_loopback_directly() -> None:
    """Exempt this machine from any HTTP proxy, for this process and its children.

    Companies set HTTP_PROXY on their machines, and a proxy elsewhere cannot reach a server on our loopback. Libraries
    differ in which spelling they read: https://docs.python.org/3/library/urllib.request.html#urllib.request.getproxies
    """
    for name in ("no_proxy", "NO_PROXY"):
        exempt = [host for host in os.environ.get(name, "").replace(" ", "").split(",") if host]
        if exempt != ["*"]:  # a lone star exempts all hosts, and means nothing in a list
            os.environ[name] = ",".join(dict.fromkeys([*exempt, *LOOPBACK]))


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Yield both servers while the block lasts.

    Servers that run already are used and left running. Servers started here are stopped at the end, also when this
    process is killed, and even if another process uses them: `start` starts servers to share. Raises ServerError when
    a server cannot be started or reached.
    """
    reach_loopback_directly()
    with MODES[settings.servers].running(settings) as servers:
        yield _checked(settings, servers)


@contextmanager
def running_apart(settings: Settings, kind: str) -> Iterator[Path]:
    """Run embedded servers that this process alone uses, and yield their state directory, while the block lasts.

    Raises ServerError when a server cannot be started.
    """
    with embedded.home_of_a_run(settings.state_dir, kind) as home, running(embedded.moved(settings, home)):
        yield home


def start(settings: Settings) -> Servers:
    """Start the servers and leave them running until `stop`; external servers are not touched."""
    reach_loopback_directly()
    return _checked(settings, MODES[settings.servers].start(settings))


def stop(settings: Settings) -> bool:
    """Stop what `start` started; return whether anything was running. External servers are not touched."""
    stopped: bool = MODES[settings.servers].stop(settings)
    return stopped


def _checked(settings: Settings, servers: Servers) -> Servers:
    """Return the servers; raises ServerError if PostgreSQL's transport is not the one that the settings ask for."""
    wanted = settings.transport == "unix"
    if servers.postgres.over_socket == wanted or (settings.servers == "external" and not wanted):
        return servers  # the address alone decides how an external server is reached
    remedy = {
        "embedded": "the servers that run were started otherwise; end them with make stop",
        "docker": "the container's socket is not on this machine; use SERVERS=embedded",
        "external": "FRAMEHAUL_POSTGRES_DSN names no directory of a socket as its host",
    }
    raise ServerError(f"TRANSPORT={settings.transport}: {remedy[settings.servers]}")
