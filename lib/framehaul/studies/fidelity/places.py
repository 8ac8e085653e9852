"""Places that a run makes on the servers: sessions with other settings, a database whose text is any bytes.

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

from framehaul.data.schema import COMMENT, quote_clickhouse_text
from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.servers.hostile import CLICKHOUSE_SETTINGS, HOSTILE, POSTGRES_SETTINGS
from framehaul.servers.tables import ClickHouseTables

NO_ENCODING = "framehaul_sql_ascii"
"""The database whose text is any bytes."""
ROLE, DATABASE = sql.Identifier(HOSTILE), sql.Identifier(NO_ENCODING)
OURS = sql.Literal(COMMENT)


class NotAllowedError(RuntimeError):
    """A server does not let us make such a place; the message says why, mostly in its own words."""


@contextmanager
def hostile_session(server: PostgresServer | ClickHouseServer) -> Iterator[PostgresServer | ClickHouseServer]:
    """The server as a user whose sessions have other settings, and who may do all that techniques do to our tables.

    Raises NotAllowedError where there is none and none can be made.
    """
    if isinstance(server, PostgresServer):
        with _hostile_postgres(server) as as_role:
            yield as_role
    else:
        with _hostile_clickhouse(server) as as_user:
            yield as_user


@contextmanager
def _hostile_postgres(server: PostgresServer) -> Iterator[PostgresServer]:
    password = secrets.token_urlsafe(24)
    with _administering(server) as connection, connection.transaction():
        _drop_role(connection)
        # Its member may alter, lock and truncate what our role owns.
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE {}").format(
                ROLE, sql.Literal(password), sql.Identifier(server.user)
            )
        )
        connection.execute(sql.SQL("COMMENT ON ROLE {} IS {}").format(ROLE, OURS))
        for name, value in POSTGRES_SETTINGS.items():
            setting = sql.SQL("ALTER ROLE {} SET {} = {}")
            connection.execute(setting.format(ROLE, sql.Identifier(name.lower()), sql.Literal(value)))
        # Which pg_parquet's files take, and which only a superuser may give.
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege), connection.transaction():
            connection.execute(sql.SQL("GRANT pg_read_server_files, pg_write_server_files TO {}").format(ROLE))
    try:
        yield replace(server, user=HOSTILE, password=password)
    finally:
        with contextlib.suppress(NotAllowedError), _administering(server) as connection:  # when the server is gone
            _drop_role(connection)


def _drop_role(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute(
        "SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = %s", (HOSTILE,)
    ).fetchone()
    if row is None:
        return
    if row[0] != COMMENT:
        raise NotAllowedError(f"there is a role {HOSTILE} that framehaul did not make")
    connection.execute(sql.SQL("DROP OWNED BY {}").format(ROLE))
    connection.execute(sql.SQL("DROP ROLE {}").format(ROLE))


@contextmanager
def without_encoding(server: PostgresServer) -> Iterator[PostgresServer]:
    """A database of the server that takes any bytes for text: https://www.postgresql.org/docs/18/multibyte.html.

    Raises NotAllowedError where databases cannot be made.
    """
    with _administering(server) as connection:
        _drop_database(connection)
        connection.execute(
            sql.SQL("CREATE DATABASE {} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0").format(DATABASE)
        )
        connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(DATABASE, OURS))
    try:
        yield replace(server, database=NO_ENCODING)
    finally:
        with contextlib.suppress(NotAllowedError), _administering(server) as connection:  # when the server is gone
            _drop_database(connection)


def _drop_database(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute(
        "SELECT shobj_description(oid, 'pg_database'), datdba = current_user::regrole FROM pg_database "
        "WHERE datname = %s",
        (NO_ENCODING,),
    ).fetchone()
    if row is None:
        return
    # One that our role owns and nobody has commented on is of a run that was killed while it was made.
    if row[0] != COMMENT and not (row[0] is None and row[1]):
        raise NotAllowedError(f"there is a database {NO_ENCODING} that framehaul did not make")
    connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(DATABASE))


@contextmanager
def _administering(server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection on which what the server refuses is a NotAllowedError."""
    try:
        with psycopg.connect(server.dsn(), autocommit=True, connect_timeout=10) as connection:
            yield connection
    except psycopg.Error as error:
        raise NotAllowedError(" ".join(str(error).split())) from error


@contextmanager
def _hostile_clickhouse(server: ClickHouseServer) -> Iterator[ClickHouseServer]:
    """The user that the embedded server has beside ours, of the same password; elsewhere one made for the run.

    The embedded server keeps no users but those of its configuration.
    """
    hostile = replace(server, user=HOSTILE)
    if _answers(hostile):
        yield hostile
        return
    hostile, ours = replace(hostile, password=secrets.token_urlsafe(24)), ClickHouseTables(server)
    settings = ", ".join(
        f"{name} = {value if isinstance(value, int) else quote_clickhouse_text(value)}"
        for name, value in CLICKHOUSE_SETTINGS.items()
    )
    password = quote_clickhouse_text(hostile.password)
    try:
        ours.run(f"DROP USER IF EXISTS {HOSTILE}")
        ours.run(f"CREATE USER {HOSTILE} IDENTIFIED WITH sha256_password BY {password} SETTINGS {settings}")
    except ServerError as error:
        raise NotAllowedError(str(error)) from error
    try:
        try:
            ours.run(f"GRANT CURRENT GRANTS ON *.* TO {HOSTILE}")
        except ServerError as error:
            raise NotAllowedError(str(error)) from error
        yield hostile
    finally:
        with contextlib.suppress(ServerError):
            ours.run(f"DROP USER IF EXISTS {HOSTILE}")


def _answers(server: ClickHouseServer) -> bool:
    try:
        ClickHouseTables(server).run("SELECT 1")
    except ServerError:
        return False
    return True
