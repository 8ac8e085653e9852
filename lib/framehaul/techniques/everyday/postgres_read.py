"""Read a dataframe from PostgreSQL by the calls that manuals show first."""

from typing import Any, cast

import pandas as pd
import polars as pl
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection
from sqlalchemy import Connection

from framehaul.data.schema import ColumnType, Table
from framehaul.techniques.registry import also, technique


@technique("convenience", 'pandas.read_sql with dtype_backend="pyarrow", SQLAlchemy over psycopg')
def pandas_sqlalchemy_read_sql_pyarrow(connection: Connection, table: Table) -> pd.DataFrame:
    """pandas makes Arrow-backed columns of the same rows."""
    # https://pandas.pydata.org/docs/reference/api/pandas.read_sql.html
    return pd.read_sql(table.postgres_select.replace("%", "%%"), connection, dtype_backend="pyarrow")


@technique("convenience", "pandas.read_sql, SQLAlchemy over psycopg2")
def pandas_sqlalchemy_psycopg2_read_sql(connection: Connection, table: Table) -> pd.DataFrame:
    """psycopg2 fetches the same rows."""
    # https://pandas.pydata.org/docs/reference/api/pandas.read_sql.html
    return pd.read_sql(table.postgres_select.replace("%", "%%"), connection)


@technique("arrow", "pandas.read_sql over ADBC")
def pandas_adbc_read_sql(connection: AdbcConnection, table: Table) -> pd.DataFrame:
    """ADBC returns Arrow, of which pandas makes columns without Python objects."""
    # https://pandas.pydata.org/docs/reference/api/pandas.read_sql.html
    return pd.read_sql(table.postgres_select_as_in_frames, connection, dtype_backend="pyarrow")


@technique("arrow", "polars.read_database over ADBC")
def polars_adbc_read_database(connection: AdbcConnection, table: Table) -> pl.DataFrame:
    """ADBC returns Arrow, which Polars takes over."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html
    return pl.read_database(table.postgres_select_as_in_frames, connection)


@also("polars_adbc_uri_read_database", 'polars.read_database_uri with engine="adbc"', "adbc")
@technique("arrow", 'polars.read_database_uri with engine="connectorx"')
def polars_connectorx_read_database_uri(address: str, table: Table, engine: Any = "connectorx") -> pl.DataFrame:
    """Polars passes the address to ConnectorX or ADBC, which connects and returns Arrow."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.read_database_uri.html
    return pl.read_database_uri(table.postgres_select_as_in_frames, address, engine=engine)


CLICKHOUSE: dict[str, Any] = {"database": "clickhouse", "client": "ibis_clickhouse", "family": "http_native"}
"""Over clickhouse-connect, whose `query_df` makes the frame of pandas."""


@also("pandas_ibis_to_pandas", "Ibis to_pandas", **CLICKHOUSE)
@technique("row_fetch", "Ibis to_pandas", client="ibis_postgres")
def pandas_ibis_to_pandas(backend: Any, table: Table) -> pd.DataFrame:
    """psycopg fetches all rows for Ibis, and pandas makes columns of them."""
    # https://ibis-project.org/reference/expression-generic#ibis.expr.types.core.Expr.to_pandas
    return cast("pd.DataFrame", backend.table(table.name).to_pandas())


@also("polars_ibis_to_polars", "Ibis to_polars", **CLICKHOUSE)
@technique("row_fetch", "Ibis to_polars", client="ibis_postgres")
def polars_ibis_to_polars(backend: Any, table: Table) -> pl.DataFrame:
    """The driver fetches rows, Ibis makes Arrow of them, which Polars takes over."""
    # https://ibis-project.org/reference/expression-generic#ibis.expr.types.core.Expr.to_polars
    stored = backend.table(table.name)  # UUIDs become text, because Ibis cannot convert the drivers' UUIDs to Arrow
    texts = {name: stored[name].cast("string") for name in table.columns_of(ColumnType.UUID)}
    return cast("pl.DataFrame", stored.mutate(**texts).to_polars())
