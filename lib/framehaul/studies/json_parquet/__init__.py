"""JSON lines to Parquet: seven converters, each compared with the table that the lines were made of."""

from framehaul.studies.json_parquet.json_lines import CONVERSIONS
from framehaul.studies.json_parquet.study import PUBLISHED, run

__all__ = ["CONVERSIONS", "PUBLISHED", "run"]
