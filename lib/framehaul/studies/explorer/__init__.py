"""All passes of a run in one frame; the notebook holds its own code."""

from __future__ import annotations

from framehaul.reporting.study import Parameter, Study

STUDY = Study(
    "00_explorer", "What did a run measure?", (Parameter("run", "", "a run, as the path of a directory"),),
    only_reads=True, on_demand=True,
)  # fmt: skip
STUDIES = (STUDY,)
