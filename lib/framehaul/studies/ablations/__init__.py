"""One change at a time: pairs of techniques that differ in nothing else."""

from __future__ import annotations

from framehaul.reporting.study import Study

STUDY = Study(
    "07_ablations", "Which single change gives how much, and what to change first?",
    blocks="framehaul.studies.ablations.study:writeup_blocks", only_reads=True,
    shown="framehaul.studies.ablations.study:Ablations", seconds=(2, 5, 5),
)  # fmt: skip
STUDIES = (STUDY,)
