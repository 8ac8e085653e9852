"""Heats: everybody moves a few rows, who keeps up moves more, and the leaders move all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median

import polars as pl

from framehaul.harness.rounds import Rounds
from framehaul.results import statistics
from framehaul.techniques import Technique


@dataclass(frozen=True)
class Heat:
    """How many rows are moved how often, and who stays in."""

    rows: int
    rounds: Rounds
    reach: float = 1
    """How many times the time of the better half of its kind of frame one may take and stay in."""


def heats(rows: int, rounds: Rounds, *, race: bool) -> list[Heat]:
    """The heats up to `rows`; without a race there is one.

    The first are generous: fixed costs weigh more on few rows, and few passes say little.
    """
    early = [
        Heat(rows // 16, Rounds(2, rounds.warmup, rounds.seed), 2.5),
        Heat(rows // 4, Rounds(2, 0, rounds.seed), 1.3),
    ]
    return [*(heat for heat in early if race and heat.rows), Heat(rows, rounds)]


def leaders(techniques: Sequence[Technique], passes: pl.DataFrame, heat: Heat) -> list[Technique]:
    """Who stays in after a heat: of each kind of frame those within its reach, and the fastest published one.

    A technique counts by its fastest pass, for other work on the machine makes a pass slower, never faster, and the
    better half by its median, for one pass may be fast by chance. Limits stay: what is fastest is compared with them.
    Who was wrong, or could not run, is out.
    """
    timed = statistics.statistics(passes.filter(rows=heat.rows)).drop_nulls("median_rows_per_s")
    speeds = {tuple(row[:3]): row[3] for row in timed.select(*statistics.NAMES, "max_rows_per_s").rows()}
    staying: set[Technique] = set()
    for frame, group in groupby(sorted(techniques, key=lambda one: one.frame), lambda one: one.frame):
        ranked = sorted((one for one in group if _key(one) in speeds), key=lambda one: speeds[_key(one)], reverse=True)
        if ranked:
            pace = median(speeds[_key(one)] for one in ranked[: (len(ranked) + 1) // 2])
            staying |= {one for one in ranked if frame == "none" or speeds[_key(one)] * heat.reach >= pace}
            staying |= {*[one for one in ranked if one.origin == "published"][:1]}
    return [one for one in techniques if one in staying]


def _key(technique: Technique) -> tuple[str, ...]:
    return technique.database, technique.direction, technique.name
