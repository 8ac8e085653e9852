"""Create hostile sessions and a database without encoding on embedded servers, and remove them after a run."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql

from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.hostile import HOSTILE, POSTGRES_SETTINGS

NO_ENCODING = "framehaul_sql_ascii"
"""The name of the database without encoding."""
ROLE, DATABASE = sql.Identifier(HOSTILE), sql.Identifier(NO_ENCODING)


class NotAllowedError(RuntimeError):
    """A session or database cannot be created on a server; the message has the reason."""


@contextmanager
def hostile_session(server: PostgresServer | ClickHouseServer) -> Iterator[PostgresServer | ClickHouseServer]:
    """Yield the server with another user, who may use framehaul's tables and whose sessions have hostile settings.

    Embedded ClickHouse has this user in its configuration. Raises NotAllowedError if the user cannot be created.
    """
    if isinstance(server, ClickHouseServer):
        _check_embedded(server)
        yield replace(server, user=HOSTILE)
        return
    password = secrets.token_urlsafe(24)
    with _administering(server) as connection, connection.transaction():
        _drop_role(connection)
        # A member of the role may alter, lock and truncate its tables.
        role = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}")
        connection.execute(role.format(ROLE, sql.Literal(password), sql.Identifier(server.user)))
        for name, value in POSTGRES_SETTINGS.items():
            setting = sql.SQL("ALTER ROLE {} SET {} = {}")
            connection.execute(setting.format(ROLE, sql.Identifier(name.lower()), sql.Literal(value)))
        # pg_parquet needs these roles to use files.
        connection.execute(sql.SQL("GRANT pg_read_server_files, pg_write_server_files TO {}").format(ROLE))
    try:
        yield replace(server, user=HOSTILE, password=password)
    finally:
        with contextlib.suppress(NotAllowedError), _administering(server) as connection:  # when the server is gone
            _drop_role(connection)


def _drop_role(connection: psycopg.Connection[Any]) -> None:
    if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (HOSTILE,)).fetchone() is not None:
        connection.execute(sql.SQL("DROP OWNED BY {}").format(ROLE))
        connection.execute(sql.SQL("DROP ROLE {}").format(ROLE))


@contextmanager
def without_encoding(server: PostgresServer) -> Iterator[PostgresServer]:
    """Return a database of the server whose text may be any bytes: https://www.postgresql.org/docs/18/multibyte.html.

    Raises NotAllowedError if databases cannot be created.
    """
    create = sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(DATABASE)
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(DATABASE)
    with _administering(server) as connection:
        connection.execute(drop)
        connection.execute(create)
    try:
        yield replace(server, database=NO_ENCODING)
    finally:
        with contextlib.suppress(NotAllowedError), _administering(server) as connection:  # when the server is gone
            connection.execute(drop)


@contextmanager
def _administering(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """Connect to the server; raises NotAllowedError with the server's error."""
    _check_embedded(server)
    try:
        with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        raise NotAllowedError(" ".join(str(error).split())) from error


def _check_embedded(server: PostgresServer | ClickHouseServer) -> None:
    if server.process_id is None:
        raise NotAllowedError("roles and databases are created on embedded servers only")
