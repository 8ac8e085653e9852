"""Use external servers, whose addresses are in the environment or `.env`; only our own tables are touched."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from framehaul.errors import ServerError
from framehaul.servers.address import Exchange, Servers, parse_clickhouse_url, parse_postgres_dsn
from framehaul.settings import Settings


def start(settings: Settings) -> Servers:
    """Return the servers that the settings name; raises ServerError when an address is missing or malformed."""
    if not settings.postgres_dsn or not settings.clickhouse_url:
        missing = "FRAMEHAUL_POSTGRES_DSN" if not settings.postgres_dsn else "FRAMEHAUL_CLICKHOUSE_URL"
        raise ServerError(f"SERVERS=external needs {missing}; set it in the environment or in .env")
    postgres = parse_postgres_dsn("FRAMEHAUL_POSTGRES_DSN", settings.postgres_dsn)
    if settings.exchange_dir is not None:
        on_server = settings.exchange_dir_on_server or str(settings.exchange_dir)
        postgres = replace(postgres, exchange=Exchange(str(settings.exchange_dir), on_server))
    return Servers(postgres, parse_clickhouse_url(settings.clickhouse_url, settings.clickhouse_native_port), "external")


def running(settings: Settings) -> nullcontext[Servers]:
    """Return a context manager that yields the servers that the settings name."""
    return nullcontext(start(settings))


def stop(_: Settings) -> bool:
    """Return False: external servers are never stopped."""
    return False
