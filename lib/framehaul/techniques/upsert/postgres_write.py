"""Upsert a dataframe into PostgreSQL.

Every function takes an open connection, a `Table` with a key, and a frame that has each key once, and returns when the
rows are committed: all of them or, after an error, none. Rows go in the order of the key, so that two upserts
do not deadlock.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb
import polars as pl
import psycopg

from framehaul.data.documents import with_documents
from framehaul.data.schema import (
    ARRAYS,
    LONG_NUMBERS,
    Table,
    quote_postgres,
    quote_postgres_text,
    refuse,
)
from framehaul.errors import UnavailableError
from framehaul.techniques.beyond.postgres_write import copy_batches, in_slices
from framehaul.techniques.clients import UTF8, check_encoding
from framehaul.techniques.contract import UPSERT, UPSERT_SNAPSHOT, UPSERT_SWAP
from framehaul.techniques.prepare import prepare, prepare_rows
from framehaul.techniques.registry import technique
from framehaul.techniques.upsert.rows import check_keys, without_key


def placeholders(table: Table) -> str:
    """Return `(%s::uuid, %s::date, ...)`, so that text without a type gets the column's."""
    return "(" + ", ".join(f"%s::{column.types.postgres}" for column in table.columns) + ")"


def insert_into(table: Table) -> str:
    """Return the beginning of an INSERT."""
    return f"INSERT INTO {table.postgres_name} ({table.postgres_columns})"


def on_conflict(table: Table) -> str:
    """Return the end of an INSERT that updates existing rows.

    https://www.postgresql.org/docs/18/sql-insert.html#SQL-ON-CONFLICT
    """
    changed = ", ".join(f"{name} = EXCLUDED.{name}" for name in map(quote_postgres, without_key(table)))
    return f"ON CONFLICT ({table.postgres_key}) DO {f'UPDATE SET {changed}' if changed else 'NOTHING'}"


def same_key(table: Table) -> str:
    """Return the condition that a row of `target` has the key of a row of `source`."""
    return " AND ".join(f"target.{name} = source.{name}" for name in map(quote_postgres, table.key))


@contextmanager
def staged(
    connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame, kind: str, lock: str = ""
) -> Iterator[str]:
    """Give the name of a staging table of this kind with the frame in it; the block is the rest of the transaction.

    A `lock` comes first, because two transactions that have read a table and then lock it deadlock. The name is unique;
    the table has the columns of the frame and no constraint.
    https://www.postgresql.org/docs/18/sql-createtableas.html
    """
    check_keys(frame, table)
    schema, batches = in_slices(frame, table)
    staging = table.renamed(f"framehaul_staging_{secrets.token_hex(8)}")
    name = staging.postgres_name
    with connection.transaction():
        connection.execute(UTF8)
        if lock:
            connection.execute(lock.encode())
        columns = f"SELECT {table.postgres_columns} FROM {table.postgres_name} WITH NO DATA"
        connection.execute(f"CREATE {kind} TABLE {name} AS {columns}".encode())
        copy_batches(connection, staging, schema, batches)
        # Autovacuum does not: it skips temporary tables, and tables of transactions that have not committed.
        connection.execute(f"ANALYZE {name}".encode())
        yield name
        connection.execute(f"DROP TABLE {name}".encode())


def insert_staged(table: Table, staging: str) -> bytes:
    """Return an INSERT of the staging table that updates existing rows."""
    rows = f"SELECT {table.postgres_columns} FROM {staging} ORDER BY {table.postgres_key}"
    return f"{insert_into(table)} {rows} {on_conflict(table)}".encode()


@technique(
    family="copy_binary", label="pgpq COPY into a temporary table, then INSERT ... ON CONFLICT", contract=UPSERT,
    requires=("key",),
)  # fmt: skip
def polars_pgpq_temporary_on_conflict(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """What is temporary is in no log and in the session's own memory.

    https://www.postgresql.org/docs/18/sql-insert.html#SQL-ON-CONFLICT
    """
    with staged(connection, table, frame, "TEMPORARY") as staging:
        connection.execute(insert_staged(table, staging))


@technique(
    family="copy_binary", label="pgpq COPY into an unlogged table, then INSERT ... ON CONFLICT", contract=UPSERT,
    requires=("key",),
)  # fmt: skip
def polars_pgpq_unlogged_on_conflict(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """In no log either, and other sessions could read it: parallel plans do.

    https://www.postgresql.org/docs/18/sql-createtable.html#SQL-CREATETABLE-UNLOGGED
    """
    with staged(connection, table, frame, "UNLOGGED") as staging:
        connection.execute(insert_staged(table, staging))


@technique(
    family="copy_binary", label="pgpq COPY into an ordinary table, then INSERT ... ON CONFLICT", contract=UPSERT,
    requires=("key",),
)  # fmt: skip
def polars_pgpq_ordinary_on_conflict(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Every row goes into the log twice.

    https://www.postgresql.org/docs/18/sql-insert.html#SQL-ON-CONFLICT
    """
    with staged(connection, table, frame, "") as staging:
        connection.execute(insert_staged(table, staging))


@technique(family="copy_binary", label="pgpq COPY into a temporary table, then MERGE", contract=UPSERT_SNAPSHOT,
           requires=("key",))  # fmt: skip
def polars_pgpq_temporary_merge(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """A join of both tables: it looks no key up one by one, and sees nothing of who commits meanwhile.

    https://www.postgresql.org/docs/18/sql-merge.html
    """
    names = [*map(quote_postgres, without_key(table))]
    changed = ", ".join(f"{name} = source.{name}" for name in names)
    values = ", ".join(f"source.{quote_postgres(name)}" for name in table.column_names)
    matched = f"WHEN MATCHED THEN UPDATE SET {changed} " if names else ""
    inserted = f"WHEN NOT MATCHED THEN INSERT ({table.postgres_columns}) VALUES ({values})"
    with staged(connection, table, frame, "TEMPORARY") as staging:
        both = f"{table.postgres_name} AS target USING {staging} AS source ON {same_key(table)}"
        connection.execute(f"MERGE INTO {both} {matched}{inserted}".encode())


@technique(family="copy_binary", label="pgpq COPY into a temporary table, then DELETE and INSERT",
           contract=UPSERT_SNAPSHOT, requires=("key",))  # fmt: skip
def polars_pgpq_temporary_delete_insert(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """What is there goes first: columns that the frame does not have get their defaults, and deletes cascade.

    https://www.postgresql.org/docs/18/sql-delete.html
    """
    with staged(connection, table, frame, "TEMPORARY") as staging:
        both = f"{table.postgres_name} AS target USING {staging} AS source"
        connection.execute(f"DELETE FROM {both} WHERE {same_key(table)}".encode())
        rows = f"SELECT {table.postgres_columns} FROM {staging} ORDER BY {table.postgres_key}"
        connection.execute(f"{insert_into(table)} {rows}".encode())


@technique(family="copy_binary", label="pgpq COPY into a temporary table, then a new table in place of the old",
           contract=UPSERT_SWAP, requires=("key",))  # fmt: skip
def polars_pgpq_table_swap(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Everything is written anew, with its indexes, without a dead row; who reads waits for the commit at the end.

    Indexes and constraints are named anew. Raises ValueError for a table that has what a new one would not have, such
    as grants, another owner, triggers, foreign keys, identity columns, partitions, policies, settings.
    https://www.postgresql.org/docs/18/sql-createtable.html (LIKE)
    """
    name = table.postgres_name
    with staged(connection, table, frame, "TEMPORARY", f"LOCK TABLE {name} IN SHARE ROW EXCLUSIVE MODE") as staging:
        schema = schema_of(connection, name)
        new = rebuilt(connection, table, staging, Partition(schema, name))
        connection.execute(f"DROP TABLE {schema}.{name}".encode())
        connection.execute(f"ALTER TABLE {new} RENAME TO {name}".encode())


NOT_COPIED = """
SELECT concat_ws(', ',
    CASE WHEN relkind <> 'r' OR relispartition <> %s THEN 'partitions' END,
    CASE WHEN NOT relispartition AND EXISTS (
        SELECT FROM pg_inherits WHERE pg_class.oid IN (inhrelid, inhparent)
    ) THEN 'inheritance' END,
    CASE WHEN relowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user) THEN 'another owner' END,
    CASE WHEN relacl IS NOT NULL OR EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attacl IS NOT NULL
    ) THEN 'grants' END,
    CASE WHEN relhastriggers THEN 'triggers or foreign keys' END,
    CASE WHEN relhasrules THEN 'rules' END,
    CASE WHEN relrowsecurity THEN 'policies' END,
    CASE WHEN reloptions IS NOT NULL THEN 'settings' END,
    CASE WHEN relpersistence <> 'p' THEN 'no log of its own' END,
    CASE WHEN reltablespace <> 0 THEN 'a tablespace' END,
    CASE WHEN relreplident <> 'd' THEN 'a replica identity' END,
    CASE WHEN EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = pg_class.oid) THEN 'publications' END,
    CASE WHEN EXISTS (
        SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND (attidentity <> '' OR attgenerated <> '')
    ) THEN 'identity or generated columns' END)
FROM pg_class WHERE oid = to_regclass(%s)
"""
SCHEMA = """
SELECT quote_ident(nspname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = to_regclass(%s)
"""


def schema_of(connection: psycopg.Connection[Any], name: str) -> str:
    """Return the schema of a table, quoted: it need not be the first of the search path."""
    (schema,) = connection.execute(SCHEMA, (name,)).fetchone() or ("",)
    return str(schema)


def not_copied(connection: psycopg.Connection[Any], name: str, *, partition: bool = False) -> str:
    """Return what `LIKE ... INCLUDING ALL` does not copy of a table or partition; empty when it copies all."""
    row = connection.execute(NOT_COPIED, (partition, name)).fetchone()
    return str(row[0]) if row else ""


def comment_of(connection: psycopg.Connection[Any], name: str) -> str:
    """Return the comment of a table as SQL text; `LIKE` does not copy it."""
    row = connection.execute("SELECT obj_description(to_regclass(%s), 'pg_class')", (name,)).fetchone()
    return quote_postgres_text(row[0]) if row and row[0] is not None else "NULL"


@dataclass(frozen=True)
class Partition:
    """A partition: its quoted schema and name, the condition that its rows meet, and its FOR VALUES.

    An ordinary table has no bound.
    """

    schema: str
    short_name: str
    holds: str = "true"
    bound: str = ""

    @property
    def name(self) -> str:
        """Return the name with its schema."""
        return f"{self.schema}.{self.short_name}"


def rebuilt(connection: psycopg.Connection[Any], table: Table, staging: str, old: Partition) -> str:
    """Create a copy of a table or partition with the staged rows in place of rows with their keys; return its name.

    Raises ValueError for what the copy would lack; it is checked here because the lock keeps others from adding it.
    """
    if lost := not_copied(connection, old.name, partition=bool(old.bound)):
        what = f"partition {old.name}" if old.bound else f"table {table.name}"
        raise ValueError(f"{what} has {lost}, which a new one would not have: use ON CONFLICT")
    new, columns = f"{old.schema}.{quote_postgres(f'framehaul_new_{secrets.token_hex(8)}')}", table.postgres_columns
    missing = f"SELECT FROM {staging} AS source WHERE {same_key(table)}"
    for statement in (
        f"CREATE TABLE {new} (LIKE {old.name} INCLUDING ALL)",
        f"INSERT INTO {new} SELECT target.* FROM {old.name} AS target WHERE NOT EXISTS ({missing})",
        f"INSERT INTO {new} ({columns}) SELECT {columns} FROM {staging} WHERE {old.holds}",
        f"COMMENT ON TABLE {new} IS {comment_of(connection, old.name)}",
    ):
        connection.execute(statement.encode())
    return new


PARTITIONS = """
SELECT quote_ident(nspname), quote_ident(relname), coalesce(pg_get_partition_constraintdef(child.oid), 'true'),
    pg_get_expr(relpartbound, child.oid)
FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid JOIN pg_namespace AS space ON space.oid = relnamespace
WHERE inhparent = to_regclass(%s) AND relispartition ORDER BY child.oid
"""
PARTITION_KEY = """
SELECT array_agg(attname::text) FROM pg_partitioned_table
CROSS JOIN unnest(partattrs::int2[]) AS number LEFT JOIN pg_attribute ON attrelid = partrelid AND attnum = number
WHERE partrelid = to_regclass(%s)
"""
"""The columns, with NULL for an expression."""


def partitions_of(connection: psycopg.Connection[Any], table: Table, staging: str, rows: int) -> list[Partition]:
    """Return the partitions that the staged rows belong to.

    Raises UnavailableError for a table without partitions, ValueError for a row that belongs to none, and for a key
    that another partition has: both rows would stay.
    """
    every = [Partition(*row) for row in connection.execute(PARTITIONS, (table.postgres_name,))]
    if not every:
        raise UnavailableError(f"table {table.name} has no partitions: make it PARTITION BY, or use ON CONFLICT")
    counts = ", ".join(f"count(*) FILTER (WHERE {one.holds})" for one in every)
    counted = connection.execute(f"SELECT {counts} FROM {staging}".encode()).fetchone() or ()
    if sum(counted) != rows:
        raise ValueError(f"{rows - sum(counted):,} rows belong to no partition of {table.name}: make one before")
    found = [one for one, count in zip(every, counted, strict=True) if count]
    (by,) = connection.execute(PARTITION_KEY, (table.postgres_name,)).fetchone() or ([],)
    elsewhere = [] if set(by) <= set(table.key) else [one for one in every if one not in found]
    for other in elsewhere:
        twice = f"SELECT count(*) FROM {other.name} AS target JOIN {staging} AS source ON {same_key(table)}"
        (count,) = connection.execute(twice.encode()).fetchone() or (0,)
        if count:
            raise ValueError(f"{count:,} rows of these keys are in other partitions of {table.name}: DELETE and INSERT")
    return found


@technique(
    family="copy_binary", label="pgpq COPY into a temporary table, then new partitions in place of the old",
    contract=UPSERT_SWAP, requires=("key",), engine="PARTITION BY HASH",
)  # fmt: skip
def polars_pgpq_partition_swap(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """Only partitions that the frame has rows of are written anew; who reads waits from the first DETACH to the commit.

    Raises UnavailableError and ValueError as `partitions_of` does, and ValueError as `polars_pgpq_table_swap` does.
    https://www.postgresql.org/docs/18/ddl-partitioning.html#DDL-PARTITIONING-DECLARATIVE-MAINTENANCE
    """
    parent = table.postgres_name
    lock = f"LOCK TABLE {parent} IN SHARE ROW EXCLUSIVE MODE"
    swaps: list[str] = []
    with staged(connection, table, frame, "TEMPORARY", lock) as staging:
        for part in partitions_of(connection, table, staging, len(frame)):
            new = rebuilt(connection, table, staging, part)
            # Proves what ATTACH would else look at every row for, while readers wait.
            connection.execute(f"ALTER TABLE {new} ADD CONSTRAINT framehaul_holds CHECK ({part.holds})".encode())
            swaps += [
                f"ALTER TABLE {parent} DETACH PARTITION {part.name}",
                f"DROP TABLE {part.name}",
                f"ALTER TABLE {new} RENAME TO {part.short_name}",
                f"ALTER TABLE {parent} ATTACH PARTITION {part.name} {part.bound}",
                f"ALTER TABLE {part.name} DROP CONSTRAINT framehaul_holds",
            ]
        for statement in swaps:
            connection.execute(statement.encode())


def ordered_rows(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return prepared rows in the order of their key."""
    check_keys(frame, table)
    return prepare_rows(frame, table).sort(table.key)


def upsert_of(table: Table, source: str) -> bytes:
    """Return an INSERT ... ON CONFLICT with placeholders in its source; per cent signs of names are doubled."""
    into, conflict = (part.replace("%", "%%") for part in (insert_into(table), on_conflict(table)))
    return f"{into} {source} {conflict}".encode()


@technique(family="insert_rows", label="psycopg INSERT ... SELECT FROM unnest ... ON CONFLICT", contract=UPSERT,
           requires=("key",))  # fmt: skip
def polars_psycopg_unnest_on_conflict(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """One statement with an array for each column, and no other table.

    https://www.postgresql.org/docs/18/functions-array.html
    """
    refuse(table, ARRAYS, "which unnest would take apart as well: use COPY", "postgres")
    rows = ordered_rows(frame, table)
    arrays = ", ".join(f"%s::{column.types.postgres}[]" for column in table.columns)
    statement = upsert_of(table, f"SELECT * FROM unnest({arrays})")
    with connection.transaction():
        connection.execute(UTF8)
        connection.execute(statement, [rows[name].to_list() for name in table.column_names])


@technique(family="insert_rows", label="psycopg executemany of INSERT ... ON CONFLICT", contract=UPSERT,
           requires=("key",))  # fmt: skip
def polars_psycopg_executemany_on_conflict(
    connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame
) -> None:
    """A statement for each row, as many sent as the connection takes before the first is answered.

    https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    """
    rows = ordered_rows(frame, table)
    statement = upsert_of(table, f"VALUES {placeholders(table)}")
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(UTF8)
        cursor.executemany(statement, rows.iter_rows())


@technique(family="insert_rows", label="psycopg pipeline of INSERT ... ON CONFLICT, prepared", contract=UPSERT,
           requires=("key",))  # fmt: skip
def polars_psycopg_pipeline_on_conflict(connection: psycopg.Connection[Any], table: Table, frame: pl.DataFrame) -> None:
    """A statement for each row, prepared once, of which nobody waits for the answer before the next is sent.

    https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
    """
    rows = ordered_rows(frame, table)
    statement = upsert_of(table, f"VALUES {placeholders(table)}")
    with connection.transaction(), connection.pipeline():
        connection.execute(UTF8)
        for row in rows.iter_rows():
            connection.execute(statement, row, prepare=True)


@technique(family="engine", label="DuckDB INSERT ... ON CONFLICT into the attached table", contract=UPSERT_SNAPSHOT,
           requires=("key",))  # fmt: skip
def polars_duckdb_on_conflict(connection: duckdb.DuckDBPyConnection, table: Table, frame: pl.DataFrame) -> None:
    """DuckDB fetches every key of the table and joins here; then it sends what is changed and what is new.

    Columns that the frame does not have are NULL in new rows, whatever their defaults.

    https://github.com/duckdb/duckdb-postgres/issues/575
    """
    check_keys(frame, table)
    refuse(table, [*ARRAYS, *LONG_NUMBERS], "which DuckDB does not write as it is: use pgpq", "postgres")
    content = with_documents(prepare(frame, table, "postgres"), table)
    check_encoding(connection)
    connection.register("frame", content)
    columns = table.postgres_columns
    connection.execute(
        f"INSERT INTO pg.{table.postgres_name} ({columns}) SELECT {columns} FROM frame {on_conflict(table)}"
    )
