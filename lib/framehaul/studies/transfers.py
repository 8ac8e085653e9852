"""Transfers: every technique of a database and direction, in a race or in full."""

from pathlib import Path
from typing import cast

import polars as pl

from framehaul.bench import measure, store
from framehaul.bench.ratios import MIN_ROUNDS
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds
from framehaul.bench.trials import LEAST_ROWS, Stage, in_time, leaders, stages
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.servers.tables import tables_of
from framehaul.studies.registry import TRANSFERS
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction

ONE_LINE = pl.read_csv(Path(__file__).with_name("everyday_api.csv"))
"""Common calls, each with a changed line, the technique that results, and the line's effect on the data."""


def run(
    database: str, direction: str, *, rows: int, rounds: int, warmup: int, seed: int, race: int = 0
) -> pl.DataFrame:
    """Measure every technique of a database and direction and return one row per pass.

    In a `race` (1), slow techniques move fewer rows than fast ones. Passes are recorded in
    results/<database>_<direction>.csv.

    Everyday calls begin with few rows, because some would take minutes. The slow calls are measured once more at the
    end, with few rows and together with the fastest techniques, so that their ratios are known. In a race with more
    rounds than a verdict takes, the calls of ONE_LINE are measured with few rows and with all.

    Raises ValueError for an invalid parameter, ServerError when a server cannot be started or reached, SettingsError
    for an invalid variable and ResultsError when results cannot be written.
    """
    study = next((one for one in TRANSFERS if one.name == f"{database}_{direction}"), None)
    if study is None:
        raise ValueError(f"{database} {direction}: there is no such direction")
    chosen = techniques(cast("Database", database), cast("Direction", direction))
    measured, schedule = recorded(study)(_measure), {"rounds": rounds, "warmup": warmup, "seed": seed}
    return measured(chosen, rows=rows, race=race, **schedule)


def _measure(this_run: Recording, chosen: list[Technique], /, *, rows: int, race: int, **rounds: int) -> None:
    """Record the passes of `run` in stages of growing size, and the server's version and settings."""
    schedule = Rounds(rounds["rounds"], rounds["warmup"], rounds["seed"])
    server = this_run.servers().of(chosen[0].database)
    this_run.metadata["server"] = tables_of(server).metadata()
    content = generator.arrow_table(TABLE, rows, schedule.seed)

    def measure_stage(some: list[Technique], stage: Stage) -> None:
        log = this_run.technique_log(stage.rows)
        measure.run(some, server, TABLE, content.slice(0, stage.rows), stage.rounds, log)

    left, again, common = chosen, list[Technique](), list[str]()
    everyday = [one for one in chosen if one.origin == "everyday"]
    if everyday and rows >= LEAST_ROWS:
        first = Stage(rows // 40, Rounds(2, 0, schedule.seed))  # its first round has one-time work such as imports
        measure_stage(everyday, first)
        fast_enough = in_time(everyday, this_run.so_far(), first, rows, race=bool(race))
        lines = ONE_LINE.filter(database=chosen[0].database, direction=chosen[0].direction)
        common = [*lines["technique"], *lines["changed"]] if rounds["rounds"] > MIN_ROUNDS else []
        slow = [one for one in everyday if one not in fast_enough and one.name not in common]
        left = [one for one in chosen if one not in slow]
        again = [one for one in chosen if one in slow or one.name in common]
    *before, last = stages(rows, schedule, race=bool(race))
    for stage in before:
        measure_stage(left, stage)
        staying = leaders(left, this_run.so_far(), stage)
        left = [one for one in left if one in staying or (one.name in common and stage.rows < rows)]
    measure_stage(left, last)
    if again:
        again += [one for one in left if one not in again]
        measure_stage(again, Stage(rows // 50, Rounds(MIN_ROUNDS, 0, schedule.seed)))


def read_all(directory: Path) -> pl.DataFrame:
    """Return the passes of all four directions in a results directory."""
    files = (path for study in TRANSFERS if (path := directory / study.results).exists())
    return pl.concat([pl.DataFrame(schema=store.SCHEMA), *map(store.read, files)])
