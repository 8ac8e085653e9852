"""framehaul.write to ClickHouse."""

import pandas as pd
import polars as pl

from framehaul.api.calls import write
from framehaul.data.schema import Table
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.registry import technique


@technique(family="framehaul", label="framehaul.write from Polars", client="http_client")
def polars_framehaul_write(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Look the table up, choose a technique, and append the frame."""
    write(frame, connection, table.clickhouse_name)


@technique(family="framehaul", label="framehaul.write from pandas", client="http_client")
def pandas_framehaul_write(connection: HttpConnection, table: Table, frame: pd.DataFrame) -> None:
    """Write as `polars_framehaul_write`."""
    write(frame, connection, table.clickhouse_name)
