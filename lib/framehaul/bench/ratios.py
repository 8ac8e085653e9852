"""Ratios of speeds, paired by round, with intervals and one rule for all verdicts.

Within a round both sides ran on the machine in the same state, so a ratio is the median of per-round ratios, on their
logarithms, and its interval is Student's t of these. No verdict (`faster`, `holds`, tied or not) contradicts the
interval beside it, and verdicts are corrected for all claims of a page: in 19 of 20 pages none is wrong (Holm 1979,
https://www.jstor.org/stable/4615733). Three rounds are too few to estimate how far one ratio scatters, so the variances
of a page are pooled in part (Smyth 2004, https://doi.org/10.2202/1544-6115.1027). Two runs have no rounds in common:
there the same rule uses the variance of the passes of both.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import polars as pl

LEAST_ROUNDS = 6
"""The minimum for a 95% interval: the range of five rounds holds the true ratio 94% of the time at best."""
OUTSIDE = 0.05
"""The probability that an interval misses the true ratio, and that a page has a false verdict."""
LENT_ROUNDS, LENT_QUANTILE = 4, 0.75
"""The weight of a page's pooled variance in the variance of each of its ratios, in rounds, and the quantile it is."""
MIN_ROUNDS = 3
"""The minimum for a verdict: in simulations, one in ten pages of two rounds has a false one."""


class Ratio:
    """A ratio of speeds, by the logarithms of its per-round ratios.

    `ratio` is their median by Hodges and Lehmann: the median of the means of all pairs. `low` and `high` are the ends
    of its interval, or range. All three are NaN without a round that both sides have.
    """

    def __init__(self, logs: Sequence[float] = ()) -> None:
        self.logs, self.rounds = logs, len(logs)
        self.ratio = self.low = self.high = math.nan
        if logs:
            means = sorted((one + other) / 2 for at, one in enumerate(logs) for other in logs[at:])
            low, high = min(logs), max(logs)
            if self.rounds >= LEAST_ROUNDS:
                one = evidence(logs)
                reach = quantile(one.degrees) * math.sqrt(one.variance * one.share)
                low, high = one.mean - reach, one.mean + reach
            self.ratio, self.low, self.high = map(math.exp, (median(means), low, high))

    @property
    def values(self) -> tuple[float | None, ...]:
        """The ratio, the ends of its interval and the number of rounds; four times None without rounds."""
        return (self.ratio, self.low, self.high, self.rounds) if self.logs else (None,) * 4


def interval_text(low: float, high: float, rounds: int) -> str:
    """Return the ends of a ratio as text: `1.10 to 1.31 in 3 rounds`, from six rounds on `95%: 1.10 to 1.31`."""
    if rounds == 1:
        return "one round"
    return f"{low:.2f} to {high:.2f} in {rounds} rounds" if rounds < LEAST_ROUNDS else f"95%: {low:.2f} to {high:.2f}"


def ratio(left: pl.DataFrame, right: pl.DataFrame) -> Ratio:
    """Return the ratio of the rows/s of two sets of passes of one run, without rounds if any pass failed."""
    if "failed" in {*left["status"], *right["status"]}:
        return Ratio()
    sides = (side.filter(status="ok").select("pass", speed="rows_per_s").to_dicts() for side in (left, right))
    return ratio_of_rows(*({"rounds": side} for side in sides))


def ratio_of_rows(left: Mapping[str, Any], right: Mapping[str, Any]) -> Ratio:
    """Return the ratio of the speeds of two rows of `statistics.medians`, by their `rounds`."""
    one, other = ({each["pass"]: each["speed"] for each in row["rounds"] or ()} for row in (left, right))
    return Ratio([math.log(speed / other[number]) for number, speed in one.items() if number in other])


def ratio_at_same_rows(left: pl.DataFrame, right: pl.DataFrame) -> Ratio:
    """Return the ratio of two techniques' rows/s at the largest number of rows that both moved."""
    rows = max({*left["rows"]} & {*right["rows"]}, default=None)
    return Ratio() if rows is None else ratio(left.filter(rows=rows), right.filter(rows=rows))


class Evidence(NamedTuple):
    """An estimate of the logarithm of a ratio: the variance of `mean` is `variance`, of one value, times `share`."""

    mean: float
    variance: float
    degrees: int
    """The degrees of freedom of `variance`."""
    share: float


def evidence(*sides: Sequence[float]) -> Evidence:
    """Return the evidence of the logarithms of at least two per-round ratios, or of two runs' speeds, A over B."""
    degrees = sum(len(side) - 1 for side in sides)
    variance = float(sum(np.var(side) * len(side) for side in sides)) / degrees
    mean = fmean(sides[0]) - sum(map(fmean, sides[1:]))
    return Evidence(mean, variance, degrees, sum(1 / len(side) for side in sides))


def errors(page: Sequence[Evidence]) -> list[tuple[float, int]]:
    """Return the standard error of each mean of a page, and its degrees of freedom.

    The pooled variance is the upper quartile: with the mean, a few disturbed passes would make a whole page noisy; with
    a lower quantile, noisy techniques would pass for quieter than they are.
    """
    together, moderated = sum(one.degrees for one in page), []
    common = float(np.quantile([one.variance for one in page], LENT_QUANTILE)) if page else 0.0
    for one in page:
        lent = min(LENT_ROUNDS, together - one.degrees)
        scatter = (lent * common + one.degrees * one.variance) / (lent + one.degrees)
        moderated.append((math.sqrt(scatter * one.share), lent + one.degrees))
    return moderated


def signs(page: Sequence[Evidence], bounds: Sequence[float]) -> list[int]:
    """Return 1 for each ratio of a page that is shown to be over its bound, -1 for under it, 0 for neither.

    A page without any true difference has a sign other than 0 with a probability of `OUTSIDE` at most.
    """
    chances = []
    for at, (one, bound, (error, degrees)) in enumerate(zip(page, bounds, errors(page), strict=True)):
        distance = one.mean - math.log(bound)
        chance = two_sided(distance / error, degrees) if error else float(not distance)
        chances.append((chance, at, 1 if distance > 0 else -1))
    found = [0] * len(page)
    for left, (chance, at, sign) in zip(range(len(page), 0, -1), sorted(chances), strict=True):
        if chance > OUTSIDE / left:
            break
        found[at] = sign
    return found


def shown(claims: Sequence[tuple[Ratio, float]]) -> list[int | None]:
    """Return 1 for each claim of one page that is shown to be over its bound, -1 for under it, else 0; None unmeasured.

    A ratio whose own interval, or range, holds the bound is not shown to be over or under it.
    """
    enough = [at for at, (one, _) in enumerate(claims) if one.rounds >= MIN_ROUNDS]
    found = signs([evidence(claims[at][0].logs) for at in enough], [claims[at][1] for at in enough])
    every = [0 if one.rounds else None for one, _ in claims]
    for at, sign in zip(enough, found, strict=True):
        one, bound = claims[at]
        every[at] = 0 if one.low <= bound <= one.high else sign
    return every


def verdicts(claims: Sequence[tuple[Ratio, float]], above: str = "holds", below: str = "does not hold") -> list[str]:
    """Return the verdicts on the claims of one page: `above`, `below`, inconclusive, or not measured."""
    words = {1: above, -1: below, 0: "inconclusive", None: "not measured"}
    return [words[sign] for sign in shown(claims)]


def tied(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of `statistics.medians`, fastest first, that are statistically tied with the first.

    A row with fewer rounds than a verdict takes, where the first has enough, was too slow to go on: it is not tied.
    """
    compared = [ratio_of_rows(rows[0], row) for row in rows[1:]]
    least = MIN_ROUNDS if rows and len(rows[0]["rounds"] or ()) >= MIN_ROUNDS else 0
    over = zip(rows[1:], compared, shown([(one, 1) for one in compared]), strict=True)
    return [row for row, one, sign in over if sign != 1 and one.rounds >= least]


def two_sided(t: float, degrees: int) -> float:
    """Return the probability that Student's t is as far from 0, or farther.

    In closed form, https://personal.math.ubc.ca/~cbm/aands/page_948.htm (26.7.3, 26.7.4).
    """
    angle, odd = math.atan(abs(t) / math.sqrt(degrees)), degrees % 2
    term = total = (math.cos(angle) if odd else 1.0) if degrees > 1 else 0.0
    for power in range(3 if odd else 2, degrees - 1, 2):
        term *= math.cos(angle) ** 2 * (power - 1) / power
        total += term
    inside = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + inside) if odd else inside)


@cache
def quantile(degrees: int) -> float:
    """Return the distance from 0 that Student's t exceeds with a probability of `OUTSIDE`, to a millionth."""
    return bisect_left(range(10**8), -OUTSIDE, key=lambda millionths: -two_sided(millionths / 1e6, degrees)) / 1e6
