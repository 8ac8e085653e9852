"""What the road between client and server changes: distance, bandwidth, encryption, and a pooler."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

STUDY = Study(
    "23_network",
    "What do distance, bandwidth, encryption and a pooler change?",
    (
        ROWS.at(12_000, reference=50_000),
        PASSES,
        WARMUP,
        SEED,
        Parameter(
            "roads",
            "few",
            "networks, techniques and codecs that are compared: all, all networks with few techniques, few, or the "
            "least that shows whether they work",
            choices=("least", "few", "networks", "all"),
            smoke="least",
            reference="networks",
        ),
    ),
    "framehaul.studies.network.rows:Result",
    "task",
    "framehaul.studies.network.study:writeup_blocks",
    shown="framehaul.studies.network.study:Roads",
    measured="framehaul.studies.network.rows:placed",
    patience="framehaul.studies.network.catalog:patience_seconds",
    seconds=(6, 75, 360),
)
STUDIES = (STUDY,)
