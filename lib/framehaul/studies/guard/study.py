"""What guards found that are committed, or were made here; and how often a guard is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
from framehaul.settings import Settings, load_settings
from framehaul.studies.guard import STUDY
from framehaul.studies.guard.formats import findings, listing, rule
from framehaul.studies.guard.rows import EXACT_RESULTS, Exact, Guarded
from framehaul.studies.guard.verdicts import REGRESSIONS, Judged, judged, ratio_of, told_by

COLOURS = {"faster": "#0072B2", "slower": "#D55E00"}
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
            said = findings(found)
            parts.append(f"### {baseline} → {candidate}\n\n{listing(found)}\n\n{bullets(said) if said else ''}")
        return Markdown("\n\n".join(parts))

    def chart(self) -> SVG:
        """Speeds by CPU time, candidate over baseline; also saved as a figure."""
        rows = [(pair, one) for pair, found in self.pairs.items() for one in found if one.cpu.logs]
        with charts.panels(1, height=1.4 + 0.31 * len(rows)) as (drawn, [axes]):
            for at, (_, one) in enumerate(rows):
                colour = COLOURS.get(one.verdict, charts.INK)
                axes.plot([one.cpu.low, one.cpu.high], [at, at], color=colour, linewidth=2)
                axes.plot(one.cpu.ratio, at, "o", color=colour)
            charts.name_lines(axes, [f"{pair[1]}: {where(_row(one))}, {one.key[2]}" for pair, one in rows])
            charts.part_lines(axes, (pair for pair, _ in rows))
            axes.axvline(1, color=charts.INK, linewidth=0.8)
            charts.quantities(axes.xaxis, "{:g}x".format)
            axes.set_xlabel("speed by client CPU time, candidate over baseline (range or 95% interval)", loc="right")
            charts.title(axes, "What a new version changed")
        return self.saved(drawn)

    @cached_property
    def trials(self) -> list[dict[str, Any]]:
        """Of each guard of equals, slowed down by so much or not at all: what its rule finds, and how soon."""
        of = self.passes.filter(pl.col("baseline") == pl.col("candidate"))
        return [
            _tried(slower, of.filter(slower=slower)) for (slower,) in of.select("slower").unique().sort("slower").rows()
        ]

    def power(self) -> Listing:
        """How often anything is marked where nothing differs, and how often what was slowed down is found."""
        columns = [
            words("slowed down by", lambda row: f"{row['slower']:.0%}" if row["slower"] else "nothing"),
            Column("techniques", "techniques"), Column("rounds", "rounds"),
            Column("of the techniques are told", "told", "{:.0%}"),
            Column("of the guards mark anything", "any", "{:.0%}"),
        ]  # fmt: skip
        return Listing(columns, self.trials)

    def answer(self) -> Markdown:
        """What each pair came to, and how far the guard is to be trusted."""
        return Markdown(bullets([*_sums(self.pairs), *_trust(self.trials)]))

    def rule(self) -> Markdown:
        """By which rule it is said."""
        return Markdown(rule())


def _row(one: Judged) -> dict[str, str]:
    return {"database": one.key[0], "direction": one.key[1]}


def _sums(pairs: dict[tuple[str, str], list[Judged]]) -> Iterator[str]:
    for (baseline, candidate), found in pairs.items():
        counts: dict[str, list[Judged]] = {}
        for one in found:
            counts.setdefault(one.verdict, []).append(one)
        said = []
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
            yield f"**Where nothing differs** anything is marked in {one['any']:.0%} of the guards."
        elif one["rounds"]:
            found = f"{one['told']:.0%} of the techniques after {one['rounds']} rounds"
            yield f"**A slow-down of {one['slower']:.0%}** is told of {found}."


def _tried(slower: float, passes: pl.DataFrame) -> dict[str, Any]:
    """The rounds of one guard, looked at in many orders as if each were another guard's."""
    names = ["database", "direction", "technique"]
    ratios = [
        ratio_of(passes.filter(**dict(zip(names, key, strict=True))), "cpu_s")
        for key in passes.select(names).unique(maintain_order=True).rows()
    ]
    ratios = [one for one in ratios if one.logs]
    rounds = min((one.rounds for one in ratios), default=0)
    found, marked = 0, 0
    drawn = random.Random(0)
    for _ in range(ORDERS):
        order = drawn.sample(range(rounds), rounds)
        signs = told_by([Ratio(tuple(one.logs[at] for at in order)) for one in ratios], rounds)
        found += sum(sign < 0 if slower else sign != 0 for sign in signs)
        marked += any(signs)
    every = ORDERS * len(ratios)
    return {
        "slower": slower, "techniques": len(ratios), "rounds": rounds, "any": marked / ORDERS,
        "told": found / every if every else None,
    }  # fmt: skip


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory; none where there was no guard."""
    if not (directory / STUDY.results).exists():
        return {}
    of = Guard.of(directory, directory.parent / "figures")
    return {"guard": str(of.tables().data), "guard-power": str(of.power()), "guard-rule": rule()}
