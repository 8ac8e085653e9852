"""What happens on each path when something breaks on the way."""

from __future__ import annotations

from framehaul.reporting.study import Parameter, Study

HOLD = Parameter("hold", 120, "seconds for which the load is held at the end of the study of faults", least=1)
STUDY = Study(
    "09_faults", "What is left when something breaks on the way?", (HOLD,),
    blocks="framehaul.studies.faults.study:readme_blocks", patience="framehaul.studies.faults.study:patience",
)  # fmt: skip
STUDIES = (STUDY,)
