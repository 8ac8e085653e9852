"""Measure every technique of a database and direction, in a race or in full."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import polars as pl

from framehaul import servers
from framehaul.bench import recording, store
from framehaul.bench.measure import record_passes
from framehaul.bench.race import Heat, beside, climb, heats, in_time, leaders
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.study import Study
from framehaul.data import generator
from framehaul.data.schema import TABLES
from framehaul.servers.tables import tables_of
from framehaul.studies.registry import TRANSFERS
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction


def run(
    database: str, direction: str, *, rows: int, rounds: int, warmup: int, seed: int, race: int = 0,
    profile: int = 0, table: str = "standard",
) -> pl.DataFrame:  # fmt: skip
    """Measure every technique of a database and direction and return one row per pass.

    In a `race` (1), slow techniques move fewer rows than fast ones. With `profile` (1), passes have the events that
    ClickHouse counted. `table` is a key of TABLES. Passes are recorded in results/<database>_<direction>.csv.

    Raises ValueError for an invalid parameter, ServerError when a server cannot be started or reached, SettingsError
    for an invalid variable and ResultsError when results cannot be written.
    """
    check(ROWS=(rows, 1), RACE=(race, 0))
    if table not in TABLES:
        raise ValueError(f"TABLE={table!r}: choose from {', '.join(TABLES)}")
    measured = recording.study(study_of(database, direction).notebook)(_measure)
    return measured(
        database, direction, rows=rows, rounds=rounds, warmup=warmup, seed=seed, race=race, profile=profile, table=table
    )


def _measure(
    database: str, direction: str, *, rows: int, rounds: int, warmup: int, seed: int, race: int, profile: int,
    table: str,
) -> None:  # fmt: skip
    """Record the passes of `run`, and what the servers were."""
    study, schedule, moved = study_of(database, direction), Rounds(rounds, warmup, seed), TABLES[table]
    chosen = techniques(cast("Database", database), cast("Direction", direction))
    terms = {"rows": rows, "race": race, "profile": profile, **vars(schedule)}
    terms |= {} if table == "standard" else {"table": table}
    with (
        recording.recording(study.notebook, study.results, store.Result, "technique", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        server = both.of(database)
        this_run.metadata |= terms | {"servers": both.mode, "server": tables_of(server).metadata()}

        def work(stop: threading.Event) -> None:
            content = generator.arrow_table(moved, rows, seed)

            def measure(some: list[Technique], heat: Heat) -> None:
                this_run.expect(1 + len(some) * (heat.rounds.warmup + heat.rounds.passes))
                record_passes(
                    this_run, study.notebook, some, server, moved, content.slice(0, heat.rows), heat.rounds, stop,
                    profile=bool(profile),
                )  # fmt: skip

            _in_heats(chosen, measure, this_run.so_far, rows, schedule, race=bool(race))

        interruptible(work)


def _in_heats(
    chosen: list[Technique], measure: Callable[[list[Technique], Heat], None], so_far: Callable[[], pl.DataFrame],
    rows: int, schedule: Rounds, *, race: bool,
) -> None:  # fmt: skip
    """Measure techniques in heats of growing size; techniques that are too slow for a heat do not take part in it.

    Everyday calls begin with few rows, because some would take minutes. Those that go no further are measured once
    more at the end, with few rows and together with the fastest techniques, so that their ratios are known.
    """
    everyday, behind = [one for one in chosen if one.origin == "everyday"], list[Technique]()
    if everyday and (heat := climb(rows, schedule)):
        measure(everyday, heat)
        climbing = in_time(everyday, so_far(), heat, rows, race=race)
        behind = [one for one in everyday if one not in climbing]
    left = [one for one in chosen if one not in behind]
    *before, last = heats(rows, schedule, race=race)
    for heat in before:
        measure(left, heat)
        left = leaders(left, so_far(), heat)
    measure(left, last)
    if behind:
        measure([*behind, *left], beside(rows, schedule))


def study_of(database: str, direction: str) -> Study:
    """Return the study of a database and direction; raises ValueError when there is none."""
    for study in TRANSFERS:
        if study.name == f"{database}_{direction}":
            return study
    raise ValueError(f"{database} {direction}: there is no such direction")


def read_all(directory: Path) -> pl.DataFrame:
    """Return the passes of all four directions in a results directory; a direction that was not run has none."""
    files = (path for study in TRANSFERS if (path := directory / study.results).exists())
    return pl.concat([pl.DataFrame(schema=store.SCHEMA), *map(store.read, files)])
