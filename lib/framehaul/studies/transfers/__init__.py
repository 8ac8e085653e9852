"""Every technique of a database and direction."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, TECHNIQUE_PASSES, WARMUP, Study


def _study(number: int, name: str, question: str) -> Study:
    return Study(f"{number:02}_{name}", question, (ROWS, PASSES, WARMUP, SEED), TECHNIQUE_PASSES)


STUDIES = (
    _study(1, "postgres_write", "What is the fastest way from a dataframe into PostgreSQL?"),
    _study(2, "postgres_read", "What is the fastest way from PostgreSQL into a dataframe?"),
    _study(3, "clickhouse_write", "What is the fastest way from a dataframe into ClickHouse?"),
    _study(4, "clickhouse_read", "What is the fastest way from ClickHouse into a dataframe?"),
)
