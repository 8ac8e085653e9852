"""From PostgreSQL to a warehouse: compressed CSV against Parquet."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

PARALLEL = Parameter(
    "parallel", 4, "files, connections or loads that may run at once, on the way to a warehouse", least=1
)
STUDY = Study(
    "12_warehouse", "Which route from PostgreSQL to a warehouse is fastest?",
    (ROWS.at(20_000, reference=200_000), PASSES.at(2, reference=3), WARMUP, SEED, PARALLEL),
    "framehaul.studies.warehouse.study:Result", "route", "framehaul.studies.warehouse.study:writeup_blocks",
    shown="framehaul.studies.warehouse.study:Transfer",
    holds=("buildings",), seconds=(3, 35, 90),
)  # fmt: skip
STUDIES = (STUDY,)
