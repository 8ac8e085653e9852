"""Services of PostgreSQL under pgbench."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, SEED, Parameter, Study

PRESET = Parameter(
    "preset", "scaled", "tests of pgbench: to the scale of this machine, as published (hours), or the least that shows "
    "whether services answer", choices=("scaled", "published", "smoke"),
)  # fmt: skip
SERVICES = Parameter("services", "", "names of the services to run under pgbench; empty: all")
STUDY = Study(
    "15_pgbench", "Which service of PostgreSQL, or configuration, carries how many transactions?",
    (PRESET, PASSES, SEED, SERVICES), "framehaul.studies.pgbench.runs:Result", "service",
    "framehaul.studies.pgbench.study:readme_blocks", patience="framehaul.studies.pgbench.study:patience",
)  # fmt: skip
STUDIES = (STUDY,)
