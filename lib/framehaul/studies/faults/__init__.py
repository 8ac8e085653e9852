"""What happens on each path when something breaks on the way."""

from __future__ import annotations

from framehaul.reporting.study import TRIED, Parameter, Study

HOLD = Parameter(
    "hold", 3, "seconds for which the load is held at the end of the study of faults", least=1, smoke=1, reference=20
)
STUDY = Study(
    "09_faults", "What is left when something breaks on the way?", (TRIED, HOLD),
    blocks="framehaul.studies.faults.study:writeup_blocks", patience="framehaul.studies.faults.study:patience",
    shown="framehaul.studies.faults.study:Report",
    untimed=True, holds=(), seconds=(19, 60, 900),
)  # fmt: skip
STUDIES = (STUDY,)
