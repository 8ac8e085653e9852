"""JSON lines to Parquet: seven converters, whose files are compared with the source table."""

from framehaul.studies.json_parquet.json_lines import CONVERSIONS
from framehaul.studies.json_parquet.study import PUBLISHED, run

__all__ = ["CONVERSIONS", "PUBLISHED", "run"]
