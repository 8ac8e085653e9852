"""Medians, spreads and ratios of passes."""

from collections.abc import Sequence
from typing import Any

import polars as pl
from polars import selectors as cs

from framehaul.bench import store
from framehaul.bench.ratios import Ratio, ratio_at_same_rows, ratio_of_rows, tied, verdicts

NAMES = ["database", "direction", "technique"]
"""The columns that identify a technique in passes of one study and size."""
UNSTABLE_VARIATION = 0.10
"""The coefficient of variation above which figures are marked as unstable."""
STANDARD = "the standard 13 columns"
LOOPBACK = "loopback"
PLACE = {"table": STANDARD, "road": LOOPBACK, "variant": ""}
"""Columns that only some studies vary, with their values in all others: the table, the network between client and
server, and a variant such as a codec."""
RATIO = {"ratio": pl.Float64(), "ratio_low": pl.Float64(), "ratio_high": pl.Float64(), "ratio_rounds": pl.Int64()}
"""The columns of `Ratio.values`."""


def medians(passes: pl.DataFrame, keys: Sequence[str], *also: pl.Expr, speed: str = "rows_per_s") -> pl.DataFrame:
    """Return one row for each combination of keys, in order of appearance: medians over passes, and `also`.

    The column `speed` also has `min_`, `max_`, the coefficient of `variation` and `unstable`. `rounds` has the `speed`
    of each `pass`, from which ratios are computed. A row with a failed or skipped pass has a reason and no figures; its
    status is `failed` when both occur.
    """
    apart = {*keys, "pass", *(one.meta.output_name() for one in also)}
    figures = [name for name, kind in passes.schema.items() if kind.is_numeric() and name not in apart]
    fast, status = pl.col(speed), pl.col("status")
    variation, good = fast.std() / fast.mean(), (status == "ok").all()
    not_ok = status.filter(status != "ok").first().fill_null("ok")
    of_good = {
        **{name: pl.col(name).median() for name in figures},
        f"min_{speed}": fast.min(),
        f"max_{speed}": fast.max(),
        "variation": variation,
        "rounds": pl.struct("pass", fast.alias("speed")).implode(),
    }
    return passes.group_by(keys, maintain_order=True).agg(
        *(pl.when(good).then(figure).alias(name) for name, figure in of_good.items()),
        (good & (variation > UNSTABLE_VARIATION)).fill_null(False).alias("unstable"),
        (status == "ok").sum().alias("passes"),
        pl.when((status == "failed").any()).then(pl.lit("failed")).otherwise(not_ok).alias("status"),
        pl.col("reason").drop_nulls().first(),
        *also,
    )


def ranked(
    medians: pl.DataFrame, within: Sequence[str] = (), base: pl.Expr | None = None, speed: str = "rows_per_s"
) -> pl.DataFrame:
    """Return `medians` fastest first within each group, compared with others of the group by paired rounds.

    `tied` is true where a row is statistically tied with the fastest. `ratio`, with `ratio_low`, `ratio_high` and
    `ratio_rounds`, is over the fastest row that `base` selects, which is the fastest of all unless given. Rows without
    figures come last and have neither.
    """
    fastest_first = medians.sort(speed, descending=True, nulls_last=True, maintain_order=True)
    groups = (fastest_first.partition_by(within) if within else []) or [fastest_first]
    compared: list[tuple[Any, ...]] = []
    for group in groups:
        timed = group.drop_nulls(speed).to_dicts()
        among = timed if base is None else group.filter(base).drop_nulls(speed).to_dicts()
        first = {id(row) for row in [*timed[:1], *tied(timed)]}
        over = [ratio_of_rows(row, among[0]) if among else Ratio() for row in timed]
        compared += [(id(row) in first, *one.values) for row, one in zip(timed, over, strict=True)]
        compared += [(None,) * 5] * (len(group) - len(timed))
    return pl.concat(groups).hstack(pl.DataFrame(compared, {"tied": pl.Boolean(), **RATIO}, orient="row"))


def winners(ranked: pl.DataFrame, within: Sequence[str], label: str = "label") -> pl.DataFrame:
    """Return the fastest row of each group of `ranked`, and in `tied_with` the labels that are tied with it."""
    tied_with = pl.col(label).filter("tied").slice(1).implode().alias("tied_with")
    timed = ranked.filter(pl.col("tied").is_not_null())
    columns = [name for name in timed.columns if name not in within]
    return timed.group_by(within, maintain_order=True).agg(pl.col(columns).first(), tied_with)


def missing(passes: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return the tasks that were skipped or failed, with each reason once."""
    return passes.filter(pl.col("status") != "ok").select(*by, "status", "reason").unique(maintain_order=True)


def statistics(passes: pl.DataFrame, names: Sequence[str] = NAMES) -> pl.DataFrame:
    """Return the `medians` of each technique, or of other `names`, with the mean of rows/s and dtypes.

    The median of rows/s is called `median_rows_per_s`.
    """
    good = (pl.col("status") == "ok").all()
    return medians(
        passes,
        [*names, "label", "origin", "family", "driver", "frame"],
        *(pl.col(name).first() for name in ("rows", "connections", "contract") if name not in names),
        pl.when(good).then(pl.col("rows_per_s").mean()).alias("mean_rows_per_s"),
        pl.when(good).then(pl.col("dtypes").first()).alias("dtypes"),
    ).rename({"rows_per_s": "median_rows_per_s"})


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the `statistics` of each database and direction, fastest first, rows without a time last.

    Only the passes with the most rows that a technique moved count. Slow techniques move fewer rows in a race and come
    after the others. `ratio` columns are over the fastest published technique, at the most rows that both moved, and
    `verdict` says whether the run shows that it is faster or slower.
    """
    moved = pl.when(pl.col("median_rows_per_s").is_not_null()).then("rows")
    by = "database", "direction", moved, "median_rows_per_s"
    timed = statistics(passes.filter(pl.col("rows") == pl.col("rows").max().over(NAMES)))
    timed = timed.sort(*by, descending=True, nulls_last=True, maintain_order=True)
    rows, passes_of = timed.select(*NAMES, "origin", by[-1]).rows(), passes.partition_by(NAMES, as_dict=True)
    best = {row[:2]: passes_of[row[:3]] for row in reversed(rows) if row[3] == "published" and row[4]}
    ratios = [
        ratio_at_same_rows(passes_of[row[:3]], best[row[:2]]) if row[4] and row[:2] in best else Ratio() for row in rows
    ]
    verdict = pl.Series("verdict", verdicts([(one, 1) for one in ratios], "faster", "slower"), pl.String)
    return timed.hstack(pl.DataFrame([one.values for one in ratios], RATIO, orient="row")).with_columns(verdict)


def in_places(passes: pl.DataFrame, *, sizes: bool) -> pl.DataFrame:
    """Return the `summary` of each study, database, direction and place; missing columns of PLACE are added.

    With `sizes`, each number of rows is a separate place; else a technique has the largest number that it moved.
    """
    missing = [pl.lit(value).alias(name) for name, value in PLACE.items() if name not in passes.columns]
    keys = ["notebook", "database", "direction", *PLACE, *(["rows"] if sizes else [])]
    parts = [
        summary(part.select(*store.SCHEMA)).with_columns(
            pl.lit(value).alias(name) for name, value in zip(keys, key, strict=True) if name in {"notebook", *PLACE}
        )
        for key, part in passes.with_columns(missing).group_by(keys, maintain_order=True)
    ]
    return pl.concat(parts) if parts else pl.DataFrame()


def judged(medians: pl.DataFrame, within: Sequence[str], base: pl.Expr) -> pl.DataFrame:
    """Return the rows that `base` does not select, each with its ratio over the row of its group that `base` selects.

    `verdict` is faster, slower, inconclusive or not measured: all rows are judged together by the rule of
    `bench.ratios`. `base_` columns have the figures of the selected row. The `ratio` columns are those of `ranked`.
    """
    selected = medians.filter(base).select(*within, (cs.all() - cs.by_name(*within)).name.prefix("base_"))
    pairs = medians.filter(~base).join(selected, on=within, how="left", maintain_order="left")
    measured = [ratio_of_rows(row, {"rounds": row["base_rounds"]}) for row in pairs.to_dicts()]
    compared = pl.DataFrame([one.values for one in measured], schema=RATIO, orient="row")
    verdict = pl.Series("verdict", verdicts([(one, 1) for one in measured], "faster", "slower"), pl.String)
    return pairs.hstack(compared).with_columns(verdict)
