"""The fastest technique on each network, for the table of the summary that recommends techniques."""

from __future__ import annotations

from typing import Any

import polars as pl

from framehaul.bench import statistics
from framehaul.studies.network.catalog import COMPARED

PATH = ["database", "direction", "network"]
DESCRIBED = ["technique", "label", "origin", "family", "driver", "frame", "connections", "codec"]


def fastest(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the medians of the fastest technique of each direction and network, without TLS and PgBouncer.

    Directions have the order of the catalog; within each, the fastest network comes first.
    """
    medians = statistics.medians(passes.filter(encryption="none", via="direct"), [*PATH, *DESCRIBED])
    ranked = medians.filter(status="ok").sort("rows_per_s", descending=True)
    directions = [*COMPARED]
    return sorted(
        ranked.unique(PATH, keep="first", maintain_order=True).to_dicts(),
        key=lambda row: directions.index((row["database"], row["direction"])),
    )
