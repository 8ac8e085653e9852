"""Upserts: rows of a dataframe may be in the table already; how fast each upsert is, and what it asks of others."""

from framehaul.studies.upsert.frames import Case
from framehaul.studies.upsert.measure import sent_twice, together, watched
from framehaul.studies.upsert.study import run
from framehaul.studies.upsert.verdicts import behaviour

__all__ = ["Case", "behaviour", "run", "sent_twice", "together", "watched"]
