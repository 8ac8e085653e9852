"""The rows of the study's results, and refusals that do not count as failures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from framehaul.bench import store
from framehaul.bench.rounds import Failed, Pass, Skipped
from framehaul.studies.registry import TABLE_SHAPES
from framehaul.studies.table_shapes.shapes import SHAPES

_LINES = Path(__file__).with_name("limits.tsv").read_text("utf8").splitlines()[1:]
LIMITS = {text: remedy for text, _, remedy in (line.partition("\t") for line in _LINES)}
"""Parts of the messages of known limits, each with its remedy; the remedy is empty where the message names it."""


@dataclass(frozen=True, kw_only=True)
class Row(store.Result):
    """One pass of a technique on a shape; a missing number is None, never 0.

    `rows` are the rows of one call; `seconds` and the resources used are those of the whole pass.
    """

    shape: str
    calls: int
    frame_bytes: int | None = None
    """The size of all rows of a pass as Arrow."""
    bytes_per_s: float | None = None
    p50_s: float | None = None
    """The median seconds of the calls of the pass."""
    p99_s: float | None = None


def within_limits[V](outcome: Pass[V]) -> Pass[V]:
    """Turn a failure by a known limit into a skipped pass that names the remedy; return other outcomes unchanged."""
    if isinstance(outcome, Failed):
        for text, remedy in LIMITS.items():
            if text in outcome.reason:
                return Skipped("; ".join(filter(None, (outcome.reason, remedy))))
    return outcome


def placed(directory: Path) -> pl.DataFrame:
    """Return the passes in a results directory, with their tables as `statistics.PLACE` has them."""
    labels = {one.name: one.label for one in SHAPES}
    passes = store.read(directory / TABLE_SHAPES.results, Row)
    return passes.with_columns(table=pl.col("shape").replace(labels))
