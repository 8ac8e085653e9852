"""Read a table of ClickHouse into a dataframe."""

from __future__ import annotations

import io
from typing import Any
from urllib.request import urlopen

import httpx
import pandas as pd
import polars as pl
from asynch.proto.connection import Connection as AsynchConnection
from clickhouse_driver import Client
from sqlalchemy import Connection

from framehaul.data.schema import FLOATS, ColumnType, Table
from framehaul.techniques.clients import RequestMaker
from framehaul.techniques.registry import technique


@technique("native_columnar", "clickhouse-driver native columnar fetch -> Pandas dataframe")
def pandas_clickhouse_driver_native_columnar(client: Client, table: Table) -> pd.DataFrame:
    """clickhouse-driver decodes native blocks into a Python sequence per column; pandas builds a frame from them."""
    columns = client.execute(f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}", columnar=True)
    return pd.DataFrame(dict(zip(table.column_names, columns, strict=True)))


@technique("native_columnar", "clickhouse-driver native columnar fetch -> Polars dataframe")
def polars_clickhouse_driver_native_columnar(client: Client, table: Table) -> pl.DataFrame:
    """clickhouse-driver decodes native blocks into a Python sequence per column; Polars builds a frame from them."""
    columns = client.execute(f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}", columnar=True)
    return pl.DataFrame(dict(zip(table.column_names, columns, strict=True)))


@technique("native_columnar", "asynch native columnar fetch -> Pandas dataframe")
async def pandas_asynch_native_columnar(connection: AsynchConnection, table: Table) -> pd.DataFrame:
    """asynch decodes native blocks into a Python sequence per column; pandas builds a frame from them."""
    columns = await connection.execute(f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}", columnar=True)
    return pd.DataFrame(dict(zip(table.column_names, columns, strict=True)))


@technique("native_columnar", "asynch native columnar fetch -> Polars dataframe")
async def polars_asynch_native_columnar(connection: AsynchConnection, table: Table) -> pl.DataFrame:
    """asynch decodes native blocks into a Python sequence per column; Polars builds a frame from them."""
    columns = await connection.execute(f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}", columnar=True)
    return pl.DataFrame(dict(zip(table.column_names, columns, strict=True)))


@technique("row_fetch", "SQLAlchemy over native driver row fetch -> Pandas dataframe")
def pandas_clickhouse_sqlalchemy_row_fetch(connection: Connection, table: Table) -> pd.DataFrame:
    """SQLAlchemy, over clickhouse-driver, returns row tuples; pandas builds columns from them."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}".replace("%", "%%")
    return pd.DataFrame(connection.exec_driver_sql(query).all(), columns=table.column_names)


@technique("row_fetch", "SQLAlchemy over native driver row fetch -> Polars dataframe")
def polars_clickhouse_sqlalchemy_row_fetch(connection: Connection, table: Table) -> pl.DataFrame:
    """SQLAlchemy, over clickhouse-driver, returns row tuples; Polars builds columns from them."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}".replace("%", "%%")
    return pl.DataFrame(connection.exec_driver_sql(query).all(), schema=table.column_names, orient="row")


@technique("row_fetch", "asynch row fetch -> Pandas dataframe")
async def pandas_asynch_row_fetch(connection: AsynchConnection, table: Table) -> pd.DataFrame:
    """asynch returns row tuples; pandas builds columns from them."""
    rows = await connection.execute(f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}")
    return pd.DataFrame(rows, columns=table.column_names)


@technique("row_fetch", "asynch row fetch -> Polars dataframe")
async def polars_asynch_row_fetch(connection: AsynchConnection, table: Table) -> pl.DataFrame:
    """asynch returns row tuples; Polars builds columns from them."""
    rows = await connection.execute(f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}")
    return pl.DataFrame(rows, schema=table.column_names, orient="row")


def pandas_from_csv(payload: bytes, table: Table) -> pd.DataFrame:
    r"""Return ClickHouse's CSV, in which only \N is NULL, parsed by pandas."""
    file, names = io.BytesIO(payload), table.column_names
    text = dict.fromkeys(table.columns_of(ColumnType.TEXT), "str")
    return pd.read_csv(file, header=None, names=names, na_values=[r"\N"], keep_default_na=False, dtype=text)


def polars_from_csv(payload: bytes, table: Table) -> pl.DataFrame:
    r"""Return ClickHouse's CSV, in which only \N is NULL, parsed by Polars; text and floats have the table's dtypes."""
    kinds = {name: table.polars_schema[name] for name in table.columns_of(ColumnType.TEXT, *FLOATS)}
    options: dict[str, Any] = {"has_header": False, "null_values": r"\N", "empty_string_is_null": False}
    return pl.read_csv(io.BytesIO(payload), new_columns=table.column_names, schema_overrides=kinds, **options)


@technique("http_csv", "urllib HTTP SELECT ... FORMAT CSV -> Pandas dataframe")
def pandas_urllib_csv(request: RequestMaker, table: Table) -> pd.DataFrame:
    """urllib reads all of the CSV; then pandas parses it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT CSV"
    with urlopen(request(query)) as response:
        return pandas_from_csv(response.read(), table)


@technique("http_csv", "urllib HTTP SELECT ... FORMAT CSV -> Polars dataframe")
def polars_urllib_csv(request: RequestMaker, table: Table) -> pl.DataFrame:
    """urllib reads all of the CSV; then Polars parses it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT CSV"
    with urlopen(request(query)) as response:
        return polars_from_csv(response.read(), table)


@technique("http_csv", "httpx async HTTP SELECT ... FORMAT CSV -> Pandas dataframe")
async def pandas_httpx_csv(client: httpx.AsyncClient, table: Table) -> pd.DataFrame:
    """httpx reads all of the CSV; then pandas parses it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT CSV"
    response = await client.post("/", params={"query": query})
    return pandas_from_csv(response.raise_for_status().content, table)


@technique("http_csv", "httpx async HTTP SELECT ... FORMAT CSV -> Polars dataframe")
async def polars_httpx_csv(client: httpx.AsyncClient, table: Table) -> pl.DataFrame:
    """httpx reads all of the CSV; then Polars parses it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT CSV"
    response = await client.post("/", params={"query": query})
    return polars_from_csv(response.raise_for_status().content, table)


@technique("http_parquet", "urllib HTTP SELECT ... FORMAT Parquet -> Pandas dataframe")
def pandas_urllib_parquet(request: RequestMaker, table: Table) -> pd.DataFrame:
    """urllib reads the whole Parquet file; then pandas decodes it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Parquet"
    with urlopen(request(query)) as response:
        return pd.read_parquet(io.BytesIO(response.read()))


@technique("http_parquet", "urllib HTTP SELECT ... FORMAT Parquet -> Polars dataframe")
def polars_urllib_parquet(request: RequestMaker, table: Table) -> pl.DataFrame:
    """urllib reads the whole Parquet file; then Polars decodes it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Parquet"
    with urlopen(request(query)) as response:
        return pl.read_parquet(io.BytesIO(response.read()))


@technique("http_parquet", "httpx async HTTP SELECT ... FORMAT Parquet -> Pandas dataframe")
async def pandas_httpx_parquet(client: httpx.AsyncClient, table: Table) -> pd.DataFrame:
    """httpx reads the whole Parquet file; then pandas decodes it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Parquet"
    response = await client.post("/", params={"query": query})
    return pd.read_parquet(io.BytesIO(response.raise_for_status().content))


@technique("http_parquet", "httpx async HTTP SELECT ... FORMAT Parquet -> Polars dataframe")
async def polars_httpx_parquet(client: httpx.AsyncClient, table: Table) -> pl.DataFrame:
    """httpx reads the whole Parquet file; then Polars decodes it."""
    query = f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name} FORMAT Parquet"
    response = await client.post("/", params={"query": query})
    return pl.read_parquet(io.BytesIO(response.raise_for_status().content))
