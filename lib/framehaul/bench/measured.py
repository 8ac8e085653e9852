"""Summaries of the passes of all studies: one row per technique and place."""

from __future__ import annotations

import polars as pl

from framehaul.bench import statistics, store

STANDARD = "the standard 13 columns"
LOOPBACK = "loopback"
PLACE = {"table": STANDARD, "road": LOOPBACK, "variant": ""}
"""Columns that only some studies vary, with their values in all others: the table, the network between client and
server, and a variant such as a codec."""


def in_places(passes: pl.DataFrame, *, sizes: bool) -> pl.DataFrame:
    """Return `statistics.summary` of each study, database, direction and place; missing columns of PLACE are added.

    With `sizes`, each number of rows is a separate place; else a technique has the largest number that it moved.
    """
    missing = [pl.lit(value).alias(name) for name, value in PLACE.items() if name not in passes.columns]
    keys = ["notebook", "database", "direction", *PLACE, *(["rows"] if sizes else [])]
    parts = [
        statistics.summary(part.select(*store.SCHEMA)).with_columns(
            pl.lit(value).alias(name) for name, value in zip(keys, key, strict=True) if name in {"notebook", *PLACE}
        )
        for key, part in passes.with_columns(missing).group_by(keys, maintain_order=True)
    ]
    return pl.concat(parts) if parts else pl.DataFrame()
