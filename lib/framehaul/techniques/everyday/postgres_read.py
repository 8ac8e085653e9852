"""PostgreSQL to dataframe, by what people call first.

Every function takes an open connection and a `Table`, and returns the table's content as a fully materialised frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import adbc_driver_postgresql.dbapi
import pandas as pd
import polars as pl
import sqlalchemy

from framehaul.data.schema import Table
from framehaul.techniques.clients import table_by_ibis
from framehaul.techniques.registry import technique

if TYPE_CHECKING:
    import ibis

BATCH_ROWS = 10_000


@technique(family="convenience", label="pandas.read_sql in chunks, a cursor on the server, SQLAlchemy over psycopg")
def pandas_sqlalchemy_read_sql_chunks(connection: sqlalchemy.Connection, table: Table) -> pd.DataFrame:
    """pandas makes a frame of every so many rows, which stay on the server until they are asked for.

    https://pandas.pydata.org/docs/user_guide/io.html#querying
    """
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}".replace("%", "%%")
    streaming = connection.execution_options(stream_results=True)
    return pd.concat(pd.read_sql(query, streaming, chunksize=BATCH_ROWS), ignore_index=True)


@technique(family="convenience", label='pandas.read_sql with dtype_backend="pyarrow", SQLAlchemy over psycopg')
def pandas_sqlalchemy_read_sql_pyarrow(connection: sqlalchemy.Connection, table: Table) -> pd.DataFrame:
    """The same rows, of which pandas makes columns of Arrow.

    https://pandas.pydata.org/docs/reference/api/pandas.read_sql.html
    """
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}".replace("%", "%%")
    return pd.read_sql(query, connection, dtype_backend="pyarrow")


@technique(family="convenience", label="pandas.read_sql, SQLAlchemy over psycopg2")
def pandas_sqlalchemy_psycopg2_read_sql(connection: sqlalchemy.Connection, table: Table) -> pd.DataFrame:
    """The same rows, by psycopg2.

    https://pandas.pydata.org/docs/reference/api/pandas.read_sql.html
    """
    query = f"SELECT {table.postgres_columns} FROM {table.postgres_name}".replace("%", "%%")
    return pd.read_sql(query, connection)


@technique(family="arrow", label="pandas.read_sql over ADBC")
def pandas_adbc_read_sql(connection: adbc_driver_postgresql.dbapi.Connection, table: Table) -> pd.DataFrame:
    """ADBC gives Arrow, of which pandas makes columns without objects of Python.

    https://pandas.pydata.org/docs/reference/api/pandas.read_sql.html
    """
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return pd.read_sql(query, connection, dtype_backend="pyarrow")


@technique(family="convenience", label="polars.read_database in batches, a cursor on the server, SQLAlchemy")
def polars_sqlalchemy_iter_batches(connection: sqlalchemy.Connection, table: Table) -> pl.DataFrame:
    """Polars makes a frame of every so many rows, which stay on the server until they are asked for.

    https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html
    """
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}".replace(":", r"\:")
    streaming = connection.execution_options(stream_results=True)
    return pl.concat(pl.read_database(query, streaming, iter_batches=True, batch_size=BATCH_ROWS))


@technique(family="arrow", label="polars.read_database over ADBC")
def polars_adbc_read_database(connection: adbc_driver_postgresql.dbapi.Connection, table: Table) -> pl.DataFrame:
    """ADBC gives Arrow, which Polars takes as it is.

    https://docs.pola.rs/api/python/stable/reference/api/polars.read_database.html
    """
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return pl.read_database(query, connection)


@technique(family="arrow", label='polars.read_database_uri with engine="connectorx"')
def polars_connectorx_read_database_uri(address: str, table: Table) -> pl.DataFrame:
    """Polars gives the address to ConnectorX.

    https://docs.pola.rs/api/python/stable/reference/api/polars.read_database_uri.html
    """
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return pl.read_database_uri(query, address)


@technique(family="arrow", label='polars.read_database_uri with engine="adbc"')
def polars_adbc_uri_read_database(address: str, table: Table) -> pl.DataFrame:
    """Polars gives the address to ADBC, and takes its Arrow as it is.

    https://docs.pola.rs/api/python/stable/reference/api/polars.read_database_uri.html
    """
    query = f"SELECT {table.postgres_columns_as_in_frames} FROM {table.postgres_name}"
    return pl.read_database_uri(query, address, engine="adbc")


@technique(family="row_fetch", label="Ibis to_pandas", client="ibis_postgres")
def pandas_ibis_to_pandas(backend: ibis.BaseBackend, table: Table) -> pd.DataFrame:
    """Ibis has psycopg fetch all rows, and pandas make columns of them.

    https://ibis-project.org/reference/expression-generic#ibis.expr.types.core.Expr.to_pandas
    """
    frame: pd.DataFrame = backend.table(table.name).to_pandas()
    return frame


@technique(family="row_fetch", label="Ibis to_polars", client="ibis_postgres")
def polars_ibis_to_polars(backend: ibis.BaseBackend, table: Table) -> pl.DataFrame:
    """Ibis has psycopg fetch rows from a cursor on the server, makes Arrow of them, and Polars takes that.

    https://ibis-project.org/reference/expression-generic#ibis.expr.types.core.Expr.to_polars
    """
    frame: pl.DataFrame = table_by_ibis(backend, table).to_polars()
    return frame
