"""Where the servers are, from the variables that are usual for it; it stands in the code that readers take away."""

from __future__ import annotations

import os
from dataclasses import replace
from urllib.parse import parse_qsl, unquote, urlsplit

from framehaul.servers.address import ClickHouseServer, Exchange, PostgresServer, parse_clickhouse_url


def postgres_server() -> PostgresServer:
    """The server of DATABASE_URL (`postgresql://user:password@host:port/database`), or of PGHOST, PGUSER and so on.

    What stands behind its question mark wins, `?host=/run/postgresql` for a socket, as for any client of libpq.
    """
    url = urlsplit(os.environ.get("DATABASE_URL", ""))
    place = url.netloc.rpartition("@")[2]  # not url.hostname, which has no capitals, as directories of sockets do
    host = place[1:].partition("]")[0] if place.startswith("[") else place.partition(":")[0]
    said = dict(parse_qsl(url.query))
    user = said.pop("user", "") or unquote(url.username or "") or os.environ.get("PGUSER", "postgres")
    return PostgresServer(
        host=said.pop("host", "") or unquote(host) or os.environ.get("PGHOST", "localhost"),
        port=int(said.pop("port", "") or url.port or os.environ.get("PGPORT", "5432")),
        user=user,
        password=said.pop("password", "") or unquote(url.password or "") or os.environ.get("PGPASSWORD", ""),
        database=said.pop("dbname", "") or unquote(url.path.lstrip("/")) or os.environ.get("PGDATABASE", user),
        options=tuple(said.items()),
    )


def postgres_server_with_exchange() -> PostgresServer:
    """The same server with EXCHANGE_DIR, a directory that both sides reach; EXCHANGE_DIR_ON_SERVER as it sees it."""
    directory = os.environ["EXCHANGE_DIR"]
    exchange = Exchange(directory, os.environ.get("EXCHANGE_DIR_ON_SERVER", directory))
    return replace(postgres_server(), exchange=exchange)


def clickhouse_server() -> ClickHouseServer:
    """The server of CLICKHOUSE_URL (`http://user:password@host:port/database`); CLICKHOUSE_NATIVE_PORT if not usual."""
    native_port = os.environ.get("CLICKHOUSE_NATIVE_PORT")
    url = os.environ.get("CLICKHOUSE_URL", "http://localhost:8123")
    return parse_clickhouse_url(url, int(native_port) if native_port else None, "CLICKHOUSE_URL")
