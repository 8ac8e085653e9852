"""Everyday calls: the line to change, its gain, and whether reads in batches keep memory bounded."""

from framehaul.studies.everyday_api.one_line import changes
from framehaul.studies.everyday_api.study import run

__all__ = ["changes", "run"]
