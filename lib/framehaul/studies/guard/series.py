"""`framehaul guards`: the guards that the page is about, one after the other, each kept as soon as it has ended.

Ended in between, the same command goes on after the last that was finished.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from framehaul.errors import SettingsError
from framehaul.results import store
from framehaul.settings import Settings
from framehaul.studies.guard import command
from framehaul.studies.guard.command import Asked, run

PAIRS = (
    ("asyncpg==0.30.0", "asyncpg==0.31.0"),  # https://github.com/MagicStack/asyncpg/issues/1327
    ("asyncpg==0.30.0", "asyncpg==0.32.0"),
    ("asyncpg==0.31.0", "asyncpg==0.32.0"),
    ("psycopg==3.2.10", "psycopg==3.2.11"),  # https://www.psycopg.org/psycopg3/docs/news.html
    ("driver=connect", "driver=connect_rust"),
    ("pyarrow==25.0.0", "pyarrow==26.0.1"),
)
"""What was said in public of these is to be seen, or not."""
EQUALS = ("asyncpg==0.32.0", "psycopg==3.2.11", "pyarrow==26.0.1")
"""Of each both sides are the same: how often is anything marked?"""
SLOWED = "asyncpg==0.32.0"
SLOWER = (0.05, 0.1, 0.2, 0.5)
"""Slow-downs on purpose: how often are they found?"""
FINISHED = "guards.partial.json"
"""What an interrupted series has finished, beside the results."""


@dataclass(frozen=True)
class Guard:
    """One of the series."""

    baseline: str
    candidate: str
    slower: float = 0.0

    def __str__(self) -> str:
        """As `asyncpg==0.32.0 -> asyncpg==0.32.0, slowed by 5%`."""
        return f"{self.baseline} -> {self.candidate}{f', slowed by {self.slower:.0%}' if self.slower else ''}"


SERIES = (
    *(Guard(*pair) for pair in PAIRS),
    *(Guard(one, one) for one in EQUALS),
    *(Guard(SLOWED, SLOWED, slower) for slower in SLOWER),
)


OF_ITS_OWN = ("baseline", "candidate", "slower", "techniques")
"""What a series is not asked for, as it has its own."""


def asked(given: dict[str, Any]) -> Asked:
    """The terms of all guards; raises SettingsError, naming it, for what makes no sense."""
    if refused := [name.upper() for name in OF_ITS_OWN if given.get(name)]:
        raise SettingsError(f"guards takes no {' '.join(refused)}: it has guards of its own; make guard takes them")
    return command.asked(given | dict(zip(OF_ITS_OWN, PAIRS[0], strict=False)))


def run_series(terms: Asked, settings: Settings, series: tuple[Guard, ...] = SERIES) -> int:
    """Carry out what is not finished; the exit status is 2 where one could not be, else 0, whatever they found."""
    directory = settings.out / "results"
    finished, missing = _Finished(directory / FINISHED, terms, fresh=settings.fresh), 0
    for number, guard in enumerate(series, 1):
        if guard in finished:
            print(f"{number} of {len(series)}: {guard}: finished before", flush=True)
            continue
        print(f"\n{number} of {len(series)}: {guard}", flush=True)
        try:
            run(replace(terms, **vars(guard)), settings)
        except SettingsError as error:
            print(f"framehaul: {guard}: {error}", file=sys.stderr, flush=True)
            missing += 1
        else:
            finished.add(guard)
    if not missing:
        finished.forget()
    return 2 if missing else 0


class _Finished:
    """The guards that were finished under the same terms, by the same code."""

    def __init__(self, path: Path, terms: Asked, *, fresh: bool) -> None:
        self._path = path
        # What it is asked for differs from guard to guard, and how it is printed does not matter.
        asked = {name: value for name, value in vars(terms).items() if name not in (*vars(SERIES[0]), "form", "keep")}
        self._terms = asked | {"code": store.code_digest()}
        known = json.loads(path.read_text("utf8")) if path.exists() and not fresh else {}
        self._guards: list[str] = known["guards"] if known.get("terms") == self._terms else []

    def __contains__(self, guard: Guard) -> bool:
        return str(guard) in self._guards

    def add(self, guard: Guard) -> None:
        """It is finished, and its results are kept."""
        self._guards.append(str(guard))
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"terms": self._terms, "guards": self._guards}, indent=2) + "\n", "utf8")
        fresh.replace(self._path)

    def forget(self) -> None:
        """All are."""
        self._path.unlink(missing_ok=True)
