"""Read the settings from the environment and from `.env`; unknown keys are refused."""

import difflib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from dotenv import dotenv_values

from framehaul.errors import SettingsError

PROJECT = Path(__file__).resolve().parents[2]
PREFIX = "FRAMEHAUL_"
GIVEN_TO_MAKE = ("preset", "servers", "out", "data", "scheduler", "fresh")
"""Settings that make takes as variables without the prefix."""

ServerMode = Literal["embedded", "docker", "external"]
Preset = Literal["smoke", "quick", "reference"]
"""The effort of all studies: a smoke test, results within minutes, or the run of a writeup."""
PRESETS: tuple[Preset, ...] = get_args(Preset)


@dataclass(frozen=True)
class Settings:
    """All settings outside a notebook; `docs/configuration.md` explains the variables `FRAMEHAUL_<FIELD>`."""

    servers: ServerMode = "embedded"
    postgres_dsn: str | None = None
    """External PostgreSQL, as a libpq URL or key=value string; the host may be the directory of a Unix socket."""
    clickhouse_url: str | None = None
    """External ClickHouse over HTTP: `http(s)://user:password@host:port/database`."""
    clickhouse_native_port: int | None = None
    postgres_port: int | None = None
    clickhouse_http_port: int | None = None
    postgres_extensions: Path | None = None
    exchange_dir: Path | None = None
    exchange_dir_on_server: str | None = None
    bigquery_project: str | None = None
    bigquery_dataset: str | None = None
    bigquery_endpoint: str | None = None
    pgbench: Path | None = None
    pgbench_services: str | None = None
    preset: Preset = "quick"
    data: Path | None = None
    scheduler: str | None = None
    shared_dir: Path | None = None
    state_dir: Path = PROJECT / ".framehaul"
    out: Path = PROJECT
    """Directory for results, figures and reports; a relative path starts at the project."""
    fresh: bool = False
    reuse: bool = False
    """Return the stored passes of `OUT/results` instead of measuring (`make report`)."""
    python: str | None = None
    """Interpreter for the environment, which setup.sh reads; the field lets `.env` contain it."""

    @property
    def tools_dir(self) -> Path:
        """Return the directory of tools that are built or downloaded once."""
        return (self.state_dir / "tools").resolve()

    def of_a_run(self) -> Self:
        """Return the settings without those that affect no measurement, and the preset, which parameters record."""
        same = replace(self, out=PROJECT, state_dir=PROJECT, fresh=False, reuse=False, preset="quick")
        return replace(same, postgres_port=None, clickhouse_http_port=None) if self.servers == "embedded" else same


def load_settings(environment: Mapping[str, str] | None = None, env_file: Path | None = PROJECT / ".env") -> Settings:
    """Return the settings; the environment takes precedence over the file.

    Raises SettingsError for an unknown `FRAMEHAUL_*` key or a value of the wrong kind.
    """
    merged = (dotenv_values(env_file) if env_file else {}) | dict(os.environ if environment is None else environment)
    known = {f"{PREFIX}{field.name.upper()}": field.name for field in fields(Settings)}
    values: dict[str, Any] = {}
    for key, text in ((key, text) for key, text in merged.items() if key.startswith(PREFIX) and text):
        if key not in known:
            raise SettingsError(f"{key} is not a setting of framehaul; {nearest(key, known, PREFIX)}")
        is_valid, problem, read = READERS.get(known[key], (str, "", str))
        if not is_valid(text):
            named = key.removeprefix(PREFIX) if known[key] in GIVEN_TO_MAKE else key
            raise SettingsError(f"{named}={text!r} {problem}")
        values[known[key]] = read(text)
    return Settings(**values)


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return a hint with the most similar known name, or with all known names; a prefix is not compared."""
    close = difflib.get_close_matches(name.removeprefix(prefix), [other.removeprefix(prefix) for other in known], n=1)
    return f"did you mean {prefix}{close[0]}?" if close else f"known: {', '.join(known)}"


type Reader = tuple[Callable[[str], object], str, Callable[[str], Any]]
"""Whether a text is valid, the end of the message when it is not, which names the remedy, and the value of a text."""


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


DIRECTORY: Reader = (lambda text: _path(text).is_dir(), "is not a directory; create it or unset the variable", _path)
PORT: Reader = (
    lambda text: text.isdecimal() and int(text) in range(1, 65536),
    "is not a port; give a number from 1 to 65535",
    int,
)
FLAG: Reader = ("0", "1").__contains__, "is neither 1, for yes, nor 0", lambda text: text == "1"
SCHEDULER, URL = re.compile(r"(tcp|tls)://[^/\s]+:\d+"), re.compile("https?://")
CHOICES: dict[str, Any] = {"servers": ServerMode, "preset": Preset}
READERS: dict[str, Reader] = {
    **{
        name: (get_args(of).__contains__, f"is unknown; use one of {', '.join(get_args(of))}", str)
        for name, of in CHOICES.items()
    },
    **dict.fromkeys(("clickhouse_native_port", "postgres_port", "clickhouse_http_port"), PORT),
    **dict.fromkeys(("fresh", "reuse"), FLAG),
    **dict.fromkeys(("postgres_extensions", "exchange_dir", "shared_dir"), DIRECTORY),
    **dict.fromkeys(("data", "state_dir"), (str, "", _path)),
    "scheduler": (SCHEDULER.fullmatch, "is not the address of a scheduler; give tcp://host:port", str),
    "bigquery_endpoint": (URL.match, "is not a URL; give http(s)://host:port", lambda text: text.rstrip("/")),
    "pgbench": (lambda text: shutil.which(_path(text)), "is not a program; give the path of an executable", _path),
    "out": (str, "", lambda text: (PROJECT / Path(text).expanduser()).resolve()),
}
"""The readers of the settings that are not plain text."""
