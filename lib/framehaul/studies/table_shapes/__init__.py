"""Tables of other shapes, and of few rows: which techniques stay fast, and from how many rows on."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

MEGABYTES = Parameter(
    "megabytes", 2.0, "the largest frame of tables of other shapes", smoke=0.05, reference=10.0
)  # fmt: skip
POINTS = Parameter(
    "points", "few", "of tables of other shapes: how many tables and numbers of rows: least, few, or sizes for all "
    "tables and powers of ten",
    choices=("least", "few", "sizes"), smoke="least", reference="sizes",
)  # fmt: skip

STUDY = Study(
    "17_table_shapes",
    "Do the same techniques win on tables of other shapes, and with fewer rows?",
    (ROWS.at(10_000), MEGABYTES, POINTS, PASSES.at(3, reference=3), WARMUP, SEED),
    "framehaul.studies.table_shapes.passes:Row",
    blocks="framehaul.studies.table_shapes.study:writeup_blocks",
    shown="framehaul.studies.table_shapes.study:TableShapes",
    measured="framehaul.studies.table_shapes.passes:placed",
    seconds=(5, 38, 350),
)
STUDIES = (STUDY,)
