"""Rows that are there already: every way of an upsert, what it costs, what others see, what a failure leaves."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, SEED, TRIED, WARMUP, Parameter, Study

TARGETS = Parameter(
    "targets", [20_000], "of upserts: rows of the table", least=1, smoke=[300],
    reference=[10_000, 1_000_000],
)  # fmt: skip
INCOMING = Parameter(
    "incoming", [10, 5_000], "of upserts: rows that come; the fewest of them into the largest table",
    least=1, smoke=[30], reference=[1, 1_000, 100_000],
)  # fmt: skip
SHARES = Parameter(
    "shares", [90], "of upserts: per cent of the rows that come whose key is there", smoke=[50],
    reference=[10, 90],
)  # fmt: skip

STUDY = Study(
    "19_upsert",
    "Rows of a dataframe may be in the table already: which upsert is fast, and what does it ask of others?",
    (TARGETS, INCOMING, SHARES, TRIED.at("all"), PASSES.at(2, reference=3), WARMUP, SEED),
    "framehaul.studies.upsert.passes:Row",
    blocks="framehaul.studies.upsert.study:writeup_blocks",
    measured="framehaul.studies.upsert.passes:placed",
    shown="framehaul.studies.upsert.study:Upsert",
    check="framehaul.studies.upsert.frames:check_sizes",
    patience="framehaul.studies.upsert.runs:patience",
    holds=(),
    seconds=(8, 60, 400),
)
STUDIES = (STUDY,)
