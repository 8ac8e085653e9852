"""Run pgbench: published tests of managed PostgreSQL, on configurations of a server and on the user's services."""

from framehaul.studies.pgbench.study import PUBLISHED_RATIOS, run
from framehaul.studies.pgbench.workloads import PUBLISHED, commands

__all__ = ["PUBLISHED", "PUBLISHED_RATIOS", "commands", "run"]
