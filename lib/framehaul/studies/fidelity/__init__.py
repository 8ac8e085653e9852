"""Measure fidelity: for which values, frames and sessions a technique changes data."""

from framehaul.studies.fidelity.cases import CASES, TYPES, carried
from framehaul.studies.fidelity.trial import difference_of, run

__all__ = ["CASES", "TYPES", "carried", "difference_of", "run"]
