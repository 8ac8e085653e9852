"""Every pass of every run, to be looked at."""

from __future__ import annotations

from framehaul.reporting.study import Study

STUDY = Study(
    "00_explorer", "What did a run measure, and how does another differ from it?", only_reads=True, on_demand=True
)
STUDIES = (STUDY,)
