"""A row of the study's results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from framehaul.bench import store
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Ok, Pass
from framehaul.bench.recording import result
from framehaul.studies.registry import TABLE_SHAPES
from framehaul.studies.table_shapes.shapes import SHAPES
from framehaul.techniques import Technique


@dataclass(frozen=True, kw_only=True)
class Row(store.Result):
    """One pass of a technique on a shape; a missing number is None, never 0.

    `rows` are those of a call, `seconds` and all that was used are of the whole pass.
    """

    shape: str
    calls: int
    frame_bytes: int | None = None
    """Of all rows of a pass, as Arrow."""
    bytes_per_s: float | None = None
    p50_s: float | None = None
    """Of the calls of the pass."""
    p99_s: float | None = None


def of_technique(
    run_id: str, one: Technique, shape: str, size: int, calls: int, moved: int, number: int, outcome: Pass[Moved]
) -> Row:
    """The row of a pass of so many calls, each of `size` rows; `moved` bytes went over in all of them."""
    whole = vars(result(run_id, TABLE_SHAPES.notebook, one, size * calls, number, outcome)) | {"rows": size}
    measured: dict[str, Any] = {}
    if isinstance(outcome, Ok):
        latencies = outcome.values.latencies_s
        measured = {
            "bytes_per_s": moved / outcome.values.seconds, "p50_s": percentile(latencies, 50),
            "p99_s": percentile(latencies, 99),
        }  # fmt: skip
        if calls > 1:
            whole["peak_rss_bytes"] = None  # of several calls, whose frames are all kept to be verified
    return Row(**whole, shape=shape, calls=calls, frame_bytes=moved, **measured)


def percentile(seconds: Iterable[float], percent: float) -> float:
    """What so many percent of these took at most."""
    return float(np.percentile([*seconds], percent))


def placed(directory: Path) -> pl.DataFrame:
    """Return the passes in a results directory, with their tables as `bench.measured.PLACE` has them."""
    labels = {one.name: one.label for one in SHAPES}
    passes = store.read(directory / TABLE_SHAPES.results, Row)
    return passes.with_columns(table=pl.col("shape").replace(labels))
