"""Read a table of ClickHouse into a dataframe."""

import io
from urllib.request import urlopen

import httpx
import pandas as pd
import polars as pl
from asynch.proto.connection import Connection as Asynch
from clickhouse_driver import Client
from sqlalchemy import Connection

from framehaul.data.schema import Table
from framehaul.techniques.clients import RequestMaker
from framehaul.techniques.published.postgres_read import csv_to_pandas, csv_to_polars, rows_to_pandas, rows_to_polars
from framehaul.techniques.registry import DataFrame, ToFrame, technique


@technique("native_columnar", "clickhouse-driver native columnar fetch -> Polars dataframe", pandas=pd.DataFrame)
def polars_clickhouse_driver_native_columnar(client: Client, table: Table, to: ToFrame = pl.DataFrame) -> DataFrame:
    """clickhouse-driver decodes native blocks into a Python sequence per column, of which a frame is built."""
    columns = client.execute(table.clickhouse_select, columnar=True)
    return to(dict(zip(table.column_names, columns, strict=True)))


@technique("native_columnar", "asynch native columnar fetch -> Polars dataframe", pandas=pd.DataFrame)
async def polars_asynch_native_columnar(connection: Asynch, table: Table, to: ToFrame = pl.DataFrame) -> DataFrame:
    """asynch decodes native blocks into a Python sequence per column, of which a frame is built."""
    columns = await connection.execute(table.clickhouse_select, columnar=True)
    return to(dict(zip(table.column_names, columns, strict=True)))


@technique("row_fetch", "SQLAlchemy over native driver row fetch -> Polars dataframe", pandas=rows_to_pandas)
def polars_clickhouse_sqlalchemy_row_fetch(
    connection: Connection, table: Table, to: ToFrame = rows_to_polars
) -> DataFrame:
    """SQLAlchemy, over clickhouse-driver, returns row tuples; the dataframe library builds columns from them."""
    return to(connection.exec_driver_sql(table.clickhouse_select.replace("%", "%%")).all(), table)


@technique("row_fetch", "asynch row fetch -> Polars dataframe", pandas=rows_to_pandas)
async def polars_asynch_row_fetch(connection: Asynch, table: Table, to: ToFrame = rows_to_polars) -> DataFrame:
    """asynch returns row tuples; the dataframe library builds columns from them."""
    return to(await connection.execute(table.clickhouse_select), table)


@technique("http_csv", "urllib HTTP SELECT ... FORMAT CSV -> Polars dataframe", pandas=csv_to_pandas)
def polars_urllib_csv(request: RequestMaker, table: Table, to: ToFrame = csv_to_polars) -> DataFrame:
    """urllib reads all of the CSV; then the dataframe library parses it."""
    with urlopen(request(f"{table.clickhouse_select} FORMAT CSV")) as response:
        return to(io.BytesIO(response.read()), table)


@technique("http_csv", "httpx async HTTP SELECT ... FORMAT CSV -> Polars dataframe", pandas=csv_to_pandas)
async def polars_httpx_csv(client: httpx.AsyncClient, table: Table, to: ToFrame = csv_to_polars) -> DataFrame:
    """httpx reads all of the CSV; then the dataframe library parses it."""
    response = await client.post("/", params={"query": f"{table.clickhouse_select} FORMAT CSV"})
    return to(io.BytesIO(response.raise_for_status().content), table)


@technique("http_parquet", "urllib HTTP SELECT ... FORMAT Parquet -> Polars dataframe", pandas=pd.read_parquet)
def polars_urllib_parquet(request: RequestMaker, table: Table, to: ToFrame = pl.read_parquet) -> DataFrame:
    """urllib reads the whole Parquet file; then the dataframe library decodes it."""
    with urlopen(request(f"{table.clickhouse_select} FORMAT Parquet")) as response:
        return to(io.BytesIO(response.read()))


@technique("http_parquet", "httpx async HTTP SELECT ... FORMAT Parquet -> Polars dataframe", pandas=pd.read_parquet)
async def polars_httpx_parquet(client: httpx.AsyncClient, table: Table, to: ToFrame = pl.read_parquet) -> DataFrame:
    """httpx reads the whole Parquet file; then the dataframe library decodes it."""
    response = await client.post("/", params={"query": f"{table.clickhouse_select} FORMAT Parquet"})
    return to(io.BytesIO(response.raise_for_status().content))
