"""PgBouncer before the embedded PostgreSQL, in transaction mode: one server connection for each transaction."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg

from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import docker
from framehaul.servers.address import PostgresServer
from framehaul.servers.ports import choose_port
from framehaul.servers.postgres import ACCOUNT_FOR_ROOT, WATCHDOG
from framehaul.servers.secret import write_private
from framehaul.settings import Settings

START_SECONDS = 20
CONNECTIONS = 4
"""Of the pool, at least."""

# What is not said is PgBouncer's default: https://www.pgbouncer.org/config.html. A pool that nobody else uses would
# give every transaction of a client the connection that it had before: here each gets the next one, as in a busy pool.
# Those that were idle for long would be checked one at a time, and one of them used alone: here they are not checked.
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
FOLLOWS_FROM = (1, 21)
FOLLOWS_NOT = "max_prepared_statements = 0\n"
"""The first version that can follow what drivers prepare, and does so by default from 1.24 on; older ones do not know
the setting: https://www.pgbouncer.org/changelog.html"""


@dataclass(frozen=True)
class Pooler:
    """A PgBouncer: the server as it is reached through it, and its process where that is ours."""

    server: PostgresServer
    process_id: int | None
    version: str


def follows(version: str) -> bool:
    """Whether a PgBouncer that says this of its version can follow prepared statements."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= FOLLOWS_FROM


@contextmanager
def pooling(server: PostgresServer) -> Iterator[Pooler]:
    """PgBouncer before a server that runs on this machine, while the block lasts.

    Raises UnavailableError where it is not installed, ServerError where it does not start.
    """
    program = shutil.which("pgbouncer")
    if program is None:
        raise UnavailableError("PgBouncer is not on the PATH: install the package pgbouncer (apt, dnf, brew)")
    with tempfile.TemporaryDirectory(prefix="framehaul-pgbouncer-") as name:
        users, log, configuration = (Path(name) / file for file in ("users.txt", "pgbouncer.log", "pgbouncer.ini"))
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        more = FOLLOWS_NOT if follows(version) else ""
        write_private(users, f'"{server.user}" "{server.password}"\n')
        if os.geteuid() == 0:  # it does not run as root
            more += f"user = {ACCOUNT_FOR_ROOT}\n"
            for path in (Path(name), users):
                shutil.chown(path, ACCOUNT_FOR_ROOT)
        port = choose_port(None, "")
        configuration.write_text(CONFIGURATION.format(
            database=server.database, server_port=server.port, port=port, users=users, connections=CONNECTIONS,
            more=more,
        ))  # fmt: skip
        with log.open("wb") as said:
            process = subprocess.Popen(
                [program, configuration], stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        with _ended(process):
            _wait_until_ready(process, port, log)
            pooled = replace(server, port=port)
            fill(pooled)
            yield Pooler(pooled, process.pid, version.splitlines()[0])


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process with the block, or with this process, however that ends."""
    watchdog = subprocess.Popen(
        ["/bin/sh", "-c", WATCHDOG, str(process.pid)], stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        yield
    finally:
        assert watchdog.stdin is not None
        watchdog.kill()  # before its input closes: it never signals a process id that has been reused
        watchdog.wait()
        watchdog.stdin.close()
        process.kill()
        process.wait()


def of_docker(settings: Settings) -> Pooler:
    """The compose file's, with its pool open; raises UnavailableError where its profile is not up."""
    pooled = docker.pooled(settings)
    try:
        fill(pooled)
    except psycopg.OperationalError:
        raise UnavailableError("PgBouncer is not up: COMPOSE_PROFILES=pgbouncer make all SERVERS=docker") from None
    return Pooler(pooled, None, "PgBouncer of docker-compose.yml")


def fill(pooled: PostgresServer) -> None:
    """Open the connections of the pool, as many as transactions at once, with nothing left of what clients prepared.

    Drivers count their statements from one: the next client would find somebody else's under the name of its own.
    """
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(psycopg.connect(pooled.dsn()))
            connection.execute("DEALLOCATE ALL")


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.02)
        else:
            return
    tail = log.read_text(errors="replace").splitlines()[-4:] if log.exists() else []
    raise ServerError("PgBouncer did not start; its log ends:\n  " + "\n  ".join(tail))
