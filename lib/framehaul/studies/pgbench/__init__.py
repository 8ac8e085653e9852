"""pgbench: published tests of managed PostgreSQL, on configurations of one server and on services of your own."""

from framehaul.studies.pgbench.study import PUBLISHED_RATIOS, run
from framehaul.studies.pgbench.workloads import PUBLISHED, commands

__all__ = ["PUBLISHED", "PUBLISHED_RATIOS", "commands", "run"]
