"""Both servers in containers, from `docker-compose.yml`; their passwords are random and stay on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from framehaul.servers.address import ClickHouseServer, Exchange, PostgresServer, ServerError, Servers
from framehaul.servers.secret import password_in, write_private
from framehaul.settings import PROJECT, Settings

POSTGRES_PORT = 55432
CLICKHOUSE_HTTP_PORT = 58123
CLICKHOUSE_NATIVE_PORT = 59000
EXCHANGE_ON_SERVER = "/framehaul-exchange"


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """The compose services; taken down at the end unless they were up before."""
    were_up = bool(_compose(settings, "ps", "--quiet", "--status=running").strip())
    servers = start(settings)
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
    were_up = bool(_compose(settings, "ps", "--quiet", "--all").strip())
    _compose(settings, "down")
    return were_up


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


def _compose(settings: Settings, *arguments: str) -> str:
    if shutil.which("docker") is None:
        raise ServerError("SERVERS=docker needs the docker command with its compose plugin; or use SERVERS=embedded")
    environment_file = _environment_file(settings)
    done = subprocess.run(
        ["docker", "compose", "--project-directory", PROJECT, "--env-file", environment_file, *arguments],
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
    servers = _servers(settings)
    values = {
        "FRAMEHAUL_POSTGRES_PASSWORD": servers.postgres.password,
        "FRAMEHAUL_POSTGRES_PORT": servers.postgres.port,
        "FRAMEHAUL_CLICKHOUSE_PASSWORD": servers.clickhouse.password,
        "FRAMEHAUL_CLICKHOUSE_HTTP_PORT": servers.clickhouse.http_port,
        "FRAMEHAUL_CLICKHOUSE_NATIVE_PORT": servers.clickhouse.native_port,
        "FRAMEHAUL_EXCHANGE": exchange,
        # The server writes pg_parquet's files as the user who reads them here.
        "FRAMEHAUL_UID": os.getuid(),
        "FRAMEHAUL_GID": os.getgid(),
    }
    path = directory / "compose.env"
    write_private(path, "".join(f"{key}={value}\n" for key, value in values.items()))
    return path
