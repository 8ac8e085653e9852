"""The four directions beside each other, and beside what was published."""

from __future__ import annotations

from framehaul.reporting.study import Study

STUDY = Study(
    "05_summary",
    "Which technique to use, in which direction, for which frame?",
    blocks="framehaul.studies.summary.study:writeup_blocks",
    headline="framehaul.studies.summary.study:headline_html",
    only_reads=True,
    shown="framehaul.studies.summary.study:Summary",
    seconds=(3, 6, 8),
)
STUDIES = (STUDY,)
