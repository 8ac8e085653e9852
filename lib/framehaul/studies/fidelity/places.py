"""Create hostile sessions and a database without encoding on embedded servers, and remove them after a run."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from framehaul.data.schema import quote_postgres, quote_postgres_text
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.hostile import HOSTILE, POSTGRES_SETTINGS
from framehaul.servers.tables import tables_of

NO_ENCODING = "framehaul_sql_ascii"
"""The name of the database without encoding."""


@contextmanager
def hostile_session(server: PostgresServer | ClickHouseServer) -> Iterator[PostgresServer | ClickHouseServer]:
    """Yield an embedded server with another user, which may use framehaul's tables, and whose sessions are hostile.

    Embedded ClickHouse has this user in its configuration.
    """
    if isinstance(server, ClickHouseServer):
        yield replace(server, user=HOSTILE)
        return
    password = secrets.token_urlsafe(24)
    create = [
        # A member of the role may alter, lock and truncate its tables.
        f"CREATE ROLE {HOSTILE} LOGIN PASSWORD '{password}' IN ROLE {quote_postgres(server.user)}",
        # pg_parquet needs these roles to use files.
        f"GRANT pg_read_server_files, pg_write_server_files TO {HOSTILE}",
    ]
    for name, value in POSTGRES_SETTINGS.items():
        create.append(f"ALTER ROLE {HOSTILE} SET {name} = {quote_postgres_text(str(value))}")
    drop = f"DROP OWNED BY {HOSTILE}; DROP ROLE {HOSTILE};"
    with _made(server, create, f"DO $$ BEGIN IF to_regrole('{HOSTILE}') IS NOT NULL THEN {drop} END IF; END $$"):
        yield replace(server, user=HOSTILE, password=password)


@contextmanager
def without_encoding(server: PostgresServer) -> Iterator[PostgresServer]:
    """Yield a database of an embedded server that takes any bytes as text.

    https://www.postgresql.org/docs/18/multibyte.html
    """
    create = f"CREATE DATABASE {NO_ENCODING} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
    with _made(server, [create], f"DROP DATABASE IF EXISTS {NO_ENCODING} WITH (FORCE)"):
        yield replace(server, database=NO_ENCODING)


@contextmanager
def _made(server: PostgresServer, create: list[str], drop: str) -> Iterator[None]:
    """Drop what a killed run has left, run statements that create it anew, and drop it at the end of the block."""
    tables = tables_of(server)
    for statement in (drop, *create):
        tables.run(statement)
    try:
        yield
    finally:
        with contextlib.suppress(ServerError):  # when the server is gone
            tables.run(drop)
