"""Summary: which technique to use for which need, and the published figures to compare the measured ones with."""

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import polars as pl

from framehaul.bench import statistics, store
from framehaul.bench.ratios import Ratio, ratio_at_same_rows
from framehaul.errors import ResultsError
from framehaul.studies.registry import TABLE_SHAPES
from framehaul.studies.transfers import read_all
from framehaul.techniques import techniques
from framehaul.techniques.contract import CLICKHOUSE_APPEND, IDEMPOTENT, POSTGRES_APPEND, Contract
from framehaul.techniques.registry import Database, Direction

MATRIX = Path(__file__).with_name("published_matrix.csv")
"""Kirill Arkhipenko, "postgres vs clickhouse for bulk dataframe io", kusaku.su, 7 April 2026: three passes of 100,000
rows on the author's machine."""


class Need(NamedTuple):
    """A need, and the terms, or the kind of terms, of a write that meet it; reads have none."""

    text: str
    database: Database
    direction: Direction
    terms: Contract | str | None = None

    def meets(self, terms: Contract | None) -> bool:
        """Return whether a technique with these terms meets the need."""
        return self.terms in ((terms, terms.kind) if terms else (None,))


NEEDS = (
    Need("append to PostgreSQL, fastest", "postgres", "write", "append"),
    Need("append to PostgreSQL, all rows or none", "postgres", "write", POSTGRES_APPEND),
    Need("fill a PostgreSQL table that nobody else uses", "postgres", "write", "bulk_load"),
    Need("read from PostgreSQL", "postgres", "read"),
    Need("append to ClickHouse, fastest", "clickhouse", "write", CLICKHOUSE_APPEND),
    Need("append to ClickHouse, safe to retry", "clickhouse", "write", IDEMPOTENT),
    Need("replace a ClickHouse table, all rows or none", "clickhouse", "write", "bulk_load"),
    Need("read from ClickHouse", "clickhouse", "read"),
)

TERMS = "locks {0.locks}; visible while it runs: {0.others_see}; left after a failure: {0.after_failure}"
GAIN = {name.replace("ratio", "gain"): kind for name, kind in statistics.RATIO.items()} | {"rows": pl.Int64()}
CHOSEN: dict[str, pl.DataType] = {"need": pl.String(), "take": pl.List(pl.String()), **GAIN, "terms": pl.String()}


def matrix() -> pl.DataFrame:
    """Return the 56 published rows: database, direction, label and published_rows_per_s (mean of three passes)."""
    return pl.read_csv(MATRIX).select(
        "database", "direction", label="technique", published_rows_per_s="mean_rows_per_s"
    )


def load(directory: Path) -> pl.DataFrame:
    """Return the stored passes of notebooks 01 to 04; raises ResultsError when there are none."""
    passes = read_all(directory)
    if passes.is_empty():
        raise ResultsError("there are no results yet; run the other notebooks first (make all)")
    return passes


def with_shapes(passes: pl.DataFrame, directory: Path) -> pl.DataFrame:
    """Return the passes with their `shape` of a table, and those of tables of other shapes, where there are some."""
    path = directory / TABLE_SHAPES.results
    shapes = [store.read(path, resolve_name(TABLE_SHAPES.rows))] if path.exists() else []
    return pl.concat([passes.with_columns(shape=pl.lit("standard")), *shapes], how="diagonal")


def refusals(passes: pl.DataFrame) -> dict[tuple[str, ...], list[str]]:
    """Return which of lists and structs each technique refused, of passes `with_shapes`."""
    kinds = {"nested": "lists", "structs": "structs"}
    refused = passes.filter(pl.col("shape").is_in([*kinds]), status="skipped").sort("shape")
    of = refused.group_by(statistics.NAMES).agg(pl.col("shape").unique(maintain_order=True).replace_strict(kinds))
    return {tuple(names): kinds for *names, kinds in of.rows()}


def which(
    passes: pl.DataFrame, usual: Mapping[tuple[str, str], str], refused: Mapping[tuple[str, ...], list[str]]
) -> pl.DataFrame:
    """Return the fastest technique that gives back exact values and dtypes for each need, and its terms.

    `take` has the fastest technique of each kind of frame, the fastest first. `gain` (with `gain_low`, `gain_high` and
    `gain_rounds`) is its rows/s over the rows/s of the `usual` technique of the database and direction, at the most
    `rows` that both moved. `terms` name the `refused` types of the first. A need without a technique has no row.
    """
    exact = statistics.summary(passes).filter(
        ~pl.col("origin").is_in(["baseline", "framehaul"]), pl.col("median_rows_per_s").is_not_null(), dtypes="exact"
    )
    ranked = exact.select(*statistics.NAMES, "frame").rows()
    terms_of = {one.key: one.contract for one in techniques()}
    passes_of = passes.partition_by(statistics.NAMES, as_dict=True)
    chosen: list[tuple[Any, ...]] = []
    for need in NEEDS:
        path = need.database, need.direction
        found = [row for row in ranked if row[:2] == path and row[:3] in terms_of]  # of an older run some may be gone
        fitting = [row for row in found if need.meets(terms_of[row[:3]])]
        if not fitting:
            continue
        take = {frame: name for *_, name, frame in reversed(fitting)}
        best, other = fitting[0][:3], passes_of.get((*path, usual.get(path, "")))
        gain = Ratio() if other is None else ratio_at_same_rows(passes_of[best], other)
        rows = None if other is None else max({*passes_of[best]["rows"]} & {*other["rows"]}, default=None)
        names, terms = sorted(take.values(), key=best[2].__ne__), terms_of[best]
        said = [TERMS.format(terms)] if terms else []
        said += [f"refuses {' and '.join(refused[best])}"] if best in refused else []
        chosen.append((need.text, names, *gain.values, rows, "; ".join(said)))
    return pl.DataFrame(chosen, schema=CHOSEN, orient="row")
