"""Write a dataframe to ClickHouse."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.request import urlopen

import httpx
import pandas as pd
import polars as pl
import sqlalchemy
from asynch.proto.connection import Connection as AsynchConnection
from clickhouse_driver import Client

from framehaul.data.schema import ColumnType, Table
from framehaul.techniques.clients import HttpEndpoint
from framehaul.techniques.registry import technique

# All text is quoted, because unquoted CSV text is not safe: ClickHouse trims blanks around it (in a LowCardinality
# column even with input_format_csv_trim_whitespaces = 0) and reads an empty field as the column's default.
# pandas then quotes NULL as well, which needs a setting of ClickHouse:
# https://clickhouse.com/docs/operations/settings/formats#format_csv_null_representation
QUOTED_NULL = """SETTINGS format_csv_null_representation = '"\\\\N"'"""

# TabSeparated has no quotes, but escapes with backslashes: https://clickhouse.com/docs/interfaces/formats/TabSeparated
TSV_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def pandas_csv(frame: pd.DataFrame) -> str:
    """Return CSV in which all text is quoted, and NULL as well, for which the query needs `QUOTED_NULL`."""
    return frame.to_csv(index=False, header=False, quoting=csv.QUOTE_NONNUMERIC, na_rep=r"\N")


def polars_csv(frame: pl.DataFrame) -> str:
    """Return CSV in which all text is quoted and NULL is not."""
    return frame.write_csv(include_header=False, quote_style="non_numeric", null_value=r"\N")


def pandas_tsv(frame: pd.DataFrame, table: Table) -> str:
    """Return TabSeparated text, escaped one character after another, beginning with the backslash."""
    escaped = {name: frame[name] for name in table.columns_of(ColumnType.TEXT)}
    for character, escape in TSV_ESCAPES.items():
        escaped = {name: text.str.replace(character, escape, regex=False) for name, text in escaped.items()}
    return frame.assign(**escaped).to_csv(index=False, header=False, sep="\t", quoting=csv.QUOTE_NONE, na_rep=r"\N")


def polars_tsv(frame: pl.DataFrame, table: Table) -> str:
    """Return TabSeparated text, escaped in one pass over each column."""
    escaped = frame.with_columns(pl.col(table.columns_of(ColumnType.TEXT)).str.replace_many(TSV_ESCAPES))
    return escaped.write_csv(include_header=False, separator="\t", quote_style="never", null_value=r"\N")


@technique(family="insert_text", label="clickhouse-driver INSERT FORMAT CSV from Pandas delimited text")
def pandas_clickhouse_driver_csv(client: Client, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes CSV; clickhouse-driver sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) {QUOTED_NULL} FORMAT CSV\n"
    client.execute(query + pandas_csv(frame))


@technique(family="insert_text", label="clickhouse-driver INSERT FORMAT CSV from Polars delimited text")
def polars_clickhouse_driver_csv(client: Client, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes CSV; clickhouse-driver sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT CSV\n"
    client.execute(query + polars_csv(frame))


@technique(family="insert_text", label="clickhouse-driver INSERT FORMAT TSV from Pandas delimited text")
def pandas_clickhouse_driver_tsv(client: Client, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes backslash-escaped TSV; clickhouse-driver sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT TabSeparated\n"
    client.execute(query + pandas_tsv(frame, table))


@technique(family="insert_text", label="clickhouse-driver INSERT FORMAT TSV from Polars delimited text")
def polars_clickhouse_driver_tsv(client: Client, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes backslash-escaped TSV; clickhouse-driver sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT TabSeparated\n"
    client.execute(query + polars_tsv(frame, table))


@technique(family="insert_text", label="SQLAlchemy over native driver INSERT FORMAT CSV from Pandas delimited text")
def pandas_clickhouse_sqlalchemy_csv(connection: sqlalchemy.Connection, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes CSV; SQLAlchemy sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) {QUOTED_NULL} FORMAT CSV\n"
    connection.exec_driver_sql((query + pandas_csv(frame)).replace("%", "%%"))  # the dialect formats statements


@technique(family="insert_text", label="SQLAlchemy over native driver INSERT FORMAT CSV from Polars delimited text")
def polars_clickhouse_sqlalchemy_csv(connection: sqlalchemy.Connection, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes CSV; SQLAlchemy sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT CSV\n"
    connection.exec_driver_sql((query + polars_csv(frame)).replace("%", "%%"))  # the dialect formats statements


@technique(family="insert_text", label="SQLAlchemy over native driver INSERT FORMAT TSV from Pandas delimited text")
def pandas_clickhouse_sqlalchemy_tsv(connection: sqlalchemy.Connection, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes backslash-escaped TSV; SQLAlchemy sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT TabSeparated\n"
    connection.exec_driver_sql((query + pandas_tsv(frame, table)).replace("%", "%%"))  # the dialect formats statements


@technique(family="insert_text", label="SQLAlchemy over native driver INSERT FORMAT TSV from Polars delimited text")
def polars_clickhouse_sqlalchemy_tsv(connection: sqlalchemy.Connection, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes backslash-escaped TSV; SQLAlchemy sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT TabSeparated\n"
    connection.exec_driver_sql((query + polars_tsv(frame, table)).replace("%", "%%"))  # the dialect formats statements


@technique(family="insert_text", label="asynch INSERT FORMAT CSV from Pandas delimited text")
async def pandas_asynch_csv(connection: AsynchConnection, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes CSV; asynch sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) {QUOTED_NULL} FORMAT CSV\n"
    await connection.execute(query + pandas_csv(frame))


@technique(family="insert_text", label="asynch INSERT FORMAT CSV from Polars delimited text")
async def polars_asynch_csv(connection: AsynchConnection, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes CSV; asynch sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT CSV\n"
    await connection.execute(query + polars_csv(frame))


@technique(family="insert_text", label="asynch INSERT FORMAT TSV from Pandas delimited text")
async def pandas_asynch_tsv(connection: AsynchConnection, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes backslash-escaped TSV; asynch sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT TabSeparated\n"
    await connection.execute(query + pandas_tsv(frame, table))


@technique(family="insert_text", label="asynch INSERT FORMAT TSV from Polars delimited text")
async def polars_asynch_tsv(connection: AsynchConnection, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes backslash-escaped TSV; asynch sends it inside the text of the query."""
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT TabSeparated\n"
    await connection.execute(query + polars_tsv(frame, table))


@technique(family="native_columnar", label="clickhouse-driver native columnar insert from Pandas dataframe")
def pandas_clickhouse_driver_native_columnar(client: Client, table: Table, frame: pd.DataFrame) -> None:
    """pandas returns columns as Python lists; clickhouse-driver encodes them as native blocks."""
    columns = [_none_for_missing(frame[name]).tolist() for name in table.column_names]
    client.execute(f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) VALUES", columns, columnar=True)


@technique(family="native_columnar", label="clickhouse-driver native columnar insert from Polars dataframe")
def polars_clickhouse_driver_native_columnar(client: Client, table: Table, frame: pl.DataFrame) -> None:
    """Polars returns columns as Python lists; clickhouse-driver encodes them as native blocks."""
    columns = [frame.get_column(name).to_list() for name in table.column_names]
    client.execute(f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) VALUES", columns, columnar=True)


@technique(family="native_columnar", label="asynch native columnar insert from Pandas dataframe")
async def pandas_asynch_native_columnar(connection: AsynchConnection, table: Table, frame: pd.DataFrame) -> None:
    """pandas returns columns as Python lists; asynch encodes them as native blocks."""
    columns = [_none_for_missing(frame[name]).tolist() for name in table.column_names]
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) VALUES"
    await connection.execute(query, columns, columnar=True)


@technique(family="native_columnar", label="asynch native columnar insert from Polars dataframe")
async def polars_asynch_native_columnar(connection: AsynchConnection, table: Table, frame: pl.DataFrame) -> None:
    """Polars returns columns as Python lists; asynch encodes them as native blocks."""
    columns = [frame.get_column(name).to_list() for name in table.column_names]
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) VALUES"
    await connection.execute(query, columns, columnar=True)


@technique(family="http_parquet", label="urllib HTTP INSERT FORMAT Parquet from Pandas dataframe")
def pandas_urllib_parquet(endpoint: HttpEndpoint, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes a Parquet file in memory; urllib posts it."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Parquet"
    with urlopen(endpoint.request(query, buffer.getvalue())) as response:
        response.read()


@technique(family="http_parquet", label="urllib HTTP INSERT FORMAT Parquet from Polars dataframe")
def polars_urllib_parquet(endpoint: HttpEndpoint, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes a Parquet file in memory; urllib posts it."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Parquet"
    with urlopen(endpoint.request(query, buffer.getvalue())) as response:
        response.read()


@technique(family="http_parquet", label="httpx async HTTP INSERT FORMAT Parquet from Pandas dataframe")
async def pandas_httpx_parquet(client: httpx.AsyncClient, table: Table, frame: pd.DataFrame) -> None:
    """pandas writes a Parquet file in memory; httpx posts it."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Parquet"
    (await client.post("/", params={"query": query}, content=buffer.getvalue())).raise_for_status()


@technique(family="http_parquet", label="httpx async HTTP INSERT FORMAT Parquet from Polars dataframe")
async def polars_httpx_parquet(client: httpx.AsyncClient, table: Table, frame: pl.DataFrame) -> None:
    """Polars writes a Parquet file in memory; httpx posts it."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT Parquet"
    (await client.post("/", params={"query": query}, content=buffer.getvalue())).raise_for_status()


def _none_for_missing(column: pd.Series[Any]) -> pd.Series[Any]:
    """Return the column with None in place of pandas' missing values, which the drivers do not support."""
    missing = column.isna()
    return column.astype(object).where(~missing, None) if missing.any() else column
