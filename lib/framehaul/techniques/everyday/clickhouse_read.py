"""Read a dataframe from ClickHouse by the calls that manuals show first."""

import clickhouse_driver
import pandas as pd
import polars as pl
from clickhouse_connect.driver.client import Client
from sqlalchemy import Connection

from framehaul.data.schema import Table
from framehaul.techniques.registry import also, technique

# The dialect of clickhouse-connect: https://clickhouse.com/docs/integrations/language-clients/python/sqlalchemy
# The dialect over HTTP: https://clickhouse-sqlalchemy.readthedocs.io/en/latest/connection.html#http
OVER_HTTP = "pandas.read_sql, SQLAlchemy over HTTP by clickhouse-sqlalchemy"


@also("pandas_clickhouse_sqlalchemy_http_read_sql", OVER_HTTP)
@also("pandas_clickhouse_connect_sqlalchemy_read_sql", "pandas.read_sql, SQLAlchemy over clickhouse-connect")
@technique("convenience", "pandas.read_sql, SQLAlchemy over clickhouse-driver")
def pandas_clickhouse_sqlalchemy_read_sql(connection: Connection, table: Table) -> pd.DataFrame:
    """pandas reads rows over a SQLAlchemy connection."""
    # `read_sql` would first check over a second connection whether the query is a table's name, which fails for some
    # names: https://pandas.pydata.org/docs/reference/api/pandas.read_sql_query.html
    return pd.read_sql_query(table.clickhouse_select.replace("%", "%%"), connection)


@also("polars_clickhouse_connect_sqlalchemy_read_database", "polars.read_database, SQLAlchemy over clickhouse-connect")
@technique("convenience", "polars.read_database, SQLAlchemy over clickhouse-driver")
def polars_clickhouse_sqlalchemy_read_database(connection: Connection, table: Table) -> pl.DataFrame:
    """Polars reads rows over a SQLAlchemy connection."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html
    return pl.read_database(table.clickhouse_select.replace(":", r"\:"), connection)


@technique("native_columnar", "clickhouse-driver query_dataframe -> Pandas dataframe", client="clickhouse_driver_numpy")
def pandas_clickhouse_driver_query_dataframe(client: clickhouse_driver.Client, table: Table) -> pd.DataFrame:
    """clickhouse-driver makes numpy arrays of native blocks; it renames columns, which get their names back."""
    # https://clickhouse-driver.readthedocs.io/en/latest/features.html#numpy-pandas-support
    frame: pd.DataFrame = client.query_dataframe(table.clickhouse_select)
    frame.columns = pd.Index(table.column_names)
    return frame


@technique("row_fetch", "clickhouse-connect query, rows -> Polars dataframe")
def polars_clickhouse_connect_query(client: Client, table: Table) -> pl.DataFrame:
    """clickhouse-connect returns tuples, and Polars builds columns from them."""
    # https://clickhouse.com/docs/integrations/language-clients/python/driver-api#client-query-method
    rows = client.query(table.clickhouse_select).result_rows
    return pl.DataFrame(rows, schema=table.column_names, orient="row")
