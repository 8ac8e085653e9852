from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pytest

from framehaul.errors import SettingsError
from framehaul.settings import PROJECT, READERS, Settings, load_settings


def test_without_anything_given_the_servers_are_embedded_and_ours() -> None:
    assert load_settings({}, None) == Settings(servers="embedded", state_dir=PROJECT / ".framehaul")


def test_environment_goes_before_the_env_file(tmp_path: Path) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("FRAMEHAUL_SERVERS=docker\nFRAMEHAUL_POSTGRES_PORT=1111\n")
    found = load_settings({"FRAMEHAUL_SERVERS": "external"}, env_file)
    assert (found.servers, found.postgres_port) == ("external", 1111)


def test_missing_env_file_is_no_error(tmp_path: Path) -> None:
    assert load_settings({}, tmp_path / ".env") == load_settings({}, None)


def test_variables_of_other_programs_and_empty_values_are_left_alone() -> None:
    given = {"POSTGRES_PORT": "x", "PATH": "/bin", "FRAMEHAUL_POSTGRES_DSN": ""}
    assert load_settings(given, None) == load_settings({}, None)


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
        "out": str(tmp_path / "out"), "python": "/bin/python", "fresh": "1", "preset": "smoke",
    }  # fmt: skip
    found = load_settings({f"FRAMEHAUL_{name.upper()}": value for name, value in given.items()}, None)
    assert {name: str(getattr(found, name)) for name in Settings.__dataclass_fields__} == given | {"fresh": "True"}


@pytest.mark.parametrize("in_file", [True, False])
def test_unknown_key_is_refused_with_the_closest_known_one(tmp_path: Path, in_file: bool) -> None:
    env_file = tmp_path / ".env"
    env_file.write_text("FRAMEHAUL_POSTGRES_PROT=5432\n" if in_file else "")
    environment = {} if in_file else {"FRAMEHAUL_POSTGRES_PROT": "5432"}
    with pytest.raises(SettingsError, match=r"FRAMEHAUL_POSTGRES_PROT is not .*did you mean FRAMEHAUL_POSTGRES_PORT"):
        load_settings(environment, env_file)


def test_unknown_key_like_no_other_is_refused_with_all_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"FRAMEHAUL_XYZZY.*FRAMEHAUL_SERVERS, .*FRAMEHAUL_STATE_DIR"):
        load_settings({"FRAMEHAUL_XYZZY": "1"}, None)


def test_unknown_transport_is_refused_by_the_name_that_make_gives_it() -> None:
    with pytest.raises(SettingsError, match=r"^TRANSPORT='pipe' is unknown; use one of tcp, unix"):
        load_settings({"FRAMEHAUL_TRANSPORT": "pipe"}, None)


def test_unknown_server_mode_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="'podman' is unknown; use one of embedded, docker, external"):
        load_settings({"FRAMEHAUL_SERVERS": "podman"}, None)


@pytest.mark.parametrize("name", ["POSTGRES_PORT", "CLICKHOUSE_HTTP_PORT", "CLICKHOUSE_NATIVE_PORT"])
@pytest.mark.parametrize("value", ["0", "65536", "-1", "5432.0", "http", " "])
def test_what_is_no_port_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=rf"FRAMEHAUL_{name}={value!r} is not a port"):
        load_settings({f"FRAMEHAUL_{name}": value}, None)


@pytest.mark.parametrize("name", ["POSTGRES_EXTENSIONS", "EXCHANGE_DIR"])
def test_missing_directory_is_refused_by_name(name: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (tmp_path / "missing", file):
        with pytest.raises(SettingsError, match=rf"FRAMEHAUL_{name}='{path}' is not a directory"):
            load_settings({f"FRAMEHAUL_{name}": str(path)}, None)


def test_a_pgbench_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").touch(mode=0o600)
    with pytest.raises(SettingsError, match=r"FRAMEHAUL_PGBENCH=.*is not a program"):
        load_settings({"FRAMEHAUL_PGBENCH": str(tmp_path / "text")}, None)


def test_what_make_was_given_is_named_as_it_was_given() -> None:
    for name, said in (("SERVERS", "^SERVERS='podman' is unknown"), ("SCHEDULER", "^SCHEDULER='podman' is not")):
        with pytest.raises(SettingsError, match=said):
            load_settings({f"FRAMEHAUL_{name}": "podman"}, None)


def test_only_1_and_0_say_yes_and_no() -> None:
    assert not load_settings({"FRAMEHAUL_FRESH": "0"}, None).fresh
    with pytest.raises(SettingsError, match="FRESH='yes' is neither 1, for yes, nor 0"):
        load_settings({"FRAMEHAUL_FRESH": "yes"}, None)


def test_every_setting_that_is_not_text_has_a_reader() -> None:
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    assert {name for name, kind in kinds.items() if kind.removesuffix(" | None") != "str"} <= READERS.keys() <= {*kinds}
