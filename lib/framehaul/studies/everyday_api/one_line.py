"""The line to change in an everyday call, and its gain in the passes of notebooks 01 to 04."""

from __future__ import annotations

from pathlib import Path

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
        here = passes.filter(**path, status="ok")
        for fastest in exact.filter(**path, frame=one["frame"])["technique"].head(1):
            row = one | {"fastest": fastest}
            for gain, other in (("gain", one["changed"]), ("gain_of_fastest", fastest)):
                sides = here.filter(technique=other), here.filter(technique=one["technique"])
                names = gain, f"{gain}_low", f"{gain}_high", f"{gain}_rounds"
                row |= dict(zip(names, ratios.ratio_at_same_rows(*sides).values, strict=True))
            rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)
