"""Where the servers are and which of them to use: read from the environment and from `.env`, unknown keys refused."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from dotenv import dotenv_values

from framehaul.errors import SettingsError

PROJECT = Path(__file__).resolve().parents[2]
PREFIX = "FRAMEHAUL_"

ServerMode = Literal["embedded", "docker", "external"]


@dataclass(frozen=True)
class Settings:
    """Everything a user can set outside a notebook; each field is the variable `FRAMEHAUL_<FIELD>`."""

    servers: ServerMode = "embedded"
    """Who runs the servers: this project (`embedded`), `docker` compose, or somebody else (`external`)."""
    postgres_dsn: str | None = None
    """External PostgreSQL, as a libpq URL or key=value string."""
    clickhouse_url: str | None = None
    """External ClickHouse over HTTP: `http(s)://user:password@host:port/database`."""
    clickhouse_native_port: int | None = None
    """Native port of that ClickHouse; 9000, or 9440 for an https URL, unless given."""
    postgres_port: int | None = None
    """Fixed port of the embedded or docker PostgreSQL; a free one (55432 for docker) unless given."""
    clickhouse_http_port: int | None = None
    """Fixed HTTP port of the embedded or docker ClickHouse; a free one (58123 for docker) unless given."""
    postgres_extensions: Path | None = None
    """Directory with a built PostgreSQL extension (pg_parquet) for the embedded server."""
    exchange_dir: Path | None = None
    """Directory shared with an external PostgreSQL, as this machine sees it (pg_parquet's files)."""
    exchange_dir_on_server: str | None = None
    """The same directory as that PostgreSQL server sees it; equal to `exchange_dir` unless given."""
    bigquery_project: str | None = None
    """Google Cloud project that BigQuery's load jobs run in."""
    bigquery_dataset: str | None = None
    """Data set of that project for the tables that are loaded, and deleted afterwards."""
    bigquery_endpoint: str | None = None
    """URL of another BigQuery than Google's public one: an emulator (http, no login), or a private endpoint (https)."""
    pgbench: Path | None = None
    """The pgbench to run in place of the one in the PostgreSQL wheel."""
    pgbench_services: str | None = None
    """PostgreSQL services for pgbench: `name=DSN` pairs with blanks between them; a DSN is a URL."""
    pgbench_prices: str | None = None
    """What services cost per hour, in any currency: `name=0.35` pairs with blanks between them."""
    data: Path | None = None
    """File whose frame the notebook on your own dataframe takes where nothing else is said (`make mine`)."""
    scheduler: str | None = None
    """Address of a dask.distributed scheduler (`tcp://host:port`); unless given one is started on this machine."""
    shared_dir: Path | None = None
    """Directory that a scheduler's workers see under the same name: partitions of files pass through it."""
    clickhouse_shards_urls: str | None = None
    """The shards of somebody's ClickHouse cluster `framehaul_shards`, in order, as URLs with commas between them."""
    state_dir: Path = PROJECT / ".framehaul"
    """Data, passwords and logs of the servers this project runs."""
    out: Path = PROJECT
    """Where results, figures and reports go; a relative path starts at the project."""
    fresh: bool = False
    """Whether what an interrupted run has left is measured anew, too."""
    python: str | None = None
    """Interpreter for the environment; read by the Makefile's set-up, accepted here so that `.env` may hold it."""


def load_settings(environment: Mapping[str, str] | None = None, env_file: Path | None = PROJECT / ".env") -> Settings:
    """Read the settings; the environment goes before the file.

    Raises SettingsError for an unknown `FRAMEHAUL_*` key or a value of the wrong kind.
    """
    from_file = {key: value or "" for key, value in dotenv_values(env_file).items()} if env_file else {}
    merged = from_file | dict(os.environ if environment is None else environment)
    given = {
        key.removeprefix(PREFIX).lower(): value
        for key, value in merged.items()
        if key.startswith(PREFIX) and value != ""
    }
    fields = Settings.__dataclass_fields__
    for name in given:
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f"did you mean {PREFIX}{close[0].upper()}?" if close else f"known: {_known_keys()}"
            raise SettingsError(f"{PREFIX}{name.upper()} is not a setting of framehaul; {hint}")

    mode = given.get("servers", "embedded")
    if mode not in get_args(ServerMode):
        raise SettingsError(f"SERVERS={mode!r} is unknown; use one of {', '.join(get_args(ServerMode))}")
    return Settings(
        servers=cast("ServerMode", mode),
        postgres_dsn=given.get("postgres_dsn"),
        clickhouse_url=given.get("clickhouse_url"),
        clickhouse_native_port=_port(given, "clickhouse_native_port"),
        postgres_port=_port(given, "postgres_port"),
        clickhouse_http_port=_port(given, "clickhouse_http_port"),
        postgres_extensions=_directory(given, "postgres_extensions"),
        exchange_dir=_directory(given, "exchange_dir"),
        exchange_dir_on_server=given.get("exchange_dir_on_server"),
        bigquery_project=given.get("bigquery_project"),
        bigquery_dataset=given.get("bigquery_dataset"),
        bigquery_endpoint=_url(given, "bigquery_endpoint"),
        pgbench=_program(given, "pgbench"),
        pgbench_services=given.get("pgbench_services"),
        pgbench_prices=given.get("pgbench_prices"),
        data=Path(given["data"]).expanduser().absolute() if "data" in given else None,
        scheduler=_scheduler(given),
        shared_dir=_directory(given, "shared_dir"),
        clickhouse_shards_urls=given.get("clickhouse_shards_urls"),
        state_dir=Path(given["state_dir"]).absolute() if "state_dir" in given else PROJECT / ".framehaul",
        out=(PROJECT / Path(given.get("out", ".")).expanduser()).resolve(),
        fresh=_yes(given, "fresh"),
        python=given.get("python"),
    )


def _known_keys() -> str:
    return ", ".join(f"{PREFIX}{name.upper()}" for name in Settings.__dataclass_fields__)


def _yes(given: Mapping[str, str], name: str) -> bool:
    if given.get(name, "0") not in ("0", "1"):
        raise SettingsError(f"{name.upper()}={given[name]!r}: give 1, or 0")
    return given.get(name) == "1"


def _port(given: Mapping[str, str], name: str) -> int | None:
    if name not in given:
        return None
    text = given[name]
    if not text.isdecimal() or int(text) not in range(1, 65536):
        raise SettingsError(f"{PREFIX}{name.upper()}={text!r} is not a port; give a number from 1 to 65535")
    return int(text)


def _url(given: Mapping[str, str], name: str) -> str | None:
    if name not in given:
        return None
    url = given[name]
    if not url.startswith(("http://", "https://")):
        raise SettingsError(f"{PREFIX}{name.upper()}={url!r} is not a URL; give http(s)://host:port")
    return url.rstrip("/")


def _program(given: Mapping[str, str], name: str) -> Path | None:
    if name not in given:
        return None
    path = Path(given[name]).expanduser().absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise SettingsError(f"{PREFIX}{name.upper()}={given[name]!r} is not a program; give the path of an executable")
    return path


def _scheduler(given: Mapping[str, str]) -> str | None:
    address = given.get("scheduler")
    if address is not None and not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", address):
        raise SettingsError(f"SCHEDULER={address!r} is not the address of a scheduler; give tcp://host:port")
    return address


def _directory(given: Mapping[str, str], name: str) -> Path | None:
    if name not in given:
        return None
    path = Path(given[name]).expanduser().absolute()
    if not path.is_dir():
        raise SettingsError(
            f"{PREFIX}{name.upper()}={given[name]!r} is not a directory; create it or unset the variable"
        )
    return path
