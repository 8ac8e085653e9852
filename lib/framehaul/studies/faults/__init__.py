"""Measure faults: what a transfer leaves behind when something breaks."""

from framehaul.studies.faults.trial import FAULTS, load_results, run, verdict_of

__all__ = ["FAULTS", "load_results", "run", "verdict_of"]
