"""framehaul.read from ClickHouse."""

from typing import cast

from framehaul.api.calls import Kind, read
from framehaul.data.schema import Table
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.registry import DataFrame, also, technique


@also("pandas_framehaul_read", "framehaul.read into pandas", "pandas")
@technique(family="framehaul", label="framehaul.read into Polars", client="http_client")
def polars_framehaul_read(connection: HttpConnection, table: Table, frame: Kind = "polars") -> DataFrame:
    """Describe the result of a query, and read it."""
    return cast("DataFrame", read(connection, table.clickhouse_select, frame=frame))
