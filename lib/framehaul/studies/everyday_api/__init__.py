"""Everyday calls: the line to change, its gain, and whether reads in batches keep memory bounded."""

from framehaul.studies.everyday_api.batches import run
from framehaul.studies.everyday_api.one_line import changes

__all__ = ["changes", "run"]
