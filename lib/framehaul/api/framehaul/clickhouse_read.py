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
    frame: pl.DataFrame = read(connection, table.clickhouse_select)
    return frame


@technique(family="framehaul", label="framehaul.read into pandas", client="http_client")
def pandas_framehaul_read(connection: HttpConnection, table: Table) -> pd.DataFrame:
    """Read as `polars_framehaul_read`."""
    frame: pd.DataFrame = read(connection, table.clickhouse_select, frame="pandas")
    return frame
