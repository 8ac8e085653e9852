"""Stages of a race: all techniques move a few rows, the fast ones move more, and the fastest move all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import polars as pl

from framehaul.bench import statistics
from framehaul.bench.ratios import MIN_ROUNDS
from framehaul.bench.rounds import Rounds
from framehaul.techniques import Technique

LEAST = 4
"""The minimum number of techniques of a kind of frame that stay in, if they are within reach."""
FIRST_SHARE = 8
"""The divisor of the rows for the first stage, in which a slow technique takes no longer than a likely winner later."""
LONGEST_PASS_SECONDS = {True: 0.2, False: 0.6}
"""The longest pass of everyday techniques, in a race and without; slower techniques move fewer rows."""
LEAST_ROWS = 40_000
"""The minimum of rows for a stage before the others: no technique takes minutes for fewer."""


@dataclass(frozen=True)
class Stage:
    """A stage: its number of rows, its rounds, and the rule for the techniques that stay in after it."""

    rows: int
    rounds: Rounds
    reach: float = 1.5
    """A technique stays in up to this many times the median time of the faster half of its kind of frame."""
    share: float = 1
    """The maximum share of a kind of frame that stays in, but not fewer than `LEAST`."""


def stages(rows: int, rounds: Rounds, *, race: bool) -> list[Stage]:
    """Return the stages up to `rows`: first all techniques with an eighth; without a race all techniques with all rows.

    Each first stage has as many rounds as a verdict takes. Without a race the second stage continues its rounds.
    """
    if race and rows >= FIRST_SHARE:
        return [Stage(rows // FIRST_SHARE, Rounds(MIN_ROUNDS, 0, rounds.seed), share=0.3), Stage(rows, rounds)]
    if race or rounds.passes <= MIN_ROUNDS:
        return [Stage(rows, rounds)]
    return [Stage(rows, replace(rounds, passes=MIN_ROUNDS)), Stage(rows, replace(rounds, warmup=0))]


def in_time(
    techniques: Sequence[Technique], passes: pl.DataFrame, stage: Stage, rows: int, *, race: bool
) -> list[Technique]:
    """Return the techniques whose fastest pass would move an eighth of `rows` within `LONGEST_PASS_SECONDS`."""
    speeds, limit = _speeds(passes, stage), LONGEST_PASS_SECONDS[race]
    return [one for one in techniques if one.key in speeds and rows // FIRST_SHARE / speeds[one.key] <= limit]


def _speeds(passes: pl.DataFrame, stage: Stage) -> dict[tuple[str, ...], float]:
    """Return the fastest rows/s of each technique in a stage; techniques that ever failed are left out."""
    timed = statistics.medians(passes.filter(rows=stage.rows), statistics.NAMES).drop_nulls("rows_per_s")
    return {tuple(row[:-1]): row[-1] for row in timed.select(*statistics.NAMES, "max_rows_per_s").rows()}


def leaders(techniques: Sequence[Technique], passes: pl.DataFrame, stage: Stage) -> list[Technique]:
    """Return the techniques that stay in after a stage.

    - The fastest of each kind of frame and class of write, within the stage's reach and share, by their fastest pass:
      other work on the machine makes a pass slower, never faster. The reach counts from the median of the faster half,
      because one pass may be fast by chance.
    - The fastest published technique of each.
    - Techniques with several connections up to twice the reach: they start slower and gain with many rows.
    - The same method with the other kind of frame, within reach.
    - Baselines, because the fastest techniques are compared with them.
    """
    speeds = _speeds(passes, stage)
    ranked = sorted((one for one in techniques if one.key in speeds), key=lambda one: -speeds[one.key])
    staying, within_reach = {one for one in ranked if one.origin == "baseline"}, list[Technique]()
    groups: dict[tuple[str, str], list[Technique]] = {}
    for one in ranked:
        if one not in staying:
            groups.setdefault((one.frame, one.contract.kind if one.contract else ""), []).append(one)
    for group in groups.values():
        slowest = median(speeds[one.key] for one in group[: (len(group) + 1) // 2]) / stage.reach
        near = [one for one in group if speeds[one.key] >= slowest]
        within_reach += near
        staying |= {*near[: max(LEAST, math.ceil(len(group) * stage.share))]}
        staying |= {*[one for one in group if one.origin == "published"][:1]}
        staying |= {one for one in group if one.connections > 1 and speeds[one.key] >= slowest / 2}
    method = {one: one.name.removeprefix(f"{one.frame}_") for one in techniques}
    methods = {method[one] for one in staying}
    staying |= {one for one in within_reach if method[one] in methods}
    return [one for one in techniques if one in staying]
