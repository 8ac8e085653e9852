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
    env_file.write_text("FRAMEHAUL_POSTGRES_PROT=5432\n")
    with pytest.raises(SettingsError, match=r"FRAMEHAUL_POSTGRES_PROT is not .*did you mean FRAMEHAUL_POSTGRES_PORT"):
        load_settings({}, env_file)


def test_variables_of_other_programs_and_empty_values_are_left_alone() -> None:
    given = {"POSTGRES_PORT": "x", "PATH": "/bin", "FRAMEHAUL_POSTGRES_DSN": ""}
    assert load_settings(given, None) == Settings(servers="embedded", state_dir=PROJECT / ".framehaul")


def test_every_setting_is_read_from_its_variable(tmp_path: Path) -> None:
    ports = {"clickhouse_native_port": "1", "postgres_port": "2", "clickhouse_http_port": "65535"}
    directories = ("postgres_extensions", "exchange_dir", "shared_dir", "data", "state_dir", "out")
    given = ports | dict.fromkeys(directories, str(tmp_path)) | {
        "servers": "external", "postgres_dsn": "host=h", "clickhouse_url": "http://h",
        "exchange_dir_on_server": "/there", "bigquery_project": "p", "bigquery_dataset": "d",
        "bigquery_endpoint": "http://h:1", "pgbench": sys.executable, "pgbench_services": "a=postgresql://h",
        "scheduler": "tls://h:1", "python": "/bin/python", "fresh": "1", "reuse": "1", "preset": "smoke",
    }  # fmt: skip
    found = load_settings({f"FRAMEHAUL_{name.upper()}": value for name, value in given.items()}, None)
    assert load_settings({"FRAMEHAUL_BIGQUERY_ENDPOINT": "http://h:1/"}, None).bigquery_endpoint == "http://h:1"
    assert {name: str(value) for name, value in vars(found).items()} == given | {"fresh": "True", "reuse": "True"}
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    assert {name for name, kind in kinds.items() if kind.removesuffix(" | None") != "str"} <= READERS.keys() <= {*kinds}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("POSTGRES_PORT", "65536", "FRAMEHAUL_POSTGRES_PORT='65536' is not a port"),
        ("CLICKHOUSE_HTTP_PORT", "http", "FRAMEHAUL_CLICKHOUSE_HTTP_PORT='http' is not a port"),
        ("EXCHANGE_DIR", "/missing", "FRAMEHAUL_EXCHANGE_DIR='/missing' is not a directory"),
        ("PGBENCH", "/missing", r"FRAMEHAUL_PGBENCH=.*is not a program"),
        ("PRESET", "pipe", "^PRESET='pipe' is unknown; use one of smoke, quick, reference"),  # as make was given it
        ("SCHEDULER", "podman", "^SCHEDULER='podman' is not"),
        ("BIGQUERY_ENDPOINT", "localhost:9050", "FRAMEHAUL_BIGQUERY_ENDPOINT='localhost:9050' is not a URL"),
        ("FRESH", "yes", "^FRESH='yes' is neither 1, for yes, nor 0"),
        ("XYZZY", "1", r"FRAMEHAUL_XYZZY.*FRAMEHAUL_SERVERS, .*FRAMEHAUL_STATE_DIR"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        load_settings({f"FRAMEHAUL_{name}": value}, None)
