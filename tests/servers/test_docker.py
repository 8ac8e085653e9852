"""The compose file, as far as it can be checked without a Docker engine."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path
from xml.etree import ElementTree

import yaml

from framehaul.servers import docker
from framehaul.servers.pgbouncer import CONFIGURATION, CONNECTIONS
from framehaul.servers.postgres import FOR_TRANSFERS
from framehaul.settings import PROJECT, Settings
from framehaul.studies.scale_out.clickhouse import CLUSTER

COMPOSE = yaml.safe_load((PROJECT / "docker-compose.yml").read_text())


def test_postgres_runs_with_the_settings_of_the_embedded_server() -> None:
    given = dict(word.split("=", 1) for word in COMPOSE["services"]["postgres"]["command"].split() if "=" in word)
    wanted = FOR_TRANSFERS | {"logging_collector": "off", "timezone": "UTC"}
    assert {name: given.get(name) for name in wanted} == wanted
    assert given["shared_preload_libraries"] == "pg_parquet"


def test_ports_are_published_on_loopback_only_and_images_are_pinned() -> None:
    for service in COMPOSE["services"].values():
        assert all(str(port).startswith("127.0.0.1:") for port in service["ports"])
        assert "healthcheck" in service
    assert re.search(r":\d+\.\d+\.\d+\.\d+$", COMPOSE["services"]["clickhouse"]["image"])
    assert re.match(
        r"FROM postgres:18\.\d+-", re.sub(r"(?m)^#.*\n", "", (PROJECT / "docker/postgres/Dockerfile").read_text())
    )


def test_the_shards_are_where_the_notebook_looks_and_know_one_another(tmp_path: Path) -> None:
    names = ["clickhouse-shard-1", "clickhouse-shard-2"]
    asked = [name for name, service in COMPOSE["services"].items() if service.get("profiles") == ["shards"]]
    assert asked == names
    found = docker.shards(Settings(servers="docker", state_dir=_state(tmp_path)))
    for name, server in zip(names, found, strict=True):
        service = COMPOSE["services"][name]
        assert service["ports"] == [f"127.0.0.1:{server.http_port}:8123"]
        assert service["image"] == COMPOSE["services"]["clickhouse"]["image"]
        assert service["environment"]["CLICKHOUSE_USER"] == server.user
        assert f"{name}:/var/lib/clickhouse" in service["volumes"]
        assert name in COMPOSE["volumes"]
        mounted = {volume.split(":")[0] for volume in service["volumes"] if volume.startswith("./")}
        assert all((PROJECT / path).is_file() for path in mounted)
    configuration = ElementTree.parse(PROJECT / "docker/clickhouse-shards/cluster.xml")
    (cluster,) = configuration.findall("remote_servers/*")
    assert cluster.tag == CLUSTER
    assert [host.text for host in cluster.findall("shard/replica/host")] == names
    for password in cluster.findall("shard/replica/password"):
        assert password.get("from_env") in COMPOSE["services"]["clickhouse"]["environment"]
        assert not password.text


def test_pgbouncer_has_the_settings_of_the_embedded_one(tmp_path: Path) -> None:
    service, text = COMPOSE["services"]["pgbouncer"], (PROJECT / "docker" / "pgbouncer" / "pgbouncer.ini").read_text()
    given, wanted = ConfigParser(), ConfigParser()
    given.read_string(text)
    wanted.read_string(CONFIGURATION.format(
        database="framehaul", server_port=5432, port=6432, users="", log="", connections=CONNECTIONS,
    ))  # fmt: skip
    apart = {"listen_addr", "listen_port", "auth_file", "logfile"}
    assert {name: given["pgbouncer"].get(name) for name in {*wanted["pgbouncer"]} - apart} == {
        name: value for name, value in wanted["pgbouncer"].items() if name not in apart
    }
    found = docker.pooled(Settings(servers="docker", state_dir=_state(tmp_path)))
    assert service["ports"] == [f"{found.host}:{found.port}:{given['pgbouncer']['listen_port']}"]
    assert service["profiles"] == ["pgbouncer"]
    postgres, pooler = ((PROJECT / "docker" / name / "Dockerfile").read_text() for name in ("postgres", "pgbouncer"))
    assert re.findall(r"^FROM .*$", postgres, re.MULTILINE) == re.findall(r"^FROM .*$", pooler, re.MULTILINE)


def _state(directory: Path) -> Path:
    (directory / "docker").mkdir()
    return directory


def test_the_environment_file_holds_every_variable_of_the_compose_file_and_is_private(tmp_path: Path) -> None:
    path = docker._environment_file(Settings(servers="docker", state_dir=tmp_path / "it's a $state"))
    text = path.read_text()
    given = {line.partition("=")[0] for line in text.splitlines()}
    assert set(re.findall(r"\$\{(FRAMEHAUL_\w+)", (PROJECT / "docker-compose.yml").read_text())) == given
    assert path.stat().st_mode & 0o777 == 0o600
    assert "FRAMEHAUL_EXCHANGE='" in text
    assert r"it\'s a $state" in text
