"""`framehaul guard`: two versions of a package, all techniques that it is in, one verdict for each."""

from __future__ import annotations

import datetime as dt
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from framehaul import servers
from framehaul.errors import SettingsError
from framehaul.harness import environment
from framehaul.harness.environment import server_versions
from framehaul.results import store
from framehaul.results.compare import FILTERS, conditions
from framehaul.settings import Settings
from framehaul.studies.guard import STUDY
from framehaul.studies.guard.environments import Environment, differing, make
from framehaul.studies.guard.formats import FORMATS, Found, render
from framehaul.studies.guard.pairs import GoneError, Guarding
from framehaul.studies.guard.rows import EXACT_RESULTS, Exact, Guarded
from framehaul.studies.guard.verdicts import judged, status
from framehaul.studies.summary.needs import code_of
from framehaul.studies.summary.packages import distributions_of
from framehaul.techniques import Technique, techniques

ROWS = 20_000
SEED = 20260407
BUDGET = "10m"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
MOST = 8
"""Techniques, where nobody says which: so many have their rounds in minutes."""


@dataclass(frozen=True)
class Asked:
    """What a guard was asked for."""

    baseline: str
    candidate: str
    budget_seconds: float
    wanted: str
    rows: int
    form: str
    keep: bool
    slower: float


def asked(given: dict[str, Any]) -> Asked:
    """What was given on the command line; raises SettingsError, naming it, for what makes no sense."""
    for name in ("baseline", "candidate"):
        if not given.get(name):
            raise SettingsError(
                f"{name.upper()} is missing: give both, BASELINE='asyncpg==0.30.0' CANDIDATE='asyncpg==0.31.0', "
                "each a version, a wheel, a source tree or a URL"
            )
    form = given.get("format") or "text"
    if form not in FORMATS:
        raise SettingsError(f"FORMAT={form!r} is unknown; a guard has {', '.join(FORMATS)}")
    budget = str(given.get("budget") or BUDGET)
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget)):
        raise SettingsError(f"BUDGET={budget!r}: give a time such as 10m, 90s or 1h")
    slower = _number("slower", given.get("slower") or "0", float)
    return Asked(
        given["baseline"], given["candidate"], float(match[1]) * UNITS[match[2]], given.get("techniques") or "",
        int(_number("rows", given.get("rows") or str(ROWS), int, 1)), form, given.get("keep") == "1", slower / 100,
    )  # fmt: skip


def _number(name: str, text: str, kind: type, least: float = 0) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not least <= value < float("inf"):
        raise SettingsError(f"{name.upper()}={text!r}: give a number of at least {least:g}")
    return float(value)


def run(of: Asked, settings: Settings) -> int:
    """Compare, print, write the results; the exit status is 1 with a regression, 2 where nothing could be compared.

    Raises SettingsError for what cannot be had, ServerError when a server cannot be.
    """

    def say(text: str) -> None:
        print(f"framehaul: {text}", file=sys.stderr, flush=True)

    with _directory(settings, keep=of.keep, say=say) as directory:
        say(f"making an environment with {of.baseline}, and one with {of.candidate}")
        a, b = (make(given, directory / side) for side, given in (("a", of.baseline), ("b", of.candidate)))
        if a.package != b.package:
            raise SettingsError(f"BASELINE is {a.package} and CANDIDATE {b.package}: give two versions of one package")
        chosen, notes = _chosen(a, b, of.wanted)
        notes += [f"differs as well: {one}" for one in differing(a, b)]
        say(f"{a.title} -> {b.title}: {len(chosen)} techniques, {of.rows:,} rows")
        began = time.monotonic()
        started = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
        with servers.running(settings) as both:
            guarding = Guarding(
                both, {"a": a, "b": b}, directory, settings.state_dir, rows=of.rows, seed=SEED,
                slower=of.slower, say=say,
            )  # fmt: skip
            try:
                guarding.run(chosen, began + of.budget_seconds)
            except GoneError as error:
                notes.append(f"no further rounds: {error}")
            versions = "; ".join(server_versions(both).values())
    passes, exact = guarding.frame()
    run = {
        "started": started, "rows": of.rows, "seed": SEED, "run_id": passes["run_id"][0],
        "passes": passes["pass"].max(),
        "warmup": 1, "servers": settings.servers, "server": {"version": versions}, "unavailable": {},
        **environment.load(),
    }  # fmt: skip
    _keep(settings, passes, exact, run)
    found = judged(passes, exact)
    print(render(Found(a.title, b.title, found, notes), of.form))
    return status(found)


@contextmanager
def _directory(settings: Settings, *, keep: bool, say: Any) -> Iterator[Path]:
    """Where both environments are: gone when the block ends, unless they are kept."""
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="guard-", dir=settings.state_dir, delete=not keep) as path:
        if keep:
            say(f"environments and logs are kept in {path}")
        yield Path(path)


def _chosen(a: Environment, b: Environment, wanted: str) -> tuple[list[Technique], list[str]]:
    """The techniques that the package is in, by what their code imports; those whose driver it is, if there are any.

    Of many one for each family, unless words say which are wanted. Raises SettingsError where there are none.
    """
    every = [one for one in techniques() if one.origin != "baseline" and _touches(one, a, b)]
    if not every:
        raise SettingsError(f"no technique has {a.package} in it")
    driven = [one for one in every if a.package in distributions_of(one.driver)]
    if wanted.strip():
        rows = pl.DataFrame([{"technique": one.name} | {name: getattr(one, name) for name in FILTERS} for one in every])
        fitting = rows.with_row_index().filter(*conditions(wanted).values())["index"]
        chosen = [every[at] for at in fitting]
        if not chosen:
            names = ", ".join(dict.fromkeys(one.name for one in every))
            raise SettingsError(f"TECHNIQUES={wanted!r} fits none of the {len(every)} with {a.package}: {names}")
        return chosen, []
    first: dict[tuple[str, ...], Technique] = {}
    for one in sorted(driven or every, key=_late):
        first.setdefault((one.database, one.direction, one.family), one)
    chosen = [*first.values()][:MOST]
    out = [one for one in every if one not in chosen]
    notes = [f"{len(out)} further techniques with {a.package} were left out; name them with TECHNIQUES"] if out else []
    return chosen, notes


def _late(one: Technique) -> tuple[bool, bool, bool]:
    """Who comes later, where not all are chosen: who asks for more than a server, everyday calls, pandas."""
    return bool({*one.requires} - {"key", "empty_table"}), one.origin == "everyday", one.frame == "pandas"


def _touches(one: Technique, a: Environment, b: Environment) -> bool:
    row = {"database": one.database, "direction": one.direction, "technique": one.name, "driver": one.driver}
    return a.package in distributions_of(one.driver) or bool({*a.modules, *b.modules} & {*code_of(row).packages})


def _keep(settings: Settings, passes: pl.DataFrame, exact: pl.DataFrame, run: dict[str, Any]) -> None:
    """Add the results to those of other pairs of versions, in whose place they come if there are any of the same."""
    directory = settings.out / "results"
    for name, kind, fresh in ((STUDY.results, Guarded, passes), (EXACT_RESULTS, Exact, exact)):
        path = directory / name
        which = [one for one in ("baseline", "candidate", "slower") if one in fresh.columns]
        before = store.read(path, kind) if path.exists() else fresh.clear()
        others = before.join(passes.select(which).unique(), on=which, how="anti")
        store.write_frame(path, pl.concat([others, fresh]))
    store.write_run(directory, environment.metadata(settings), STUDY.notebook, run)
