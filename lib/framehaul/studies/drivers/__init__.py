"""Drivers of PostgreSQL by the shape of a query, and clients that fetch from ClickHouse."""

from __future__ import annotations

from framehaul.reporting.study import PASSES, ROWS, SEED, WARMUP, Parameter, Study

LOAD = (
    Parameter("connections", 4, "connections at once", least=1, smoke=2),
    Parameter("duration", 0.08, "seconds of queries for each shape", least=0.001, smoke=0.05, reference=0.3),
    Parameter("warmup_duration", 0.02, "seconds of warm-up before", smoke=0.01, reference=0.05),
)
CONCURRENCY = Parameter(
    "concurrency", [1, 4], "queries at once, the first of them for all tables", least=1, smoke=[1, 2],
    reference=[1, 4],
)  # fmt: skip
_ROWS = "framehaul.studies.drivers.runner:Measurement"
POSTGRES = Study(
    "10_postgres_drivers", "Which driver of PostgreSQL, in which language, is fast at which shape of query?",
    (PASSES.at(1, reference=3), SEED, *LOAD), _ROWS, "driver", blocks="framehaul.studies.drivers.study:writeup_blocks",
    patience="framehaul.studies.drivers.study:patience", shown="framehaul.studies.drivers.study:PostgresDrivers",
    alone=True, seconds=(40, 45, 500),
)  # fmt: skip
CLICKHOUSE = Study(
    "11_clickhouse_clients", "Which client fetches rows from ClickHouse fastest, in which language?",
    # Its values are checked before each pass: so every client has fetched them already.
    (ROWS.at(10_000, reference=100_000), PASSES.at(2, reference=3), WARMUP.at(0), SEED, CONCURRENCY), _ROWS, "driver",
    shown="framehaul.studies.drivers.study:ClickHouseClients", holds=(), seconds=(30, 40, 650),
)  # fmt: skip
STUDIES = (POSTGRES, CLICKHOUSE)
