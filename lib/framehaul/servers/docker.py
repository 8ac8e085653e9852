"""Run both servers in containers of `docker-compose.yml`, with random passwords that stay on this machine."""

import contextlib
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from framehaul.errors import ServerError
from framehaul.servers import ClickHouseServer, PostgresServer, Servers
from framehaul.servers.local import give, password_in
from framehaul.settings import PREFIX, PROJECT, Settings

POSTGRES_PORT, HTTP_PORT, NATIVE_PORT = 55432, 58123, 59000
EVERY_PROFILE = ("--profile", "*")
"""Arguments without which services of a profile stay up: https://github.com/docker/compose/issues/13647"""


@contextmanager
def running(settings: Settings) -> Iterator[Servers]:
    """Yield the compose services and take them down at the end unless they were up before."""
    with contextlib.ExitStack() as stack:
        if not _compose(settings, "ps", "--quiet", "--status=running").strip():
            stack.callback(stop, settings)
        yield start(settings)


def start(settings: Settings) -> Servers:
    """Run `docker compose up --wait`, which returns when both health checks pass."""
    _compose(settings, "up", "--detach", "--build", "--wait")
    return _servers(settings)


def stop(settings: Settings) -> bool:
    """Run `docker compose down`, which keeps the volumes; return whether anything was up."""
    were_up = bool(_compose(settings, *EVERY_PROFILE, "ps", "--quiet", "--all").strip())
    _compose(settings, *EVERY_PROFILE, "down")
    return were_up


def remove(settings: Settings) -> None:
    """Run `docker compose down --volumes`, which must happen before the passwords are removed."""
    if (settings.state_dir / "docker").exists():
        _compose(settings, *EVERY_PROFILE, "down", "--volumes")


def _servers(settings: Settings) -> Servers:
    directory = settings.state_dir / "docker"
    passwords = [password_in(directory / f"{name}-password") for name in ("postgres", "clickhouse")]
    exchange = str(directory / "exchange"), "/framehaul-exchange"
    ports = settings.postgres_port or POSTGRES_PORT, settings.clickhouse_http_port or HTTP_PORT
    return Servers(
        PostgresServer("127.0.0.1", ports[0], "framehaul", passwords[0], "framehaul", exchange=exchange),
        ClickHouseServer("127.0.0.1", ports[1], NATIVE_PORT, "framehaul", passwords[1], "default"),
        "docker",
    )


def _compose(settings: Settings, *arguments: str) -> str:
    if shutil.which("docker") is None:
        raise ServerError("SERVERS=docker needs the docker command with its compose plugin; or use SERVERS=embedded")
    # A volume keeps its initial passwords, so each state directory has its own volumes.
    name = f"framehaul-{hashlib.sha256(str(settings.state_dir).encode()).hexdigest()[:12]}"
    project = ["--project-directory", str(PROJECT), "--project-name", name, "--env-file", os.devnull]
    command, environment = ["docker", "compose", *project, *arguments], os.environ | _variables(settings)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerError(f"docker compose {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout


def _variables(settings: Settings) -> dict[str, str]:
    """Return the variables of the compose file, and create the directory of exchanged files."""
    exchange = settings.state_dir / "docker" / "exchange"
    exchange.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    exchange.mkdir(mode=0o700, exist_ok=True)
    give(exchange)
    servers, owner = _servers(settings), exchange.stat()
    values = {"EXCHANGE": exchange, "UID": owner.st_uid, "GID": owner.st_gid, "CLICKHOUSE_NATIVE_PORT": NATIVE_PORT}
    values |= {"POSTGRES_PASSWORD": servers.postgres.password, "POSTGRES_PORT": servers.postgres.port}
    values |= {"CLICKHOUSE_PASSWORD": servers.clickhouse.password, "CLICKHOUSE_HTTP_PORT": servers.clickhouse.http_port}
    return {f"{PREFIX}{name}": str(value) for name, value in values.items()}
