"""Services of PostgreSQL under pgbench."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, SEED, Parameter, Study

WORKLOAD = Parameter(
    "workload", "scaled", "tests of pgbench: the smallest that show whether services answer, scaled to this machine at "
    "a second each, longer, or as published (hours)", choices=("smallest", "scaled", "longer", "published"),
    smoke="smallest",
)  # fmt: skip
SERVICES = Parameter(
    "services", "default small_buffers limited_iops", "names of the embedded configurations to run under pgbench, "
    "beside services of yours; empty: all", smoke="default limited_iops", reference="",
)  # fmt: skip
STUDY = Study(
    "15_pgbench", "Which service of PostgreSQL, or configuration, carries how many transactions?",
    (WORKLOAD, PASSES.at(1), SEED, SERVICES), "framehaul.studies.pgbench.runs:Result", "service",
    "framehaul.studies.pgbench.study:writeup_blocks", patience="framehaul.studies.pgbench.study:patience",
    shown="framehaul.studies.pgbench.study:Pgbench",
    holds=(), seconds=(6, 28, 130),
)  # fmt: skip
STUDIES = (STUDY,)
