"""What happens on each path when something breaks on the way."""

from framehaul.studies.faults.study import Report, counts_table, load, run
from framehaul.studies.faults.trial import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "Report", "counts_table", "load", "run"]
