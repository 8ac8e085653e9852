"""What stands out in a run, as Markdown sentences computed from its summary: no number here is typed by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.reporting.tables import ratio_text, thousands
from framehaul.results import statistics
from framehaul.techniques import DRIVERS, FAMILIES
from framehaul.techniques.registry import DATABASES


@dataclass(frozen=True)
class Past:
    """One database and direction: rows of the summary that say how far past the published techniques one can get."""

    database: str
    direction: str
    published: dict[str, Any]
    beyond: dict[str, Any]
    single_connection: dict[str, Any] | None
    limits: list[dict[str, Any]]


def of_direction(summary: pl.DataFrame) -> str:
    """Bullet points about one database and direction, from the winner to what went wrong."""
    timed = raced(summary)
    points = [
        *_winner(timed),
        *_beyond(timed),
        *_limits(summary),
        *_cpu(timed),
        *_families(timed),
        *_pairs(timed),
        *_dtypes(timed),
        *_wire(timed),
        *_trouble(summary),
    ]
    return "\n".join(f"- {point}" for point in points)


def winners(summary: pl.DataFrame) -> pl.DataFrame:
    """The fastest technique of every database and direction, in the summary's order.

    `tied` has the labels of those that cannot be told from it.
    """
    first = [
        group.head(1).with_columns(pl.Series("tied", [[row["label"] for row in rivals(group)]], pl.List(pl.String)))
        for _, group in raced(summary).group_by("database", "direction", maintain_order=True)
    ]
    return pl.concat(first) if first else raced(summary).with_columns(pl.lit([], pl.List(pl.String)).alias("tied"))


def rivals(timed: pl.DataFrame) -> Sequence[Mapping[str, Any]]:
    """Those that cannot be told from the fastest of a direction, which moved as many rows."""
    return statistics.tied(timed.filter(rows=timed["rows"][0]).to_dicts()) if len(timed) else []


def raced(summary: pl.DataFrame) -> pl.DataFrame:
    """The techniques that have a time and move a dataframe: all but the limits, in the summary's order."""
    return summary.filter(pl.col("median_rows_per_s").is_not_null() & (pl.col("origin") != "limit"))


def timed_limits(summary: pl.DataFrame) -> pl.DataFrame:
    """The limits that have a time, in the summary's order."""
    return summary.filter(pl.col("median_rows_per_s").is_not_null() & (pl.col("origin") == "limit"))


def past_published(summary: pl.DataFrame) -> list[Past]:
    """For every database and direction: the best published technique, and how far past it the others get."""
    past = []
    for (database, direction), group in summary.group_by("database", "direction", maintain_order=True):
        timed = raced(group)
        published = timed.filter(origin="published").to_dicts()
        beyond = timed.filter(origin="beyond", dtypes="exact").to_dicts()
        if published and beyond:
            single = next((row for row in beyond if row["connections"] == 1), None)
            limits = timed_limits(group).to_dicts()
            past.append(Past(str(database), str(direction), published[0], beyond[0], single, limits))
    return past


def busy_cores(row: dict[str, Any]) -> float | None:
    """How many cores client and server kept busy together, on average over a pass."""
    if row["client_cpu_s"] is None or row["server_cpu_s"] is None:
        return None
    busy: float = (row["client_cpu_s"] + row["server_cpu_s"]) * row["median_rows_per_s"] / row["rows"]
    return busy


def choices(summary: pl.DataFrame) -> list[tuple[str, dict[str, Any], str]]:
    """Which technique to use for which case: (case, technique's row, its figure), one database and direction.

    Only techniques that give back what was sent with exact dtypes are recommended.
    """
    exact = [row for row in raced(summary).to_dicts() if row["dtypes"] == "exact"]
    cases: list[tuple[str, list[dict[str, Any]]]] = [
        ("Polars frame", [row for row in exact if row["frame"] == "polars"]),
        ("pandas frame", [row for row in exact if row["frame"] == "pandas"]),
        ("one connection, Polars", [row for row in exact if row["frame"] == "polars" and row["connections"] == 1]),
        ("no driver but the usual one", [row for row in exact if row["driver"] in USUAL_DRIVERS]),
    ]
    recommended = [(case, rows[0], f"{thousands(rows[0]['median_rows_per_s'])} rows/s") for case, rows in cases if rows]
    for name, bits_per_s in NETWORKS.items():
        # A network adds the time its bytes take; how much of that overlaps differs, so nothing is assumed to.
        timed = [
            (1 / row["median_rows_per_s"] + 8 * row["wire_bytes"] / row["rows"] / bits_per_s, row)
            for row in exact
            if row["wire_bytes"] and row["family"] != "pg_parquet"
        ]
        if timed:
            seconds, row = min(timed, key=lambda pair: pair[0])
            recommended.append((f"network of {name}", row, f"about {thousands(1 / seconds)} rows/s"))
    return recommended


USUAL_DRIVERS = {"psycopg", "http_client", "urllib"}
"""What is there without looking for it: PostgreSQL's usual driver, and Python's own HTTP clients."""
NETWORKS = {"1 Gbit/s": 1e9, "100 Mbit/s": 1e8}
"""Networks slower than loopback, in bits a second."""


def takeaway(summary: pl.DataFrame) -> str:
    """How far the databases are apart, from their winners; only for directions that both have."""
    best = {(row["database"], row["direction"]): row for row in winners(summary).to_dicts()}
    points = []
    for direction, way in (("write", "into"), ("read", "out of")):
        postgres, clickhouse = best.get(("postgres", direction)), best.get(("clickhouse", direction))
        if postgres and clickhouse:
            factor = clickhouse["median_rows_per_s"] / postgres["median_rows_per_s"]
            points.append(
                f"- **{direction}**: the fastest path {way} ClickHouse moves {factor:.2f}x the rows/s of the fastest "
                f"one {way} PostgreSQL."
            )
    return "\n".join(points)


def ranking(summary: pl.DataFrame) -> str:
    """The practical ranking: techniques in tiers, a tier being all whose interval reaches the tier's first."""
    parts = []
    for (database, direction), group in summary.group_by("database", "direction", maintain_order=True):
        rows = raced(group).to_dicts()
        tiers: list[list[dict[str, Any]]] = []
        for row in rows:
            first = tiers[-1][0] if tiers else None
            if first and row["rows"] == first["rows"] and row["max_rows_per_s"] >= first["min_rows_per_s"]:
                tiers[-1].append(row)
            else:
                tiers.append([row])
        parts.append(f"**{DATABASES[str(database)]} {direction}**\n")
        parts += [
            f"{number}. {'; '.join(row['label'] for row in tier)} ({thousands(tier[0]['median_rows_per_s'])} rows/s)"
            for number, tier in enumerate(tiers[:5], 1)
        ]
        parts.append("")
    return "\n".join(parts)


def _winner(timed: pl.DataFrame) -> list[str]:
    if timed.is_empty():
        return ["No technique ran to its end."]
    rows = timed.to_dicts()
    best = rows[0]
    text = f"Fastest: **{best['label']}**, {thousands(best['median_rows_per_s'])} rows/s (median)."
    if len(rows) > 1:
        second = rows[1]
        if second["rows"] != best["rows"]:
            text += f" All others fell behind it with fewer rows, {second['label']} last."
        elif near := rivals(timed):
            names = ", ".join(str(row["label"]) for row in near)
            text += f" Not told apart from it, so that this run is inconclusive: {names}."
        else:
            speed = thousands(second["median_rows_per_s"])
            text += f" Next: {second['label']}, {speed} rows/s, in every pass below the winner's slowest."
    return [text]


def _beyond(timed: pl.DataFrame) -> list[str]:
    """How far past the published techniques the others get."""
    points = []
    for past in past_published(timed):
        best = past.beyond
        points.append(
            f"Past the published comparison: {best['label']} moves **{ratio_text(best)}** the rows/s of the best "
            f"published technique, {past.published['label']}, with exact dtypes."
        )
        single = past.single_connection
        if single is not None and single["technique"] != best["technique"]:
            points.append(f"Over a single connection: {single['label']}, {ratio_text(single)}.")
    return points


def _limits(summary: pl.DataFrame) -> list[str]:
    """What the server alone does, and how much of it the fastest path reaches."""
    timed = raced(summary)
    if timed.is_empty():
        return []
    best = timed["median_rows_per_s"][0]
    return [
        f"{row['label'].removeprefix('limit: ')}: {thousands(row['median_rows_per_s'])} rows/s. "
        f"The fastest path reaches {best / row['median_rows_per_s']:.0%} of that."
        for row in timed_limits(summary).to_dicts()
    ]


def _cpu(timed: pl.DataFrame) -> list[str]:
    """What bounds the fastest path: with client and server on one machine, often its cores."""
    if timed.is_empty():
        return []
    row = timed.row(0, named=True)
    cores = busy_cores(row)
    if cores is None:
        return []
    return [
        f"During the fastest path client and server together kept {cores:.1f} cores busy: "
        f"{row['client_cpu_s']:.2f} s of CPU time in the client, {row['server_cpu_s']:.2f} s in the server."
    ]


def _families(timed: pl.DataFrame) -> list[str]:
    best = timed.group_by("family", maintain_order=True).first()
    if len(best) < 2:  # noqa: PLR2004  nothing to rank
        return []
    ranked = ", ".join(
        f"{FAMILIES[family]} {thousands(speed)}" for family, speed in best.select("family", "median_rows_per_s").rows()
    )
    return [f"Best of each family, in rows/s: {ranked}."]


def _pairs(timed: pl.DataFrame) -> list[str]:
    """The same way with the other frame library: the geometric mean over all such pairs."""
    ways: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in timed.to_dicts():
        ways.setdefault((row["driver"], _method(row), row["rows"]), {})[row["frame"]] = row["median_rows_per_s"]
    ratios = [speeds["polars"] / speeds["pandas"] for speeds in ways.values() if {"polars", "pandas"} <= speeds.keys()]
    points = []
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        faster = sum(ratio > 1 for ratio in ratios)
        points.append(
            f"Polars against pandas on the same path: {mean:.2f}x as a geometric mean of {len(ratios)} pairs, "
            f"faster in {faster} of them."
        )
    by_method: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in timed.to_dicts():
        by_method.setdefault((row["frame"], _method(row)), []).append(row)
    for (frame, method), rows in by_method.items():
        for left, right in itertools.pairwise(rows):
            if left["rows"] == right["rows"] and left["min_rows_per_s"] > right["max_rows_per_s"]:
                factor = left["median_rows_per_s"] / right["median_rows_per_s"]
                points.append(
                    f"{method.replace('_', ' ')} with {frame}: {DRIVERS[left['driver']]} moves {factor:.2f}x the "
                    f"rows/s of {DRIVERS[right['driver']]}, in every pass."
                )
    return points


def _method(row: dict[str, Any]) -> str:
    """What a technique's name says beside its frame and its driver."""
    name: str = row["technique"]
    return name.removeprefix(f"{row['frame']}_{row['driver']}_")


def _dtypes(timed: pl.DataFrame) -> list[str]:
    if timed.is_empty() or timed["direction"][0] == "write":
        return []
    exact = timed.filter(pl.col("dtypes") == "exact")
    if len(exact) == len(timed):
        return ["Every technique gives back exactly the dtypes that were sent."]
    if exact.is_empty():
        return [
            f"Every value arrived, but none of the {len(timed)} techniques gives back the dtypes that were sent: "
            "UUIDs, dates or integer widths differ (see the column dtypes)."
        ]
    return [
        f"Exact dtypes: {', '.join(exact['label'])}; the other {len(timed) - len(exact)} drift (see the column dtypes)."
    ]


def _wire(timed: pl.DataFrame) -> list[str]:
    known = timed.filter(pl.col("wire_bytes").is_not_null() & (pl.col("family") != "pg_parquet")).sort("wire_bytes")
    if len(known) < 2:  # noqa: PLR2004  nothing to compare
        return []
    least, most = known.row(0, named=True), known.row(-1, named=True)
    per_row = [row["wire_bytes"] / row["rows"] for row in (least, most)]
    return [
        f"On the wire: from {per_row[0]:.0f} bytes a row ({least['label']}) to {per_row[1]:.0f} ({most['label']}). "
        "On loopback bytes are nearly free; on a slow network this order counts."
    ]


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
