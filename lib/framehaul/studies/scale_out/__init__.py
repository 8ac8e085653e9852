"""The same techniques on partitions, over several workers: every partition arrives exactly once, or nothing does.

A partition is written into a staging table of its own, and one statement or transaction puts all of them in the place
of the table. `moves` has what a worker does with one partition, `cluster` the workers.
"""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

WORKERS = Parameter(
    "workers", [1, 2], "workers to compare, with the most partitions", least=1, smoke=[2], reference=[1, 2, 4]
)
PARTITIONS = Parameter(
    "partitions", [4], "partitions to compare, with the most workers", least=1, smoke=[2], reference=[2, 4, 8]
)
STUDY = Study(
    "21_scale_out", "When one machine is not enough: how much do more workers help?",
    (ROWS.at(30_000, reference=200_000), PASSES.at(2), WARMUP.at(1, smoke=1), SEED, WORKERS, PARTITIONS),
    "framehaul.studies.scale_out.study:Pass", "label", "framehaul.studies.scale_out.study:writeup_blocks",
    shown="framehaul.studies.scale_out.study:ScaleOut",
    seconds=(10, 25, 270),
)  # fmt: skip
STUDIES = (STUDY,)
