"""Outcomes of the fidelity matrix, counted."""

from __future__ import annotations

import collections
from typing import Any

import polars as pl

from framehaul.reporting.tables import Column, Listing, where, words

WORDS = {"exact": "exact", "loss": "lost", "error": "rejected"}


def counted() -> list[pl.Expr]:
    """Aggregates: how many cells came to each outcome, and how many techniques there are, of either direction."""
    counts = [(pl.col("outcome") == outcome).sum().alias(outcome) for outcome in WORDS]
    return [*counts, pl.struct("database", "direction", "technique").n_unique().alias("techniques")]


def survival(cells: pl.DataFrame, row: dict[str, Any]) -> str:
    """How a technique did in the fidelity matrix, in a few words: `37 exact, 1 lost, 2 rejected`."""
    counts = collections.Counter(
        cells.filter(database=row["database"], direction=row["direction"], technique=row["technique"])["outcome"]
    )
    words = ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items() if counts[outcome])
    return words or "not tried"


def fidelity_counts(cells: pl.DataFrame) -> Listing:
    """How many edge cases came to which outcome, by direction and origin."""
    groups = cells.group_by("database", "direction", "origin", maintain_order=True)
    kinds = pl.col("why").filter(outcome="loss").n_unique().alias("kinds")
    columns = [
        words("direction", where), words("origin", "origin"),
        Column("techniques", "techniques"), Column("exact", "exact"),
        Column("lost", lambda row: f"{row['loss']} ({row['kinds']} kinds)" if row["kinds"] else "0"),
        Column("rejected", "error"),
    ]  # fmt: skip
    return Listing(columns, groups.agg(*counted(), kinds))
