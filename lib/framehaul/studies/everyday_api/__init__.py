"""What people call without a choice, what one changes to get the fast one, and whether batches keep memory bounded."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, Study

STUDY = Study(
    "18_everyday_api",
    "What does one gain over to_sql, write_database and read_sql, and by which change?",
    (ROWS.at(100_000, reference=1_000_000), PASSES.at(1, reference=1), SEED),
    "framehaul.studies.everyday_api.study:BatchedRead",
    "way",
    blocks="framehaul.studies.everyday_api.study:writeup_blocks",
    shown="framehaul.studies.everyday_api.study:EverydayApi",
    seconds=(5, 45, 200),
)
STUDIES = (STUDY,)
