"""What stands out in a run, as Markdown sentences computed from its summary: no number here is typed by hand."""

from __future__ import annotations

import itertools
import math
from typing import Any

import polars as pl

from framehaul.charts import DATABASES, thousands
from framehaul.techniques import DRIVERS, FAMILIES


def of_direction(summary: pl.DataFrame) -> str:
    """Bullet points about one database and direction: winner, families, frames, drivers, dtypes, wire, trouble."""
    timed = summary.filter(pl.col("median_rows_per_s").is_not_null())
    points = [*_winner(timed), *_families(timed), *_pairs(timed), *_dtypes(timed), *_wire(timed), *_trouble(summary)]
    return "\n".join(f"- {point}" for point in points)


def winners(summary: pl.DataFrame) -> pl.DataFrame:
    """The fastest technique of every database and direction, in the summary's order."""
    return (
        summary.filter(pl.col("median_rows_per_s").is_not_null())
        .group_by("database", "direction", maintain_order=True)
        .first()
    )


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
        rows = group.filter(pl.col("median_rows_per_s").is_not_null()).to_dicts()
        tiers: list[list[dict[str, Any]]] = []
        for row in rows:
            if tiers and row["max_rows_per_s"] >= tiers[-1][0]["min_rows_per_s"]:
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
        if second["max_rows_per_s"] >= best["min_rows_per_s"]:
            text += f" Its passes overlap with those of {second['label']}: this run does not tell the two apart."
        else:
            speed = thousands(second["median_rows_per_s"])
            text += f" Next: {second['label']}, {speed} rows/s, in every pass below the winner's slowest."
    return [text]


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
    speeds = dict(timed.select("technique", "median_rows_per_s").rows())
    ratios = [
        speed / speeds["pandas" + name.removeprefix("polars")]
        for name, speed in speeds.items()
        if name.startswith("polars") and "pandas" + name.removeprefix("polars") in speeds
    ]
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
        method = row["technique"].removeprefix(f"{row['frame']}_{row['driver']}_")
        by_method.setdefault((row["frame"], method), []).append(row)
    for (frame, method), rows in by_method.items():
        for left, right in itertools.pairwise(rows):
            if left["min_rows_per_s"] > right["max_rows_per_s"]:
                factor = left["median_rows_per_s"] / right["median_rows_per_s"]
                points.append(
                    f"{method.replace('_', ' ')} with {frame}: {DRIVERS[left['driver']]} moves {factor:.2f}x the "
                    f"rows/s of {DRIVERS[right['driver']]}, in every pass."
                )
    return points


def _dtypes(timed: pl.DataFrame) -> list[str]:
    if timed["dtypes"].drop_nulls().is_empty() or timed["direction"][0] == "write":
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
