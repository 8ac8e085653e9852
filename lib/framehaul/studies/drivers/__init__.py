"""Drivers of PostgreSQL by the shape of a query, and clients that fetch from ClickHouse."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

LOAD = (
    Parameter("connections", 8, "connections at once", least=1),
    Parameter("duration", 1.0, "seconds for which a driver answers each shape"),
    Parameter("warmup_duration", 0.25, "seconds of warm-up before"),
    Parameter("rate", 0.0, "queries/s to send, whatever the driver manages; 0: as fast as answers come"),
)
CONCURRENCY = Parameter("concurrency", [1, 4, 16], "queries at once, the first of them for all tables", least=1)
_ROWS = "framehaul.studies.drivers.runner:Measurement"
POSTGRES = Study(
    "10_postgres_drivers", "Which driver of PostgreSQL, in which language, is fast at which shape of query?",
    (PASSES, SEED, *LOAD), _ROWS, "driver", blocks="framehaul.studies.drivers.study:readme_blocks",
    check="framehaul.studies.drivers.runner:check_load", patience="framehaul.studies.drivers.study:patience",
)  # fmt: skip
CLICKHOUSE = Study(
    "11_clickhouse_clients", "Which client fetches rows from ClickHouse fastest, in which language?",
    (ROWS, PASSES, WARMUP, SEED, CONCURRENCY), _ROWS, "driver",
)  # fmt: skip
STUDIES = (POSTGRES, CLICKHOUSE)
