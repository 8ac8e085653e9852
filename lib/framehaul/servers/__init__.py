"""The servers under test: embedded ones that this project starts, docker compose's, or somebody else's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framehaul.errors import ServerError
from framehaul.servers import docker, embedded, external
from framehaul.servers.address import ClickHouseServer, Exchange, PostgresServer, Server, Servers
from framehaul.settings import Settings

__all__ = [
    "ClickHouseServer",
    "Exchange",
    "PostgresServer",
    "Server",
    "ServerError",
    "Servers",
    "reach_loopback_directly",
    "running",
    "running_apart",
    "start",
    "stop",
]


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def reach_loopback_directly() -> None:
    """Except this machine from any HTTP proxy, for this process and those that it starts.

    Companies set HTTP_PROXY on their machines, and a proxy elsewhere cannot reach a server on our loopback. Libraries
    differ in which spelling they read: https://docs.python.org/3/library/urllib.request.html#urllib.request.getproxies
    """
    for name in ("no_proxy", "NO_PROXY"):
        excepted = [host for host in os.environ.get(name, "").replace(" ", "").split(",") if host]
        if excepted != ["*"]:  # everything is reached directly; a list with more than this star would mean nothing
            os.environ[name] = ",".join(dict.fromkeys([*excepted, *LOOPBACK]))


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Both servers, for as long as the block lasts.

    Servers that were running already are used and left running; those started here are stopped at the end, also when
    this process is killed. Raises ServerError when they cannot be had.
    """
    reach_loopback_directly()
    match settings.servers:
        case "embedded":
            with embedded.running(settings) as servers:
                yield _as_asked(settings, servers)
        case "docker":
            with docker.running(settings) as servers:
                yield _as_asked(settings, servers)
        case "external":
            yield _as_asked(settings, external.servers(settings))


@contextmanager
def running_apart(settings: Settings, kind: str) -> Iterator[tuple[Servers, Path]]:
    """Embedded servers that this process alone uses, and where they are kept, for as long as the block lasts.

    Raises ServerError when they cannot be had.
    """
    with embedded.home_of_a_run(settings.state_dir, kind) as home, running(embedded.moved(settings, home)) as servers:
        yield servers, home


def start(settings: Settings) -> Servers:
    """Start the servers and leave them running until `stop`; external ones are only looked at."""
    reach_loopback_directly()
    match settings.servers:
        case "embedded":
            return _as_asked(settings, embedded.start(settings))
        case "docker":
            return _as_asked(settings, docker.start(settings))
        case "external":
            return _as_asked(settings, external.servers(settings))


def _as_asked(settings: Settings, servers: Servers) -> Servers:
    """The servers; raises ServerError where PostgreSQL is reached over another transport than was asked for."""
    wanted = settings.transport == "unix"
    if servers.postgres.over_socket == wanted or (settings.servers == "external" and not wanted):
        return servers  # of somebody else's server the address alone decides
    remedy = {
        "embedded": "the servers that run were started otherwise; end them with make stop",
        "docker": "the container's socket is not on this machine; use SERVERS=embedded",
        "external": "FRAMEHAUL_POSTGRES_DSN names no directory of a socket as its host",
    }
    raise ServerError(f"TRANSPORT={settings.transport}: {remedy[settings.servers]}")


def stop(settings: Settings) -> bool:
    """Stop what `start` started; false when nothing was running. External servers are never touched."""
    match settings.servers:
        case "embedded":
            return embedded.stop(settings)
        case "docker":
            return docker.stop(settings)
        case "external":
            return False
