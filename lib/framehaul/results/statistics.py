"""Medians, spreads and ratios of passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

NAMES = ["database", "direction", "technique"]
"""What tells the techniques of a run of one size apart."""
UNSTABLE_VARIATION = 0.10
"""Coefficient of variation from which a technique's figures are marked as unstable."""


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per technique of a database and direction, fastest first, those without a time last.

    Adds passes, avg_s, mean, min, max and median rows/s, variation (coefficient of, over passes), unstable, and the
    ratio of medians to the fastest published technique with its bootstrap 95% interval.
    """
    timed = statistics(passes)
    ratios = _ratios(passes, timed)
    return timed.join(ratios, on=NAMES, how="left", maintain_order="left").sort(
        ["database", "direction", "median_rows_per_s"],
        descending=[True, True, True],
        nulls_last=True,
        maintain_order=True,
    )


def statistics(passes: pl.DataFrame, names: Sequence[str] = NAMES) -> pl.DataFrame:
    """One row per technique, or whatever else `names` tells apart, in order of appearance.

    Adds what `summary` adds, but for the ratio. A technique that ever failed has no speed.
    """
    failed = passes.group_by(names).agg((pl.col("status") == "failed").any().alias("any_failed"))
    ok = pl.col("status") == "ok"
    timed = passes.group_by([*names, "label", "origin", "family", "driver", "frame"], maintain_order=True).agg(
        *(pl.col(name).first() for name in ("rows", "connections", "contract") if name not in names),
        ok.sum().alias("passes"),
        pl.col("seconds").filter(ok).mean().alias("avg_s"),
        pl.col("rows_per_s").filter(ok).mean().alias("mean_rows_per_s"),
        pl.col("rows_per_s").filter(ok).min().alias("min_rows_per_s"),
        pl.col("rows_per_s").filter(ok).max().alias("max_rows_per_s"),
        pl.col("rows_per_s").filter(ok).median().alias("median_rows_per_s"),
        (pl.col("rows_per_s").filter(ok).std() / pl.col("rows_per_s").filter(ok).mean()).alias("variation"),
        *(
            pl.col(name).filter(ok).median()
            for name in ("client_cpu_s", "server_cpu_s", "peak_rss_bytes", "wire_bytes")
        ),
        pl.col("dtypes").filter(ok).first(),
        pl.col("status").filter(pl.col("status") != "ok").first().fill_null("ok"),
        pl.col("reason").drop_nulls().first(),
    )
    return timed.join(failed, on=names, maintain_order="left").with_columns(
        # A technique that was ever wrong is not fast.
        pl.when("any_failed").then(pl.lit("failed")).otherwise("status").alias("status"),
        (pl.col("variation") > UNSTABLE_VARIATION).fill_null(False).alias("unstable"),
        *(pl.when("any_failed").then(None).otherwise(pl.col(name)).alias(name) for name in timed.columns
          if name.endswith("rows_per_s") or name == "avg_s"),
    ).drop("any_failed")  # fmt: skip


def _ratios(passes: pl.DataFrame, timed: pl.DataFrame) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for (database, direction), group in timed.group_by("database", "direction", maintain_order=True):
        base = group.filter((pl.col("origin") == "published") & pl.col("median_rows_per_s").is_not_null())
        if base.is_empty():
            continue
        best = base.sort("median_rows_per_s", descending=True)["technique"][0]
        here = passes.filter(database=database, direction=direction, status="ok")
        speeds = {str(name): part.sort("pass") for (name,), part in here.group_by("technique")}
        for name in group.filter(pl.col("median_rows_per_s").is_not_null())["technique"]:
            ratio, low, high = ratio_with_interval(speeds[name], speeds[best])
            rows.append(
                {"database": database, "direction": direction, "technique": name,
                 "ratio": ratio, "ratio_low": low, "ratio_high": high}
            )  # fmt: skip
    columns = {"database": pl.String, "direction": pl.String, "technique": pl.String,
               "ratio": pl.Float64, "ratio_low": pl.Float64, "ratio_high": pl.Float64}  # fmt: skip
    return pl.DataFrame(rows, schema=columns)


def ratio_with_interval(left: pl.DataFrame, right: pl.DataFrame, resamples: int = 2_000) -> tuple[float, float, float]:
    """Ratio of median rows/s of two techniques of one run, and its bootstrap 95% interval.

    Rounds are resampled, not passes: within a round both ran on the machine in the same state. With three rounds the
    interval is about as wide as their spread, and says no more than that.
    """
    pairs = left.select("pass", "rows_per_s").join(right.select("pass", "rows_per_s"), on="pass", maintain_order="left")
    a, b = pairs["rows_per_s"].to_numpy(), pairs["rows_per_s_right"].to_numpy()
    if not len(pairs):
        nothing = float("nan")
        return nothing, nothing, nothing
    rounds = np.random.default_rng(0).integers(0, len(a), (resamples, len(a)))
    ratios = np.median(a[rounds], axis=1) / np.median(b[rounds], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def unpaired_ratio(
    left: NDArray[np.float64], right: NDArray[np.float64], noise: float, level: float, resamples: int = 2_000
) -> tuple[float, float, float]:
    """Ratio of the medians of rows/s of passes from two runs, left over right, and its bootstrap interval.

    Rounds of two runs have nothing in common, so each side is resampled by itself. Resampling a few passes alone never
    leaves their range, whatever the level, and takes passes that agree by chance for certainty: every resampled pass is
    therefore moved by normal noise (a smoothed bootstrap, Efron 1979, https://doi.org/10.1214/aos/1176344552), whose
    standard deviation on the logarithm of rows/s is `noise`. The interval is the normal one with the bootstrap's
    standard error, again on logarithms: levels far out in the tails would need resamples by the hundred thousand.
    """
    random = np.random.default_rng(0)

    def medians(passes: NDArray[np.float64]) -> NDArray[np.float64]:
        size = resamples, len(passes)
        drawn = np.log(passes)[random.integers(0, len(passes), size)] + noise * random.standard_normal(size)
        return np.asarray(np.median(drawn, axis=1))

    ratio = float(np.median(left) / np.median(right))
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(np.std(medians(left) - medians(right)))
    return ratio, ratio * math.exp(-reach), ratio * math.exp(reach)


def medians(passes: pl.DataFrame, keys: list[str], *also: pl.Expr, speed: str = "rows_per_s") -> pl.DataFrame:
    """One row for each combination of keys, in order of appearance: medians over passes, `unstable`, and `also`.

    The column `speed` has a `min_` and a `max_` as well, and tells who was unstable. Who ever failed or was skipped has
    no figures there, and its reason.
    """
    figures = [name for name, kind in passes.schema.items() if kind.is_numeric() and name not in (*keys, "pass")]
    told = pl.col(speed)
    good = (pl.col("status") == "ok").all()
    return passes.group_by(keys, maintain_order=True).agg(
        *(pl.when(good).then(pl.col(name).median()).alias(name) for name in figures),
        pl.when(good).then(told.min()).alias(f"min_{speed}"),
        pl.when(good).then(told.max()).alias(f"max_{speed}"),
        (told.std() / told.mean() > UNSTABLE_VARIATION).fill_null(False).alias("unstable"),
        pl.col("status").filter(pl.col("status") != "ok").first().fill_null("ok"),
        pl.col("reason").drop_nulls().first(),
        *also,
    )


def never_wrong(passes: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The passes that are `ok` of whom no pass failed: what was ever wrong has no speed. `keys` tell who it is."""
    return passes.filter((pl.col("status") != "failed").all().over(keys), status="ok")


def ratio(left: pl.DataFrame, right: pl.DataFrame, speed: str = "rows_per_s") -> dict[str, float]:
    """The ratio of median rows/s of two sets of passes, with its bootstrap 95% interval.

    NaN where one is empty, or a pass of it failed. `speed` is another column to compare.
    """
    one, other = (
        side.filter((pl.col("status") != "failed").all(), status="ok").select("pass", pl.col(speed).alias("rows_per_s"))
        for side in (left, right)
    )
    found = ratio_with_interval(one, other)
    return dict(zip(("ratio", "ratio_low", "ratio_high"), found, strict=True))
