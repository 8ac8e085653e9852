"""From JSON lines to Parquet."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Study

STUDY = Study(
    "14_json_parquet", "Which converter makes Parquet of JSON lines fastest?",
    (ROWS.at(15_000, reference=200_000), PASSES.at(1, reference=3), WARMUP, SEED),
    "framehaul.studies.json_parquet.study:Conversion", "converter",
    "framehaul.studies.json_parquet.study:writeup_blocks",
    shown="framehaul.studies.json_parquet.study:JsonToParquet",
    holds=(), seconds=(6, 20, 80),
)  # fmt: skip
STUDIES = (STUDY,)
