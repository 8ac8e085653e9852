"""Somebody's own dataframe: read from a file, given a table, moved along every path, with the best path's code."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, RACE, SEED, TECHNIQUE_PASSES, WARMUP, Parameter, Study

STUDY = Study(
    "20_own_data", "Which path is the fastest for a dataframe of your own?",
    (
        Parameter("data", "", "a file: Parquet, CSV, JSON lines or Arrow IPC"),
        Parameter("rows", 0, "the first rows of it; 0: all"),
        Parameter("key", "", "columns of the primary key"),
        Parameter("sort", "", "columns that ClickHouse sorts by, where they differ"),
        Parameter("mode", "append", "what becomes of rows that are there: append, replace (all go) or upsert (by key)",
                  choices=("append", "replace", "upsert")),
        PASSES.at(5), WARMUP, SEED, RACE,
    ),
    TECHNIQUE_PASSES, shown="framehaul.studies.own_data.study:Mine", seconds=(30, 180, 600), on_demand=True,
)  # fmt: skip
STUDIES = (STUDY,)
