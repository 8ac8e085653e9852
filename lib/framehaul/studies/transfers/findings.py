"""The techniques of a run that have a time, by direction and class of writes."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl


def classes(summary: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the techniques of every direction, those that append apart from those that load in bulk.

    A technique that needs an empty table, or one of its own, is no answer for somebody who appends.
    """
    for _, group in summary.group_by("database", "direction", maintain_order=True):
        for kind in sorted(group["contract"].unique(), key=str):
            yield group.filter(pl.col("contract").eq_missing(kind))


def raced(summary: pl.DataFrame) -> pl.DataFrame:
    """Return the techniques that have a time and move a dataframe: all but the baselines, in the summary's order."""
    return summary.filter(pl.col("median_rows_per_s").is_not_null() & (pl.col("origin") != "baseline"))
