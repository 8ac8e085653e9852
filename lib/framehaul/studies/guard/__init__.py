"""Two versions of a driver beside each other, for those who write it: what a change does to the paths it is in."""

from __future__ import annotations

from framehaul.reporting.study import Study

STUDY = Study(
    "22_guard",
    "Did a change of a driver make a path slower, wrong, or different on the wire?",
    blocks="framehaul.studies.guard.study:writeup_blocks",
    shown="framehaul.studies.guard.study:Guard",
    only_reads=True,
    seconds=(3, 5, 5),
)
STUDIES = (STUDY,)
