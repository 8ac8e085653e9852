"""Outcomes of the fidelity matrix, counted."""

from __future__ import annotations

import collections
from typing import Any

import polars as pl

from framehaul.reporting.tables import markdown_table
from framehaul.techniques.registry import DATABASES


def survival(cells: pl.DataFrame, row: dict[str, Any]) -> str:
    """How a technique did in the fidelity matrix, in a few words: `37 exact, 1 lost, 2 rejected`."""
    counts = collections.Counter(
        cells.filter(database=row["database"], direction=row["direction"], technique=row["technique"])["outcome"]
    )
    words = (("exact", "exact"), ("loss", "lost"), ("error", "rejected"))
    return ", ".join(f"{counts[outcome]} {word}" for outcome, word in words if counts[outcome])


def fidelity_counts(cells: pl.DataFrame) -> str:
    """How many edge cases came to which outcome, by direction and origin, as a Markdown table."""
    rows = []
    for (database, direction, origin), group in cells.group_by("database", "direction", "origin", maintain_order=True):
        counts = collections.Counter(group["outcome"])
        explained = group.filter(outcome="loss")["why"].n_unique()
        rows.append(
            [f"{DATABASES[str(database)]} {direction}", str(origin), str(group["technique"].n_unique()),
             str(counts["exact"]), f"{counts['loss']} ({explained} kinds)" if explained else "0", str(counts["error"])]
        )  # fmt: skip
    return markdown_table(["direction", "origin", "techniques", "exact", "lost", "rejected"], rows, text_columns=2)
