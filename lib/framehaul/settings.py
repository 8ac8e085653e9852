"""Read the settings from the environment and from `.env`; unknown keys are refused."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from dotenv import dotenv_values

from framehaul.errors import SettingsError

PROJECT = Path(__file__).resolve().parents[2]
PREFIX = "FRAMEHAUL_"
TOOLS = "tools"
GIVEN_TO_MAKE = ("preset", "servers", "transport", "out", "data", "scheduler", "fresh")
"""Settings that are also variables of make, without the prefix."""

ServerMode = Literal["embedded", "docker", "external"]
Transport = Literal["tcp", "unix"]
Preset = Literal["smoke", "quick", "reference"]
"""The effort of all studies: check that everything runs, results within minutes, or the run of a writeup."""
PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class Settings:
    """All settings outside a notebook; each field is read from the variable `FRAMEHAUL_<FIELD>`."""

    servers: ServerMode = "embedded"
    """The servers: started by this project (`embedded`), by `docker` compose, or by someone else (`external`)."""
    transport: Transport = "tcp"
    """How clients reach PostgreSQL: `tcp`, or `unix` for a socket in a directory on the same machine."""
    postgres_dsn: str | None = None
    """External PostgreSQL, as a libpq URL or key=value string; its host may be the directory of a Unix socket."""
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
    """Directory on this machine that is shared with an external PostgreSQL (pg_parquet's files)."""
    exchange_dir_on_server: str | None = None
    """Path of that directory on the PostgreSQL server; equal to `exchange_dir` unless given."""
    bigquery_project: str | None = None
    """Google Cloud project of BigQuery's load jobs."""
    bigquery_dataset: str | None = None
    """Data set of that project for the loaded tables, which are deleted afterwards."""
    bigquery_endpoint: str | None = None
    """URL of an emulator of BigQuery (http, no login) or of a private endpoint (https)."""
    pgbench: Path | None = None
    """Path of the pgbench to run instead of that in the PostgreSQL wheel."""
    pgbench_services: str | None = None
    """PostgreSQL services for pgbench: `name=DSN` pairs with blanks between them; a DSN is a URL."""
    preset: Preset = "quick"
    """The effort of all studies, unless their own variables are given."""
    data: Path | None = None
    """File with the frame for the notebook on your own dataframe (`make mine`)."""
    scheduler: str | None = None
    """Address of a dask.distributed scheduler (`tcp://host:port`); without it, one is started on this machine."""
    shared_dir: Path | None = None
    """Directory that the scheduler's workers reach by the same path: partitions of files pass through it."""
    state_dir: Path = PROJECT / ".framehaul"
    """Directory for data, passwords and logs of the servers that this project runs."""
    out: Path = PROJECT
    """Directory for results, figures and reports; a relative path starts at the project."""
    fresh: bool = False
    """Whether to discard the passes of an interrupted run."""
    reuse: bool = False
    """Whether studies return the stored passes of `OUT/results` instead of measuring (`make report`)."""
    python: str | None = None
    """Interpreter for the environment; read by setup.sh, accepted here so that `.env` may contain it."""

    @property
    def tools_dir(self) -> Path:
        """Return the directory of tools that are built or fetched once."""
        return (self.state_dir / TOOLS).resolve()

    def of_a_run(self) -> Settings:
        """Return the settings that decide what a run measures, with the others at fixed values.

        Paths of results and state do not matter, nor do ports of embedded servers; parameters record the preset.
        """
        same = replace(self, out=PROJECT, state_dir=PROJECT, fresh=False, reuse=False, preset="quick")
        return replace(same, postgres_port=None, clickhouse_http_port=None) if self.servers == "embedded" else same


def load_settings(environment: Mapping[str, str] | None = None, env_file: Path | None = PROJECT / ".env") -> Settings:
    """Return the settings; the environment takes precedence over the file.

    Raises SettingsError for an unknown `FRAMEHAUL_*` key or a value of the wrong kind.
    """
    from_file = {key: value or "" for key, value in dotenv_values(env_file).items()} if env_file else {}
    merged = from_file | dict(os.environ if environment is None else environment)
    known = {f"{PREFIX}{field.name.upper()}": field.name for field in fields(Settings)}
    values = {}
    for key, text in merged.items():
        if key.startswith(PREFIX) and text:
            if key not in known:
                raise SettingsError(f"{key} is not a setting of framehaul; {nearest(key, known, PREFIX)}")
            try:
                values[known[key]] = READERS.get(known[key], str)(text)
            except ValueError as error:
                named = key.removeprefix(PREFIX) if known[key] in GIVEN_TO_MAKE else key
                raise SettingsError(f"{named}={text!r} {error}") from None
    return Settings(**values)


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint with the known name most similar to an unknown name, or with all of them; a prefix is ignored."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [other.removeprefix(prefix) for other in known], n=1)
    return f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(known)}"


def _one_of(choices: Any) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in get_args(choices):
            raise ValueError(f"is unknown; use one of {', '.join(get_args(choices))}")
        return text

    return read


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("is neither 1, for yes, nor 0")
    return text == "1"


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) not in range(1, 65536):
        raise ValueError("is not a port; give a number from 1 to 65535")
    return int(text)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("is not a URL; give http(s)://host:port")
    return text.rstrip("/")


def _scheduler(text: str) -> str:
    if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d+", text):
        raise ValueError("is not the address of a scheduler; give tcp://host:port")
    return text


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _program(text: str) -> Path:
    path = _path(text)
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise ValueError("is not a program; give the path of an executable")
    return path


def _directory(text: str) -> Path:
    path = _path(text)
    if not path.is_dir():
        raise ValueError("is not a directory; create it or unset the variable")
    return path


READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("fresh", "reuse"), _flag),
    **dict.fromkeys(("clickhouse_native_port", "postgres_port", "clickhouse_http_port"), _port),
    **dict.fromkeys(("postgres_extensions", "exchange_dir", "shared_dir"), _directory),
    **dict.fromkeys(("data", "state_dir"), _path),
    "servers": _one_of(ServerMode),
    "transport": _one_of(Transport),
    "preset": _one_of(Preset),
    "scheduler": _scheduler,
    "bigquery_endpoint": _url,
    "pgbench": _program,
    "out": lambda text: (PROJECT / Path(text).expanduser()).resolve(),
}
"""Readers of the settings that are not plain text; the message of their ValueError names the remedy."""
