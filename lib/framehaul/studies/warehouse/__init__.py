"""PostgreSQL to a warehouse through files: compressed CSV against Parquet."""

from framehaul.studies.warehouse import routes
from framehaul.studies.warehouse.study import run

__all__ = ["routes", "run"]
