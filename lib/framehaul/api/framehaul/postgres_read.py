"""framehaul.read from PostgreSQL."""

from typing import Any, cast

import psycopg

from framehaul.api.calls import Kind, read
from framehaul.data.schema import Table
from framehaul.techniques.registry import DataFrame, also, technique


@also("pandas_framehaul_read", "framehaul.read into pandas", "pandas")
@technique(family="framehaul", label="framehaul.read into Polars", client="psycopg")
def polars_framehaul_read(connection: psycopg.Connection[Any], table: Table, frame: Kind = "polars") -> DataFrame:
    """Describe the result of a query, and read it."""
    return cast("DataFrame", read(connection, table.postgres_select, frame=frame))
