"""Write a dataframe to PostgreSQL by the calls that manuals show first."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any
from uuid import UUID

import asyncpg
import pandas as pd
import polars as pl
import psycopg
import sqlalchemy
from adbc_driver_postgresql.dbapi import Connection as AdbcConnection
from pandas.io.sql import SQLTable
from psycopg2 import extensions
from psycopg2.extras import execute_values
from sqlalchemy import Connection

from framehaul.data.schema import ColumnType, Table, quote_postgres, refuse
from framehaul.techniques.registry import DataFrame, also, technique

CHUNK_ROWS, MOST_PARAMETERS = 1000, 65_535
"""The rows of a statement with all its VALUES, and its limit: https://www.postgresql.org/docs/18/limits.html"""


def copy_rows(table: SQLTable, connection: Connection, columns: list[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Copy rows as CSV, in which an empty field without quotes is NULL."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_NOTNULL).writerows(rows)
    names = ", ".join(map(quote_postgres, columns))
    statement = f"COPY {quote_postgres(table.name)} ({names}) FROM STDIN WITH (FORMAT csv)"
    driver = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    with driver.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        copy.write(text.getvalue())


COPYING = "pandas.to_sql with a method that copies, SQLAlchemy over psycopg"


# The methods: https://pandas.pydata.org/docs/user_guide/io.html#insertion-method, with psycopg in place of psycopg2
# psycopg2 sends a thousand rows in each INSERT:
# https://docs.sqlalchemy.org/en/20/dialects/postgresql.html#psycopg2-fast-execution-helpers
@also("pandas_sqlalchemy_to_sql_copy", COPYING, None, copy_rows, family="copy_text")
@also("pandas_sqlalchemy_psycopg2_to_sql", "pandas.to_sql, SQLAlchemy over psycopg2")
@also("pandas_sqlalchemy_to_sql_chunks", "pandas.to_sql with chunksize, SQLAlchemy over psycopg", CHUNK_ROWS, None)
@technique("insert_rows", "pandas.to_sql, SQLAlchemy over psycopg")
def pandas_sqlalchemy_to_sql(
    connection: Connection, table: Table, frame: pd.DataFrame, chunksize: int | None = None, method: Any = None
) -> None:
    """pandas gives rows to SQLAlchemy or a method, all or in chunks; psycopg sends an INSERT for each."""
    # https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.to_sql.html
    options: Any = {"dtype": uuid_types(table), "chunksize": chunksize, "method": method}
    with connection.begin():
        frame.to_sql(table.name, connection, if_exists="append", index=False, **options)


@technique("insert_rows", 'pandas.to_sql with method="multi", SQLAlchemy over psycopg')
def pandas_sqlalchemy_to_sql_multi(connection: Connection, table: Table, frame: pd.DataFrame) -> None:
    """pandas itself makes statements of many VALUES."""
    # https://pandas.pydata.org/docs/user_guide/io.html#insertion-method
    pandas_sqlalchemy_to_sql(connection, table, frame, min(CHUNK_ROWS, MOST_PARAMETERS // len(table.columns)), "multi")


def uuid_types(table: Table) -> dict[str, Any]:
    """Return SQLAlchemy's type for columns of UUIDs, which pandas would send as VARCHAR."""
    return dict.fromkeys(table.columns_of(ColumnType.UUID), sqlalchemy.Uuid(as_uuid=False))


@technique("arrow", "pandas.to_sql over ADBC")
def pandas_adbc_to_sql(connection: AdbcConnection, table: Table, frame: pd.DataFrame) -> None:
    """pandas makes Arrow of the frame, and ADBC copies it; ADBC needs UUIDs as bytes."""
    # https://pandas.pydata.org/docs/reference/api/pandas.DataFrame.to_sql.html
    uuids = table.columns_of(ColumnType.UUID)
    raw = {name: frame[name].map(lambda text: UUID(text).bytes, na_action="ignore") for name in uuids}
    frame.assign(**raw).to_sql(table.name, connection, if_exists="append", index=False)
    connection.commit()


@technique("insert_rows", "polars.write_database, SQLAlchemy over psycopg")
def polars_sqlalchemy_write_database(connection: Connection, table: Table, frame: pl.DataFrame) -> None:
    """Polars makes a pandas frame and calls its `to_sql`."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.DataFrame.write_database.html
    options = {"dtype": uuid_types(table)}
    with connection.begin():
        frame.write_database(table.postgres_name, connection, if_table_exists="append", engine_options=options)


@technique("arrow", "polars.write_database over ADBC")
def polars_adbc_write_database(connection: AdbcConnection, table: Table, frame: pl.DataFrame) -> None:
    """Polars gives its Arrow to ADBC, which copies it; ADBC needs UUIDs as bytes."""
    # https://docs.pola.rs/api/python/stable/reference/api/polars.DataFrame.write_database.html
    uuids = pl.col(table.columns_of(ColumnType.UUID))
    content = frame.with_columns(uuids.str.replace_all("-", "", literal=True).str.decode("hex"))
    content.write_database(table.postgres_name, connection, if_table_exists="append", engine="adbc")
    connection.commit()


def insert_into(table: Table) -> str:
    """Return the beginning of an INSERT for drivers whose placeholder is `%s`: percent signs in names are doubled."""
    return f"INSERT INTO {table.postgres_name} ({table.postgres_columns})".replace("%", "%%")


@technique("insert_rows", "psycopg executemany from Polars rows")
def polars_psycopg_executemany(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """psycopg sends an INSERT for each row, in a pipeline."""
    # https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    statement = f"{insert_into(table)} VALUES ({', '.join(['%s'] * len(table.columns))})"
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(statement.encode(), frame.iter_rows())


@technique("insert_rows", "psycopg pipeline of INSERTs, prepared, from Polars rows")
def polars_psycopg_pipeline(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """psycopg sends a prepared statement for each row, without waiting for results in between."""
    # https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    statement = f"{insert_into(table)} VALUES ({', '.join(['%s'] * len(table.columns))})"
    with connection.transaction(), connection.pipeline():
        for row in frame.iter_rows():
            connection.execute(statement.encode(), row, prepare=True)


@technique("insert_rows", "psycopg INSERT ... SELECT FROM unnest from Polars columns")
def polars_psycopg_unnest(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """psycopg sends one statement with an array for each column."""
    # https://www.postgresql.org/docs/18/functions-array.html
    refuse(table, {ColumnType.LIST}, "which unnest would take apart as well: use COPY", "postgres")
    arrays = ", ".join(f"%s::{column.types.postgres}[]" for column in table.columns)
    statement = f"{insert_into(table)} SELECT * FROM unnest({arrays})"
    with connection.transaction():
        connection.execute(statement.encode(), [frame[name].to_list() for name in table.column_names])


@technique("insert_rows", "asyncpg executemany from Polars rows")
async def polars_asyncpg_executemany(connection: asyncpg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """asyncpg prepares the statement, sends rows one after another and waits once."""
    # https://magicstack.github.io/asyncpg/current/api/index.html#asyncpg.connection.Connection.executemany
    values = ", ".join(f"${number}" for number in range(1, len(table.columns) + 1))
    statement = f"INSERT INTO {table.postgres_name} ({table.postgres_columns}) VALUES ({values})"
    await connection.executemany(statement, frame.rows())


@technique("insert_rows", "psycopg2 execute_values from Polars rows")
def polars_psycopg2_execute_values(connection: extensions.connection, table: Table, frame: pl.DataFrame) -> None:
    """psycopg2 makes statements of a thousand rows each, with all values in their text."""
    # https://www.psycopg.org/docs/extras.html#psycopg2.extras.execute_values
    with connection, connection.cursor() as cursor:
        execute_values(cursor, f"{insert_into(table)} VALUES %s", frame.iter_rows(), page_size=CHUNK_ROWS)


@technique("insert_rows", "SQLAlchemy Core insert of dictionaries from Polars, over psycopg")
def polars_sqlalchemy_core_insert(connection: Connection, table: Table, frame: pl.DataFrame) -> None:
    """SQLAlchemy takes a dictionary for each row, and psycopg sends an INSERT for each, in a pipeline."""
    # https://docs.sqlalchemy.org/en/20/tutorial/data_insert.html
    into = sqlalchemy.table(table.name, *map(sqlalchemy.column, table.column_names)).insert()
    with connection.begin():
        if rows := frame.to_dicts():
            connection.execute(into, rows)


@technique("insert_rows", "Ibis insert from Polars", client="ibis_postgres", pandas=True)
def polars_ibis_insert(backend: Any, table: Table, frame: DataFrame) -> None:
    """Ibis makes dictionaries of either frame, and psycopg inserts them into a temporary table, one by one."""
    # https://ibis-project.org/backends/postgresql#ibis.backends.postgres.Backend.insert
    import ibis

    # The server copies the rows into the table. PostgreSQL rejects text, which the schema would have, for UUIDs.
    types = backend.table(table.name).schema()
    backend.insert(table.name, ibis.memtable(frame, schema={name: types[name] for name in frame.columns}))
