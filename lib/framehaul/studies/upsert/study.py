"""What notebook 19 calls: every way of an upsert, shown by what it takes and by what it asks of others."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
from IPython.display import HTML, SVG
from matplotlib.figure import Figure

from framehaul.bench import statistics, store
from framehaul.bench.ratios import tied
from framehaul.reporting import charts
from framehaul.reporting.charts import FAMILY_COLOURS
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.sources import show_source
from framehaul.reporting.tables import (
    MILLION,
    UNSTABLE,
    Column,
    Listing,
    Row,
    bullets,
    milliseconds,
    thousands,
    words,
)
from framehaul.studies.upsert import STUDY, runs
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
WHOLE = {"old", "new"}
"""What a reader may see of an upsert that is all or nothing,"""
MOSTLY_THERE, MOSTLY_NEW = "many rows, most of them there", "many rows, most of them new"
HALF = 50
YES = {True: "yes", False: "no", None: ""}
CLEAN = {"nothing", "all"}
"""and what it may leave when it breaks."""
BREAKS = ("connection cut", "client killed", "server killed")


def case_of(row: Row) -> Case:
    """The case that a row is of."""
    return Case(row["target_rows"], row["rows"], row["share"])


def cases_in(rows: pl.DataFrame) -> list[Case]:
    """The cases that rows are of, in their order."""
    return [case_of(row) for row in rows.select(CASE).unique(maintain_order=True).to_dicts()]


def medians(passes: pl.DataFrame) -> pl.DataFrame:
    """One row for each way and case, the fastest of a case first."""
    timed = passes.filter(part="speed")
    rows = statistics.medians(timed, ["database", "technique", "label", *CASE])
    return rows.sort("database", *CASE, "rows_per_s", descending=[True, False, False, False, True], nulls_last=True)


@dataclass(frozen=True)
class Manners:
    """What one way asks of others; nothing of what was not tried."""

    database: str
    technique: str
    label: str
    promised: bool
    """Whether its terms are all or nothing: what nobody saw in a few reads may be there to see."""
    seen: str | None
    longest_read_s: float | None
    read_before_s: float | None
    together_s: float | None
    """Median seconds until both of two writers were done."""
    retries: int | None
    errors: str
    lost_rows: int | None
    doubled_rows: int | None
    mixed_rows: int | None
    """Of the keys of both, how many are left of that writer of whom fewer are: none where one came after the other."""
    cut: str | None
    killed: str | None
    crashed: str | None
    beside: int | None
    again: str
    failed: frozenset[str]
    """Parts of which a pass failed."""
    reasons: str

    @property
    def whole(self) -> bool | None:
        """Whether it is all or nothing: its terms, what a reader saw, how it broke. None where that was not tried."""
        if self.failed & {"reader", *BREAKS}:
            return False
        if None in (self.seen, self.cut, self.killed):
            return False if self.reasons else None
        left = _names(self.cut) | _names(self.killed) | _names(self.crashed)
        return self.promised and not (_names(self.seen) - WHOLE or left - CLEAN)

    @property
    def shared(self) -> bool | None:
        """Whether two at once lose nothing and double nothing. None where that was not tried."""
        if self.lost_rows is None:
            return False if self.reasons else None
        return not (self.lost_rows or self.doubled_rows or "writers" in self.failed)


def _names(counted: str | None) -> set[str]:
    """What was counted, of `old 12; new 3`."""
    return {one.rpartition(" ")[0] for one in (counted or "").split("; ") if one}


def _summed(texts: Iterable[str]) -> str:
    """Errors of all rounds, counted by name: each round says `DeadlockDetected 1, UniqueViolation 2`."""
    counted: collections.Counter[str] = collections.Counter()
    for one in (one for text in texts for one in text.split(", ") if one):
        name, _, count = one.rpartition(" ")
        counted[name] += int(count)
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items()))


def manners(passes: pl.DataFrame) -> list[Manners]:
    """Of each way that was tried so, in their own order."""
    found = []
    ways: dict[tuple[str, str], Technique] = {
        (one.database, one.name): one for database in BOTH for one in upserts(database)
    }
    for (database, technique, label), group in passes.group_by("database", "technique", "label", maintain_order=True):
        parts = {str(name): rows.to_dicts() for (name,), rows in group.group_by("part", maintain_order=True)}
        if len(parts) == 1:
            continue
        reader, cut, killed = ((parts.get(name) or [{}])[0] for name in ("reader", "connection cut", "client killed"))
        writers = [row for row in parts.get("writers", []) if row["status"] == "ok"]
        crashes = parts.get("server killed", [])
        bad = [row["reason"] for name, rows in parts.items() if name != "speed" for row in rows if row["reason"]]
        besides = [row["beside"] for row in (cut, killed, *crashes) if row.get("beside") is not None]
        broke = [row for name in ("sent twice", *BREAKS) for row in parts.get(name, [])]
        tried_again = [row for row in broke if row["status"] != "skipped"]
        failed = {name for name, rows in parts.items() if any(row["status"] == "failed" for row in rows)}
        found.append(
            Manners(
                str(database), str(technique), str(label), ways[database, technique].contract in ALL_OR_NOTHING,
                reader.get("seen"), reader.get("longest_read_s"), reader.get("read_before_s"),
                median(row["seconds"] for row in writers) if writers else None,
                sum(row["retries"] for row in writers) if writers else None,
                _summed(row["errors"] or "" for row in writers),
                max((row["lost_rows"] for row in writers), default=None),
                max((row["doubled_rows"] for row in writers), default=None),
                max((row["mixed_rows"] for row in writers), default=None),
                cut.get("left"), killed.get("left"), "; ".join(row["left"] for row in crashes if row["left"]) or None,
                max(besides, default=None),
                YES[all(row["again"] == "right" for row in tried_again)] if tried_again else "", frozenset(failed),
                "; ".join(dict.fromkeys(bad)),
            )
        )  # fmt: skip
    order = [*ways]
    return sorted(found, key=lambda one: order.index((one.database, one.technique)))


def manners_table(passes: pl.DataFrame) -> Listing:
    """What every way asks of others, and what it leaves."""
    return Listing(
        [
            words("server", lambda row: DATABASES[row["one"].database]),
            words("upsert", lambda row: row["one"].label),
            words("a reader saw meanwhile (times)", lambda row: row["one"].seen or ""),
            Column("its longest read, over one before", lambda row: _over(row["one"]), "{:.1f}x"),
            Column("two at once take", lambda row: row["one"].together_s, milliseconds),
            words("errors", lambda row: row["one"].errors),
            Column("retries", lambda row: row["one"].retries),
            Column("rows lost", lambda row: row["one"].lost_rows),
            Column("rows twice", lambda row: row["one"].doubled_rows),
            Column("rows mixed", lambda row: row["one"].mixed_rows),
            words("connection cut: left (times)", lambda row: row["one"].cut or ""),
            words("client killed: left", lambda row: (row["one"].killed or "").rpartition(" ")[0]),
            words("server killed: left", lambda row: "; ".join(sorted(_names(row["one"].crashed)))),
            Column("tables left beside", lambda row: row["one"].beside),
            words("sent again it is right", lambda row: row["one"].again),
            words("all or nothing", lambda row: YES[row["one"].whole]),
            words("for several writers", lambda row: YES[row["one"].shared]),
            words("reason", lambda row: row["one"].reasons),
        ],
        [{"one": one} for one in manners(passes)],
        "Of two at once, rows are those of the worst round: lost is what neither would have left so. The connection "
        "is cut in the midst of the bytes and before each of the last messages, the client killed at one of them, and "
        "the server. All or nothing: a reader saw the table as it was or as it is, and what broke left all of it or "
        "nothing. For several writers: two at once lost nothing and doubled nothing.",
    )  # fmt: skip


def together_table(passes: pl.DataFrame) -> Listing:
    """What two at once do to each other, by how many of the keys that they bring are there."""
    shares = sorted(passes.filter(part="writers")["share"].unique())
    others = passes.filter(pl.col("part") != "writers")
    by_share = [manners(pl.concat([others, passes.filter(part="writers", share=share)])) for share in shares]

    def each(title: str, name: str, text: Callable[[Any], str] = str) -> Column:
        def cell(row: Row) -> str:
            here = [getattr(one, name) for one in row["ones"]]
            return " / ".join("" if one is None else text(one) for one in here) if any(here) else ""

        return words(title, cell)

    return Listing(
        [
            words("server", lambda row: DATABASES[row["ones"][0].database]),
            words("upsert", lambda row: row["ones"][0].label),
            each("two at once take", "together_s", milliseconds),
            each("errors", "errors"),
            each("rows lost", "lost_rows"),
            each("rows twice", "doubled_rows"),
            each("rows mixed", "mixed_rows"),
        ],
        [{"ones": ones} for ones in zip(*by_share, strict=True)],
        f"By how many of the keys are there: {' / '.join(f'{share}%' for share in shares)}; the others are new. Rows "
        "are those of the worst round; nothing stands where it is none. Two thirds of each writer's keys are the "
        "other's as well.",
    )  # fmt: skip


def _over(one: Manners) -> float | None:
    return one.longest_read_s / one.read_before_s if one.longest_read_s and one.read_before_s else None


def bytes_text(value: float) -> str:
    """Bytes as a reader says them."""
    return f"{value / 1e6:,.1f} MB" if abs(value) >= MILLION else f"{value / 1e3:,.0f} kB"


def speed_table(passes: pl.DataFrame, database: Database) -> Listing:
    """What every way takes and writes on one server, the fastest of a case first."""
    rows = medians(passes).filter(database=database)
    clickhouse = database == "clickhouse"
    columns = [
        words("case", lambda row: case_of(row).label),
        words("upsert", "label"),
        Column("takes", "seconds", milliseconds),
        UNSTABLE,
        Column("rows/s", "rows_per_s", thousands),
        Column("written to files" if clickhouse else "written to the log", "written_bytes", bytes_text),
        Column("table grown by", "grown_bytes", bytes_text),
        Column("rows stored beyond those there" if clickhouse else "dead rows", "dead_rows", "{:,.0f}"),
        *(
            [
                Column("parts more", "parts", "{:,.0f}"),
                Column("rows too many without FINAL", "surplus_rows", "{:,.0f}"),
            ]
            if clickhouse
            else []
        ),
        Column("next read, over one before", _next_read, "{:.1f}x"),
        words("reason", "reason"),
    ]
    return Listing(columns, rows)


def takes_table(passes: pl.DataFrame, database: Database) -> Listing:
    """How long every way takes on one server in every case, as they come by rows of the table and rows that come."""
    rows = medians(passes).filter(database=database)
    cases = cases_in(rows)
    by_way: dict[str, dict[Case, Row]] = {}
    for row in rows.to_dicts():
        by_way.setdefault(row["technique"], {})[case_of(row)] = row
    fastest = {case: min(of[case]["seconds"] or math.inf for of in by_way.values() if case in of) for case in cases}

    def column(case: Case) -> Column:
        def takes(row: Row) -> str:
            here = row["of"].get(case)
            if here is None or here["seconds"] is None:
                return here["status"] if here else ""
            text = milliseconds(here["seconds"])
            return f"**{text}**" if here["seconds"] == fastest[case] else text

        return Column(case.label, takes)

    ways = [{"label": one.label, "of": by_way[one.name]} for one in upserts(database) if one.name in by_way]
    return Listing([words("upsert", "label"), *(column(case) for case in cases)], ways, "In bold: the least of a case.")


def _next_read(row: Row) -> float | None:
    return row["read_s"] / row["read_before_s"] if row["read_s"] and row["read_before_s"] else None


@dataclass(frozen=True)
class Advice:
    """For one situation the ways, fastest first: all, those that are all or nothing, those for several writers."""

    database: str
    situation: str
    case: Case
    every: list[dict[str, Any]]
    whole: list[dict[str, Any]]
    shared: list[dict[str, Any]]


def situations(every: Iterable[Case]) -> dict[str, Case]:
    """Of the cases that were measured those that stand for what a reader has."""
    known = [*every]
    if not known:
        return {}
    most = max(one.rows for one in known)
    many = [one for one in known if one.rows == most]
    found = {"few rows into a large table": min(known, key=lambda one: (-one.target, one.rows, -one.share))}
    there, new = (of(many, key=lambda one: (one.share, sign * one.target)) for of, sign in ((max, 1), (min, -1)))
    found |= {MOSTLY_THERE: there} if there.share >= HALF else {}
    return found | ({MOSTLY_NEW: new} if new.share < HALF else {})


def in_most_rounds(passes: pl.DataFrame) -> pl.DataFrame:
    """Of timed passes those of cases with as many rounds as any: of a table measured once nothing is claimed."""
    timed = passes.filter(part="speed")
    rounds = pl.col("pass").n_unique().over(CASE)
    return timed.filter(rounds == rounds.max())


def advice(passes: pl.DataFrame) -> list[Advice]:
    """What to take, by server and situation."""
    by_case, known = medians(in_most_rounds(passes)), {(one.database, one.technique): one for one in manners(passes)}
    found = []
    for database in BOTH:
        here = by_case.filter(database=database)
        for situation, case in situations(cases_in(here)).items():
            ranked = [row for row in here.filter(**case_columns(case)).to_dicts() if row["rows_per_s"]]
            asked = [(row, known.get((database, row["technique"]))) for row in ranked]
            whole = [row for row, one in asked if one and one.whole]
            shared = [row for row, one in asked if one and one.shared]
            found.append(Advice(database, situation, case, ranked, whole, shared))
    return found


def case_columns(case: Case) -> dict[str, int]:
    """The columns of a case."""
    return {"target_rows": case.target, "rows": case.rows, "share": case.share}


def advice_table(passes: pl.DataFrame) -> Listing:
    """The fastest by server and situation: of all, of those that are all or nothing, of those for several writers."""

    def first(of: str) -> list[Column]:
        def takes(row: Row) -> float | None:
            ways = getattr(row["one"], of)
            return ways[0]["seconds"] if ways else None

        def tied_with(row: Row) -> str:
            others = len(tied(ways)) if (ways := getattr(row["one"], of)) else 0
            return f"{ways[0]['label']}{f' (not told apart from {others})' if others else ''}" if ways else "none"

        return [words(TITLES[of], tied_with), Column("takes", takes, milliseconds)]

    return Listing(
        [
            words("server", lambda row: DATABASES[row["one"].database]),
            words("you have", lambda row: f"{row['one'].situation} ({row['one'].case.label})"),
            *first("every"),
            *first("whole"),
            *first("shared"),
        ],
        [{"one": one} for one in advice(passes)],
        "In brackets: of how many others the rule of all pages does not tell it apart.",
    )


def answer_text(passes: pl.DataFrame) -> str:
    """What to take, and what to beware of."""
    found = advice(passes)
    points = [*_advised(found)]
    every = manners(passes)
    for database, name in DATABASES.items():
        lossy = [one.label for one in every if one.database == database and (one.lost_rows or one.doubled_rows)]
        halves = [one.label for one in every if one.database == database and _names(one.seen) - WHOLE]
        if lossy:
            points.append(f"**{name}, two at once** lose or double rows with {'; '.join(lossy)}.")
        if halves:
            points.append(f"**{name}, readers** see something between old and new with {'; '.join(halves)}.")
    right = [one for one in every if one.again == "yes"]
    if right:
        points.append(f"**Sent again** after every failure, {len(right)} of {len(every)} ways leave what they should.")
    return bullets(points)


def _advised(found: list[Advice]) -> Iterator[str]:
    for one in found:
        if not one.every:
            continue
        ties = len(tied(one.every))
        text = f"**{DATABASES[one.database]}, {one.situation}** ({one.case.label}): {_takes(one.every[0])}"
        text += f", not told apart from {ties} other{'s' * (ties > 1)}" if ties else ""
        for of, what in (("whole", "all or nothing"), ("shared", "for several writers")):
            ways = getattr(one, of)
            if not ways:
                text += f"; none was told to be {what}"
            elif ways[0]["technique"] != one.every[0]["technique"]:
                text += f"; {what}: {_takes(ways[0])}"
        yield f"{text}."


def _takes(row: Row) -> str:
    return f"{row['label']}, {milliseconds(row['seconds'])}"


HATCHED = "median of passes (whiskers: fastest and slowest); hatched: not all or nothing"


def seconds_figure(passes: pl.DataFrame, database: Database) -> Figure:
    """What every way takes in the cases that stand for what a reader has, a panel for each."""
    rows = medians(in_most_rounds(passes)).filter(database=database)
    every = [*dict.fromkeys(situations(cases_in(rows)).values())]
    ways = [one for one in upserts(database) if one.name in set(rows["technique"])]
    whole = {one.technique: one.whole for one in manners(passes)}
    height = 1.4 + 0.26 * max(1, len(ways)) * max(1, len(every))
    with charts.panels(max(1, len(every)), height=height + 0.4 * len(every)) as (figure, drawn):
        for axes, case in zip(drawn, every, strict=False):
            here = {row["technique"]: row for row in rows.filter(**case_columns(case)).to_dicts()}
            for at, way in enumerate(ways):
                if (row := here.get(way.name)) is not None:
                    shown = row if row["seconds"] is None else {**row, "text": milliseconds(row["seconds"])}
                    charts.bar(
                        axes, at, _in_seconds(shown), "seconds", FAMILY_COLOURS[way.family], text=shown.get("text"),
                        hatch=None if whole.get(way.name) in (True, None) else "////",
                    )  # fmt: skip
            charts.name_lines(axes, [way.label.removeprefix("http.client ") for way in ways], size=8)
            longest = max((_in_seconds(row)["max_seconds"] or 0 for row in here.values()), default=0) or 1.0
            axes.set_xlim(0, longest * 1.2)
            charts.quantities(axes.xaxis, lambda value: f"{value * 1e3:g} ms")
            charts.title(axes, f"{DATABASES[database]}: {case.label}", 9)
        used = charts.families({way.family for way in ways})
        charts.legend(
            figure, used, loc="outside lower left", ncols=4, fontsize=8, title=HATCHED,
            alignment="left",
        )  # fmt: skip
    return figure


def _in_seconds(row: Row) -> dict[str, Any]:
    """A row of medians of rows/s with the least and the most seconds."""
    slow, fast = row["min_rows_per_s"], row["max_rows_per_s"]
    return {
        **row,
        "min_seconds": row["rows"] / fast if fast else None,
        "max_seconds": row["rows"] / slow if slow else None,
    }


def cost_figure(passes: pl.DataFrame) -> Figure:
    """Bytes that a way writes for each row that comes, of the case of many rows, most of them there if there is one."""
    rows = medians(passes)
    with charts.panels(len(BOTH), height=6.2) as (figure, drawn):
        for axes, database in zip(drawn, BOTH, strict=True):
            here = rows.filter(database=database)
            known = situations(cases_in(here))
            case = known.get(MOSTLY_THERE) or known.get(MOSTLY_NEW)
            timed = [] if case is None else here.filter(**case_columns(case), status="ok").to_dicts()
            timed.sort(key=lambda row: row["written_bytes"])
            for at, row in enumerate(timed):
                each = row["written_bytes"] / row["rows"]
                axes.barh(at, each, color="#0072B2" if database == "postgres" else "#E69F00", height=0.72)
                charts.note(axes, each, at, f"{each:,.0f} B", size=8)
            charts.name_lines(axes, [row["label"].removeprefix("http.client ") for row in timed], size=8)
            charts.quantities(axes.xaxis)
            axes.set_xlim(0, 1.35 * max((row["written_bytes"] / row["rows"] for row in timed), default=1))
            what = "log" if database == "postgres" else "files"
            charts.title(axes, f"{DATABASES[database]}: bytes of {what}, a row ({case.label if case else ''})", 9)
    return figure


class Upsert(Shown):
    """The passes of a run over upserts."""

    study = STUDY
    answer = view(answer_text)
    advice = view(advice_table)
    manners = view(manners_table)
    together = view(together_table)

    def speed(self, database: Database) -> Listing:
        """What every way takes, writes and leaves on one server."""
        return speed_table(self.passes, database)

    def chart(self, database: Database) -> SVG:
        """The same as bars; also saved as a figure."""
        return self.saved(seconds_figure(self.passes, database), database)

    def cost(self) -> SVG:
        """What is written for each row; also saved as a figure."""
        return self.saved(cost_figure(self.passes), "written")


def code(database: Database, *names: str) -> HTML:
    """The code of these ways, or of all of a server."""
    return show_source(database, "write", *(names or [one.name for one in upserts(database)]))


def run(**parameters: Any) -> Upsert:
    """`runs.run`, shown."""
    return Upsert.load(runs.run(**parameters))


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory."""
    path = directory / STUDY.results
    if not path.exists():
        return {}
    passes = store.read(path, Result)
    blocks = {
        "upsert-advice": str(advice_table(passes)), "upsert-manners": str(manners_table(passes)),
        "upsert-together": str(together_table(passes)),
    }  # fmt: skip
    for database in BOTH:
        blocks[f"upsert-{database}"] = str(takes_table(passes, database))
        blocks[f"upsert-{database}-costs"] = str(speed_table(passes, database))
    return blocks
