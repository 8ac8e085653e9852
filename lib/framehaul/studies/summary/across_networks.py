"""Which technique to take across a network, for the table that says which one to use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import store
from framehaul.reporting.tables import Row
from framehaul.studies.network.catalog import LOOPBACK, Result
from framehaul.studies.network.report import fastest
from framehaul.studies.registry import NETWORK


def rows_across_networks(directory: Path) -> list[Row]:
    """`best_across` of what a results directory holds; none where none was measured."""
    path = directory / NETWORK.results
    return [*best_across(store.read(path, Result))] if path.exists() else []


def best_across(passes: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The fastest of each direction and network that gives back exactly what was sent, without encryption."""
    for row in fastest(passes.filter(dtypes="exact")):
        if row["network"] != LOOPBACK.name:
            case = f"network: {row['network']}"
            yield row | {"case": case, "median_rows_per_s": row["rows_per_s"]}
