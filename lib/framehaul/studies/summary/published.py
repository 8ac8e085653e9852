"""The published matrix: Kirill Arkhipenko, "postgres vs clickhouse for bulk dataframe io", kusaku.su, 7 April 2026.

Three passes of 100,000 rows on the author's machine.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

PATH = Path(__file__).with_name("published_matrix.csv")


def matrix() -> pl.DataFrame:
    """The 56 published rows: database, direction, label and published_rows_per_s (mean of three passes)."""
    return pl.read_csv(PATH).select(
        "database",
        "direction",
        pl.col("technique").alias("label"),
        pl.col("mean_rows_per_s").alias("published_rows_per_s"),
    )


def beside(summary: pl.DataFrame) -> pl.DataFrame:
    """The summary with `published_rows_per_s` and `measured_over_published`, joined by label."""
    return summary.join(
        matrix(), on=["database", "direction", "label"], how="left", maintain_order="left"
    ).with_columns((pl.col("mean_rows_per_s") / pl.col("published_rows_per_s")).alias("measured_over_published"))


def rank_agreement(group: pl.DataFrame) -> float | None:
    """Spearman's rank correlation of published and measured speeds in a group; None below three techniques."""
    both = group.drop_nulls(["published_rows_per_s", "mean_rows_per_s"])
    if len(both) < 3:  # noqa: PLR2004  two ranks always agree or disagree wholly
        return None
    value = both.select(pl.corr("published_rows_per_s", "mean_rows_per_s", method="spearman")).item()
    return float(value)
