from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from framehaul.errors import SettingsError
from framehaul.settings import PROJECT, READERS, Settings, load_settings


def test_environment_goes_before_the_env_file(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("FRAMEHAUL_SERVERS=docker\nFRAMEHAUL_POSTGRES_PORT=1111\n")
    found = load_settings({"FRAMEHAUL_SERVERS": "external"}, env_file)
    assert (found.servers, found.postgres_port) == ("external", 1111)


def test_variables_of_other_programs_and_empty_values_are_left_alone() -> None:
    given = {"POSTGRES_PORT": "x", "PATH": "/bin", "FRAMEHAUL_POSTGRES_DSN": ""}
    assert load_settings(given, None) == Settings(servers="embedded", state_dir=PROJECT / ".framehaul")


def test_every_setting_is_read_from_its_variable(tmp_path: Path) -> None:
    given = {
        "servers": "external", "transport": "unix", "postgres_dsn": "host=h", "clickhouse_url": "http://h",
        "clickhouse_native_port": "1", "postgres_port": "2", "clickhouse_http_port": "65535",
        "postgres_extensions": str(tmp_path),
        "exchange_dir": str(tmp_path), "exchange_dir_on_server": "/there", "bigquery_project": "p",
        "bigquery_dataset": "d", "bigquery_endpoint": "http://h:1", "pgbench": sys.executable,
        "pgbench_services": "a=postgresql://h", "data": str(tmp_path / "file"),
        "scheduler": "tls://h:1", "shared_dir": str(tmp_path),
        "state_dir": str(tmp_path / "new"),
        "out": str(tmp_path / "out"), "python": "/bin/python", "fresh": "1", "reuse": "1", "preset": "smoke",
    }  # fmt: skip
    found = load_settings({f"FRAMEHAUL_{name.upper()}": value for name, value in given.items()}, None)
    yes = {"fresh": "True", "reuse": "True"}
    assert {name: str(getattr(found, name)) for name in Settings.__dataclass_fields__} == given | yes


@pytest.mark.parametrize("in_file", [True, False])
def test_unknown_key_is_refused_with_the_closest_known_one(tmp_path: Path, in_file: bool) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("FRAMEHAUL_POSTGRES_PROT=5432\n" if in_file else "")
    environment = {} if in_file else {"FRAMEHAUL_POSTGRES_PROT": "5432"}
    with pytest.raises(SettingsError, match=r"FRAMEHAUL_POSTGRES_PROT is not .*did you mean FRAMEHAUL_POSTGRES_PORT"):
        load_settings(environment, env_file)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("POSTGRES_PORT", "65536", "FRAMEHAUL_POSTGRES_PORT='65536' is not a port"),
        ("CLICKHOUSE_HTTP_PORT", "http", "FRAMEHAUL_CLICKHOUSE_HTTP_PORT='http' is not a port"),
        ("EXCHANGE_DIR", "/missing", "FRAMEHAUL_EXCHANGE_DIR='/missing' is not a directory"),
        ("PGBENCH", "/missing", r"FRAMEHAUL_PGBENCH=.*is not a program"),
        ("TRANSPORT", "pipe", "^TRANSPORT='pipe' is unknown; use one of tcp, unix"),  # as make was given it
        ("SERVERS", "podman", "^SERVERS='podman' is unknown; use one of embedded, docker, external"),
        ("SCHEDULER", "podman", "^SCHEDULER='podman' is not"),
        ("FRESH", "yes", "^FRESH='yes' is neither 1, for yes, nor 0"),
        ("XYZZY", "1", r"FRAMEHAUL_XYZZY.*FRAMEHAUL_SERVERS, .*FRAMEHAUL_STATE_DIR"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings({f"FRAMEHAUL_{name}": value}, None)


def test_every_setting_that_is_not_text_has_a_reader() -> None:
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    assert {name for name, kind in kinds.items() if kind.removesuffix(" | None") != "str"} <= READERS.keys() <= {*kinds}
