"""What each path does to data: a matrix of techniques by edge cases."""

from __future__ import annotations

from framehaul.reporting.study import TRIED, Study

STUDY = Study(
    "08_fidelity",
    "Which values does a path change?",
    (TRIED,),
    blocks="framehaul.studies.fidelity.study:writeup_blocks",
    patience="framehaul.studies.fidelity.study:patience",
    shown="framehaul.studies.fidelity.study:Matrix",
    untimed=True,
    holds=(),
    seconds=(16, 45, 900),
)
STUDIES = (STUDY,)
