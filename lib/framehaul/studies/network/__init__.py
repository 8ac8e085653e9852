"""What the road between client and server changes: distance, bandwidth, encryption, and a pooler."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Study

STUDY = Study(
    "23_network",
    "What do distance, bandwidth, encryption and a pooler change?",
    (ROWS.at(8_000, reference=50_000), PASSES, WARMUP, SEED),
    "framehaul.studies.network.catalog:Result",
    "task",
    "framehaul.studies.network.study:writeup_blocks",
    shown="framehaul.studies.network.study:Network",
    measured="framehaul.studies.network.catalog:placed",
    seconds=(10, 30, 210),
)
STUDIES = (STUDY,)
