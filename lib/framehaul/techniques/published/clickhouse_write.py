"""Write a dataframe to ClickHouse."""

import csv
import io
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import httpx
import polars as pl
from asynch.proto.connection import Connection as Asynch
from clickhouse_driver import Client
from sqlalchemy import Connection

from framehaul.data.schema import ColumnType, Table
from framehaul.techniques.clients import RequestMaker
from framehaul.techniques.registry import DataFrame, also, technique

# All text is quoted, because unquoted CSV text is not safe: ClickHouse trims blanks around it (in a LowCardinality
# column even with input_format_csv_trim_whitespaces = 0) and reads an empty field as the column's default.
# pandas then quotes NULL as well, which needs a setting of ClickHouse:
# https://clickhouse.com/docs/operations/settings/formats#format_csv_null_representation
QUOTED_NULL = """SETTINGS format_csv_null_representation = '"\\\\N"'"""

# TabSeparated has no quotes, but escapes with backslashes: https://clickhouse.com/docs/interfaces/formats/TabSeparated
TSV_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


type Insert = Callable[[DataFrame, Table], str]


def insert_csv(frame: DataFrame, table: Table) -> str:
    """Return an INSERT with the frame as CSV in which all text is quoted, in pandas NULL as well."""
    if isinstance(frame, pl.DataFrame):
        settings, text = "", frame.write_csv(include_header=False, quote_style="non_numeric", null_value=r"\N")
    else:
        settings = QUOTED_NULL
        text = frame.to_csv(index=False, header=False, quoting=csv.QUOTE_NONNUMERIC, na_rep=r"\N")
    return f"{table.clickhouse_insert} {settings} FORMAT CSV\n{text}"


def insert_tsv(frame: DataFrame, table: Table) -> str:
    """Return an INSERT with the frame as TabSeparated text; pandas escapes one character after another."""
    names = table.columns_of(ColumnType.TEXT)
    if isinstance(frame, pl.DataFrame):
        escaped = frame.with_columns(pl.col(names).str.replace_many(TSV_ESCAPES))
        text = escaped.write_csv(include_header=False, separator="\t", quote_style="never", null_value=r"\N")
    else:
        for character, escape in TSV_ESCAPES.items():  # the backslash comes first
            frame = frame.assign(**{name: frame[name].str.replace(character, escape, regex=False) for name in names})
        text = frame.to_csv(index=False, header=False, sep="\t", quoting=csv.QUOTE_NONE, na_rep=r"\N")
    return f"{table.clickhouse_insert} FORMAT TabSeparated\n{text}"


@also("pandas_clickhouse_driver_tsv", "clickhouse-driver INSERT FORMAT TSV from Pandas delimited text", insert_tsv)
@also("polars_clickhouse_driver_tsv", "clickhouse-driver INSERT FORMAT TSV from Polars delimited text", insert_tsv)
@technique("insert_text", "clickhouse-driver INSERT FORMAT CSV from Polars delimited text", pandas=True)
def polars_clickhouse_driver_csv(client: Client, table: Table, frame: DataFrame, insert: Insert = insert_csv) -> None:
    """The dataframe library writes CSV, or escaped TSV; clickhouse-driver sends it inside the text of the query."""
    client.execute(insert(frame, table))


OVER_NATIVE = "SQLAlchemy over native driver INSERT FORMAT TSV from"


@also("pandas_clickhouse_sqlalchemy_tsv", f"{OVER_NATIVE} Pandas delimited text", insert_tsv)
@also("polars_clickhouse_sqlalchemy_tsv", f"{OVER_NATIVE} Polars delimited text", insert_tsv)
@technique("insert_text", "SQLAlchemy over native driver INSERT FORMAT CSV from Polars delimited text", pandas=True)
def polars_clickhouse_sqlalchemy_csv(
    connection: Connection, table: Table, frame: DataFrame, insert: Insert = insert_csv
) -> None:
    """The dataframe library writes CSV, or escaped TSV; SQLAlchemy sends it inside the text of the query."""
    connection.exec_driver_sql(insert(frame, table).replace("%", "%%"))  # the dialect formats statements


@also("pandas_asynch_tsv", "asynch INSERT FORMAT TSV from Pandas delimited text", insert_tsv)
@also("polars_asynch_tsv", "asynch INSERT FORMAT TSV from Polars delimited text", insert_tsv)
@technique("insert_text", "asynch INSERT FORMAT CSV from Polars delimited text", pandas=True)
async def polars_asynch_csv(connection: Asynch, table: Table, frame: DataFrame, insert: Insert = insert_csv) -> None:
    """The dataframe library writes CSV, or escaped TSV; asynch sends it inside the text of the query."""
    await connection.execute(insert(frame, table))


def columns_of(frame: DataFrame, table: Table) -> list[list[Any]]:
    """Return the columns as Python lists, with None for pandas' missing values, which the drivers do not support."""
    if isinstance(frame, pl.DataFrame):
        return [frame.get_column(name).to_list() for name in table.column_names]
    columns = (frame[name] for name in table.column_names)
    whole = (one.astype(object).where(one.notna(), None) if one.hasnans else one for one in columns)
    return [column.tolist() for column in whole]


@technique("native_columnar", "clickhouse-driver native columnar insert from Polars dataframe", pandas=True)
def polars_clickhouse_driver_native_columnar(client: Client, table: Table, frame: DataFrame) -> None:
    """The dataframe library returns columns as Python lists; clickhouse-driver encodes them as native blocks."""
    client.execute(f"{table.clickhouse_insert} VALUES", columns_of(frame, table), columnar=True)


@technique("native_columnar", "asynch native columnar insert from Polars dataframe", pandas=True)
async def polars_asynch_native_columnar(connection: Asynch, table: Table, frame: DataFrame) -> None:
    """The dataframe library returns columns as Python lists; asynch encodes them as native blocks."""
    await connection.execute(f"{table.clickhouse_insert} VALUES", columns_of(frame, table), columnar=True)


def parquet_of(frame: DataFrame) -> bytes:
    """Return a Parquet file of the frame, as its library writes it by default."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer) if isinstance(frame, pl.DataFrame) else frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


@technique("http_parquet", "urllib HTTP INSERT FORMAT Parquet from Polars dataframe", pandas=True)
def polars_urllib_parquet(request: RequestMaker, table: Table, frame: DataFrame) -> None:
    """The dataframe library writes a Parquet file in memory; urllib posts it."""
    with urlopen(request(f"{table.clickhouse_insert} FORMAT Parquet", parquet_of(frame))) as response:
        response.read()


@technique("http_parquet", "httpx async HTTP INSERT FORMAT Parquet from Polars dataframe", pandas=True)
async def polars_httpx_parquet(client: httpx.AsyncClient, table: Table, frame: DataFrame) -> None:
    """The dataframe library writes a Parquet file in memory; httpx posts it."""
    query = f"{table.clickhouse_insert} FORMAT Parquet"
    (await client.post("/", params={"query": query}, content=parquet_of(frame))).raise_for_status()
