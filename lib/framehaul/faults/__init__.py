"""What happens on each path when something breaks on the way."""

from framehaul.faults.report import Report, counts_table, load, run
from framehaul.faults.trial import FAULTS, Fault

__all__ = ["FAULTS", "Fault", "Report", "counts_table", "load", "run"]
