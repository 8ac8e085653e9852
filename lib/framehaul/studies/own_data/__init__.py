"""Somebody's own dataframe: read from a file, given a table, moved along every path, with the best path's code."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, RACE, SEED, TECHNIQUE_PASSES, WARMUP, Parameter, Study

SECONDS = Parameter("seconds", 75.0, "of a race: after how many there is a first answer")
STUDY = Study(
    "20_own_data", "Which path is the fastest for a dataframe of your own?",
    (
        Parameter("data", "", "a file: Parquet, CSV, JSON lines or Arrow IPC"),
        Parameter("rows", 0, "the first rows of it; 0: all"),
        Parameter("key", "", "columns of the primary key"),
        Parameter("sort", "", "columns that ClickHouse sorts by, where they differ"),
        Parameter("mode", "append", "what becomes of rows that are there: append, replace (all go) or upsert (by key)",
                  choices=("append", "replace", "upsert")),
        Parameter("nanoseconds", "refuse", "timestamps with nanoseconds, which PostgreSQL does not have: refuse them, "
                  "or split off what is left over into a column of its own there", choices=("refuse", "split")),
        Parameter("json", "text", "documents of JSON in ClickHouse: a String, which keeps each as it is, or its own "
                  "type JSON, which does not keep all: others are refused", choices=("text", "native")),
        Parameter("null_lists", "json", "lists, structs and maps that are NULL, which ClickHouse does not have: "
                  "documents of JSON there, or refuse them", choices=("json", "refuse")),
        Parameter("types", "", "what the text of columns is: IPv4, IPv6, Int128, UInt128, Int256, UInt256, UUID, JSON"),
        PASSES.at(5), WARMUP, SEED, RACE, SECONDS,
        Parameter("postgres_ddl", "", "CREATE TABLE as you edited it"),
        Parameter("clickhouse_ddl", "", "CREATE TABLE as you edited it"),
    ),
    TECHNIQUE_PASSES, shown="framehaul.studies.own_data.study:Mine", seconds=(30, 180, 600), on_demand=True,
)  # fmt: skip
STUDIES = (STUDY,)
