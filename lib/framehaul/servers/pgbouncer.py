"""Run PgBouncer in front of the embedded PostgreSQL in transaction mode: one server connection per transaction."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import docker
from framehaul.servers.address import PostgresServer
from framehaul.servers.files import end_of, write_private
from framehaul.servers.ports import choose_port
from framehaul.servers.postgres import ACCOUNT_FOR_ROOT
from framehaul.settings import Settings

START_SECONDS = 20
CONNECTIONS = 4
"""Minimum number of connections in the pool."""

# Other settings are PgBouncer's defaults: https://www.pgbouncer.org/config.html. By default, a single client gets the
# same connection for each transaction; here each transaction gets the next connection, unchecked, as in a busy pool.
CONFIGURATION = """[databases]
{database} = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
pool_mode = transaction
server_round_robin = 1
server_check_delay = 86400
min_pool_size = {connections}
{more}"""
# It exists since PgBouncer 1.21; tracking is the default since 1.24: https://www.pgbouncer.org/changelog.html
WITHOUT_PREPARED = "max_prepared_statements = 0\n"
"""The setting that disables tracking of prepared statements."""


@dataclass(frozen=True)
class Pooler:
    """A PgBouncer with its address and version."""

    server: PostgresServer
    version: str


@contextmanager
def pooling(server: PostgresServer) -> Iterator[Pooler]:
    """Run PgBouncer in front of a server on this machine; raises UnavailableError if it is not installed."""
    program = shutil.which("pgbouncer")
    if program is None:
        raise UnavailableError("PgBouncer is not on the PATH: install the package pgbouncer (apt, dnf, brew)")
    with tempfile.TemporaryDirectory(prefix="framehaul-pgbouncer-") as name:
        users, configuration, log = (Path(name) / file for file in ("users.txt", "pgbouncer.ini", "log"))
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        number = re.search(r"(\d+)\.(\d+)", version)
        more = WITHOUT_PREPARED if number and (int(number[1]), int(number[2])) >= (1, 21) else ""
        write_private(users, f'"{server.user}" "{server.password}"\n')
        if os.geteuid() == 0:  # PgBouncer refuses to run as root
            more += f"user = {ACCOUNT_FOR_ROOT}\n"
            for path in (Path(name), users):
                shutil.chown(path, ACCOUNT_FOR_ROOT)
        pooled = replace(server, port=choose_port())
        values = {"database": server.database, "server_port": server.port, "port": pooled.port, "users": users}
        configuration.write_text(CONFIGURATION.format(**values, connections=CONNECTIONS, more=more))
        # The shell kills PgBouncer when its standard input closes, at the latest when this process ends.
        shell = f'"{program}" "{configuration}" </dev/null >"{log}" 2>&1 & cat >/dev/null; kill -KILL $!; wait'
        command, deadline = ["/bin/sh", "-c", shell], time.monotonic() + START_SECONDS
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
            while True:
                try:
                    fill(pooled)
                    break
                except psycopg.OperationalError as error:
                    if time.monotonic() > deadline:
                        raise ServerError(f"PgBouncer did not start; its log ends:\n{end_of(log)}") from error
                    time.sleep(0.02)
            yield Pooler(pooled, version.splitlines()[0])


def of_docker(settings: Settings) -> Pooler:
    """Return the PgBouncer of the compose file; raises UnavailableError if its profile is not up."""
    pooled = docker.pooled(settings)
    try:
        fill(pooled)
    except psycopg.OperationalError:
        raise UnavailableError("PgBouncer is not up: COMPOSE_PROFILES=pgbouncer make all SERVERS=docker") from None
    return Pooler(pooled, "PgBouncer of docker-compose.yml")


def fill(pooled: PostgresServer) -> None:
    """Open all connections of the pool and deallocate their prepared statements.

    Drivers number their statements from one: otherwise a client would use another client's statement of that name.
    """
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(psycopg.connect(pooled.dsn())).execute("DEALLOCATE ALL")
