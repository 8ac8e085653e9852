"""Scripts: whole Python processes that move one file or table, imports included."""

from framehaul.studies.scripts.catalog import SCRIPTS
from framehaul.studies.scripts.study import run

__all__ = ["SCRIPTS", "run"]
