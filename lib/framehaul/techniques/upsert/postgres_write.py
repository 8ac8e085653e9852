"""Upsert a dataframe into PostgreSQL.

Every function takes an open connection, a `Table` with a key, and a frame that has each key once, and commits all rows
or, after an error, none. Rows go in the order of the key, so that two upserts do not deadlock.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl
from psycopg import Connection

from framehaul.data.schema import ARRAYS, Table, quote_postgres, refuse
from framehaul.techniques.beyond.postgres_write import copy_batches, in_slices
from framehaul.techniques.clients import UTF8
from framehaul.techniques.contract import UPSERT, UPSERT_SNAPSHOT
from framehaul.techniques.prepare import prepare_rows
from framehaul.techniques.registry import also, technique
from framehaul.techniques.upsert.rows import check_keys, without_key


def on_conflict(table: Table) -> str:
    """Return the end of an INSERT that updates existing rows."""
    # https://www.postgresql.org/docs/18/sql-insert.html#SQL-ON-CONFLICT
    changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quote_postgres, without_key(table)))
    return f"ON CONFLICT ({table.postgres_key}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"


def same_key(table: Table) -> str:
    """Return the condition that a row of `target` has the key of a row of `source`."""
    return " AND ".join(f"target.{name} = source.{name}" for name in map(quote_postgres, table.key))


@contextmanager
def staged(connection: Connection[Any], table: Table, frame: pl.DataFrame, kind: str) -> Iterator[str]:
    """Yield the name of a staging table of this kind with the frame in it; the block is the rest of the transaction."""
    # It has no constraint: https://www.postgresql.org/docs/18/sql-createtableas.html
    check_keys(frame, table)
    schema, batches = in_slices(frame, table)
    staging = table.renamed(f"framehaul_staging_{secrets.token_hex(8)}")
    name = staging.postgres_name
    with connection.transaction():
        connection.execute(UTF8)
        columns = f"{table.postgres_select} WITH NO DATA"
        connection.execute(f"CREATE {kind} TABLE {name} AS {columns}".encode())
        copy_batches(connection, staging, schema, batches)
        # Autovacuum does not: it skips temporary tables, and tables of transactions that have not committed.
        connection.execute(f"ANALYZE {name}".encode())
        yield name
        connection.execute(f"DROP TABLE {name}".encode())


def insert_staged(table: Table, staging: str, conflict: str = "") -> bytes:
    """Return an INSERT of the staged rows in the order of the key."""
    rows = f"SELECT {table.postgres_columns} FROM {staging} ORDER BY {table.postgres_key}"
    return f"INSERT INTO {table.postgres_name} ({table.postgres_columns}) {rows} {conflict}".encode()


INTO_TEMPORARY = "pgpq COPY into a temporary table, then INSERT ... ON CONFLICT"


@also("polars_pgpq_ordinary_on_conflict", "pgpq COPY into an ordinary table, then INSERT ... ON CONFLICT", "")
@also("polars_pgpq_temporary_on_conflict", INTO_TEMPORARY, "TEMPORARY")
@technique("copy_binary", "pgpq COPY into an unlogged table, then INSERT ... ON CONFLICT", UPSERT)
def polars_pgpq_unlogged_on_conflict(
    connection: Connection[Any], table: Table, frame: pl.DataFrame, kind: str = "UNLOGGED"
) -> None:
    """Stage rows in a table of this kind: parallel plans read no temporary table, and an ordinary one is logged."""
    # https://www.postgresql.org/docs/18/sql-createtable.html#SQL-CREATETABLE-UNLOGGED
    with staged(connection, table, frame, kind) as staging:
        connection.execute(insert_staged(table, staging, on_conflict(table)))


@technique("copy_binary", "pgpq COPY into a temporary table, then MERGE", UPSERT_SNAPSHOT)
def polars_pgpq_temporary_merge(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Join both tables instead of looking keys up one by one; rows that others commit after its start are not seen."""
    # https://www.postgresql.org/docs/18/sql-merge.html
    names = [*map(quote_postgres, without_key(table))]
    changed = ", ".join(f"{name} = source.{name}" for name in names)
    values = ", ".join(f"source.{quote_postgres(name)}" for name in table.column_names)
    matched = f"WHEN MATCHED THEN UPDATE SET {changed} " if names else ""
    inserted = f"WHEN NOT MATCHED THEN INSERT ({table.postgres_columns}) VALUES ({values})"
    with staged(connection, table, frame, "TEMPORARY") as staging:
        both = f"{table.postgres_name} AS target USING {staging} AS source ON {same_key(table)}"
        connection.execute(f"MERGE INTO {both} {matched}{inserted}".encode())


@technique("copy_binary", "pgpq COPY into a temporary table, then DELETE and INSERT", UPSERT_SNAPSHOT)
def polars_pgpq_temporary_delete_insert(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Delete existing rows first: columns that the frame does not have get their defaults, and deletes cascade."""
    # https://www.postgresql.org/docs/18/sql-delete.html
    with staged(connection, table, frame, "TEMPORARY") as staging:
        both = f"{table.postgres_name} AS target USING {staging} AS source"
        connection.execute(f"DELETE FROM {both} WHERE {same_key(table)}".encode())
        connection.execute(insert_staged(table, staging))


def ordered_rows(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return prepared rows in the order of their key."""
    check_keys(frame, table)
    return (rows := prepare_rows(frame, table)).sort([rows[name] for name in table.key])


def upsert_of(table: Table, source: str, suffix: str = "") -> bytes:
    """Return an INSERT ... ON CONFLICT from a source of placeholders, which would be text without their types."""
    values = ", ".join(f"%s::{column.types.postgres}{suffix}" for column in table.columns)
    into = f"INSERT INTO {table.postgres_name} ({table.postgres_columns})".replace("%", "%%")
    return f"{into} {source.format(values)} {on_conflict(table).replace('%', '%%')}".encode()


@technique("insert_rows", "psycopg INSERT ... SELECT FROM unnest ... ON CONFLICT", UPSERT)
def polars_psycopg_unnest_on_conflict(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Send one statement with an array for each column; no staging table is needed."""
    # https://www.postgresql.org/docs/18/functions-array.html
    refuse(table, ARRAYS, "which unnest would take apart as well: use COPY", "postgres")
    rows = ordered_rows(frame, table)
    statement = upsert_of(table, "SELECT * FROM unnest({})", "[]")
    with connection.transaction():
        connection.execute(UTF8)
        connection.execute(statement, [rows[name].to_list() for name in table.column_names])


@technique("insert_rows", "psycopg executemany of INSERT ... ON CONFLICT", UPSERT)
def polars_psycopg_executemany_on_conflict(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Send a statement for each row; psycopg sends many before it reads their results."""
    # https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    rows = ordered_rows(frame, table)
    statement = upsert_of(table, "VALUES ({})")
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(UTF8)
        cursor.executemany(statement, rows.iter_rows())


@technique("insert_rows", "psycopg pipeline of INSERT ... ON CONFLICT, prepared", UPSERT)
def polars_psycopg_pipeline_on_conflict(connection: Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Prepare a statement once and send it for each row, without waiting for results in between."""
    # https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    rows = ordered_rows(frame, table)
    statement = upsert_of(table, "VALUES ({})")
    with connection.transaction():
        connection.execute(UTF8)  # not in the pipeline: psycopg would learn of it too late
        with connection.pipeline():
            for row in rows.iter_rows():
                connection.execute(statement, row, prepare=True)
