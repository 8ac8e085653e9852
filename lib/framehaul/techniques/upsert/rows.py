"""What every upsert asks of its table and its frame, and the table that one asks for."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from framehaul.data.schema import FLOATS, Table, quote_postgres
from framehaul.techniques.registry import Technique

SIGN = "framehaul_sign"
"""The column of a CollapsingMergeTree that says whether a row is there or takes one back; 1 unless it is given."""
PARTITIONS = 4
"""Of a table of PostgreSQL that is made in partitions: as many as months are in the frames of the study."""
MOST_LETTERS = 40
"""Of a table's name in those of its partitions, which have 63 bytes at most."""


def check_keys(frame: pl.DataFrame, table: Table) -> None:
    """Raises ValueError where no row can be found by its key: there is none, it has floats or NULL, or it repeats.

    Of two rows of one key each way would keep another one, or refuse both: which one counts is for the caller to say.
    """
    if not table.key:
        raise ValueError(f"table {table.name} has no key: say which columns tell its rows apart")
    floats = [column.name for column in table.columns if column.name in table.key and column.type in FLOATS]
    if floats:
        raise ValueError(f"column {floats[0]} is a float, and NaN equals itself on some servers only: make it no key")
    keys = frame.select(table.key)
    for name in table.key:
        if keys[name].null_count():
            raise ValueError(f"column {name} is part of the key, and {keys[name].null_count():,} values are NULL")
    if len(keys) and (repeated := keys.is_duplicated()).any():
        first = keys.row(int(repeated.arg_max() or 0))
        raise ValueError(f"{int(repeated.sum()):,} rows share their key with another, first {first}: keep one of each")


def without_key(table: Table) -> list[str]:
    """The names of the columns that an update changes."""
    return [name for name in table.column_names if name not in table.key]


def target(technique: Technique, table: Table) -> Table:
    """The table as an upsert asks for it: on ClickHouse of an engine that it names, sorted by the key.

    On PostgreSQL in partitions by the key, which have the table's name with a number behind it; somebody's own
    CREATE TABLE stays as it is there.
    """
    if not technique.engine or (technique.database == "postgres" and table.postgres_body):
        return table
    if technique.database == "postgres":
        body = table.postgres_ddl.removeprefix(f"CREATE TABLE {table.postgres_name} ")
        parts = (
            f";\nCREATE TABLE {quote_postgres(f'{table.name[:MOST_LETTERS]}_{at}')} PARTITION OF {table.postgres_name} "
            f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {at})"
            for at in range(PARTITIONS)
        )
        return replace(table, postgres_body=f"{body} {technique.engine} ({table.postgres_key}){''.join(parts)}")
    engine, _, settings = technique.engine.partition(" SETTINGS ")
    further = (f"{SIGN} Int8 DEFAULT 1",) if SIGN in engine else ()
    body = replace(table, sort=None).clickhouse_definition(engine, settings, *further)
    return replace(table, clickhouse_body=body)
