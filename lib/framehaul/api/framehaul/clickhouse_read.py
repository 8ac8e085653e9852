"""framehaul.read from ClickHouse."""

import pandas as pd
import polars as pl

from framehaul.api.calls import read
from framehaul.data.schema import Table
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.registry import technique


@technique(family="framehaul", label="framehaul.read into Polars", client="http_client")
def polars_framehaul_read(connection: HttpConnection, table: Table) -> pl.DataFrame:
    """Describe the result of a query, and read it."""
    frame: pl.DataFrame = read(connection, f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}")
    return frame


@technique(family="framehaul", label="framehaul.read into pandas", client="http_client")
def pandas_framehaul_read(connection: HttpConnection, table: Table) -> pd.DataFrame:
    """Read as `polars_framehaul_read`."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}"
    frame: pd.DataFrame = read(connection, query, frame="pandas")
    return frame
