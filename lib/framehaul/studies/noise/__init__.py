"""What the figures of this harness are worth: one technique under two names, and speed with memory warm and cold."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Study

STUDY = Study(
    "16_noise",
    "How far can these figures be trusted?",
    (ROWS.at(40_000, reference=300_000), PASSES, WARMUP, SEED),
    "framehaul.studies.noise.study:Result",
    "variant",
    "framehaul.studies.noise.study:writeup_blocks",
    shown="framehaul.studies.noise.study:Noise",
    seconds=(4, 45, 140),
)
STUDIES = (STUDY,)
