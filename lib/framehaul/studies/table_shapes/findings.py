"""What the passes say: who is fastest on which table, who keeps up on all, from how many rows on COPY is worth it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from framehaul.results import statistics
from framehaul.results.ratios import Ratio, ratio_of_rows, shown, tied
from framehaul.results.store import EXACT
from framehaul.studies.table_shapes.shapes import SHAPES, STANDARD, STREAM

REACH = 0.8
"""Of the fastest's rows/s: who is within 20% of it everywhere is robust."""
SMALL_ROWS = (1, 10, 100)
"""Numbers of rows of a call that are small batches; of them the first and the last that were measured are points."""
FEW_DRIFTS = 2
"""So many columns that come with another dtype are named; more are counted."""
LEAST_RANKED = 3
"""Two ranks always agree or disagree wholly."""
LIKE = {
    "narrow": ("integers",), "wide": ("hits", "narrow"), "text": ("texts",), "mostly NULL": ("nulls",),
    "lists and JSON": ("nested",), "structs and maps": ("structs",), "small batches": (),
}  # fmt: skip
"""What a reader's table may be like, and the shapes that stand for it; small batches are of the standard table."""

type Medians = Mapping[str, Any]
type Where = tuple[str, str, str | None]
"""Database, direction, and class of writes: what wants a table for itself is no rival of an append."""
type Point = tuple[str, int]
"""A shape and the rows of a call."""


def label_of(point: Point) -> str:
    """A point as a reader knows it."""
    shape, rows = point
    labels = {one.name: one.label for one in SHAPES}
    small = shape == STANDARD.name and rows in SMALL_ROWS
    return f"{labels.get(shape, shape)}, {rows:,} row{'s' if rows > 1 else ''}{' a call' if small else ''}"


def medians(passes: pl.DataFrame) -> pl.DataFrame:
    """One row for each technique, shape and number of rows."""
    names = [one.name for one in SHAPES]
    who = [*statistics.NAMES, "label", "origin", "family", "driver", "frame", "contract", "shape", "rows", "calls"]
    moved = passes.filter(pl.col("shape").is_in(names))
    return statistics.medians(moved, who, pl.col("dtypes").drop_nulls().first())


def points(by_point: pl.DataFrame) -> list[Point]:
    """Where techniques are compared: each shape with the most rows that it has, and small batches of the standard one.

    Everyday statements move fewer rows than others; what counts is the most that anybody moved.
    """
    found: list[Point] = []
    for shape in (one.name for one in SHAPES):
        rows = sorted(set(by_point.filter(shape=shape)["rows"]))
        found += [(shape, rows[-1])] if rows else []
    small = [one for one in SMALL_ROWS if one in set(by_point.filter(shape=STANDARD.name)["rows"])]
    ends = dict.fromkeys((STANDARD.name, one) for one in (small[:1] + small[-1:]))
    return [*found, *(one for one in ends if one not in found)]


@dataclass
class Standing:
    """One technique at one point, beside the fastest there."""

    point: Point
    row: Medians
    rank: int | None = None
    ratio: Ratio = field(default_factory=Ratio)
    """Its rows/s over those of the fastest; nothing for that one itself, and for who moved nothing."""
    claim: Ratio = field(default_factory=Ratio)
    """Tells whether it is within reach: that ratio; of the fastest, which may be so by chance, that over the next."""
    fastest: bool = False
    slower: bool = False
    """Whether it is told from the fastest, among those at this point."""
    within: int | None = None
    """1 where it is told to be within reach of the fastest, -1 where it is told not to be, 0 where neither is."""

    @property
    def share(self) -> float | None:
        """Its rows/s, of the fastest's."""
        if self.fastest:
            return 1.0
        return self.ratio.ratio if self.ratio.rounds else None


@dataclass(frozen=True)
class Against:
    """A fast technique and an everyday statement with as many rows: which of them is told to be faster."""

    where: Where
    statement: Medians
    copy: Medians
    ratio: Ratio
    """Of the statement's rows/s, over the other's."""
    own: bool
    """Whether the fast technique is the fastest of the statement's own driver, not of all."""
    said: int | None


@dataclass(frozen=True)
class Page:
    """What a page claims. Who keeps up, and whether statements are slower, is decided together for all of them."""

    standings: dict[Where, list[Standing]]
    crossings: list[Against]


def judge(passes: pl.DataFrame) -> Page:
    """Who stands where at every point, and statements against what copies."""
    by_point = medians(passes)
    compared = points(by_point)
    standings: dict[Where, list[Standing]] = {}
    for row in by_point.to_dicts():
        place = row["shape"], row["rows"]
        if place in compared:
            where = row["database"], row["direction"], row["contract"]
            standings.setdefault(where, []).append(Standing(place, row))
    for every in standings.values():
        for place in compared:
            _rank([one for one in every if one.point == place])
    rivals = [one for every in standings.values() for one in every if one.claim.rounds]
    crossings = [*_crossings(by_point)]
    said = shown([(one.claim, REACH) for one in rivals] + [(ratio, 1.0) for *_, ratio, _ in crossings])
    for one, verdict in zip(rivals, said, strict=False):
        one.within = verdict
    verdicts = said[len(rivals) :]
    return Page(standings, [Against(*crossing, one) for crossing, one in zip(crossings, verdicts, strict=True)])


def _rank(here: list[Standing]) -> None:
    timed = sorted((one for one in here if one.row["rows_per_s"]), key=lambda one: -one.row["rows_per_s"])
    near = [id(row) for row in tied([one.row for one in timed])] if timed else []
    for rank, one in enumerate(timed, 1):
        one.slower = rank > 1 and id(one.row) not in near
        one.rank, one.fastest = rank, rank == 1
        if rank > 1:
            one.ratio = one.claim = ratio_of_rows(one.row, timed[0].row)
    if len(timed) == 1:
        timed[0].within = 1
    elif timed:
        timed[0].claim = ratio_of_rows(timed[0].row, timed[1].row)


def _crossings(by_point: pl.DataFrame) -> Iterable[tuple[Where, Medians, Medians, Ratio, bool]]:
    """Every statement at every number of rows of the standard table, and the fastest other append of as many rows.

    Of all drivers, and of the statement's own: another driver may be what is faster, and not COPY.
    """
    here = by_point.filter(shape=STANDARD.name, direction="write", contract="append", status="ok")
    for (database, _), group in here.group_by("database", "rows", maintain_order=True):
        copies = group.filter(pl.col("origin") != "everyday").sort("rows_per_s", descending=True).to_dicts()
        for statement in group.filter(origin="everyday").to_dicts():
            its_own = [copy for copy in copies if copy["driver"] == statement["driver"]]
            for own, ranked in ((False, copies), (True, its_own)):
                for copy in ranked[:1]:
                    yield (str(database), "write", "append"), statement, copy, ratio_of_rows(statement, copy), own


def from_rows(page: Page) -> list[dict[str, Any]]:
    """Of each statement: with how many rows a call it is told to be slower than COPY, and where it is not.

    Once for the fastest COPY of all drivers, and once for that of its `own`.
    """
    found: dict[tuple[str, str, bool], list[Against]] = {}
    for one in page.crossings:
        found.setdefault((one.where[0], one.statement["technique"], one.own), []).append(one)
    rows = []
    for (*_, own), every in found.items():
        ordered = sorted(every, key=lambda one: one.statement["rows"])
        slower = [one.said == -1 for one in ordered]
        # From where on it stays so: a size in between that was noisy takes the rest with it.
        start = next((at for at in range(len(ordered)) if all(slower[at:])), None)
        rows.append(
            {**ordered[0].statement, "every": ordered, "own": own, "from": None if start is None else ordered[start]}
        )
    return rows


@dataclass(frozen=True)
class Keeping:
    """How far one technique keeps up on all tables."""

    where: Where
    label: str
    technique: str
    standings: list[Standing]

    @property
    def worst(self) -> Standing | None:
        """Where it is the farthest behind."""
        timed = [one for one in self.standings if one.share is not None]
        return min(timed, key=lambda one: one.share or 0, default=None)

    @property
    def stopped(self) -> list[Point]:
        """Where it does not work, or was not measured."""
        return [one.point for one in self.standings if one.rank is None]

    @property
    def behind(self) -> list[Point]:
        """Where it is told to be out of reach of the fastest."""
        return [one.point for one in self.standings if one.within == -1]

    @property
    def verdict(self) -> str:
        """Whether it is robust: within reach of the fastest everywhere."""
        if self.stopped:
            return "does not work everywhere"
        if self.behind:
            return "falls behind"
        return "robust" if all(one.within == 1 for one in self.standings) else "inconclusive"


def keeping_up(page: Page) -> list[Keeping]:
    """Every technique that was asked to move all tables: of each direction those first that keep up best."""
    found: dict[tuple[Where, str], list[Standing]] = {}
    for where, every in page.standings.items():
        for one in every:
            found.setdefault((where, one.row["technique"]), []).append(one)
    keeping = [
        Keeping(where, every[0].row["label"], name, every)
        for (where, name), every in found.items() if every[0].row["origin"] != "everyday"
    ]  # fmt: skip
    order = [*page.standings]
    return sorted(
        keeping,
        key=lambda one: (order.index(one.where), len(one.stopped), -((one.worst and one.worst.share) or 0)),
    )


def fastest(page: Page) -> list[dict[str, Any]]:
    """Of each direction and point the fastest, who is not told from it, and how far the standard order holds there."""
    rows = []
    for every in page.standings.values():
        for place in dict.fromkeys(one.point for one in every):
            here = sorted((one for one in every if one.point == place and one.rank), key=lambda one: one.rank or 0)
            if not here:
                continue
            published = next((one for one in here if one.row["origin"] == "published"), None)
            rows.append(
                {
                    **here[0].row, "point": place, "tied": [one.row["label"] for one in here[1:] if not one.slower],
                    "published": published, "order": _order_holds(every, place),
                }
            )  # fmt: skip
    return rows


def leaders(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Of each direction and table who leads from how many rows a call on, among appends and reads that are exact.

    Whoever leads stays until it is told to be slower than the fastest with as many rows: that one leads then. `most`
    are the most rows that were measured there.
    """
    appended = pl.col("contract").is_null() | (pl.col("contract") != "bulk_load")
    exact = medians(passes).filter(appended, pl.col("origin") != "everyday", status="ok", dtypes=EXACT)
    ordered = exact.sort("database", "direction", descending=True, maintain_order=True)
    found = []
    for _, here in ordered.group_by("database", "direction", "shape", maintain_order=True):
        leading: list[dict[str, Any]] = []
        for rows in sorted(set(here["rows"])):
            ranked = here.filter(rows=rows).sort("rows_per_s", descending=True).to_dicts()
            near = {one["technique"] for one in [ranked[0], *tied(ranked)]}
            if not leading or leading[-1]["technique"] not in near:
                leading.append(ranked[0])
        found += [{**one, "most": rows} for one in leading]
    return found


def _order_holds(every: list[Standing], place: Point) -> float | None:
    """Spearman's rank correlation of a point with the standard table of the most rows; None of few techniques."""
    usual = max((one.point for one in every if one.point[0] == STANDARD.name), key=lambda one: one[1], default=place)
    if place == usual:
        return None
    speeds = [
        {one.row["technique"]: one.row["rows_per_s"] for one in every if one.point == point and one.rank}
        for point in (usual, place)
    ]
    both = [name for name in speeds[0] if name in speeds[1]]
    if len(both) < LEAST_RANKED:
        return None
    frame = pl.DataFrame({f"{at}": [of[name] for name in both] for at, of in enumerate(speeds)})
    value = float(frame.select(pl.corr("0", "1", method="spearman")).item())
    return value if math.isfinite(value) else None


def for_tables_like(page: Page) -> list[dict[str, Any]]:
    """For each direction and kind of table: the technique that keeps up best on all that stand for it.

    Only techniques that give back exactly what was sent, and writes that append.
    """
    rows = []
    for where, every in page.standings.items():
        if where[2] == "bulk_load":
            continue
        for like, shapes in LIKE.items():
            wanted = [
                point for point in dict.fromkeys(one.point for one in every)
                if (point[0] in shapes if shapes else point[0] == STANDARD.name and point[1] in SMALL_ROWS)
            ]  # fmt: skip
            best = _best(every, wanted)
            if best:
                rows.append({"where": where, "like": like, **best})
    return rows


def shares_text(some: Iterable[Standing]) -> str:
    """How fast it is on tables that stand for others, as shares of the fastest there."""
    return "; ".join(f"{one.share:.2f}x of the fastest at {label_of(one.point)}" for one in some if one.share)


def faster_text(some: Sequence[Standing]) -> str:
    """Who is faster with other dtypes, by how much, and which dtypes those are; nothing where nobody is."""
    if not some:
        return ""
    shares = " and ".join(f"{one.share:.2f}x" for one in some)
    drifts = dict.fromkeys(drift for one in some for drift in one.row["dtypes"].split(";"))
    named = ", ".join(" as ".join(drift.split(":", 1)) for drift in [*drifts][:FEW_DRIFTS])
    more = f" and {len(drifts) - FEW_DRIFTS} more" if len(drifts) > FEW_DRIFTS else ""
    return f"{some[0].row['label']}: {shares}, but {named}{more}"


def _best(every: list[Standing], wanted: list[Point]) -> dict[str, Any] | None:
    """Of exact ones who is nearest to the fastest where it is farthest behind it, and who is not told from the fastest.

    `faster` is who comes nearer with other dtypes, where the best exact one is told to be slower and is out of reach.
    """
    by_name: dict[str, list[Standing]] = {}
    for one in every:
        if one.point in wanted and one.rank:
            by_name.setdefault(one.row["technique"], []).append(one)
    whole = sorted((some for some in by_name.values() if len(some) == len(wanted)), key=_worst_share, reverse=True)
    exact = [some for some in whole if all(one.row["dtypes"] == EXACT for one in some)]
    if not wanted or not exact:
        return None
    best = exact[0]
    behind = any(one.slower and (one.share or 0) < REACH for one in best)
    faster = whole[0] if behind and _worst_share(whole[0]) > _worst_share(best) else []
    tied = [some[0].row["label"] for some in exact[1:] if not any(one.slower for one in some)]
    return {**best[0].row, "standings": best, "tied": tied, "faster": faster}


def _worst_share(some: list[Standing]) -> float:
    return min(one.share or 0 for one in some)


def stream(passes: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """One row for each way to send small batches, and rate, with the parts there were when half of them were due."""
    here = passes.filter(shape=STREAM)
    last = here.select("technique", "rate", "pass", "seconds")
    sending = samples.join(last, on=["technique", "rate", "pass"]).filter(pl.col("second") <= pl.col("seconds"))
    half = pl.col("second") <= pl.col("seconds") / 2
    grown = sending.group_by("technique", "rate").agg(
        pl.col("parts").filter(half).last().alias("half_parts"), pl.col("parts").last().alias("end_parts")
    )
    rows = statistics.medians(here, ["technique", "label", "rate", "rows", "calls"], speed="rows_per_s")
    return rows.join(grown, on=["technique", "rate"], how="left", maintain_order="left").sort(
        "rate", maintain_order=True
    )


LONG_SECONDS = 10.0
"""A stream of so many seconds, or more, tells whether parts pile up: merges have had their time."""
MANY_PARTS = 1_000
"""From so many of a partition on ClickHouse slows inserts down, by default (`parts_to_delay_insert`)."""
IN_TIME = 0.9
"""Of the batches that were asked for: who gets fewer through has fallen behind."""


def piling_up(
    passes: pl.DataFrame, samples: pl.DataFrame
) -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    """For each way to send small batches the rates that it keeps up with, and those at which parts pile up.

    They do where there are very many, or where the stream falls behind; short streams do not tell.
    """
    told = stream(passes, samples).filter(
        pl.col("most_parts").is_not_null(), pl.col("calls") / pl.col("rate") >= LONG_SECONDS
    )
    behind = pl.col("rows_per_s") / pl.col("rows") < IN_TIME * pl.col("rate")
    piles = behind | (pl.col("most_parts") >= MANY_PARTS)
    return [
        (str(label), of.filter(~piles).to_dicts(), of.filter(piles).to_dicts())
        for (label,), of in told.group_by("label", maintain_order=True)
    ]


def columns_cost(passes: pl.DataFrame) -> pl.DataFrame:
    """What one INSERT holds in the server's memory, by columns and kind of part."""
    here = passes.drop_nulls("server_memory_bytes").filter(status="ok")
    return here.with_columns(pl.col("shape").str.split("_").list.last().cast(pl.Int64).alias("columns")).sort("columns")


def stopped(passes: pl.DataFrame) -> pl.DataFrame:
    """Where techniques stop working: each reason once, with who gave it, and on which tables."""
    bad = passes.filter(pl.col("status") != "ok")
    first = bad.unique(["database", "direction", "label", "shape", "reason"], maintain_order=True)
    return first.group_by("database", "direction", "reason", maintain_order=True).agg(
        pl.col("label").unique(maintain_order=True), pl.col("shape").unique(maintain_order=True),
        pl.col("status").first(),
    )  # fmt: skip
