"""Upsert a dataframe into ClickHouse.

Every function takes an open client, a `Table` with a key, and a frame that has each key once, and is safe to retry.
ClickHouse has no transactions here: a failure can come between two statements.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import polars as pl

from framehaul.data.schema import Table, quote_clickhouse, quote_clickhouse_text
from framehaul.techniques import contract as terms
from framehaul.techniques.beyond.clickhouse_read import ALL_ROWS
from framehaul.techniques.beyond.clickhouse_write import insert_arrow, insert_once, staging_table
from framehaul.techniques.clients import HttpConnection
from framehaul.techniques.prepare import prepare
from framehaul.techniques.registry import also, technique
from framehaul.techniques.upsert.rows import check_keys, without_key

REPLACING = "ReplacingMergeTree"
PATCHED = "MergeTree SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1"
"""The engine and settings that lightweight updates need."""


def keys(table: Table) -> str:
    """Return the columns of the key for a SELECT."""
    return ", ".join(map(quote_clickhouse, table.key))


def with_keys_of(table: Table, other: Table, word: str = "IN") -> str:
    """Return the condition that a row's key is in another table."""
    return f"({keys(table)}) {word} (SELECT {keys(table)} FROM {other.clickhouse_name})"


def run(connection: HttpConnection, query: str, **settings: str | int) -> str:
    """Run a query and return its result as text; it reads all rows, whatever limits a profile sets."""
    return connection.post(query, settings=ALL_ROWS | insert_once(**settings)).read().decode()


@contextmanager
def staged(connection: HttpConnection, table: Table, frame: pl.DataFrame, engine: str = "") -> Iterator[Table]:
    """Create a staging table with the frame in it."""
    check_keys(frame, table)
    content = prepare(frame, table, "clickhouse")
    with staging_table(connection, table, engine) as staging:
        insert_arrow(connection, staging, content)
        yield staging


def insert_staged(connection: HttpConnection, table: Table, staging: Table, condition: str = "1") -> None:
    """Insert the rows of a staging table."""
    columns = table.clickhouse_columns
    rows = f"SELECT {columns} FROM {staging.clickhouse_name} WHERE {condition}"
    run(connection, f"INSERT INTO {table.clickhouse_name} ({columns}) {rows}")


@technique("arrow", "http.client INSERT into a ReplacingMergeTree, read with FINAL", terms.UPSERT_BLOCKS, REPLACING)
def polars_http_client_replacing(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Insert all rows; reads with FINAL return the last row of each key."""
    # https://clickhouse.com/docs/engines/table-engines/mergetree-family/replacingmergetree
    check_keys(frame, table)
    insert_arrow(connection, table, prepare(frame, table, "clickhouse"))


@technique(
    "arrow", "http.client INSERT into a ReplacingMergeTree, then OPTIMIZE ... FINAL", terms.UPSERT_BLOCKS, REPLACING
)
def polars_http_client_replacing_optimized(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Insert all rows and merge each partition into one part: reads need no FINAL until the next upsert."""
    # https://clickhouse.com/docs/sql-reference/statements/optimize
    polars_http_client_replacing(connection, table, frame)
    run(connection, f"OPTIMIZE TABLE {table.clickhouse_name} FINAL", optimize_throw_if_noop=1)


@technique("arrow", "http.client all rows into a new table, then EXCHANGE TABLES", terms.UPSERT_EXCHANGED)
def polars_http_client_rebuild_exchange(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Write all rows into a new table, then exchange it for the old one: readers see either of them."""
    # https://clickhouse.com/docs/sql-reference/statements/exchange
    with staged(connection, table, frame) as new:
        old = f"SELECT * FROM {table.clickhouse_name} WHERE {with_keys_of(table, new, 'NOT IN')}"
        run(connection, f"INSERT INTO {new.clickhouse_name} {old}")
        run(connection, f"EXCHANGE TABLES {new.clickhouse_name} AND {table.clickhouse_name}")


@technique("arrow", "http.client partitions made anew, then REPLACE PARTITION", terms.UPSERT_PARTITIONS)
def polars_http_client_replace_partition(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Rewrite the partitions that the frame has rows of; each is replaced atomically, one after another."""
    # https://clickhouse.com/docs/sql-reference/statements/alter/partition#replace-partition
    if "_partition_id" in table.column_names:
        raise ValueError("the column _partition_id hides ClickHouse's own: rename it, or rebuild all of the table")
    with staged(connection, table, frame) as new:
        old, parts = table.clickhouse_name, f"SELECT DISTINCT _partition_id FROM {new.clickhouse_name}"
        elsewhere = f"_partition_id NOT IN ({parts}) AND {with_keys_of(table, new)}"
        if count := int(run(connection, f"SELECT count() FROM {old} WHERE {elsewhere}")):  # both rows would stay
            raise ValueError(f"{count:,} keys of the frame are in other partitions of {table.name}: rebuild all of it")
        names = run(connection, f"{parts} ORDER BY 1").split()
        kept = f"_partition_id IN ({parts}) AND {with_keys_of(table, new, 'NOT IN')}"
        run(connection, f"INSERT INTO {new.clickhouse_name} SELECT * FROM {old} WHERE {kept}")
        for name in names:
            part = quote_clickhouse_text(name)
            run(connection, f"ALTER TABLE {old} REPLACE PARTITION ID {part} FROM {new.clickhouse_name}")


@technique(
    "arrow", "http.client lightweight UPDATE of what is there, INSERT of what is new", terms.UPSERT_PATCHED, PATCHED
)
def polars_http_client_lightweight_update(connection: HttpConnection, table: Table, frame: pl.DataFrame) -> None:
    """Write changed values as a patch part, which every read applies until it is merged, then insert new rows."""
    # An UPDATE reads values of another table only from the engine Join.
    # https://clickhouse.com/docs/sql-reference/statements/update
    with (
        staged(connection, table, frame, "ENGINE = Memory") as staging,
        staging_table(connection, table, f"ENGINE = Join(ANY, LEFT, {keys(table)})") as join,
    ):
        if without_key(table):
            insert_staged(connection, join, staging)
            names = [(quote_clickhouse(name), quote_clickhouse_text(name)) for name in without_key(table)]
            values = [f"{name} = joinGet({join.clickhouse_name}, {text}, {keys(table)})" for name, text in names]
            update = f"UPDATE {table.clickhouse_name} SET {', '.join(values)} WHERE {with_keys_of(table, staging)}"
            run(connection, update, enable_lightweight_update=1)
        insert_staged(connection, table, staging, with_keys_of(table, table, "NOT IN"))


BY_PATCH = "http.client lightweight DELETE by a patch part, INSERT of all"


@also("polars_http_client_patch_delete_insert", BY_PATCH, "lightweight_update_force", engine=PATCHED)
@technique("arrow", "http.client lightweight DELETE of what is there, INSERT of all", terms.UPSERT_DELETED)
def polars_http_client_delete_insert(
    connection: HttpConnection, table: Table, frame: pl.DataFrame, mode: str = "alter_update"
) -> None:
    """Mask existing rows by a mutation, or by a patch part, then insert all; between the two they are missing."""
    # https://clickhouse.com/docs/guides/developer/lightweight-delete
    # https://clickhouse.com/docs/operations/settings/settings#lightweight_delete_mode
    with staged(connection, table, frame, "ENGINE = Memory") as staging:
        delete = f"DELETE FROM {table.clickhouse_name} WHERE {with_keys_of(table, staging)}"
        run(connection, delete, lightweight_delete_mode=mode, lightweight_deletes_sync=2, enable_lightweight_update=1)
        insert_staged(connection, table, staging)
