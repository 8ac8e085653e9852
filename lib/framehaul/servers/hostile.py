"""Define sessions with unusual settings, each of which an administrator may have chosen.

A technique that does not set what its format depends on sends or reads wrong values in such a session. The settings are
documented in https://www.postgresql.org/docs/18/runtime-config-client.html and, for ClickHouse, in
https://clickhouse.com/docs/operations/settings/settings and https://clickhouse.com/docs/operations/settings/formats.
Asynchronous inserts are acknowledged ten seconds before they are stored, so that an immediate query misses them.
"""

from pathlib import Path

HOSTILE = "framehaul_hostile"
"""The PostgreSQL role and ClickHouse user whose sessions have these settings."""
_ROWS = [line.split("\t") for line in Path(__file__).with_name("hostile.tsv").read_text("utf8").splitlines()[1:]]
POSTGRES_SETTINGS, CLICKHOUSE_SETTINGS = (
    {setting: value for database, setting, value in _ROWS if database == name} for name in ("postgres", "clickhouse")
)
