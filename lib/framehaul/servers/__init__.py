"""Give access to the servers under test: embedded, in docker compose, or external."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from framehaul.errors import ServerError
from framehaul.servers.address import ClickHouseServer, PostgresServer, Server, Servers, external

if TYPE_CHECKING:
    from framehaul.settings import Settings

__all__ = ["ClickHouseServer", "PostgresServer", "Server", "Servers", "running", "start", "stop"]

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def reach_loopback_directly() -> None:
    """Exempt this machine from any HTTP proxy, for this process and its children: a proxy cannot reach its loopback.

    Libraries read either spelling: https://docs.python.org/3/library/urllib.request.html#urllib.request.getproxies
    """
    for name in ("no_proxy", "NO_PROXY"):
        exempt = [host for host in os.environ.get(name, "").replace(" ", "").split(",") if host]
        if exempt != ["*"]:  # * exempts all hosts when it is the whole value, and nothing in a list
            os.environ[name] = ",".join(dict.fromkeys([*exempt, *LOOPBACK]))


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Yield both servers while the block lasts; raises ServerError when one cannot be started or reached.

    Running servers are used and left running. Servers started here are stopped at the end, also when this process is
    killed, and even if another process uses them. `start` starts servers that several processes share.
    """
    reach_loopback_directly()
    found = nullcontext(external(settings)) if settings.servers == "external" else _mode(settings).running(settings)
    with found as servers:
        yield _checked(settings, servers)


def start(settings: Settings) -> Servers:
    """Start the servers and leave them running until `stop`; external servers are not touched."""
    reach_loopback_directly()
    servers = external(settings) if settings.servers == "external" else _mode(settings).start(settings)
    return _checked(settings, servers)


def stop(settings: Settings) -> bool:
    """Stop the servers and return whether any were running; external servers are not touched."""
    return settings.servers != "external" and bool(_mode(settings).stop(settings))


def _mode(settings: Settings) -> Any:
    """Return the module `embedded` or `docker`; only the servers that are used are imported."""
    return importlib.import_module(f"{__name__}.{settings.servers}")


def _checked(settings: Settings, servers: Servers) -> Servers:
    """Return the servers; raises ServerError if PostgreSQL does not use the transport of the settings."""
    wanted = settings.transport == "unix"
    if servers.postgres.over_socket == wanted or (settings.servers == "external" and not wanted):
        return servers  # an external address decides the transport unless the settings ask for a socket
    remedy = {
        "embedded": "the running servers were started with another transport; end them with make stop",
        "docker": "a container's socket is not on this machine; use SERVERS=embedded",
        "external": "the host in FRAMEHAUL_POSTGRES_DSN is not the directory of a socket",
    }
    raise ServerError(f"TRANSPORT={settings.transport}: {remedy[settings.servers]}")
