"""One change at a time: pairs of techniques that differ in nothing else."""

from __future__ import annotations

from framehaul.reporting.study import Study

STUDY = Study(
    "07_ablations", "What to change first?", blocks="framehaul.studies.ablations.study:writeup_blocks", only_reads=True,
    seconds=(5, 5),
)  # fmt: skip
STUDIES = (STUDY,)
