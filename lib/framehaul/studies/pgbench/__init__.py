"""Services of PostgreSQL under pgbench."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, SEED, Parameter, Study

WORKLOAD = Parameter(
    "workload", "scaled", "tests of pgbench: the smallest that show whether services answer, scaled to this machine at "
    "a second each, longer, or as published (hours)", choices=("smallest", "scaled", "longer", "published"),
    smoke="smallest",
)  # fmt: skip
SERVICES = Parameter(
    "services",
    "few",
    "names of the services to run under pgbench; `few` or `fewest`: of the embedded examples three or "
    "two, and all others; empty: all",
    smoke="fewest",
    reference="",
)
STUDY = Study(
    "15_pgbench", "Which service of PostgreSQL, or configuration, carries how many transactions?",
    (WORKLOAD, PASSES.at(1), SEED, SERVICES), "framehaul.studies.pgbench.runs:Result", "service",
    "framehaul.studies.pgbench.study:writeup_blocks", patience="framehaul.studies.pgbench.study:patience",
    shown="framehaul.studies.pgbench.study:Pgbench",
    holds=(), seconds=(6, 46, 220),
)  # fmt: skip
STUDIES = (STUDY,)
