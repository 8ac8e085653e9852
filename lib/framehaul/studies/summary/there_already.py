"""Which upsert to take, for the tables that say which technique to use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import store
from framehaul.reporting.tables import Row
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert.passes import Row as Pass
from framehaul.studies.upsert.study import MOSTLY_THERE, advice
from framehaul.techniques import upserts
from framehaul.techniques.contract import UPSERT, UPSERT_BLOCKS, UPSERT_EXCHANGED, Contract
from framehaul.techniques.registry import Database

TERMS: tuple[tuple[Database, Contract, str], ...] = (
    ("postgres", UPSERT, "all at once or none, and several may write"),
    ("clickhouse", UPSERT_BLOCKS, "several may write"),
    ("clickhouse", UPSERT_EXCHANGED, "all at once or none"),
)
"""The contracts that are asked for, and what they give."""


def rows_there_already(directory: Path) -> list[Row]:
    """`best_on_terms` of what a results directory holds; none where none was measured."""
    path = directory / UPSERT_STUDY.results
    return [*best_on_terms(store.read(path, Pass))] if path.exists() else []


def best_on_terms(passes: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The fastest upsert on each of these terms, of many rows most of which are there.

    A way that did not keep its terms in the run, before readers, other writers and failures, is not among them.
    """
    found = {one.database: one for one in advice(passes) if one.situation == MOSTLY_THERE}
    for database, contract, gives in TERMS:
        known = {one.name: one for one in upserts(database) if one.contract == contract}
        if database not in found:
            continue
        here = found[database]
        kept = [ways for word, ways in (("none", here.whole), ("several", here.shared)) if word in gives]
        for row in here.every:
            if row["technique"] in known and all(row in ways for ways in kept):
                whole = vars(known[row["technique"]]) | row | {"median_rows_per_s": row["rows_per_s"]}
                yield whole | {"case": f"rows that may be there already, {gives} ({here.case.label})"}
                break
