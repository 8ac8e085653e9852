"""How many times as fast one is as another, and when that may be said: ratios of rounds, and one rule for all claims.

Within a round both sides ran on the machine in the same state, so a ratio is made of the rounds' own ratios, on their
logarithms. What is shown with it says what it is: fewer than six rounds have a range, more have an interval.

A page makes many claims, and one in twenty false ones among many would be many false claims. So what is said (`faster`,
`holds`, told apart from the winner) follows from all claims of a page together: none of them is wrong in nineteen of
twenty pages (Holm 1979, https://www.jstor.org/stable/4615733). Three rounds say little of how far one ratio scatters;
the ratios of one page scatter alike, so each leans on the others (Smyth 2004, https://doi.org/10.2202/1544-6115.1027).
Two runs have no rounds in common: there the passes of both sides scatter, and the same rule follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import polars as pl

LEAST_ROUNDS = 6
"""From which there is an interval: of five, all they span holds the true ratio 94% of the time at best."""
OUTSIDE = 0.05
"""How often an interval may miss, and how often a page may claim something false."""
LENT_ROUNDS = 4
"""How many rounds' worth of knowing how far they scatter a ratio has from the others of its page."""
LENT_QUANTILE = 0.75
TOLD_FROM = 3
"""Fewer rounds tell nobody apart: simulated pages of two rounds claim something false in one of ten."""


@dataclass(frozen=True)
class Ratio:
    """A ratio, from the logarithms of that of each round; NaN where there is no round that both sides have."""

    logs: tuple[float, ...] = ()

    @property
    def rounds(self) -> int:
        """How many rounds it is made of."""
        return len(self.logs)

    @property
    def ratio(self) -> float:
        """The middle of the rounds' ratios: Hodges and Lehmann's, the median of all means of two."""
        return math.exp(median(self._means)) if self.logs else math.nan

    @property
    def low(self) -> float:
        """The lower end of its interval, or range; NaN where nothing is known."""
        return self._ends[0]

    @property
    def high(self) -> float:
        """The upper end."""
        return self._ends[1]

    def __str__(self) -> str:
        """`1.23x (1.10 to 1.31 in 3 rounds)`, from six rounds on `1.23x (95%: 1.10 to 1.31)`; nothing where unknown."""
        return f"{self.ratio:.2f}x ({interval_text(self.low, self.high, self.rounds)})" if self.logs else ""

    @property
    def _means(self) -> list[float]:
        return sorted((one + other) / 2 for at, one in enumerate(self.logs) for other in self.logs[at:])

    @property
    def _ends(self) -> tuple[float, float]:
        if not self.logs:
            return math.nan, math.nan
        if self.rounds < LEAST_ROUNDS:
            return math.exp(min(self.logs)), math.exp(max(self.logs))
        means = self._means
        low, high = (float(np.interp(beyond(self.rounds), range(len(side)), side)) for side in (means, means[::-1]))
        return math.exp(low), math.exp(high)


def interval_text(low: float, high: float, rounds: int) -> str:
    """What a ratio's ends are: a range of few rounds, or an interval."""
    if rounds == 1:
        return "one round"
    return f"{low:.2f} to {high:.2f} in {rounds} rounds" if rounds < LEAST_ROUNDS else f"95%: {low:.2f} to {high:.2f}"


@cache
def beyond(rounds: int) -> float:
    """How many means of two lie beyond each end of an interval: Wilcoxon's signed ranks, counted out.

    Between two whole numbers, whose intervals hold the true ratio more often and less often, on the line from one to
    the other. https://www.itl.nist.gov/div898/software/dataplot/refman1/auxillar/signrank.htm
    """
    chances = np.ones(1)  # that the positive ones of 1, 2, ... rounds, each with a sign by chance, sum to 0, 1, ...
    for rank in range(1, rounds + 1):
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    return float(np.interp(OUTSIDE / 2, np.cumsum(chances), range(len(chances))))


def ratio(left: pl.DataFrame, right: pl.DataFrame, speed: str = "rows_per_s") -> Ratio:
    """The ratio of the column `speed` of two sets of passes of one run; what ever failed has no speed."""
    one, other = (_speeds(side.select("status", "pass", speed).rows()) for side in (left, right))
    return _paired(one, other)


def ratio_of_rows(left: Mapping[str, Any], right: Mapping[str, Any]) -> Ratio:
    """The ratio of the speeds of two rows of `statistics.medians`, by their `rounds`."""
    one, other = ({each["pass"]: each["speed"] for each in row["rounds"] or ()} for row in (left, right))
    return _paired(one, other)


def _paired(one: Mapping[int, float], other: Mapping[int, float]) -> Ratio:
    return Ratio(tuple(math.log(speed / other[number]) for number, speed in one.items() if number in other))


def ratio_at_same_rows(left: pl.DataFrame, right: pl.DataFrame) -> Ratio:
    """The ratio of two techniques' rows/s, of the most rows that both moved."""
    return with_rows(left, right)[0]


def with_rows(left: pl.DataFrame, right: pl.DataFrame) -> tuple[Ratio, int | None]:
    """The same, and how many rows those are; None where there are none."""
    one, other = _by_rows(left), _by_rows(right)
    if not (both := one.keys() & other.keys()):
        return Ratio(()), None
    rows = max(both)
    return _paired(_speeds(one[rows]), _speeds(other[rows])), rows


type _Passes = list[tuple[str, int, float]]
"""Status, number and speed of each."""


def _by_rows(passes: pl.DataFrame) -> dict[int, _Passes]:
    found: dict[int, _Passes] = {}
    for rows, status, number, speed in passes.select("rows", "status", "pass", "rows_per_s").iter_rows():
        found.setdefault(rows, []).append((status, number, speed))
    return found


def _speeds(passes: _Passes) -> dict[int, float]:
    # In plain Python: a page compares hundreds of techniques of a few passes each.
    if any(status == "failed" for status, _, __ in passes):
        return {}
    return {number: speed for status, number, speed in passes if status == "ok"}


@dataclass(frozen=True)
class Evidence:
    """What passes say of the logarithm of a ratio."""

    middle: float
    variance: float
    """Of one round's ratio, or of one pass where two runs have no rounds in common."""
    degrees: int
    """Of freedom, of that variance."""
    share: float
    """Of it in the variance of the middle."""


def evidence(logs: Sequence[float]) -> Evidence:
    """Of the logarithms of rounds' ratios, two at least."""
    return Evidence(_mean(logs), _variance(logs), len(logs) - 1, 1 / len(logs))


def evidence_between(left: Sequence[float], right: Sequence[float]) -> Evidence:
    """Of the logarithms of the speeds of two runs, left over right, two passes each at least."""
    degrees = len(left) + len(right) - 2
    together = _variance(left) * (len(left) - 1) + _variance(right) * (len(right) - 1)
    return Evidence(_mean(left) - _mean(right), together / degrees, degrees, 1 / len(left) + 1 / len(right))


def _mean(logs: Sequence[float]) -> float:
    return math.fsum(logs) / len(logs)


def _variance(logs: Sequence[float]) -> float:
    # As statistics.variance, which reckons in fractions: a page of guards asks for a hundred thousand of these.
    middle = _mean(logs)
    return math.fsum((one - middle) ** 2 for one in logs) / (len(logs) - 1)


def errors(page: Sequence[Evidence]) -> list[tuple[float, int]]:
    """The standard error of each middle of a page, and of how many degrees of freedom it is.

    What a page lends is the upper quartile of its variances: noisy techniques do not pass for quieter than they are,
    and a few passes that something slowed down do not make all of a page noisy, as they would its mean.
    """
    together = sum(one.degrees for one in page)
    common = float(np.quantile([one.variance for one in page], LENT_QUANTILE)) if page else 0.0
    moderated = []
    for one in page:
        lent = min(LENT_ROUNDS, together - one.degrees)
        scatter = (lent * common + one.degrees * one.variance) / (lent + one.degrees)
        moderated.append((math.sqrt(scatter * one.share), lent + one.degrees))
    return moderated


def signs(page: Sequence[Evidence], bounds: Sequence[float], outside: float = OUTSIDE) -> list[int]:
    """1 for each ratio of a page that is told to be over its bound, -1 where it is under it, 0 where neither is.

    Of a page that claims nothing true, anything is told in `outside` of all cases at most.
    """
    chances = []
    for at, (one, bound, (error, degrees)) in enumerate(zip(page, bounds, errors(page), strict=True)):
        distance = one.middle - math.log(bound)
        chance = two_sided(distance / error, degrees) if error else float(not distance)
        chances.append((chance, at, 1 if distance > 0 else -1))
    told = [0] * len(page)
    for left, (chance, at, sign) in zip(range(len(page), 0, -1), sorted(chances), strict=True):
        if chance > outside / left:
            break
        told[at] = sign
    return told


def shown(claims: Sequence[tuple[Ratio, float]]) -> list[int | None]:
    """What rounds show of the claims of one page, each of them that a ratio is over its bound.

    1 where it is, -1 where it is under it, 0 where that cannot be told, None where nothing was measured.
    """
    enough = [at for at, (one, _) in enumerate(claims) if one.rounds >= TOLD_FROM]
    told = signs([evidence(claims[at][0].logs) for at in enough], [claims[at][1] for at in enough])
    every: list[int | None] = [0 if one.rounds else None for one, _ in claims]
    for at, sign in zip(enough, told, strict=True):
        every[at] = sign
    return every


def verdicts(claims: Sequence[tuple[Ratio, float]], above: str = "holds", below: str = "does not hold") -> list[str]:
    """What is said of the claims of one page: `above`, `below`, inconclusive, or not measured."""
    words = {1: above, -1: below, 0: "inconclusive", None: "not measured"}
    return [words[sign] for sign in shown(claims)]


def tied(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of rows of `statistics.medians`, fastest first, those that cannot be told from the first."""
    signs = shown([(ratio_of_rows(rows[0], row), 1) for row in rows[1:]])
    return [row for row, sign in zip(rows[1:], signs, strict=True) if sign != 1]


def two_sided(t: float, degrees: int) -> float:
    """How likely Student's t is as far from 0, or farther.

    In closed form, https://personal.math.ubc.ca/~cbm/aands/page_948.htm (26.7.3, 26.7.4).
    """
    angle = math.atan(abs(t) / math.sqrt(degrees))
    cosine, odd = math.cos(angle), degrees % 2
    term = total = (cosine if odd else 1.0) if degrees > 1 else 0.0
    for power in range(3 if odd else 2, degrees - 1, 2):
        term *= cosine**2 * (power - 1) / power
        total += term
    inside = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + inside) if odd else inside)


@cache
def quantile(degrees: int) -> float:
    """How far Student's t is from 0 at most, but for `OUTSIDE` of all times."""
    low, high = 0.0, 100.0
    while high - low > 1e-9:  # noqa: PLR2004  digits enough
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, degrees) > OUTSIDE else (low, middle)
    return high
