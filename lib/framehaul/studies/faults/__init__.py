"""Faults: what a load leaves behind when something breaks on the way."""

from framehaul.studies.faults.study import load_results, run
from framehaul.studies.faults.trial import FAULTS, verdict_of

__all__ = ["FAULTS", "load_results", "run", "verdict_of"]
