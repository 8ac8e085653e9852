"""Every pass of every run, to be looked at."""

from __future__ import annotations

from framehaul.reporting.study import Parameter, Study

STUDY = Study(
    "00_explorer", "What did a run measure, and how does another differ from it?",
    (Parameter("first", "", "a run to start with, as a path"), Parameter("second", "", "a run to compare it with")),
    only_reads=True, on_demand=True,
)  # fmt: skip
STUDIES = (STUDY,)
