"""Counts of outcomes, for a table of another study."""

from __future__ import annotations

import collections
from typing import Any

import polars as pl

WORDS = {"exact": "exact", "loss": "lost", "error": "rejected"}


def survival(cells: pl.DataFrame, row: dict[str, Any]) -> str:
    """Return the outcomes of a technique in the fidelity matrix, as `37 exact, 1 lost, 2 rejected`."""
    counts = collections.Counter(
        cells.filter(database=row["database"], direction=row["direction"], technique=row["technique"])["outcome"]
    )
    words = ", ".join(f"{counts[outcome]} {word}" for outcome, word in WORDS.items() if counts[outcome])
    return words or "not tried"
