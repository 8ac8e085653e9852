"""Somebody else's servers: addresses from the environment or `.env`; only our own tables are touched there."""

from __future__ import annotations

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from framehaul.servers.address import Exchange, PostgresServer, ServerError, Servers, parse_clickhouse_url
from framehaul.settings import Settings


def servers(settings: Settings) -> Servers:
    """The servers that the settings name; raises ServerError when one is not named or not well-formed."""
    if not settings.postgres_dsn or not settings.clickhouse_url:
        missing = "FRAMEHAUL_POSTGRES_DSN" if not settings.postgres_dsn else "FRAMEHAUL_CLICKHOUSE_URL"
        raise ServerError(f"SERVERS=external needs {missing}; set it in the environment or in .env")
    try:
        given = {key: str(value) for key, value in conninfo_to_dict(settings.postgres_dsn).items()}
        port = int(given.pop("port", "5432"))
    except (ProgrammingError, ValueError):
        # libpq's own message quotes the string, and with it the password.
        raise ServerError(
            "FRAMEHAUL_POSTGRES_DSN is not a libpq connection string of one server, such as "
            "postgresql://user:password@host:5432/database or host=... user=... password=... dbname=..."
        ) from None
    exchange = None
    if settings.exchange_dir is not None:
        exchange = Exchange(str(settings.exchange_dir), settings.exchange_dir_on_server or str(settings.exchange_dir))
    user = given.pop("user", "postgres")
    postgres = PostgresServer(
        host=given.pop("host", "localhost"),
        port=port,
        user=user,
        password=given.pop("password", ""),
        database=given.pop("dbname", user),
        options=tuple(sorted(given.items())),
        exchange=exchange,
    )
    return Servers(postgres, parse_clickhouse_url(settings.clickhouse_url, settings.clickhouse_native_port), "external")
