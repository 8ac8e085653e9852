"""Measure faults: what a transfer leaves behind when something breaks."""

from framehaul.studies.faults.study import load_results, run
from framehaul.studies.faults.trial import FAULTS, verdict_of

__all__ = ["FAULTS", "load_results", "run", "verdict_of"]
