"""What notebook 19 calls: every way of an upsert, shown by what it takes and by what it asks of others."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import SVG
from matplotlib.figure import Figure

from framehaul.bench import statistics, store
from framehaul.bench.ratios import tied
from framehaul.reporting import charts, sources
from framehaul.reporting.charts import FAMILY_COLOURS
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Column, Listing, Row, bullets, milliseconds, words
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert import runs
from framehaul.studies.upsert.frames import Case
from framehaul.studies.upsert.passes import BOTH
from framehaul.studies.upsert.passes import Row as Result
from framehaul.techniques import Technique, upserts
from framehaul.techniques.contract import ALL_OR_NOTHING
from framehaul.techniques.registry import DATABASES, Database

CASE = ["target_rows", "rows", "share"]
TITLES = {
    "every": "fastest", "whole": "fastest that is all or nothing", "shared": "fastest for several writers at once",
}  # fmt: skip
MOSTLY_THERE, MOSTLY_NEW = "many rows, most of them there", "many rows, most of them new"
HALF = 50
YES = {True: "yes", False: "no", None: ""}
WHOLE = {"old", "new"}
"""What a reader may see of an upsert that is all or nothing,"""
CLEAN = {"nothing", "all"}
"""and what it may leave when it breaks."""


def cases_in(rows: pl.DataFrame) -> list[Case]:
    """Return the cases that rows are of, in their order."""
    return [Case(*case) for case in rows.select(CASE).unique(maintain_order=True).rows()]


def medians(passes: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each way and case, the fastest of a case first."""
    timed = passes.filter(part="speed")
    rows = statistics.medians(timed, ["database", "technique", "label", *CASE])
    return rows.sort("database", *CASE, "rows_per_s", descending=[True, False, False, False, True], nulls_last=True)


@dataclass(frozen=True)
class Manners:
    """What one way asks of others; None of what was not tried."""

    way: Technique
    seen: str | None
    slower: float | None
    """The longest read of a reader meanwhile, over one before."""
    errors: str
    lost_rows: int | None
    doubled_rows: int | None
    mixed_rows: int | None
    """Of the keys of both writers, how many are left of that one of whom fewer are, in the worst round."""
    left: str | None
    beside: int | None
    again: bool | None
    """Whether it was right whenever it was sent again."""
    whole: bool | None
    """Whether it is all or nothing: its terms, what a reader saw, what was left when its client was killed."""
    shared: bool | None
    """Whether two at once lose nothing and double nothing."""
    reasons: str

    @property
    def two_at_once(self) -> str:
        """What came of two writers, in a few words."""
        counts = {"lost": self.lost_rows, "twice": self.doubled_rows, "mixed": self.mixed_rows}
        return "; ".join([*filter(None, [self.errors]), *(f"{name} {rows}" for name, rows in counts.items() if rows)])


def names(counted: str | None) -> set[str]:
    """Return the names of what was counted, of `old 12; new 3`."""
    return {one.rpartition(" ")[0] for one in (counted or "").split("; ") if one}


def summed(texts: Iterable[str]) -> str:
    """Return errors of all rounds, counted by name: each round has `DeadlockDetected 1, UniqueViolation 2`."""
    counted: collections.Counter[str] = collections.Counter()
    for one in (one for text in texts for one in text.split(", ") if one):
        name, _, count = one.rpartition(" ")
        counted[name] += int(count)
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))


def manners(passes: pl.DataFrame) -> list[Manners]:
    """Return what each way asks of others, of those that were tried, in their own order."""
    every = [one for database in BOTH for one in upserts(database)]
    rows = {one: passes.filter(pl.col("part") != "speed", database=one.database, technique=one.name) for one in every}
    return [_manners(one, found) for one, found in rows.items() if len(found)]


def _manners(way: Technique, rows: pl.DataFrame) -> Manners:
    good, failed = rows.filter(status="ok"), {*rows.filter(status="failed")["part"]}
    of_part = {row["part"]: row for row in good.to_dicts()}
    reader, killed, writers = of_part.get("reader", {}), of_part.get("client killed", {}), good.filter(part="writers")
    lost, doubled, mixed = writers.select(pl.max("lost_rows", "doubled_rows", "mixed_rows")).row(0)
    reasons = "; ".join(rows["reason"].drop_nulls().unique(maintain_order=True))
    unknown = False if reasons else None  # what did not run has shown nothing
    whole, shared = unknown, unknown
    if reader and killed:
        whole = names(reader["seen"]) <= WHOLE and killed["left"] in CLEAN and way.contract in ALL_OR_NOTHING
    if lost is not None:
        shared = not (lost or doubled)
    again = {"sent twice", "client killed"} & {*rows.filter(pl.col("status") != "skipped")["part"]}
    return Manners(
        way, reader.get("seen"), reader["longest_read_s"] / reader["read_before_s"] if reader else None,
        summed(writers["errors"].drop_nulls()), lost, doubled, mixed, killed.get("left"), killed.get("beside"),
        not failed & again if again else None, False if failed & {"reader", "client killed"} else whole,
        False if "writers" in failed else shared, reasons,
    )  # fmt: skip


def manners_table(passes: pl.DataFrame) -> Listing:
    """Show what every way asks of others, and what it leaves."""
    return Listing(
        [
            words("server", lambda row: DATABASES[row["way"].database]),
            words("upsert", lambda row: row["way"].label),
            words("a reader saw meanwhile (times)", "seen"),
            Column("its longest read, over one before", "slower", "{:.1f}x"),
            words("two at once", "two_at_once"),
            words("client killed: left", "left"),
            Column("tables left beside", "beside"),
            words("sent again it is right", "again", YES.__getitem__),
            words("all or nothing", "whole", YES.__getitem__),
            words("for several writers", "shared", YES.__getitem__),
            words("reason", "reasons"),
        ],
        [vars(one) | {"two_at_once": one.two_at_once} for one in manners(passes)],
        "Two at once: errors of all rounds, each mended by a retry, and rows of the worst round: lost, which neither "
        "writer would have left so; there twice; mixed, of the writer of whom fewer are left. The client is killed "
        "before its last message but one. All or nothing: a reader saw the table as it was or as it is, and all or "
        "nothing was left. For several writers: two at once lost nothing and doubled nothing.",
    )


def takes_table(passes: pl.DataFrame, database: Database) -> Listing:
    """Show how long every way takes on one server in every case, by rows of the table and rows that come."""
    rows = medians(passes).filter(database=database)
    cases, ways = cases_in(rows), {one.name: {"upsert": one.label} for one in upserts(database)}
    for case in cases:
        for at, row in enumerate(rows.filter(**vars(case)).to_dicts()):
            text = "" if row["seconds"] is None else milliseconds(row["seconds"])
            ways[row["technique"]][case.label] = f"**{text}**" if text and at == 0 else text or row["status"]
            ways[row["technique"]]["reason"] = row["reason"] or ways[row["technique"]].get("reason", "")
    columns = [
        words("upsert", "upsert"),
        *(Column(case.label, case.label) for case in cases),
        words("reason", "reason"),
    ]
    return Listing(columns, [one for one in ways.values() if len(one) > 1], "In bold: the least of a case.")


@dataclass(frozen=True)
class Advice:
    """For one situation the ways, fastest first: all, those that are all or nothing, those for several writers."""

    database: str
    situation: str
    case: Case
    every: list[dict[str, Any]]
    whole: list[dict[str, Any]]
    shared: list[dict[str, Any]]


def situations(known: list[Case]) -> dict[str, Case]:
    """Return the cases, of those that were measured, that stand for what a reader has."""
    if not known:
        return {}
    most = max(one.rows for one in known)
    many = [one for one in known if one.rows == most]
    found = {"few rows into a large table": min(known, key=lambda one: (-one.target_rows, one.rows, -one.share))}
    there = max(many, key=lambda one: (one.share, one.target_rows))
    new = min(many, key=lambda one: (one.share, -one.target_rows))
    found |= {MOSTLY_THERE: there} if there.share >= HALF else {}
    return found | ({MOSTLY_NEW: new} if new.share < HALF else {})


def in_most_rounds(passes: pl.DataFrame) -> pl.DataFrame:
    """Return timed passes of cases with as many rounds as any: of a table measured once nothing is claimed."""
    timed = passes.filter(part="speed")
    rounds = pl.col("pass").n_unique().over(CASE)
    return timed.filter(rounds == rounds.max())


def advice(passes: pl.DataFrame) -> list[Advice]:
    """Return what to take, by server and situation."""
    by_case, found = medians(in_most_rounds(passes)), []
    whole, shared = (
        {one.way.name for one in manners(passes) if held(one)}
        for held in (lambda one: one.whole, lambda one: one.shared)
    )
    for database in BOTH:
        here = by_case.filter(database=database)
        for situation, case in situations(cases_in(here)).items():
            ranked = [row for row in here.filter(**vars(case)).to_dicts() if row["rows_per_s"]]
            kept = ([row for row in ranked if row["technique"] in some] for some in (whole, shared))
            found.append(Advice(database, situation, case, ranked, *kept))
    return found


def first_of(ranked: Sequence[Row]) -> str:
    """Return the first of ranked ways with how long it takes, and from how many others it is not told apart."""
    if not ranked:
        return "none"
    others = len(tied(ranked))
    text = f"{ranked[0]['label']}, {milliseconds(ranked[0]['seconds'])}"
    return f"{text} (not told apart from {others})" if others else text


def advice_table(passes: pl.DataFrame) -> Listing:
    """Show the fastest by server and situation: of all, of those all or nothing, of those for several writers."""
    return Listing(
        [words("server", "server"), words("you have", "have"), *(words(title, of) for of, title in TITLES.items())],
        [
            {"server": DATABASES[one.database], "have": f"{one.situation} ({one.case.label})"}
            | {of: first_of(getattr(one, of)) for of in TITLES}
            for one in advice(passes)
        ],
        "In brackets: of how many others the rule of all pages does not tell it apart.",
    )


def answer_text(passes: pl.DataFrame) -> str:
    """Return what to take, and what to beware of."""
    points, every = [], manners(passes)
    for one in advice(passes):
        text = f"**{DATABASES[one.database]}, {one.situation}** ({one.case.label}): {first_of(one.every)}"
        for ways, what in ((one.whole, "all or nothing"), (one.shared, "for several writers")):
            text += f"; {what}: {first_of(ways)}" if ways[:1] != one.every[:1] else ""
        points.append(f"{text}.")
    for database, name in DATABASES.items():
        here = [one for one in every if one.way.database == database]
        for said, labels in (
            ("two at once** lose or double rows", [one.way.label for one in here if one.lost_rows or one.doubled_rows]),
            ("readers** see something between old and new", [one.way.label for one in here if names(one.seen) - WHOLE]),
        ):
            points += [f"**{name}, {said} with {'; '.join(labels)}."] if labels else []
    if right := [one for one in every if one.again]:
        points.append(f"**Sent again**, {len(right)} of {len(every)} ways leave what they should.")
    return bullets(points)


def speed_figure(passes: pl.DataFrame, database: Database) -> Figure:
    """Draw how fast every way is in the cases that stand for what a reader has, a panel for each."""
    rows = medians(in_most_rounds(passes)).filter(database=database)
    every = [*dict.fromkeys(situations(cases_in(rows)).values())]
    ways = [one for one in upserts(database) if one.name in {*rows["technique"]}]
    partial = {one.way for one in manners(passes) if one.whole is False}
    with charts.panels(len(every), height=1.4 + len(every) * (0.4 + 0.26 * len(ways))) as (figure, drawn):
        for axes, case in zip(drawn, every, strict=True):
            here = {row["technique"]: row for row in rows.filter(**vars(case)).to_dicts()}
            for at, way in enumerate(ways):
                hatch = "////" if way in partial else None
                charts.bar(axes, at, here[way.name], "rows_per_s", FAMILY_COLOURS[way.family], hatch=hatch)
            charts.name_lines(axes, [way.label.removeprefix("http.client ") for way in ways], size=8)
            axes.set_xlim(0, 1.25 * max(row["max_rows_per_s"] or 0 for row in here.values()) or 1.0)
            charts.quantities(axes.xaxis)
            charts.title(axes, f"{DATABASES[database]}, rows/s: {case.label}", 9)
        used = charts.families({way.family for way in ways})
        where = {"loc": "outside lower left", "ncols": 4, "fontsize": 8, "alignment": "left"}
        charts.legend(figure, used, title=f"{charts.MEDIANS}; hatched: not all or nothing", **where)
    return figure


class Upsert(Shown):
    """The passes of a run over upserts."""

    study = UPSERT_STUDY
    answer = view(answer_text)
    advice = view(advice_table)
    manners = view(manners_table)
    takes = view(takes_table)

    def chart(self, database: Database) -> SVG:
        """Show how fast every way is on one server; also saved as a figure."""
        return self.saved(speed_figure(self.passes, database), database)


def code(database: Database, *names: str) -> sources.Listing:
    """Show the code of these ways, or of all of a server."""
    return sources.show_source(database, "write", *(names or [one.name for one in upserts(database)]))


def run(**parameters: Any) -> Upsert:
    """`runs.run`, shown."""
    return Upsert.load(runs.run(**parameters))


def writeup_blocks(directory: Path) -> dict[str, str]:
    """Return the blocks of the writeup, from a results directory."""
    path = directory / UPSERT_STUDY.results
    if not path.exists():
        return {}
    passes = store.read(path, Result)
    blocks = {"upsert-advice": str(advice_table(passes)), "upsert-manners": str(manners_table(passes))}
    return blocks | {f"upsert-{database}": str(takes_table(passes, database)) for database in BOTH}
