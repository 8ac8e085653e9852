"""The winners of a run, how far past the published techniques they are, and against which bound."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.bench import ratios
from framehaul.reporting.tables import (
    Column,
    Listing,
    Row,
    ratio_text,
    speed_text,
    spread_text,
    where_and_class,
    words,
)

FEW_TIES = 2
"""So many are named; more are counted."""


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


def winners_table(summary: pl.DataFrame, cores: int | None = None, *more: Column) -> Listing:
    """The fastest technique of each direction and class of writes, over the best published, and against the bound.

    `cores` are those of the machine of the run, where they are known.
    """
    bounds = {(past.database, past.direction, past.contract): past.bound for past in past_published(summary, cores)}

    def of_bound(row: Row) -> float | None:
        bound = bounds.get((row["database"], row["direction"], row["contract"]))
        return row["median_rows_per_s"] / bound.both if bound else None

    columns = [
        words("direction", where_and_class),
        words("fastest technique", "label"),
        words("not told apart from it", "tied", few),
        Column("rows/s, median", lambda row: speed_text(row, "median_rows_per_s")),
        Column("min to max", spread_text),
        Column("ratio to the best published", ratio_text),
        Column("share of the bound", of_bound, "{:.0%}"),
    ]
    return Listing([*columns, *more], winners(summary))


def few(labels: list[str]) -> str:
    """Some labels, or how many they are."""
    return "; ".join(labels) if len(labels) <= FEW_TIES else f"{len(labels)} others"


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


USUAL_DRIVERS = {"psycopg", "http_client", "urllib"}
"""What is there without looking for it: PostgreSQL's usual driver, and Python's own HTTP clients."""
