"""Outcomes of the fidelity matrix, counted."""

from __future__ import annotations

import collections
from typing import Any

import polars as pl

from framehaul.reporting.tables import Column, Listing, where, words

WORDS = {"exact": "exact", "loss": "lost", "error": "rejected"}


def survival(cells: pl.DataFrame, row: dict[str, Any]) -> str:
    """How a technique did in the fidelity matrix, in a few words: `37 exact, 1 lost, 2 rejected`."""
    counts = collections.Counter(
        cells.filter(database=row["database"], direction=row["direction"], technique=row["technique"])["outcome"]
    )
    words = ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items() if counts[outcome])
    return words or "not tried"


NOT_TEXT = "not UTF-8"
"""How cases begin whose right answer is an error, though a server holds their bytes."""


def fidelity_counts(cells: pl.DataFrame) -> Listing:
    """How many edge cases came to which outcome, by direction and origin.

    What is read is always a value that its table holds, so a write of the
    same case could have been carried; whatever else is rejected is no such value, or a frame of another shape.
    """
    held = cells.filter(pl.col("case").str.starts_with(NOT_TEXT).not_(), direction="read")
    held = held.select("database", "case", holds=pl.lit(value=True)).unique()
    cells = cells.join(held, on=["database", "case"], how="left", maintain_order="left")
    groups = cells.group_by("database", "direction", "origin", maintain_order=True)
    kinds = pl.col("why").filter(outcome="loss").n_unique().alias("kinds")
    carried = pl.col("holds").filter(outcome="error").fill_null(value=False).sum().alias("not_carried")
    counts = ((pl.col("outcome") == outcome).sum().alias(outcome) for outcome in WORDS)
    techniques = pl.col("technique").n_unique().alias("techniques")
    columns = [
        words("direction", where), words("origin", "origin"),
        Column("techniques", "techniques"), Column("exact", "exact"),
        Column("lost", lambda row: f"{row['loss']} (kinds: {row['kinds']})" if row["kinds"] else "0"),
        Column("rejected", "error"),
        Column("of these, values that the table holds", "not_carried"),
    ]  # fmt: skip
    return Listing(columns, groups.agg(*counts, techniques, kinds, carried))
