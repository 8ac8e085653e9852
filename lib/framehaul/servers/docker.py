"""Both servers in containers, from `docker-compose.yml`; their passwords are random and stay on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from framehaul.errors import ServerError
from framehaul.servers.address import ClickHouseServer, Exchange, PostgresServer, Servers
from framehaul.servers.files import password_in, write_private
from framehaul.servers.postgres import ACCOUNT_FOR_ROOT
from framehaul.settings import PROJECT, Settings

POSTGRES_PORT = 55432
CLICKHOUSE_HTTP_PORT = 58123
CLICKHOUSE_NATIVE_PORT = 59000
PGBOUNCER_PORT = 56432
"""Of the pooler that the profile `pgbouncer` adds."""
EXCHANGE_ON_SERVER = "/framehaul-exchange"
EVERY_PROFILE = ("--profile", "*")
"""Else what an earlier command has started with a profile stays up: https://github.com/docker/compose/issues/13647"""


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """The compose services; taken down at the end unless they were up before."""
    were_up = bool(_compose(settings, "ps", "--quiet", "--status=running").strip())
    try:
        servers = start(settings)
    except BaseException:
        if not were_up:
            with contextlib.suppress(ServerError):  # what is raised already says why
                stop(settings)
        raise
    try:
        yield servers
    finally:
        if not were_up:
            stop(settings)


def start(settings: Settings) -> Servers:
    """`docker compose up --wait`: returns when both health checks pass."""
    _compose(settings, "up", "--detach", "--build", "--wait")
    return _servers(settings)


def stop(settings: Settings) -> bool:
    """`docker compose down`; the volumes stay. False when nothing was up."""
    were_up = bool(_compose(settings, *EVERY_PROFILE, "ps", "--quiet", "--all").strip())
    _compose(settings, *EVERY_PROFILE, "down")
    return were_up


def remove(settings: Settings) -> None:
    """`docker compose down --volumes`: containers and data go, as they must before their passwords do."""
    if (settings.state_dir / "docker" / "compose.env").exists():
        _compose(settings, *EVERY_PROFILE, "down", "--volumes")


def _servers(settings: Settings) -> Servers:
    directory = settings.state_dir / "docker"
    return Servers(
        PostgresServer(
            "127.0.0.1", settings.postgres_port or POSTGRES_PORT, "framehaul",
            password_in(directory / "postgres-password"), "framehaul",
            exchange=Exchange(str(directory / "exchange"), EXCHANGE_ON_SERVER),
        ),
        ClickHouseServer(
            "127.0.0.1", settings.clickhouse_http_port or CLICKHOUSE_HTTP_PORT, CLICKHOUSE_NATIVE_PORT, "framehaul",
            password_in(directory / "clickhouse-password"), "default",
        ),
        "docker",
    )  # fmt: skip


def pooled(settings: Settings) -> PostgresServer:
    """PostgreSQL as it is reached through PgBouncer when the profile of that is up."""
    return replace(_servers(settings).postgres, port=PGBOUNCER_PORT)


def _compose(settings: Settings, *arguments: str) -> str:
    if shutil.which("docker") is None:
        raise ServerError("SERVERS=docker needs the docker command with its compose plugin; or use SERVERS=embedded")
    environment_file = _environment_file(settings)
    # Volumes keep the passwords they were made with, so each state directory has its own.
    name = f"framehaul-{hashlib.sha256(str(settings.state_dir).encode()).hexdigest()[:12]}"
    done = subprocess.run(
        ["docker", "compose", "--project-directory", PROJECT, "--project-name", name, "--env-file", environment_file,
         *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ServerError(f"docker compose {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def _environment_file(settings: Settings) -> Path:
    """What the compose file reads: passwords and ports, in a file of mode 0600."""
    directory = settings.state_dir / "docker"
    directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    exchange = directory / "exchange"
    exchange.mkdir(mode=0o700, exist_ok=True)
    user, group = _account_of_server(exchange)
    servers = _servers(settings)
    values = {
        "FRAMEHAUL_POSTGRES_PASSWORD": servers.postgres.password,
        "FRAMEHAUL_POSTGRES_PORT": servers.postgres.port,
        "FRAMEHAUL_CLICKHOUSE_PASSWORD": servers.clickhouse.password,
        "FRAMEHAUL_CLICKHOUSE_HTTP_PORT": servers.clickhouse.http_port,
        "FRAMEHAUL_CLICKHOUSE_NATIVE_PORT": servers.clickhouse.native_port,
        "FRAMEHAUL_EXCHANGE": exchange,
        "FRAMEHAUL_UID": user,
        "FRAMEHAUL_GID": group,
    }
    path = directory / "compose.env"
    quoted = {key: str(value).replace("'", "\\'") for key, value in values.items()}
    write_private(path, "".join(f"{key}='{value}'\n" for key, value in quoted.items()))
    return path


def _account_of_server(exchange: Path) -> tuple[int, int]:
    """Who PostgreSQL runs as: the user who reads pg_parquet's files here, or as PostgreSQL refuses root, `nobody`."""
    if os.getuid() != 0:
        return os.getuid(), os.getgid()
    account = pwd.getpwnam(ACCOUNT_FOR_ROOT)
    os.chown(exchange, account.pw_uid, account.pw_gid)
    return account.pw_uid, account.pw_gid
