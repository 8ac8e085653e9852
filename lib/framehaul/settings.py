"""Read the settings from the environment and from `.env`; unknown keys are refused."""

from __future__ import annotations

import difflib
import os
import re
import shutil
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
"""Settings that make takes as variables without the prefix."""

ServerMode = Literal["embedded", "docker", "external"]
Transport = Literal["tcp", "unix"]
Preset = Literal["smoke", "quick", "reference"]
"""The effort of all studies: a smoke test, results within minutes, or the run of a writeup."""
PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class Settings:
    """All settings outside a notebook; each field is read from the variable `FRAMEHAUL_<FIELD>`."""

    servers: ServerMode = "embedded"
    """The source of the servers: this project (`embedded`), `docker` compose, or someone else (`external`)."""
    transport: Transport = "tcp"
    """The transport of PostgreSQL's clients: `tcp`, or `unix` for a socket in a directory on the same machine."""
    postgres_dsn: str | None = None
    """External PostgreSQL, as a libpq URL or key=value string; the host may be the directory of a Unix socket."""
    clickhouse_url: str | None = None
    """External ClickHouse over HTTP: `http(s)://user:password@host:port/database`."""
    clickhouse_native_port: int | None = None
    """Native port of the external ClickHouse; the default is 9000, or 9440 for an https URL."""
    postgres_port: int | None = None
    """Port of the embedded or docker PostgreSQL; the default is a free port (55432 for docker)."""
    clickhouse_http_port: int | None = None
    """HTTP port of the embedded or docker ClickHouse; the default is a free port (58123 for docker)."""
    postgres_extensions: Path | None = None
    """Directory with a built PostgreSQL extension (pg_parquet) for the embedded server."""
    exchange_dir: Path | None = None
    """Directory on this machine that is shared with an external PostgreSQL (pg_parquet's files)."""
    exchange_dir_on_server: str | None = None
    """Path of `exchange_dir` on the PostgreSQL server; the default is the same path."""
    bigquery_project: str | None = None
    """Google Cloud project of BigQuery's load jobs."""
    bigquery_dataset: str | None = None
    """BigQuery data set for the loaded tables, which are deleted afterwards."""
    bigquery_endpoint: str | None = None
    """URL of an emulator of BigQuery (http, no login) or of a private endpoint (https)."""
    pgbench: Path | None = None
    """Path of a pgbench to run instead of the program in the PostgreSQL wheel."""
    pgbench_services: str | None = None
    """PostgreSQL services for pgbench: `name=URL` pairs, separated by blanks."""
    preset: Preset = "quick"
    """The effort of all studies; variables of a study take precedence."""
    data: Path | None = None
    """File with the dataframe that `make mine` measures."""
    scheduler: str | None = None
    """Address of a dask.distributed scheduler (`tcp://host:port`); by default this project starts a scheduler."""
    shared_dir: Path | None = None
    """Directory for partition files, which the scheduler's workers reach by the same path."""
    state_dir: Path = PROJECT / ".framehaul"
    """Directory for data, passwords and logs of the servers that this project runs."""
    out: Path = PROJECT
    """Directory for results, figures and reports; a relative path starts at the project."""
    fresh: bool = False
    """Discard the passes of an interrupted run."""
    reuse: bool = False
    """Return the stored passes of `OUT/results` instead of measuring (`make report`)."""
    python: str | None = None
    """Interpreter for the environment, which setup.sh reads; the field lets `.env` contain it."""

    @property
    def tools_dir(self) -> Path:
        """Return the directory of tools that are built or downloaded once."""
        return (self.state_dir / TOOLS).resolve()

    def of_a_run(self) -> Settings:
        """Return the settings with every value replaced that does not affect measurements.

        These are paths of results and state, and ports of embedded servers. Parameters record the preset.
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
    """Return a hint with the most similar known name, or with all known names; a prefix is not compared."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [other.removeprefix(prefix) for other in known], n=1)
    return f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(known)}"


def _checked(valid: Callable[[str], object], problem: str, read: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Return a reader of text that raises ValueError with the problem when `valid` returns a false value."""

    def reader(text: str) -> Any:
        if not valid(text):
            raise ValueError(problem)
        return read(text)

    return reader


def _one_of(choices: Any) -> Callable[[str], Any]:
    names = get_args(choices)
    return _checked(lambda text: text in names, f"is unknown; use one of {', '.join(names)}")


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


FLAG = _checked(lambda text: text in ("0", "1"), "is neither 1, for yes, nor 0", lambda text: text == "1")
PORT = _checked(
    lambda text: text.isdecimal() and int(text) in range(1, 65536), "is not a port; give a number from 1 to 65535", int
)
DIRECTORY = _checked(lambda text: _path(text).is_dir(), "is not a directory; create it or unset the variable", _path)
READERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("fresh", "reuse"), FLAG),
    **dict.fromkeys(("clickhouse_native_port", "postgres_port", "clickhouse_http_port"), PORT),
    **dict.fromkeys(("postgres_extensions", "exchange_dir", "shared_dir"), DIRECTORY),
    **dict.fromkeys(("data", "state_dir"), _path),
    "servers": _one_of(ServerMode),
    "transport": _one_of(Transport),
    "preset": _one_of(Preset),
    "scheduler": _checked(
        re.compile(r"(tcp|tls)://[^/\s]+:\d+").fullmatch, "is not the address of a scheduler; give tcp://host:port"
    ),
    "bigquery_endpoint": _checked(
        re.compile("https?://").match, "is not a URL; give http(s)://host:port", lambda text: text.rstrip("/")
    ),
    "pgbench": _checked(
        lambda text: shutil.which(_path(text)), "is not a program; give the path of an executable", _path
    ),
    "out": lambda text: (PROJECT / Path(text).expanduser()).resolve(),
}
"""The readers of the settings that are not plain text; the message of their ValueError names the remedy."""
