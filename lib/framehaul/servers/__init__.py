"""Describe and start the servers under test: embedded, in docker compose, or external."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from framehaul.errors import ServerError
from framehaul.settings import Settings

TIMEOUT_SECONDS = 600  # of clients, for an answer
VARIABLES = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE"}
"""Variables with libpq's defaults for parts of an address: https://www.postgresql.org/docs/18/libpq-envars.html"""


@dataclass(frozen=True)
class PostgresServer:
    """A PostgreSQL server; `options` are further libpq parameters such as `sslmode`."""

    host: str
    port: int
    user: str
    password: str
    database: str
    options: tuple[tuple[str, str], ...] = ()
    process_id: int | None = None
    """Process id of an embedded postmaster, whose CPU time can be measured."""
    exchange: tuple[str, str] | None = None
    """The paths, on client and server, of a shared directory for pg_parquet's files."""

    @property
    def over_socket(self) -> bool:
        """Return whether clients use a Unix socket; the host is then the socket's directory, as for libpq."""
        return self.host.startswith("/")

    def dsn(self) -> str:
        """Return the address as a URL for psycopg and asyncpg."""
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        host = f"[{self.host}]" if ":" in self.host else quote(self.host, safe="")
        options = urlencode(self.options, quote_via=quote)  # libpq does not read + as a blank
        return urlunsplit(("postgresql", f"{login}@{host}:{self.port}", quote(self.database, safe=""), options, ""))


@dataclass(frozen=True)
class ClickHouseServer:
    """A ClickHouse server with its HTTP and native listeners; `secure` means TLS on both."""

    host: str
    http_port: int
    native_port: int
    user: str
    password: str
    database: str
    secure: bool = False
    process_id: int | None = None

    @property
    def url(self) -> str:
        """Return the base URL of the HTTP interface, without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.http_port}/"


type Server = PostgresServer | ClickHouseServer


@dataclass(frozen=True)
class Servers:
    """Both servers, and the supervisor process of embedded servers."""

    postgres: PostgresServer
    clickhouse: ClickHouseServer
    mode: str
    supervisor_process_id: int | None = None

    def of(self, database: str) -> Server:
        """Return the server of a database, `postgres` or `clickhouse`."""
        return self.postgres if database == "postgres" else self.clickhouse


def parse_postgres_dsn(setting: str, dsn: str) -> PostgresServer:
    """Parse a libpq URL or key=value string; missing parts come from VARIABLES; raises ServerError for another form."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = {key: os.environ[name] for key, name in VARIABLES.items() if os.environ.get(name)}
        given |= {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        port = int(given.pop("port", "5432"))
    except (ProgrammingError, ValueError):
        # libpq's own message would quote the string, including the password.
        forms = "postgresql://user:password@host:5432/database or host=... user=... password=... dbname=..."
        raise ServerError(f"{setting} is not a libpq connection string of one server, such as {forms}") from None
    if "service" in given:
        raise ServerError(f"{setting} names a service of a file, which is not read here: give host, port and so on")
    user = given.pop("user", "postgres")
    host, password, database = given.pop("host", "localhost"), given.pop("password", ""), given.pop("dbname", user)
    return PostgresServer(host, port, user, password, database, tuple(sorted(given.items())))


def parse_clickhouse_url(url: str, native_port: int | None, name: str = "FRAMEHAUL_CLICKHOUSE_URL") -> ClickHouseServer:
    """Parse `http(s)://user:password@host:port/database`; raises ServerError when the URL has another form."""
    # The message quotes no part of the URL: in a malformed URL, any part may be the password.
    form = "http(s)://user:password@host:port/database, with special characters of the password written as %XX"
    malformed = ServerError(f"{name} must look like {form}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise malformed from None
    misplaced = parts.query or parts.fragment or "@" in parts.path
    if parts.scheme not in ("http", "https") or not parts.hostname or misplaced:
        raise malformed
    secure = parts.scheme == "https"
    ports = port or (8443 if secure else 8123), native_port or (9440 if secure else 9000)
    login = unquote(parts.username or "default"), unquote(parts.password or "")
    return ClickHouseServer(parts.hostname, *ports, *login, unquote(parts.path.strip("/")) or "default", secure)


def external(settings: Settings) -> Servers:
    """Return the servers that the settings name; raises ServerError when an address is missing or malformed."""
    if not settings.postgres_dsn or not settings.clickhouse_url:
        missing = "FRAMEHAUL_POSTGRES_DSN" if not settings.postgres_dsn else "FRAMEHAUL_CLICKHOUSE_URL"
        raise ServerError(f"SERVERS=external needs {missing}; set it in the environment or in .env")
    postgres = parse_postgres_dsn("FRAMEHAUL_POSTGRES_DSN", settings.postgres_dsn)
    if settings.exchange_dir is not None:
        on_server = settings.exchange_dir_on_server or str(settings.exchange_dir)
        postgres = replace(postgres, exchange=(str(settings.exchange_dir), on_server))
    return Servers(postgres, parse_clickhouse_url(settings.clickhouse_url, settings.clickhouse_native_port), "external")


def reach_loopback_directly() -> None:
    """Exempt this machine from any HTTP proxy, for this process and its children: a proxy cannot reach its loopback.

    Libraries read either spelling: https://docs.python.org/3/library/urllib.request.html#urllib.request.getproxies
    """
    for name in ("no_proxy", "NO_PROXY"):
        exempt = [host for host in os.environ.get(name, "").replace(" ", "").split(",") if host]
        if exempt != ["*"]:  # * exempts all hosts when it is the whole value, and nothing in a list
            os.environ[name] = ",".join(dict.fromkeys([*exempt, "127.0.0.1", "localhost", "::1"]))


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Yield both servers while the block lasts; raises ServerError when one cannot be started or reached.

    Running servers are used and left running. Servers started here are stopped at the end, also when this process is
    killed, and even if another process uses them. `start` starts servers that several processes share.
    """
    reach_loopback_directly()
    found = nullcontext(external(settings)) if settings.servers == "external" else _mode(settings).running(settings)
    with found as servers:
        yield servers


def start(settings: Settings) -> Servers:
    """Start the servers and leave them running until `stop`; external servers are not touched."""
    reach_loopback_directly()
    return external(settings) if settings.servers == "external" else _mode(settings).start(settings)


def stop(settings: Settings) -> bool:
    """Stop the servers and return whether any were running; external servers are not touched."""
    return settings.servers != "external" and bool(_mode(settings).stop(settings))


def _mode(settings: Settings) -> Any:
    """Return the module `embedded` or `docker`; only the servers that are used are imported."""
    return importlib.import_module(f"{__name__}.{settings.servers}")
