"""Tables of other shapes, and of few rows: which techniques stay fast, which everyday statements are enough."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

MEGABYTES = Parameter(
    "megabytes", 4.0, "the largest frame of tables of other shapes", smoke=0.05, reference=20.0
)  # fmt: skip
POINTS = Parameter(
    "points", "few", "of tables of other shapes: how many numbers of rows, techniques and rates: least, few or all; "
    "sizes: few techniques, all tables and numbers of rows; streams: small batches into ClickHouse alone, for twenty "
    "seconds at each rate",
    choices=("least", "few", "sizes", "all", "streams"), smoke="least", reference="sizes",
)  # fmt: skip

STUDY = Study(
    "17_table_shapes",
    "Do the same techniques win on tables of other shapes, and from how many rows on is COPY worth it?",
    (ROWS.at(10_000), MEGABYTES, POINTS, PASSES, WARMUP, SEED),
    "framehaul.studies.table_shapes.passes:Row",
    blocks="framehaul.studies.table_shapes.study:writeup_blocks",
    shown="framehaul.studies.table_shapes.study:TableShapes",
    measured="framehaul.studies.table_shapes.passes:placed",
    seconds=(5, 85, 1200),
)
STUDIES = (STUDY,)
