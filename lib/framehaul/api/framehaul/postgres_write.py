"""framehaul.write to PostgreSQL."""

from typing import Any

import psycopg

from framehaul.api.calls import write
from framehaul.data.schema import Table
from framehaul.techniques.registry import DataFrame, also, technique


@also("pandas_framehaul_write", "framehaul.write from pandas")
@technique(family="framehaul", label="framehaul.write from Polars", client="psycopg")
def polars_framehaul_write(connection: psycopg.Connection[Any], table: Table, frame: DataFrame) -> None:
    """Look the table up, choose a technique, and append the frame."""
    write(frame, connection, table.postgres_name)
