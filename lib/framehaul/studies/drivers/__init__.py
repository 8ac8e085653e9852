"""Measure drivers that fetch rows: PostgreSQL by the shape of a query, ClickHouse by the types of a table."""

from framehaul.studies.drivers.claims import MEAN, judged, with_means
from framehaul.studies.drivers.shapes import CLICKHOUSE_TABLES, POSTGRES_SHAPES
from framehaul.studies.drivers.study import run_clickhouse, run_postgres

__all__ = ["CLICKHOUSE_TABLES", "MEAN", "POSTGRES_SHAPES", "judged", "run_clickhouse", "run_postgres", "with_means"]
