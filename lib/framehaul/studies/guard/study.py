"""What guards found that are committed, or were made here; and how often a guard is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import polars as pl
from IPython.display import SVG, Markdown

from framehaul.reporting import charts
from framehaul.reporting.shown import Shown
from framehaul.reporting.tables import Column, Listing, bullets, where, words
from framehaul.results import committed, store
from framehaul.results.ratios import Ratio
from framehaul.results.statistics import NAMES
from framehaul.settings import Settings, load_settings
from framehaul.studies.guard import STUDY
from framehaul.studies.guard.formats import findings, listing, rule
from framehaul.studies.guard.rows import EXACT_RESULTS, Exact, Guarded
from framehaul.studies.guard.verdicts import (
    REGRESSIONS,
    TOGETHER_SHARE,
    Judged,
    judged,
    looks_at,
    measured,
    ratio_of,
    together,
    told_by,
)

COLOURS = {"faster": "#0072B2", "slower": "#D55E00"}
LINES = 40
"""At most so many paths are drawn, those that differ most."""
ORDERS = 400
"""In so many orders the rounds of a guard that was tried out are looked at again."""
PAIR = ["baseline", "candidate"]


class Guard(Shown):
    """The samples of guards, and what was exact."""

    study = STUDY

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path, exact: pl.DataFrame) -> None:
        super().__init__(passes, metadata, figures)
        self.exact = exact

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """Those made here, else those that are committed; raises ResultsError when there is none."""
        out = (settings or load_settings()).out
        here = out / "results"
        return cls.of(here if (here / STUDY.results).exists() else committed.RUN, out / "figures")

    @classmethod
    def of(cls, directory: Path, figures: Path) -> Self:
        """Those of a results directory."""
        passes, exact = (
            store.read(directory / name, kind) for name, kind in ((STUDY.results, Guarded), (EXACT_RESULTS, Exact))
        )
        return cls(passes, store.read_metadata(directory), figures, exact)

    @property
    def notebook(self) -> str:
        """It reads what the command has measured."""
        return STUDY.notebook

    @cached_property
    def pairs(self) -> dict[tuple[str, str], list[Judged]]:
        """What came of each pair of versions, in the order in which they were compared."""
        of = self.passes.filter(pl.col("slower") == 0, pl.col("baseline") != pl.col("candidate"))
        found = {}
        for baseline, candidate in of.select(PAIR).unique(maintain_order=True).rows():
            pair = {"baseline": baseline, "candidate": candidate}
            found[baseline, candidate] = judged(of.filter(**pair), self.exact.filter(**pair))
        return found

    def tables(self) -> Markdown:
        """A table for each pair, with what is behind its verdicts."""
        parts = []
        for (baseline, candidate), found in self.pairs.items():
            told = [one for one in found if one.is_together or one.verdict != "no difference"]
            alike = [one for one in found if one not in told]
            said = findings(told)
            parts += [
                f"### {baseline} → {candidate}",
                str(listing(told)) if told else "",
                f"{len(alike)} paths have no difference larger than {max(one.bound for one in alike):.0%}: "
                f"{', '.join(f'`{one.key[2]}`' for one in alike)}." if alike else "",
                bullets(said) if said else "",
            ]  # fmt: skip
        return Markdown("\n\n".join(filter(None, parts)))

    def chart(self) -> SVG:
        """Speeds by CPU time, candidate over baseline; also saved as a figure."""
        every = [(pair, one) for pair, found in self.pairs.items() for one in found if one.cpu.logs]
        farthest = sorted(every, key=lambda row: -abs(math.log(row[1].cpu.ratio)))[:LINES]
        rows = [row for row in every if row in farthest or row[1].is_together]
        with charts.panels(1, height=1.4 + 0.31 * len(rows)) as (drawn, [axes]):
            for at, (_, one) in enumerate(rows):
                colour = COLOURS.get(one.verdict, charts.INK)
                axes.plot([one.cpu.low, one.cpu.high], [at, at], color=colour, linewidth=2)
                axes.plot(one.cpu.ratio, at, "o", color=colour)
            charts.name_lines(axes, [f"{pair[1]}: {_named(one)}" for pair, one in rows])
            charts.part_lines(axes, (pair for pair, _ in rows))
            axes.axvline(1, color=charts.INK, linewidth=0.8)
            charts.quantities(axes.xaxis, "{:g}x".format)
            axes.set_xlabel("speed by client CPU time, candidate over baseline (range or 95% interval)", loc="right")
            charts.title(axes, "What a new version changed: the largest differences")
        return self.saved(drawn)

    @cached_property
    def trials(self) -> list[dict[str, Any]]:
        """Of the guards of equals, slowed down by so much or not at all: what the rule finds, and how soon."""
        of = self.passes.filter(pl.col("baseline") == pl.col("candidate"))
        return [
            _tried(slower, [guard for _, guard in of.filter(slower=slower).group_by("baseline", maintain_order=True)])
            for (slower,) in of.select("slower").unique().sort("slower").rows()
        ]

    def power(self) -> Listing:
        """How often anything is marked where nothing differs, and how often what was slowed down is found."""
        columns = [
            words("slowed down by", lambda row: f"{row['slower']:.0%}" if row["slower"] else "nothing"),
            Column("guards", "guards"), Column("paths", "paths"), words("rounds", "rounds"),
            Column("guards that mark anything", "marked"), Column("in other orders", "any", "{:.0%}"),
            Column("of the paths are told, in other orders", "told", "{:.0%}"),
            Column("all paths together are told, in other orders", "together", "{:.0%}"),
        ]  # fmt: skip
        return Listing(columns, self.trials)

    def answer(self) -> Markdown:
        """What each pair came to, and how far the guard is to be trusted."""
        return Markdown(bullets([*_sums(self.pairs), *_trust(self.trials)]))

    def rule(self) -> Markdown:
        """By which rule it is said."""
        return Markdown(rule())


def _named(one: Judged) -> str:
    if one.is_together:
        return one.label
    return f"{where({'database': one.key[0], 'direction': one.key[1]})}, {one.key[2]}"


def _sums(pairs: dict[tuple[str, str], list[Judged]]) -> Iterator[str]:
    for (baseline, candidate), found in pairs.items():
        counts: dict[str, list[Judged]] = {}
        for one in found:
            if not one.is_together:
                counts.setdefault(one.verdict, []).append(one)
        said = [f"{one.label} {one.text}, {measured(one.cpu, one.wall)}" for one in found if one.is_together]
        for verdict, those in counts.items():
            named = verdict in REGRESSIONS or verdict == "faster"
            names = ", ".join(
                f"`{one.key[2]}` {one.cpu.ratio:.2f}x" if one.cpu.logs else f"`{one.key[2]}`" for one in those
            )
            told = "without a difference that could be told" if verdict == "no difference" else verdict
            said.append(f"{len(those)} {told}{f' ({names})' if named else ''}")
        yield f"**{baseline} → {candidate}**: {'; '.join(said)}."


def _trust(trials: list[dict[str, Any]]) -> Iterator[str]:
    for one in trials:
        if not one["slower"]:
            yield (
                f"**Where nothing differs** {one['marked']} of {one['guards']} guards mark anything, and "
                f"{one['any']:.0%} of them in other orders of their rounds."
            )
        elif one["told"] is not None:
            yield (
                f"**A slow-down of {one['slower']:.0%}** is told of {one['told']:.0%} of {one['paths']} paths, and in "
                f"{one['together']:.0%} of other orders of all together, after {one['rounds']} rounds."
            )


def _tried(slower: float, guards: list[pl.DataFrame]) -> dict[str, Any]:
    """Guards as they went, and their rounds in many other orders, as if each were another guard's."""
    marked = any_marked = told = paths = of_all = 0
    every: list[int] = []
    for passes in guards:
        found = [
            ratio_of(passes.filter(**dict(zip(NAMES, key, strict=True))), "cpu_s")
            for key in passes.select(NAMES).unique(maintain_order=True).rows()
        ]
        found = [one for one in found if one.logs]
        rounds = min((one.rounds for one in found), default=0)
        marked += any(_found(found, range(rounds), slower))
        paths += len(found)
        every.append(rounds)
        drawn, known = random.Random(0), dict[tuple[frozenset[int], ...], list[bool]]()
        for _ in range(ORDERS):
            order = drawn.sample(range(rounds), rounds)
            # What a look finds depends on which rounds it has, and not on their order.
            looked_at = tuple(frozenset(order[:look]) for look in looks_at(rounds))
            if looked_at not in known:
                known[looked_at] = _found(found, order, slower)
            together_told, *paths_told = known[looked_at]
            told += sum(paths_told)
            of_all += together_told
            any_marked += together_told or any(paths_told)
    return {
        "slower": slower, "guards": len(guards), "paths": paths, "marked": marked,
        "any": any_marked / ORDERS / len(guards),
        "rounds": " to ".join(map(str, dict.fromkeys((min(every), max(every))))),
        "told": told / ORDERS / paths if paths else None, "together": of_all / ORDERS / len(guards),
    }  # fmt: skip


def _found(of: list[Ratio], order: Sequence[int], slower: float) -> list[bool]:
    """Of all paths as one, where they are several, and of each, whether it is told to be slower.

    Where nothing is slower, whether anything is told of it.
    """
    paths = [Ratio(tuple(one.logs[at] for at in order)) for one in of]
    of_all = told_by([together(paths)], len(order), TOGETHER_SHARE) if len(paths) > 1 else [0]
    return [sign < 0 if slower else sign != 0 for sign in (*of_all, *told_by(paths, len(order)))]


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory; none where there was no guard."""
    if not (directory / STUDY.results).exists():
        return {}
    of = Guard.of(directory, directory.parent / "figures")
    return {"guard": str(of.tables().data), "guard-power": str(of.power()), "guard-rule": rule()}
