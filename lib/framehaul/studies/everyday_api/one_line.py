"""The line to change in an everyday call, and its gain in the passes of notebooks 01 to 04."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import ratios, statistics

ONE_LINE = pl.read_csv(Path(__file__).with_name("one_line.csv"))
"""Common calls, each with a changed line, the technique that results, and the line's effect on the data."""


def changes(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the gain of the changed line and the fastest technique for each call of ONE_LINE that has a time.

    The fastest technique appends or reads over one connection and gives back exact dtypes, for the same kind of frame.
    `gain` and `gain_of_fastest` are ratios of rows/s, paired by round, at the most rows that both moved.
    """
    timed = statistics.summary(passes).drop_nulls("median_rows_per_s")
    appends = pl.col("contract").fill_null("append") == "append"
    exact = timed.filter(appends, pl.col("origin") != "baseline", connections=1, dtypes="exact")
    rows = []
    for one in ONE_LINE.join(timed.select(*statistics.NAMES, "frame", call="label"), on=statistics.NAMES).to_dicts():
        path = {"database": one["database"], "direction": one["direction"]}
        here, call = passes.filter(**path, status="ok"), one["technique"]
        for fastest in exact.filter(**path, frame=one["frame"])["technique"].head(1):
            gains = _gain(here, one["changed"], call, "gain") | _gain(here, fastest, call, "gain_of_fastest")
            rows.append(one | gains | {"fastest": fastest})
    return pl.DataFrame(rows, infer_schema_length=None)


def _gain(passes: pl.DataFrame, technique: str, call: str, name: str) -> dict[str, Any]:
    """Return the ratio of a technique's rows/s to a call's, with its ends and rounds."""
    found = ratios.ratio_at_same_rows(passes.filter(technique=technique), passes.filter(technique=call))
    values = (found.ratio, found.low, found.high, found.rounds) if found.rounds else (None,) * 4
    return dict(zip((name, *(f"{name}_{end}" for end in ("low", "high", "rounds"))), values, strict=True))
