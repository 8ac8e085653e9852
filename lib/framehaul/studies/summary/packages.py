"""The field by package: what the driver of each technique is installed as, and in which version a run had it."""

from __future__ import annotations

from typing import Any

from framehaul.reporting.tables import Column, Listing, words
from framehaul.studies.drivers.catalog import adbc_clickhouse_version
from framehaul.techniques import DRIVERS, techniques
from framehaul.techniques.registry import DATABASES, REQUIREMENTS, Requirement

STANDARD = ("urllib", "http_client")
"""Drivers that come with Python."""
DISTRIBUTIONS = {
    "adbc": ["adbc-driver-postgresql"],
    "adbc_uri": ["adbc-driver-postgresql"],
    "pgpq": ["pgpq", "psycopg"],
    "sqlalchemy": ["sqlalchemy", "psycopg"],
    "sqlalchemy_psycopg2": ["sqlalchemy", "psycopg2-binary"],
    "psycopg2": ["psycopg2-binary"],
    "duckdb": ["duckdb", "duckdb-extension-postgres-scanner"],
    "clickhouse_sqlalchemy": ["clickhouse-sqlalchemy", "clickhouse-driver"],
    "clickhouse_sqlalchemy_http": ["clickhouse-sqlalchemy"],
    "clickhouse_connect_sqlalchemy": ["sqlalchemy", "clickhouse-connect"],
    "chdb": ["chdb-core"],
    "ibis": ["ibis-framework"],
}
"""Of drivers whose package is not called as they are."""


def distributions_of(driver: str) -> list[str]:
    """The packages that a driver is installed as."""
    return DISTRIBUTIONS.get(driver, [driver.replace("_", "-")])


def packages_table(libraries: dict[str, str]) -> Listing:
    """Each driver of each database: its packages in these versions, how many techniques it has, what else they ask for.

    Of what no package brings, the version is that which is built here.
    """
    rows: dict[tuple[str, str, tuple[Requirement, ...]], list[str]] = {}
    for technique in techniques():
        if technique.origin != "baseline":
            beside = tuple(one for one in technique.requires if one not in ("key", "empty_table"))
            rows.setdefault((technique.database, technique.driver, beside), []).append(technique.direction)

    def packages(driver: str, beside: tuple[Requirement, ...]) -> str:
        if driver in STANDARD:
            return "Python's own"
        if "adbc_clickhouse" in beside:
            manager = libraries["adbc-driver-manager"]
            return f"adbc-driver-manager {manager}, adbc_clickhouse {adbc_clickhouse_version()}"
        return ", ".join(f"{name} {libraries[name]}" for name in distributions_of(driver))

    found: list[dict[str, Any]] = [
        {
            "database": DATABASES[database], "driver": DRIVERS[driver], "packages": packages(driver, beside),
            "writes": directions.count("write"), "reads": directions.count("read"),
            "beside": "; ".join(REQUIREMENTS[one] for one in beside),
        }
        for (database, driver, beside), directions in rows.items()
    ]  # fmt: skip
    return Listing(
        [
            words("database", "database"), words("driver", "driver"), words("packages", "packages"),
            Column("writes", "writes"), Column("reads", "reads"), words("needs beside them", "beside"),
        ],
        sorted(found, key=lambda row: (row["database"] == "ClickHouse", row["driver"].casefold(), row["beside"])),
    )  # fmt: skip
