"""Everyday calls, what to change, and whether batches keep memory bounded."""

from framehaul.studies.everyday_api.study import changes, growth, run

__all__ = ["changes", "growth", "run"]
