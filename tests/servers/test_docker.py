"""The compose file, as far as it can be checked without a Docker engine."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from framehaul.errors import ServerError
from framehaul.servers import docker
from framehaul.servers.local import FOR_TRANSFERS
from framehaul.settings import PROJECT, Settings

COMPOSE = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())


def test_postgres_runs_with_the_settings_of_the_embedded_server() -> None:
    given = dict(word.split("=", 1) for word in COMPOSE["services"]["postgres"]["command"].split() if "=" in word)
    wanted = FOR_TRANSFERS | {"max_connections": "60", "timezone": "UTC"}
    assert {name: given.get(name) for name in wanted} == wanted
    assert given["shared_preload_libraries"] == "pg_parquet"


def test_ports_are_published_on_loopback_only_and_images_are_pinned() -> None:
    for service in COMPOSE["services"].values():
        assert all(str(port).startswith("127.0.0.1:") for port in service["ports"])
    assert re.search(r":\d+\.\d+\.\d+\.\d+$", COMPOSE["services"]["clickhouse"]["image"])
    assert re.search(r"(?m)^FROM postgres:18\.\d+-", (PROJECT / "docker/postgres/Dockerfile").read_text())


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Gives what a `docker` in the place of the real one was asked to do, with the profiles of its environment."""
    log, program = tmp_path / "asked.txt", tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
test "$1 $2 $4" = "compose --project-directory --project-name" && test -n "$FRAMEHAUL_POSTGRES_PASSWORD" || exit 9
shift 7
echo "${{COMPOSE_PROFILES:-none}}: $*" >> '{log}'
case "$*" in
    *ps*) cat '{tmp_path}/up' 2>/dev/null;;
    *up*) test ! -e '{tmp_path}/taken' || {{ echo port is taken >&2; exit 1; }};;
esac
exit 0
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.delenv("COMPOSE_PROFILES", raising=False)
    return lambda: log.read_text().splitlines()


def test_profiles_of_the_environment_start_with_the_others_and_all_that_were_started_end(
    tmp_path: Path, asked: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(servers="docker", state_dir=tmp_path / "state")
    monkeypatch.setenv("COMPOSE_PROFILES", "bigquery")
    with docker.running(settings):
        pass
    monkeypatch.delenv("COMPOSE_PROFILES")
    docker.remove(settings)
    (tmp_path / "up").write_text("0123456789ab\n")
    with docker.running(settings):  # services that were up stay up
        pass
    assert asked() == [
        "bigquery: ps --quiet --status=running", "bigquery: up --detach --build --wait",
        "bigquery: --profile * ps --quiet --all", "bigquery: --profile * down", "none: --profile * down --volumes",
        "none: ps --quiet --status=running", "none: up --detach --build --wait",
    ]  # fmt: skip


def test_what_has_started_ends_where_not_all_of_it_does(tmp_path: Path, asked: Callable[[], list[str]]) -> None:
    (tmp_path / "taken").touch()
    with (
        pytest.raises(ServerError, match=r"docker compose up .* failed: port is taken"),
        docker.running(Settings(servers="docker", state_dir=tmp_path / "state")),
    ):
        pass
    assert asked()[-1] == "none: --profile * down"


def test_every_variable_of_the_compose_file_is_given_and_passwords_are_private(tmp_path: Path) -> None:
    given = docker._variables(Settings(servers="docker", state_dir=tmp_path / "it's a $state"))
    assert set(re.findall(r"\$\{(FRAMEHAUL_\w+)", (PROJECT / "docker-compose.yml").read_text())) == given.keys()
    for path in (tmp_path / "it's a $state" / "docker").glob("*-password"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() in given.values()
