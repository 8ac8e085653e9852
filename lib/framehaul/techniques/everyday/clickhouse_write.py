"""Write a dataframe to ClickHouse by the calls that manuals show first."""

from typing import Any

import clickhouse_driver
import pandas as pd
import polars as pl
from clickhouse_connect.driver.client import Client
from sqlalchemy import Connection

from framehaul.data.schema import Table
from framehaul.techniques.registry import technique


@technique("insert_rows", "pandas.to_sql, SQLAlchemy over clickhouse-driver")
def pandas_clickhouse_sqlalchemy_to_sql(connection: Connection, table: Table, frame: pd.DataFrame) -> None:
    """pandas gives rows to SQLAlchemy, and clickhouse-driver makes native blocks of them."""
    # https://clickhouse-sqlalchemy.readthedocs.io/
    if "%" in table.name:  # which the dialect doubles
        raise ValueError(f"table {table.name}: clickhouse-sqlalchemy finds no table with % in its name: rename it")
    frame.to_sql(table.name, connection, if_exists="append", index=False)


@technique("insert_rows", "pandas.to_sql, SQLAlchemy over clickhouse-connect")
def pandas_clickhouse_connect_sqlalchemy_to_sql(connection: Connection, table: Table, frame: pd.DataFrame) -> None:
    """pandas gives rows to SQLAlchemy, and clickhouse-connect makes native blocks of them."""
    # https://clickhouse.com/docs/integrations/language-clients/python/sqlalchemy
    frame.to_sql(table.name, connection, if_exists="append", index=False)


@technique("native_columnar", "clickhouse-driver rows from Polars")
def polars_clickhouse_driver_rows(client: clickhouse_driver.Client, table: Table, frame: pl.DataFrame) -> None:
    """clickhouse-driver makes native blocks of row tuples."""
    # https://clickhouse-driver.readthedocs.io/en/latest/quickstart.html#inserting-data
    client.execute(f"{table.clickhouse_insert} VALUES", frame.rows())


@technique("http_native", "clickhouse-connect insert of rows from Polars")
def polars_clickhouse_connect_insert(client: Client, table: Table, frame: pl.DataFrame) -> None:
    """clickhouse-connect makes native blocks of row tuples."""
    # https://clickhouse.com/docs/integrations/language-clients/python/driver-api#client-insert-method
    client.insert(table.clickhouse_name, frame.rows(), column_names=table.column_names)


@technique("http_native", "Ibis insert from Pandas", client="ibis_clickhouse")
def pandas_ibis_insert(backend: Any, table: Table, frame: pd.DataFrame) -> None:
    """Ibis passes a pandas frame to clickhouse-connect's `insert_df`."""
    # https://ibis-project.org/backends/clickhouse#ibis.backends.clickhouse.Backend.insert
    backend.insert(table.name, frame)


@technique("arrow", "Ibis insert of Arrow from Polars", client="ibis_clickhouse")
def polars_ibis_insert(backend: Any, table: Table, frame: pl.DataFrame) -> None:
    """Ibis passes Arrow to clickhouse-connect's `insert_arrow`."""
    # From a Polars frame it would make an external table, whose column names it does not quote.
    # https://ibis-project.org/backends/clickhouse#ibis.backends.clickhouse.Backend.insert
    backend.insert(table.name, frame.to_arrow())
