"""framehaul.read from PostgreSQL."""

from typing import Any

import pandas as pd
import polars as pl
import psycopg

from framehaul.api.calls import read
from framehaul.data.schema import Table
from framehaul.techniques.registry import technique


@technique(family="framehaul", label="framehaul.read into Polars", client="psycopg")
def polars_framehaul_read(connection: psycopg.Connection[Any], table: Table) -> pl.DataFrame:
    """Describe the result of a query, and read it."""
    frame: pl.DataFrame = read(connection, table.postgres_select)
    return frame


@technique(family="framehaul", label="framehaul.read into pandas", client="psycopg")
def pandas_framehaul_read(connection: psycopg.Connection[Any], table: Table) -> pd.DataFrame:
    """Read as `polars_framehaul_read`."""
    frame: pd.DataFrame = read(connection, table.postgres_select, frame="pandas")
    return frame
