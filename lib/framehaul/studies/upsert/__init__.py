"""Upserts: the speed of each upsert, and what readers, other writers and failures see of it."""

from framehaul.studies.upsert.frames import Case
from framehaul.studies.upsert.measure import sent_twice, together, watched
from framehaul.studies.upsert.study import run
from framehaul.studies.upsert.verdicts import behaviour

__all__ = ["Case", "behaviour", "run", "sent_twice", "together", "watched"]
