"""Compute geometric means over the published queries, and judge published claims by measured ratios."""

from __future__ import annotations

import polars as pl

from framehaul.bench import ratios
from framehaul.bench.statistics import RATIO, never_wrong
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES, PUBLISHED_SHAPES

MEAN = "geometric mean"
LABELS = {shape.name: shape.label for shape in (*CLICKHOUSE_TABLES, *POSTGRES_SHAPES)}
AVERAGED = [*PUBLISHED_SHAPES, *(table.name for table in CLICKHOUSE_TABLES)]


def with_means(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the passes with a column `query`, client CPU time, and the geometric mean as an additional query.

    The mean is taken over the four published shapes of PostgreSQL, or over the tables of ClickHouse with the fewest
    connections. A driver has a mean only in passes with all of these queries, and only if none of them ever failed.
    """
    least, cpu_us = pl.col("connections").min(), pl.col("client_cpu_s") * 1e6
    place = pl.col("shape").replace_strict([*LABELS], range(len(LABELS)), return_dtype=pl.Int64)
    several = pl.when(pl.col("connections") > least).then(pl.format(", {} at once", "connections"))
    passes = passes.sort(place, "connections", maintain_order=True).with_columns(
        query=pl.col("shape").replace_strict(LABELS, return_dtype=pl.String) + several.otherwise(pl.lit("")),
        cpu_us_per_row=cpu_us / pl.col("rows"), cpu_us_per_query=cpu_us / pl.col("queries"),
    )  # fmt: skip
    averaged = passes.filter(pl.col("shape").is_in(AVERAGED), pl.col("connections") == least)
    means = (
        never_wrong(averaged, ["driver"])
        .group_by("driver", "label", "language", "origin", "pass", "status", maintain_order=True)
        .agg(pl.col("rows_per_s", "cpu_us_per_row").log().mean().exp(), pl.len().alias("averaged"))
        .filter(pl.col("averaged") == averaged["shape"].n_unique())
        .with_columns(query=pl.lit(MEAN))
    )
    both = pl.concat([means.drop("averaged"), passes], how="diagonal")
    return both.with_columns(pl.col("query").cast(pl.Enum([MEAN, *passes["query"].unique(maintain_order=True)])))


def judged(passes: pl.DataFrame, claims: pl.DataFrame) -> pl.DataFrame:
    """Return claims with the measured ratio of rows/s, its interval, and in `today` whether each claim holds.

    A claim is that in a `query` the driver `left` has at least `at_least` times the rows/s of the driver `right`.
    Verdicts of one call are corrected for multiple comparisons, see `ratios.verdicts`.
    """
    measured = [
        ratios.ratio(passes.filter(query=query, driver=left), passes.filter(query=query, driver=right))
        for query, left, right in claims.select("query", "left", "right").iter_rows()
    ]
    compared = pl.DataFrame([one.values for one in measured], RATIO, orient="row")
    today = ratios.verdicts([*zip(measured, claims["at_least"], strict=True)])
    return claims.hstack(compared.with_columns(pl.Series("today", today)))
