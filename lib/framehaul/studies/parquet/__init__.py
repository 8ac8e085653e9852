"""What is in a Parquet file, and what a codec costs."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Study

STUDY = Study(
    "13_parquet", "What is inside a Parquet file, and what does a codec cost?",
    (ROWS.at(30_000, reference=300_000), PASSES.at(2, reference=3), WARMUP, SEED),
    "framehaul.studies.parquet.study:RoundTrip", "trial", "framehaul.studies.parquet.study:writeup_blocks",
    shown="framehaul.studies.parquet.study:Anatomy",
    holds=("buildings",), seconds=(2, 22, 180),
)  # fmt: skip
STUDIES = (STUDY,)
