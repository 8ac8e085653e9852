"""Heats: everybody moves a few rows, who keeps up moves more, and the leaders move all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import polars as pl

from framehaul.bench import ratios, statistics
from framehaul.bench.rounds import Rounds
from framehaul.techniques import Technique

LEAST = 4
"""How many of a kind of frame stay in, if they are within reach."""
FIRST_ROUNDS = ratios.TOLD_FROM
"""Of what everybody moves: who leaves is compared with the others, too."""
FIRST_SHARE = 8
"""Everybody moves the rows divided by it: so few that who is slow takes no more of a look than who may win."""
LONGEST_PASS_SECONDS = {True: 0.2, False: 1.0}
"""What a pass may take, in a race or without, of those that may take minutes: else they move fewer rows."""
SURE_ROUNDS = 2
"""Without a race: in so many rounds everybody moves all rows, and after them who takes twice as long sits out."""
LEAST_CLIMB_ROWS = 1000
"""So many take nobody minutes."""
CLIMB_ROUNDS = 2
"""Of which the first has what is done once, such as imports: it is only asked who is fast enough to go on."""


@dataclass(frozen=True)
class Heat:
    """How many rows are moved how often, and who stays in."""

    rows: int
    rounds: Rounds
    reach: float = 1.5
    """How many times the time of the better half of its kind of frame one may take and stay in."""
    share: float = 1
    """How many of a kind of frame stay in at most, but for `LEAST`."""


def heats(rows: int, rounds: Rounds, *, race: bool) -> list[Heat]:
    """The heats up to `rows`: everybody on an eighth, the leaders on all; without a race everybody on all.

    The rounds of a heat on the same rows go on from those of the one before.
    """
    first = Heat(rows // FIRST_SHARE, Rounds(FIRST_ROUNDS, 0, rounds.seed), share=0.3)
    if race:
        return [first, Heat(rows, rounds)] if first.rows else [Heat(rows, rounds)]
    if rounds.passes <= SURE_ROUNDS:
        return [Heat(rows, rounds)]
    return [Heat(rows, replace(rounds, passes=SURE_ROUNDS), reach=2), Heat(rows, replace(rounds, warmup=0))]


def climb(rows: int, rounds: Rounds) -> Heat | None:
    """For techniques that may take minutes: a heat of few rows before all others; None where all are few."""
    few = rows // 40
    return Heat(few, Rounds(CLIMB_ROUNDS, 0, rounds.seed)) if few >= LEAST_CLIMB_ROWS else None


def beside(rows: int, rounds: Rounds) -> Heat:
    """Of who climbed no further, with the leaders: what one gains over the slowest is to be known as well."""
    return Heat(rows // 50, Rounds(FIRST_ROUNDS, 0, rounds.seed))


def in_time(
    techniques: Sequence[Technique], passes: pl.DataFrame, heat: Heat, rows: int, *, race: bool
) -> list[Technique]:
    """Who would move an eighth of the `rows` within `LONGEST_PASS_SECONDS`, going by their fastest pass of a heat."""
    timed = statistics.statistics(passes.filter(rows=heat.rows)).drop_nulls("median_rows_per_s")
    soon = timed.filter(rows // FIRST_SHARE / pl.col("max_rows_per_s") <= LONGEST_PASS_SECONDS[race])
    staying = {tuple(row) for row in soon.select(statistics.NAMES).rows()}
    return [one for one in techniques if one.key in staying]


def leaders(techniques: Sequence[Technique], passes: pl.DataFrame, heat: Heat) -> list[Technique]:
    """Who stays in after a heat: of each kind of frame and class the fastest within its reach, and the best published.

    A technique counts by its fastest pass, for other work on the machine makes a pass slower, never faster, and the
    better half by its median, for one pass may be fast by chance. Several connections cost more to begin with and are
    worth it on many rows: who has them stays in up to twice the reach. What stays in with one kind of frame does so
    with the other, too, where that is within reach: a chance that comes twice is seldom missed. Baselines stay, for
    what is fastest is compared with them. Who was wrong, or could not run, is out.
    """
    timed = statistics.statistics(passes.filter(rows=heat.rows)).drop_nulls("median_rows_per_s")
    speeds = {tuple(row[:3]): row[3] for row in timed.select(*statistics.NAMES, "max_rows_per_s").rows()}
    ranked = sorted((one for one in techniques if one.key in speeds), key=lambda one: speeds[one.key], reverse=True)
    racing = [one for one in ranked if one.origin != "baseline"]
    staying = {*ranked} - {*racing}
    within_reach: list[Technique] = []
    for kind in {_kind(one) for one in racing}:
        group = [one for one in racing if _kind(one) == kind]
        slowest = median(speeds[one.key] for one in group[: (len(group) + 1) // 2]) / heat.reach
        near = [one for one in group if speeds[one.key] >= slowest]
        within_reach += near
        staying |= {*near[: max(LEAST, math.ceil(len(group) * heat.share))]}
        staying |= {*[one for one in group if one.origin == "published"][:1]}
        staying |= {one for one in group if one.connections > 1 and speeds[one.key] >= slowest / 2}
    methods = {_method(one) for one in staying}
    staying |= {one for one in within_reach if _method(one) in methods}
    return [one for one in techniques if one in staying]


def _method(technique: Technique) -> str:
    """A technique's name without the kind of frame that it takes or gives."""
    return technique.name.removeprefix(f"{technique.frame}_")


def _kind(technique: Technique) -> tuple[str, str]:
    """Who races with whom: the kind of frame and, of a write, whether it appends or loads in bulk."""
    return technique.frame, technique.contract.kind if technique.contract else ""
