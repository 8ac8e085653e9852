"""Server addresses from the usual variables; the scripts that are handed out import these functions."""

from __future__ import annotations

import os
from dataclasses import replace

from framehaul.servers.address import (
    ClickHouseServer,
    Exchange,
    PostgresServer,
    parse_clickhouse_url,
    parse_postgres_dsn,
)


def postgres_server() -> PostgresServer:
    """Return the server of DATABASE_URL (`postgresql://user:password@host:port/database`), or of PGHOST etc."""
    return parse_postgres_dsn("DATABASE_URL", os.environ.get("DATABASE_URL", ""))


def postgres_server_with_exchange() -> PostgresServer:
    """Return the server with EXCHANGE_DIR, which both sides reach, and its path on the server."""
    directory = os.environ["EXCHANGE_DIR"]
    exchange = Exchange(directory, os.environ.get("EXCHANGE_DIR_ON_SERVER", directory))
    return replace(postgres_server(), exchange=exchange)


def clickhouse_server() -> ClickHouseServer:
    """Return the server of CLICKHOUSE_URL (`http://user:password@host:port/database`), with its native port."""
    native_port = os.environ.get("CLICKHOUSE_NATIVE_PORT")
    url = os.environ.get("CLICKHOUSE_URL", "http://localhost:8123")
    return parse_clickhouse_url(url, int(native_port) if native_port else None, "CLICKHOUSE_URL")
