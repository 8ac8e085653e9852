"""framehaul.write to PostgreSQL."""

from typing import Any

import pandas as pd
import polars as pl
import psycopg

from framehaul.api.calls import write
from framehaul.data.schema import Table
from framehaul.techniques.registry import technique


@technique(family="framehaul", label="framehaul.write from Polars", client="psycopg")
def polars_framehaul_write(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Look the table up, choose a technique, and append the frame."""
    write(frame, connection, table.postgres_name)


@technique(family="framehaul", label="framehaul.write from pandas", client="psycopg")
def pandas_framehaul_write(connection: psycopg.Connection[Any], table: Table, frame: pd.DataFrame) -> None:
    """Write as `polars_framehaul_write`."""
    write(frame, connection, table.postgres_name)
