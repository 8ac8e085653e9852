"""Scaling: cost against rows."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, TECHNIQUE_PASSES, WARMUP, Study

STUDY = Study(
    "06_scaling",
    "How does the cost of a path grow with rows?",
    (ROWS.at(30_000, reference=2_000_000), PASSES.at(2, reference=1), WARMUP.at(1, smoke=1), SEED),
    TECHNIQUE_PASSES,
    blocks="framehaul.studies.scaling.study:writeup_blocks",
    shown="framehaul.studies.scaling.study:Scaling",
    seconds=(10, 28, 450),
)
STUDIES = (STUDY,)
