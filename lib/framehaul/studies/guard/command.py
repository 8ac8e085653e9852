"""`framehaul guard`: two versions of a package, all paths that it is in, one verdict for each; servers likewise."""

from __future__ import annotations

import datetime as dt
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.errors import SettingsError
from framehaul.harness import environment
from framehaul.harness.environment import server_versions
from framehaul.results import store
from framehaul.results.compare import FILTERS, conditions
from framehaul.servers.embedded import home_of_a_run
from framehaul.settings import Settings
from framehaul.studies.guard import STUDY
from framehaul.studies.guard.environments import Environment
from framehaul.studies.guard.formats import FORMATS, Found, render
from framehaul.studies.guard.pairs import GoneError, GuardedPath, Guarding
from framehaul.studies.guard.parties import Compared, both_of, prepared
from framehaul.studies.guard.rows import EXACT_RESULTS, Exact, Guarded
from framehaul.studies.guard.shapes import ShapePath, shape_paths
from framehaul.studies.guard.verdicts import judged, status
from framehaul.studies.summary.needs import code_of
from framehaul.studies.summary.packages import distributions_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES

ROWS = 20_000
LEAST_ROWS = 2_000
ROWS_SECONDS = 300
"""The budget that is enough for so many rows; of a smaller one they are fewer."""
SEED = 20260407
BUDGET = "10m"
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
MOST = 8
"""Techniques, where nobody says which: so many have their rounds in minutes."""
MOST_DRIVERS = 2
"""Ways of using a driver likewise, each with all shapes."""
SHOWN = 20
"""Names of paths, where none fits."""
STATE = "guarding"
"""What directories of environments are called."""


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
    seconds = float(match[1]) * UNITS[match[2]]
    allowed = max(LEAST_ROWS, min(ROWS, round(ROWS * seconds / ROWS_SECONDS)))
    return Asked(
        given["baseline"], given["candidate"], seconds, given.get("techniques") or "",
        int(_number("rows", given.get("rows") or str(allowed), int, 1)), form, given.get("keep") == "1", slower / 100,
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

    a, b = both_of(of.baseline, of.candidate)
    with (
        _ended_in_order(),
        _directory(settings, keep=of.keep, say=say) as directory,
        prepared(a, b, settings, directory, say) as compared,
    ):
        chosen, left_out = _chosen(compared, of.wanted)
        notes = [*compared.notes, *left_out]
        titles = " -> ".join(one.title for one in compared.parties.values())
        say(f"{titles}: {len(chosen)} paths, {of.rows:,} rows")
        began = time.monotonic()
        started = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
        guarding = Guarding(
            compared.parties, directory, rows=of.rows, seed=SEED, slower=of.slower, servers=compared.kind == "server",
            say=say,
        )  # fmt: skip
        try:
            guarding.run(chosen, began + of.budget_seconds)
        except GoneError as error:
            notes.append(f"no further rounds: {error}")
        notes += guarding.notes
        versions = "; ".join(server_versions(compared.parties["a"].servers).values())
    passes, exact = guarding.frame()
    run = {
        "started": started, "rows": of.rows, "seed": SEED, "run_id": passes["run_id"][0],
        "passes": passes["pass"].max(),
        "warmup": 1, "servers": settings.servers, "server": {"version": versions}, "unavailable": {},
        **environment.load(),
    }  # fmt: skip
    _keep(settings, passes, exact, run)
    found = judged(passes, exact)
    print(render(Found(compared.parties["a"].title, compared.parties["b"].title, found, notes), of.form))
    return status(found)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Who is told to end leaves nothing behind, though told again meanwhile, as by whoever cancels a workflow."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heeded = [number for number, handler in before.items() if handler is not signal.SIG_IGN]

    def ended(*_: object) -> None:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in heeded:
        signal.signal(number, ended)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


@contextmanager
def _directory(settings: Settings, *, keep: bool, say: Any) -> Iterator[Path]:
    """Where both environments are: gone when the block ends, unless they are kept; so is what a killed guard left."""
    with home_of_a_run(settings.state_dir, STATE) as path:
        if not keep:
            yield path
            return
    kept = Path(tempfile.mkdtemp(prefix="guard-kept-", dir=settings.state_dir))
    say(f"environments and logs are kept in {kept}")
    yield kept


def _chosen(compared: Compared, wanted: str) -> tuple[list[GuardedPath], list[str]]:
    """The paths that are compared, and what is to be said of others.

    Of a package those that it is in, by what their code imports, or by what the catalog of drivers says; those whose
    driver it is, if there are any. Of many techniques one for each family, of many drivers the first two, unless words
    say which are wanted. Raises SettingsError where there are none.
    """
    named = " and ".join(sorted({one.package for one in compared.packages})) or DATABASES.get(compared.database or "")
    moving, asked = _techniques(compared), _shapes(compared)
    every: list[GuardedPath] = [*moving, *asked]
    if not every:
        raise SettingsError(f"no path has {named} in it")
    if wanted.strip():
        rows = pl.DataFrame([{"technique": one.name} | {name: getattr(one, name) for name in FILTERS} for one in every])
        fitting = rows.with_row_index().filter(*conditions(wanted).values())["index"]
        chosen = [every[at] for at in fitting]
        if not chosen:
            names = list(dict.fromkeys(one.name for one in every))
            some = f"{', '.join(names[:SHOWN])}{', ...' * (len(names) > SHOWN)}"
            raise SettingsError(f"TECHNIQUES={wanted!r} fits none of the {len(names)} with {named}: {some}")
        return chosen, []
    driven = [one for one in moving if {one.package for one in compared.packages} & {*distributions_of(one.driver)}]
    first: dict[tuple[str, ...], GuardedPath] = {}
    for one in sorted(driven or moving, key=_late):
        first.setdefault((one.database, one.direction, one.family), one)
    drivers = list(dict.fromkeys(one.driver for one in asked))[:MOST_DRIVERS]
    # Servers have paths enough without them; what is a shape of nobody else's is one of a driver.
    shapes = [] if compared.kind == "server" else [one for one in asked if one.driver in drivers]
    chosen = [*[*first.values()][:MOST], *shapes]
    out = [one for one in every if one not in chosen]
    return chosen, [f"{len(out)} further paths with {named} were left out; name them with TECHNIQUES"] if out else []


def _techniques(compared: Compared) -> list[Technique]:
    """The techniques that may have changed; of a server what it does alone as well."""
    if compared.kind == "driver":
        return []
    if compared.kind == "server":
        return [one for one in techniques() if one.database == compared.database]
    return [one for one in techniques() if one.origin != "baseline" and _touches(one, *compared.packages)]


def _shapes(compared: Compared) -> list[ShapePath]:
    """The drivers that may have changed, with all that they are asked."""
    every = shape_paths()
    if compared.kind == "driver":
        return [one for one in every if one.driver == compared.drivers[0] and one.database == compared.database]
    if compared.kind == "server":
        return [one for one in every if one.database == compared.database]
    return [one for one in every if {side.package for side in compared.packages} & {*one.contender.packages}]


def _late(one: Technique) -> tuple[bool, bool, bool]:
    """Who comes later, where not all are chosen: who asks for more than a server, everyday calls, pandas."""
    return bool({*one.requires} - {"key", "empty_table"}), one.origin == "everyday", one.frame == "pandas"


def _touches(one: Technique, a: Environment, b: Environment) -> bool:
    row = {"database": one.database, "direction": one.direction, "technique": one.name, "driver": one.driver}
    return a.package in distributions_of(one.driver) or bool({*a.modules, *b.modules} & {*code_of(row).packages})


def _keep(settings: Settings, passes: pl.DataFrame, exact: pl.DataFrame, run: dict[str, Any]) -> None:
    """Add the results to those of other pairs of versions, in whose place they come if there are any of the same."""
    directory = settings.out / "results"
    with store.one_at_a_time(directory):
        _add(directory, passes, exact)
    store.write_run(directory, environment.metadata(settings), STUDY.notebook, run)


def _add(directory: Path, passes: pl.DataFrame, exact: pl.DataFrame) -> None:
    for name, kind, fresh in ((STUDY.results, Guarded, passes), (EXACT_RESULTS, Exact, exact)):
        path = directory / name
        which = [one for one in ("baseline", "candidate", "slower") if one in fresh.columns]
        before = store.read(path, kind) if path.exists() else fresh.clear()
        others = before.join(passes.select(which).unique(), on=which, how="anti")
        store.write_frame(path, pl.concat([others, fresh]))
