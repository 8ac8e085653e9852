"""Ablations: pairs of techniques that differ in one thing, compared by the passes of the runs that measured both."""

from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import statistics
from framehaul.bench.ratios import Ratio, ratio_at_same_rows, verdicts
from framehaul.errors import ResultsError

PAIRS = pl.read_csv(Path(__file__).with_name("ablations.csv"))
"""Pairs of techniques of a database and direction, and the change between `base` and `changed`."""


def ratios(passes: pl.DataFrame) -> pl.DataFrame:
    """Return rows/s of `changed` over `base` for each pair whose techniques both ran without a failure.

    Adds `ratio`, `ratio_low`, `ratio_high`, `ratio_rounds` and `verdict` to the columns of PAIRS. Two techniques are
    compared at the most rows that both moved. The verdicts of all pairs are decided together, so that at most one page
    in twenty makes a false claim. Within a direction the largest ratio comes first.

    Raises ResultsError when there are no passes.
    """
    if passes.is_empty():
        raise ResultsError("there are no results yet; run the notebooks of the four directions first")
    by_technique = passes.partition_by(statistics.NAMES, as_dict=True)
    measured = {key: part for key, part in by_technique.items() if set(part["status"]) == {"ok"}}
    compared: dict[tuple[Any, ...], Ratio] = {}
    for pair in PAIRS.to_dicts():
        changed, base = (measured.get((pair["database"], pair["direction"], pair[of])) for of in ("changed", "base"))
        if changed is not None and base is not None:
            compared[*pair.values()] = ratio_at_same_rows(changed, base)
    words = verdicts([(one, 1) for one in compared.values()], "faster", "slower")
    rows = [(*pair, *one.values, word) for (pair, one), word in zip(compared.items(), words, strict=True)]
    found = pl.DataFrame(rows, schema={**PAIRS.schema, **statistics.RATIO, "verdict": pl.String()}, orient="row")
    return found.sort("database", "direction", "ratio", descending=True, maintain_order=True)
