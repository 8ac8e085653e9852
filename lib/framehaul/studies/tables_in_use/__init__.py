"""Tables in use: appends into tables with rows and indexes, which others may read and write at the same time."""

from framehaul.studies.tables_in_use.copies import Copies
from framehaul.studies.tables_in_use.others import at_rate
from framehaul.studies.tables_in_use.study import one_pass, run

__all__ = ["Copies", "at_rate", "one_pass", "run"]
