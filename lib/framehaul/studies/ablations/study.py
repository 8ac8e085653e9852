"""Ablations: pairs of techniques that differ in one thing, compared by the passes of the runs that measured both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import statistics
from framehaul.bench.ratios import Ratio, ratio_at_same_rows, verdicts
from framehaul.errors import ResultsError

PAIRS = pl.read_csv(Path(__file__).with_name("pairs.csv"))
"""Two techniques of one database and direction in each row, and the change that turns `base` into `changed`."""


def ratios(passes: pl.DataFrame) -> pl.DataFrame:
    """Return rows/s of `changed` over `base` for each pair whose techniques both ran without a failure.

    Adds `ratio`, `ratio_low`, `ratio_high`, `ratio_rounds` and `verdict` to the columns of PAIRS. Two techniques are
    compared at the most rows that both moved. The verdicts of all pairs follow from one rule, so that at most one page
    in twenty makes a false claim. Within a direction the largest ratio comes first.

    Raises ResultsError when there are no passes.
    """
    if passes.is_empty():
        raise ResultsError("there are no results yet; run the notebooks of the four directions first")
    by_technique = passes.partition_by(statistics.NAMES, as_dict=True)
    measured = {key: part for key, part in by_technique.items() if set(part["status"]) == {"ok"}}
    compared: list[tuple[dict[str, Any], Ratio]] = []
    for pair in PAIRS.to_dicts():
        changed, base = (measured.get((pair["database"], pair["direction"], pair[of])) for of in ("changed", "base"))
        if changed is not None and base is not None:
            compared.append((pair, ratio_at_same_rows(changed, base)))
    words = verdicts([(one, 1) for _, one in compared], "faster", "slower")
    numbers = {"ratio": pl.Float64(), "ratio_low": pl.Float64(), "ratio_high": pl.Float64(), "ratio_rounds": pl.Int64()}
    rows = [
        pair | dict(zip(numbers, (one.ratio, one.low, one.high, one.rounds), strict=True)) | {"verdict": verdict}
        for (pair, one), verdict in zip(compared, words, strict=True)
    ]
    found = pl.DataFrame(rows, schema={**PAIRS.schema, **numbers, "verdict": pl.String()})
    return found.sort("database", "direction", "ratio", descending=True, maintain_order=True)
