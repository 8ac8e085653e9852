"""Where the servers are and which of them to use: read from the environment and from `.env`, unknown keys refused."""

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
"""Settings that are variables of make as well, without the prefix."""

ServerMode = Literal["embedded", "docker", "external"]
Transport = Literal["tcp", "unix"]
Preset = Literal["smoke", "quick", "reference"]
"""The effort of all studies: that everything runs, a look within minutes, or what a writeup is made from."""
PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class Settings:
    """Everything a user can set outside a notebook; each field is the variable `FRAMEHAUL_<FIELD>`."""

    servers: ServerMode = "embedded"
    """Who runs the servers: this project (`embedded`), `docker` compose, or somebody else (`external`)."""
    transport: Transport = "tcp"
    """How clients reach PostgreSQL: `tcp`, or `unix` for a socket in a directory, which takes both on one machine."""
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
    preset: Preset = "quick"
    """The effort of all studies, where none of their own variables says otherwise."""
    data: Path | None = None
    """File whose frame the notebook on your own dataframe takes where nothing else is said (`make mine`)."""
    scheduler: str | None = None
    """Address of a dask.distributed scheduler (`tcp://host:port`); unless given one is started on this machine."""
    shared_dir: Path | None = None
    """Directory that a scheduler's workers see under the same name: partitions of files pass through it."""
    state_dir: Path = PROJECT / ".framehaul"
    """Data, passwords and logs of the servers this project runs."""
    out: Path = PROJECT
    """Where results, figures and reports go; a relative path starts at the project."""
    fresh: bool = False
    """Whether what an interrupted run has left is measured anew, too."""
    reuse: bool = False
    """Whether studies return the passes that are stored in `OUT/results` instead of measuring (`make report`)."""
    python: str | None = None
    """Interpreter for the environment; read by the Makefile's set-up, accepted here so that `.env` may hold it."""

    @property
    def tools_dir(self) -> Path:
        """What is built, or fetched, once, for all servers that this project runs."""
        return (self.state_dir / TOOLS).resolve()

    def of_a_run(self) -> Settings:
        """What decides what a run measures: where the servers are counts, not where results and state are kept.

        What a preset stands for is in the parameters, and which port a server of ours has is all the same.
        """
        same = replace(self, out=PROJECT, state_dir=PROJECT, fresh=False, reuse=False, preset="quick")
        return replace(same, postgres_port=None, clickhouse_http_port=None) if self.servers == "embedded" else same


def load_settings(environment: Mapping[str, str] | None = None, env_file: Path | None = PROJECT / ".env") -> Settings:
    """Read the settings; the environment goes before the file.

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
    """Which of the known names may have been meant, or all of them; what they begin with alike does not count."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [one.removeprefix(prefix) for one in known], n=1)
    return f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(known)}"


def _one_of(choices: Any) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in get_args(choices):
            raise ValueError(f"is unknown; use one of {', '.join(get_args(choices))}")
        return text

    return read


def _yes(text: str) -> bool:
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
    "servers": _one_of(ServerMode), "transport": _one_of(Transport), "preset": _one_of(Preset), "fresh": _yes,
    "reuse": _yes, "scheduler": _scheduler, "bigquery_endpoint": _url,
    "clickhouse_native_port": _port, "postgres_port": _port, "clickhouse_http_port": _port,
    "postgres_extensions": _directory, "exchange_dir": _directory, "shared_dir": _directory,
    "pgbench": _program, "data": _path, "state_dir": _path,
    "out": lambda text: (PROJECT / Path(text).expanduser()).resolve(),
}  # fmt: skip
"""How settings that are not plain text are read; what raises ValueError says what is wrong, and the remedy."""
