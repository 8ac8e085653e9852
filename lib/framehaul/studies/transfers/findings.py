"""What stands out in a run, as Markdown sentences computed from its summary: no number here is typed by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.bench import ratios
from framehaul.reporting.tables import CLASSES, bullets, ratio_text, thousands


@dataclass(frozen=True)
class Past:
    """How far past the published techniques one can get: rows of the summary, of one direction and class of writes."""

    database: str
    direction: str
    contract: str | None
    published: dict[str, Any]
    beyond: dict[str, Any]
    single_connection: dict[str, Any] | None
    baselines: list[dict[str, Any]]
    bound: Bound | None


@dataclass(frozen=True)
class Bound:
    """The most rows/s that a direction can come to on this machine, from the least CPU time a row took of each side.

    A technique takes at least the server's time and the client's, and the cores give no more: with the server free all
    of them work for the client (`client`), with the client free for the server, at best both share them all (`both`).
    """

    server: float
    client: float
    both: float


FEW = 3
"""So many names are listed; the table has them all."""


def of_direction(summary: pl.DataFrame, cores: int | None = None) -> str:
    """Bullet points about one database and direction, from the winner to what went wrong.

    `cores` are those of the machine of the run, where they are known.
    """
    timed = raced(summary)
    points = [
        *_winner(timed),
        *_beyond(timed, cores),
        *_trouble(summary),
    ]
    return bullets(points)


def answer(summary: pl.DataFrame) -> str:
    """Bullet points: the fastest of a direction, and how far past the published techniques it is."""
    timed = raced(summary)
    return bullets([*_winner(timed), *_beyond(timed, None)])


def winners(summary: pl.DataFrame) -> pl.DataFrame:
    """The fastest technique of every database, direction and class of writes, in the summary's order.

    `tied` has the labels of those that cannot be told from it.
    """
    first = [
        group.head(1).with_columns(pl.Series("tied", [[row["label"] for row in rivals(group)]], pl.List(pl.String)))
        for group in classes(raced(summary))
    ]
    return pl.concat(first) if first else raced(summary).with_columns(pl.lit([], pl.List(pl.String)).alias("tied"))


def classes(summary: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The techniques of every direction, those that append apart from those that load in bulk, in this order.

    What wants an empty table, or one of its own, is no answer for somebody who appends.
    """
    for _, group in summary.group_by("database", "direction", maintain_order=True):
        for kind in sorted(group["contract"].unique(), key=str):
            yield group.filter(pl.col("contract").eq_missing(kind))


def rivals(timed: pl.DataFrame) -> Sequence[Mapping[str, Any]]:
    """Those that cannot be told from the fastest of a direction, which moved as many rows."""
    return ratios.tied(timed.filter(rows=timed["rows"][0]).to_dicts()) if len(timed) else []


def raced(summary: pl.DataFrame) -> pl.DataFrame:
    """The techniques that have a time and move a dataframe: all but the baselines, in the summary's order."""
    return summary.filter(pl.col("median_rows_per_s").is_not_null() & (pl.col("origin") != "baseline"))


def timed_baselines(summary: pl.DataFrame) -> pl.DataFrame:
    """What the server does alone that has a time, in the summary's order."""
    return summary.filter(pl.col("median_rows_per_s").is_not_null() & (pl.col("origin") == "baseline"))


def past_published(summary: pl.DataFrame, cores: int | None = None) -> list[Past]:
    """For every direction and class of writes: the best published technique, and how far past it the others get."""
    past = []
    for (database, direction), group in summary.group_by("database", "direction", maintain_order=True):
        published = raced(group).filter(origin="published").to_dicts()[:1]
        baselines = timed_baselines(group).to_dicts()
        for best, kind in itertools.product(published, classes(raced(group))):
            # Who fell behind in a race moved fewer rows.
            beyond = kind.filter(origin="beyond", dtypes="exact", rows=best["rows"]).to_dicts()
            single = next((row for row in beyond if row["connections"] == 1), None)
            past += [
                Past(str(database), str(direction), row["contract"], best, row, single, baselines, bound(kind, cores))
                for row in beyond[:1]
            ]
    return past


def bound(summary: pl.DataFrame, cores: int | None) -> Bound | None:
    """The bound of a direction or class of writes; None where CPU times, or the machine's cores, are not known."""
    times = raced(summary).select(pl.col("client_cpu_s", "server_cpu_s") / pl.col("rows")).drop_nulls()
    if cores is None or times.is_empty():
        return None
    client, server = times.min().row(0)
    if not client or not server:
        return None
    return Bound(cores / server, cores / client, cores / (server + client))


def busy_cores(row: dict[str, Any]) -> float | None:
    """How many cores client and server kept busy together, on average over a pass."""
    if row["client_cpu_s"] is None or row["server_cpu_s"] is None:
        return None
    busy: float = (row["client_cpu_s"] + row["server_cpu_s"]) * row["median_rows_per_s"] / row["rows"]
    return busy


def choices(
    summary: pl.DataFrame, compiled: Callable[[dict[str, Any]], bool]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Which technique to use for which case: (case, technique's row, its figure), of one database and direction.

    Only techniques that give back what was sent with exact dtypes are recommended. `compiled` says whether a row's
    technique needs loops of this project that numba compiles, which nobody has without it.
    """
    for group in classes(raced(summary).filter(dtypes="exact")):
        rows = group.to_dicts()
        of = CLASSES[rows[0]["contract"]]
        cases = {f"{library} frame": [row for row in rows if row["frame"] == library.lower()] for library in FRAMES}
        if rows[0]["contract"] != "bulk_load":
            cases["one connection, Polars"] = [row for row in cases["Polars frame"] if row["connections"] == 1]
            # Where all of them need compiled loops, the fastest of them, and what it needs stands beside it.
            cases["no driver but the usual one"] = sorted(
                (row for row in rows if row["driver"] in USUAL_DRIVERS), key=compiled
            )
        for case, found in cases.items():
            for row in found[:1]:
                yield ", ".join(filter(None, (of, case))), row, f"{thousands(row['median_rows_per_s'])} rows/s"


FRAMES = ("Polars", "pandas")
USUAL_DRIVERS = {"psycopg", "http_client", "urllib"}
"""What is there without looking for it: PostgreSQL's usual driver, and Python's own HTTP clients."""


def _winner(timed: pl.DataFrame) -> list[str]:
    if timed.is_empty():
        return ["No technique ran to its end."]
    return [_fastest(group.to_dicts(), rivals(group)) for group in classes(timed)]


def _fastest(rows: list[dict[str, Any]], near: Sequence[Mapping[str, Any]]) -> str:
    best, *others = rows
    of = CLASSES[best["contract"]]
    text = (
        f"Fastest{f' {of}' if of else ''}: **{best['label']}**, {thousands(best['median_rows_per_s'])} rows/s (median)."
    )
    if near:
        names = "; ".join(str(row["label"]) for row in near[:FEW])
        names += f"; {len(near) - FEW} more" if len(near) > FEW else ""
        return f"{text} Not told apart from it, so that this run is inconclusive: {names}."
    if others and others[0]["rows"] != best["rows"]:
        return f"{text} All others fell behind it with fewer rows, {others[0]['label']} last."
    if others:
        speed = thousands(others[0]["median_rows_per_s"])
        return f"{text} Next: {others[0]['label']}, {speed} rows/s, told apart from it."
    return text


def _beyond(timed: pl.DataFrame, cores: int | None) -> list[str]:
    """How far past the published techniques the others get."""
    points = []
    for past in past_published(timed, cores):
        best = past.beyond
        of = f", {CLASSES[past.contract]}" if past.contract else ""
        points.append(
            f"Past the published comparison{of}: {best['label']} moves **{ratio_text(best)}** the rows/s of the best "
            f"published technique, {past.published['label']}, with exact dtypes."
        )
        single = past.single_connection
        if single is not None and single["technique"] != best["technique"]:
            points.append(f"Over a single connection: {single['label']}, {ratio_text(single)}.")
    return points


def _trouble(summary: pl.DataFrame) -> list[str]:
    points = []
    unstable = summary.filter(pl.col("unstable") & pl.col("median_rows_per_s").is_not_null())
    if not unstable.is_empty():
        points.append(
            f"Unstable here (variation over 10%), so read with care: {len(unstable)} of {len(summary)} techniques."
        )
    for status in ("skipped", "failed"):
        rows = summary.filter(pl.col("median_rows_per_s").is_null() & (pl.col("status") == status))
        points += [
            f"{status.capitalize()}: {label}: {reason}." for label, reason in rows.select("label", "reason").rows()
        ]
    return points
