"""Upserts: the speed of each upsert, and what readers, other writers and failures see of it."""

from framehaul.studies.upsert.measure import Case, sent_twice, together, watched
from framehaul.studies.upsert.study import behaviour, run

__all__ = ["Case", "behaviour", "run", "sent_twice", "together", "watched"]
