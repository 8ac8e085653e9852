"""Parquet: the files of six writers taken apart, and the cost of each codec."""

from framehaul.studies.parquet.study import chunks, run
from framehaul.studies.parquet.writers import WRITERS

__all__ = ["WRITERS", "chunks", "run"]
