"""What was measured of techniques, wherever that was: a row for each technique in each place."""

from __future__ import annotations

import polars as pl

from framehaul.bench import statistics, store

STANDARD = "the standard 13 columns"
LOOPBACK = "loopback"
PLACE = {"table": STANDARD, "road": LOOPBACK, "variant": ""}
"""What a study of its own may vary, and what it is in all others: the table, the network between client and server, and
what a technique is asked for beside it, such as a codec."""


def in_places(passes: pl.DataFrame, *, sizes: bool) -> pl.DataFrame:
    """`statistics.summary` of each study, database, direction and place; where PLACE is missing, all is as usual.

    With `sizes`, each number of rows is a place of its own; else each technique is there with the most rows it moved.
    """
    usual = [pl.lit(value).alias(name) for name, value in PLACE.items() if name not in passes.columns]
    placed = passes.with_columns(usual)
    apart = ["notebook", "database", "direction", *PLACE, *(["rows"] if sizes else [])]
    parts = [
        statistics.summary(part.select(*store.SCHEMA)).with_columns(
            pl.lit(value).alias(name) for name, value in zip(apart, key, strict=True) if name in {"notebook", *PLACE}
        )
        for key, part in placed.group_by(apart, maintain_order=True)
    ]
    return pl.concat(parts) if parts else pl.DataFrame()
