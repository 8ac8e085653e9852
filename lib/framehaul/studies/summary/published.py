"""The published matrix: Kirill Arkhipenko, "postgres vs clickhouse for bulk dataframe io", kusaku.su, 7 April 2026.

Three passes of 100,000 rows on the author's machine.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

PATH = Path(__file__).with_name("published_matrix.csv")


def matrix() -> pl.DataFrame:
    """Return the 56 published rows: database, direction, label and published_rows_per_s (mean of three passes)."""
    return pl.read_csv(PATH).select("database", "direction", label="technique", published_rows_per_s="mean_rows_per_s")
