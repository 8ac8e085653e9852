"""What is said of a technique: first what is exact, then the rule of all pages on what was measured.

Rounds come one by one, and whoever looks after each of them finds a difference sooner or later. So there are a few
looks, at numbers of rounds that are known beforehand, and each has its part of the chance to be wrong (Bonferroni):
of guards of equals one in twenty at most marks anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Literal, cast, get_args

import polars as pl

from framehaul.results import ratios
from framehaul.results.ratios import Ratio
from framehaul.results.statistics import NAMES

LOOKS = (6, 9, 13, 19, 28)
"""After how many rounds it is looked whether the verdict is clear; none is longer than the last."""
MATTERS = 1.02
"""A side is called slower or faster where it is so by more than this: two processes of one program differ by less."""
CLEAR = 0.03
"""No further rounds are made where a larger difference than this is out of the question."""
UNSTABLE = 0.15
"""Nothing is said where even this cannot be excluded."""
LEAK_BYTES = 64 << 10
"""A process keeps something that grows with each call by so much more than the other, and by half more, in nearly all
rounds."""
LEAK_TIMES = 0.5
LEAK_SHARE = 0.8
KEPT = "bytes that each of many calls leaves"
"""The fact that decides where a few calls of each round look like a leak: caches fill up, a leak goes on."""

COUNTS_MATTER = {
    "instructions": 0.005, "Python bytes": 0.1, "bytes sent": 1e-4, "bytes received": 1e-4, KEPT: math.inf,
}  # fmt: skip
"""Counts that differ by no more than this are taken for the same. Instructions of one version differ by a fiftieth of
that. What Python allocates is the same each time in one process, and up to 5% more or less in another, by how much of
an answer comes at once. On the wire the number of a process, or of a snapshot, may have a digit more. What is
left is a leak, or nothing."""
TOGETHER = ("all", "paths", "together")
"""What stands for all paths of a guard in the place of one: what each scatters on its own is hardly in their mean."""
TOGETHER_SHARE = 0.4
"""Of the chance to be wrong, which it has for itself: it is one claim, and paths are many."""

Verdict = Literal[
    "fails", "wrong", "slower", "dtypes changed", "leaks", "bytes changed", "changed", "unstable", "faster",
    "no difference", "not compared",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""The worst first."""
REGRESSIONS = frozenset({"fails", "wrong", "slower", "dtypes changed", "leaks"})


@dataclass(frozen=True)
class Judged:
    """What came of one technique."""

    key: tuple[str, str, str]
    label: str
    verdict: Verdict
    cpu: Ratio
    """Of the speeds by CPU time, candidate over baseline: of the client on replayed bytes, or of servers."""
    wall: Ratio
    """Of those by the clock, on the servers."""
    cpu_s: tuple[float, float]
    """Medians of both sides, for one call; NaN where there are none."""
    rows: int | None
    findings: tuple[str, ...]
    """What is behind it, in words."""

    @property
    def is_together(self) -> bool:
        """Whether it stands for all paths."""
        return self.key == TOGETHER

    @property
    def bound(self) -> float:
        """A larger difference than this share is out of the question."""
        return beyond(measured(self.cpu, self.wall))

    @property
    def text(self) -> str:
        """The verdict with its bound."""
        if self.verdict == "no difference":
            return f"no difference larger than {math.ceil(self.bound * 100)}%"
        return self.verdict


def measured(cpu: Ratio, wall: Ratio) -> Ratio:
    """By CPU time, or by the clock where nothing could be replayed, or not from some round on."""
    return cpu if cpu.rounds >= min(ratios.LEAST_ROUNDS, max(wall.rounds, 1)) else wall


def beyond(ratio: Ratio) -> float:
    """The largest difference, as a share, that the interval of a ratio leaves; infinite where there is none."""
    if ratio.rounds < ratios.LEAST_ROUNDS:
        return math.inf
    return max(abs(1 / ratio.low - 1), abs(ratio.high - 1), abs(ratio.low - 1))


def _cpu_of(passes: pl.DataFrame) -> str:
    """Whose CPU time it is about: the client's, or where none was measured, for servers are compared, theirs."""
    return "server_cpu_s" if passes["cpu_s"].null_count() == len(passes) else "cpu_s"


def ratio_of(passes: pl.DataFrame, column: str) -> Ratio:
    """The ratio of the sides of one technique, side b's speed over side a's, round by round; none of what failed."""
    had = passes.filter(pl.col(column).is_not_null() | (pl.col("status") != "ok"))
    return ratios.ratio(had.filter(side="a"), had.filter(side="b"), column)


def looks_at(rounds: int) -> list[int]:
    """The looks at so many rounds: after those of LOOKS, and when time was over before the last of them."""
    looks = [one for one in LOOKS if one <= rounds]
    return looks if len(looks) == len(LOOKS) or rounds in looks or rounds < ratios.TOLD_FROM else [*looks, rounds]


def together(of: Sequence[Ratio]) -> Ratio:
    """Of each round the mean of the logarithms of those that it has: their geometric mean."""
    rounds = max((one.rounds for one in of), default=0)
    return Ratio(tuple(mean(one.logs[at] for one in of if at < one.rounds) for at in range(rounds)))


def told_by(of: Sequence[Ratio], rounds: int, share: float = 1 - TOGETHER_SHARE) -> list[int]:
    """As `told`, by the first look at which each was told: what is told once is told, whatever others do after it."""
    found = [0] * len(of)
    for look in looks_at(rounds):
        signs = told([Ratio(one.logs[:look]) for one in of], share)
        found = [before or sign for before, sign in zip(found, signs, strict=True)]
    return found


def told(of: Sequence[Ratio], share: float = 1 - TOGETHER_SHARE) -> list[int]:
    """Of ratios of one look: 1 where the candidate is told to be faster by more than MATTERS, -1 slower, 0 neither.

    All of them have this share of the chance to be wrong.
    """
    enough = [at for at, one in enumerate(of) if one.rounds >= ratios.TOLD_FROM]
    page = [ratios.evidence(of[at].logs) for at in enough]
    outside = ratios.OUTSIDE * share / len(LOOKS)
    slower, faster = (ratios.signs(page, [bound] * len(page), outside) for bound in (1 / MATTERS, MATTERS))
    found = [0] * len(of)
    for at, below, above in zip(enough, slower, faster, strict=True):
        found[at] = -1 if below == -1 else 1 if above == 1 else 0
    return found


type Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Told:
    """Of one technique the ratios by CPU time and by the clock, and what is told of either."""

    cpu: Ratio
    wall: Ratio
    signs: tuple[int, int]


def _of_page(passes: pl.DataFrame) -> dict[Key, _Told]:
    """Every technique of a guard, told by all that its page claims."""
    found: dict[Key, tuple[Ratio, Ratio]] = {}
    for key in passes.select(NAMES).unique(maintain_order=True).rows():
        of = passes.filter(**dict(zip(NAMES, key, strict=True)))
        found[key] = ratio_of(of, _cpu_of(passes)), ratio_of(of, "seconds")
    page = [one for both in found.values() for one in both]
    signs = told_by(page, max((one.rounds for one in page), default=0))
    return {key: _Told(*both, (signs[2 * at], signs[2 * at + 1])) for at, (key, both) in enumerate(found.items())}


def clear(passes: pl.DataFrame) -> set[Key]:
    """The techniques of which more rounds would tell no more."""
    return {
        key for key, one in _of_page(passes).items() if any(one.signs) or beyond(measured(one.cpu, one.wall)) <= CLEAR
    }


def suspected(passes: pl.DataFrame) -> set[Key]:
    """The techniques that look as if they left something with each call."""
    return {cast("Key", key) for key, own in passes.group_by(NAMES) if _leak(own, None)}


def judged(passes: pl.DataFrame, exact: pl.DataFrame) -> list[Judged]:
    """One for each technique of a guard, the worst first; before them, where they are several, one for all together."""
    labels: dict[Key, str] = {tuple(row[:3]): row[3] for row in passes.select(*NAMES, "label").unique().rows()}
    found, page = [], _of_page(passes)
    for key, one in page.items():
        own = passes.filter(**dict(zip(NAMES, key, strict=True)))
        rows = exact.filter(**dict(zip(NAMES, key, strict=True))).to_dicts()
        facts = [row for row in rows if row["worse"] and _share(row) > COUNTS_MATTER.get(row["what"], 0)]
        many = next(((int(row["before"]), int(row["after"])) for row in rows if row["what"] == KEPT), None)
        verdict, findings = _of_one(own, facts, one, _leak(own, many))
        medians = [own.filter(side=side, status="ok")[_cpu_of(passes)].median() for side in ("a", "b")]
        seconds = tuple(float(each) if isinstance(each, float) else math.nan for each in medians)
        found.append(
            Judged(
                key, labels[key], verdict, one.cpu, one.wall, (seconds[0], seconds[1]), own["rows"][0],
                tuple(findings),
            )
        )  # fmt: skip
    return [*_together(list(page.values())), *sorted(found, key=lambda one: VERDICTS.index(one.verdict))]


def _together(page: Sequence[_Told]) -> list[Judged]:
    """All paths of a page as one; nothing of a single path, or of too few rounds."""
    cpu, wall = together([one.cpu for one in page]), together([one.wall for one in page])
    by_which = measured(cpu, wall)
    paths = sum(bool((one.cpu if cpu.logs else one.wall).logs) for one in page)
    if paths == 1 or by_which.rounds < ratios.LEAST_ROUNDS:
        return []
    (sign,) = told_by([by_which], by_which.rounds, TOGETHER_SHARE)
    verdicts: dict[int, Verdict] = {-1: "slower", 1: "faster", 0: "no difference"}
    verdict = verdicts[sign] if sign or beyond(by_which) <= UNSTABLE else "unstable"
    return [Judged(TOGETHER, " ".join(TOGETHER), verdict, cpu, wall, (math.nan, math.nan), None, ())]


def _of_one(passes: pl.DataFrame, facts: list[dict[str, str]], of: _Told, leak: str) -> tuple[Verdict, list[str]]:
    said = [f"{row['what']}: {row['before'] or 'nothing'} -> {row['after'] or 'nothing'}{_by(row)}" for row in facts]
    worse = {row["worse"] for row in facts}
    if leak:
        said.insert(0, leak)
    before, after = (
        next(iter(passes.filter(pl.col("status") != "ok", side=side)["reason"]), "") for side in ("a", "b")
    )
    slower = [
        (name, one) for name, one, sign in (("CPU", of.cpu, of.signs[0]), ("clock", of.wall, of.signs[1])) if sign < 0
    ]
    by_which = measured(of.cpu, of.wall)
    enough = by_which.rounds >= ratios.LEAST_ROUNDS
    too_few = [] if enough else [f"{by_which.rounds} rounds, which takes {LOOKS[0]}: give a larger BUDGET"]
    # What holds first is said, and a leak whatever it is.
    every: list[tuple[Verdict, bool, list[str]]] = [
        ("not compared", bool(before), [f"baseline: {before}"]),
        ("wrong", bool(after) and "wrong" in worse, [f"candidate: {after}"]),
        ("fails", bool(after), [f"candidate: {after}"]),
        ("fails", "fails" in worse, []),
        ("wrong", "wrong" in worse, []),
        ("slower", bool(slower), [f"{name} {ratio}" for name, ratio in slower]),
        ("dtypes changed", "dtypes changed" in worse, []),
        ("leaks", bool(leak), []),
        ("faster", max(of.signs) > 0, []),
        ("bytes changed", "bytes changed" in worse, too_few),
        ("changed", "changed" in worse, too_few),
        ("not compared", not enough, too_few),
        ("unstable", beyond(by_which) > UNSTABLE, [f"{by_which.rounds} rounds leave {by_which}"]),
        ("no difference", True, []),
    ]
    verdict, _, reasons = next(one for one in every if one[1])
    return verdict, [*reasons, *said]


def _by(fact: dict[str, str]) -> str:
    """By what share a number has changed; nothing of what is none."""
    return "" if math.isinf(_share(fact)) else f" ({int(fact['after']) / int(fact['before']) - 1:+.1%})"


def _share(fact: dict[str, str]) -> float:
    """By what share a number has changed, up or down; infinite of what is none."""
    before, after = fact["before"], fact["after"]
    numbers = before.isdecimal() and after.isdecimal() and int(before)
    return abs(int(after) / int(before) - 1) if numbers else math.inf


def _leak(passes: pl.DataFrame, many: tuple[int, int] | None) -> str:
    """Where the candidate's process grows by more with every call than the baseline's, in nearly all rounds.

    What `many` calls leave on either side decides, where that is known.
    """
    grown = passes.filter(pl.col("growth_bytes").is_not_null(), status="ok")
    sides = [dict(grown.filter(side=side).select("pass", "growth_bytes").rows()) for side in ("a", "b")]
    both = [(sides[0][one], sides[1][one]) for one in sides[0].keys() & sides[1].keys()]
    # Both grow a little at first, until their allocators have what they need.
    more = sum(_grows(*one) for one in both)
    if len(both) < ratios.TOLD_FROM or more < LEAK_SHARE * len(both) or (many and not _grows(*many)):
        return ""
    before, after = many or (median(side) for side in zip(*both, strict=True))
    return f"each call leaves {after / 1e6:.1f} MB in the process, {before / 1e6:.1f} MB before"


def _grows(before: float, after: float) -> bool:
    return after - before > max(LEAK_BYTES, before * LEAK_TIMES)


def status(found: Sequence[Judged]) -> int:
    """The exit status: 1 with a regression, 2 when nothing could be compared, else 0."""
    if any(one.verdict in REGRESSIONS for one in found):
        return 1
    compared = [one for one in found if one.verdict not in ("not compared", "unstable")]
    return 0 if any(measured(one.cpu, one.wall).rounds >= ratios.LEAST_ROUNDS for one in compared) else 2
