"""Places that a run makes on embedded servers: sessions with other settings, a database whose text is any bytes.

They are gone afterwards; what a run that was killed has left is made anew.
"""

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
"""The database whose text is any bytes."""
ROLE, DATABASE = sql.Identifier(HOSTILE), sql.Identifier(NO_ENCODING)


class NotAllowedError(RuntimeError):
    """A server does not let us make such a place; the message says why, mostly in its own words."""


@contextmanager
def hostile_session(server: PostgresServer | ClickHouseServer) -> Iterator[PostgresServer | ClickHouseServer]:
    """The server as a user whose sessions have other settings, and who may do all that techniques do to our tables.

    Embedded ClickHouse has that user in its configuration, with our user's password. Raises NotAllowedError where
    there is none and none can be made.
    """
    if isinstance(server, ClickHouseServer):
        _check_embedded(server)
        yield replace(server, user=HOSTILE)
        return
    password = secrets.token_urlsafe(24)
    with _administering(server) as connection, connection.transaction():
        _drop_role(connection)
        # Its member may alter, lock and truncate what our role owns.
        role = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}")
        connection.execute(role.format(ROLE, sql.Literal(password), sql.Identifier(server.user)))
        for name, value in POSTGRES_SETTINGS.items():
            setting = sql.SQL("ALTER ROLE {} SET {} = {}")
            connection.execute(setting.format(ROLE, sql.Identifier(name.lower()), sql.Literal(value)))
        # Which pg_parquet's files take.
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
    """A database of the server that takes any bytes for text: https://www.postgresql.org/docs/18/multibyte.html.

    Raises NotAllowedError where databases cannot be made.
    """
    made = sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(DATABASE)
    dropped = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(DATABASE)
    with _administering(server) as connection:
        connection.execute(dropped)
        connection.execute(made)
    try:
        yield replace(server, database=NO_ENCODING)
    finally:
        with contextlib.suppress(NotAllowedError), _administering(server) as connection:  # when the server is gone
            connection.execute(dropped)


@contextmanager
def _administering(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection on which what the server refuses is a NotAllowedError."""
    _check_embedded(server)
    try:
        with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        raise NotAllowedError(" ".join(str(error).split())) from error


def _check_embedded(server: PostgresServer | ClickHouseServer) -> None:
    if server.process_id is None:
        raise NotAllowedError("made on embedded servers alone: roles and databases of other servers are not ours")
