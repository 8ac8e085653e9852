"""The checks of the keys of upserts, and the tables that they need."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv6Address

import polars as pl

from framehaul.data.schema import FLOATS, LONG_NUMBERS, ColumnType, Table
from framehaul.techniques.registry import Technique


def exploded(text: str) -> str:
    """Return an IPv6 address with all of its digits; other text stays, and is rejected when it is prepared."""
    try:
        return IPv6Address(text).exploded
    except ValueError:
        return text


ZEROS = "^(-?)0+([0-9])"
CANONICAL_TEXT: dict[ColumnType, Callable[[pl.Expr], pl.Expr]] = {
    ColumnType.UUID: lambda column: column.str.to_lowercase(),
    ColumnType.IPV6: lambda column: column.map_elements(exploded, pl.String),
    **dict.fromkeys(LONG_NUMBERS[:4], lambda column: column.str.replace(ZEROS, "${1}${2}").replace("-0", "0")),
}
"""Canonical text by type, for types with several texts per value, as the servers compare them."""


def as_compared(keys: pl.DataFrame, table: Table) -> pl.DataFrame:
    """Return the columns of a key with equal values as equal text."""
    texts = [one for one in table.columns if one.type in CANONICAL_TEXT and keys.schema.get(one.name) == pl.String]
    return keys.with_columns(CANONICAL_TEXT[one.type](pl.lit(keys[one.name])) for one in texts)


def check_keys(frame: pl.DataFrame, table: Table) -> None:
    """Raise ValueError for a table without a key, a key with floats or NULL, and for duplicate keys in the frame."""
    if not table.key:
        raise ValueError(f"table {table.name} has no key: say which columns tell its rows apart")
    if floats := [name for name in table.columns_of(*FLOATS) if name in table.key]:
        raise ValueError(f"column {floats[0]} is a float, and NaN equals itself on some servers only: make it no key")
    keys = frame[[*table.key]]
    for name in table.key:
        if nulls := keys[name].null_count():
            raise ValueError(f"column {name} is part of the key, and {nulls:,} values are NULL")
    if len(keys) and (repeated := as_compared(keys, table).is_duplicated()).any():
        first = keys.row(int(repeated.arg_max() or 0))
        # Techniques would keep different rows of the key, or reject both: the caller has to choose.
        raise ValueError(f"{int(repeated.sum()):,} rows share their key with another, first {first}: keep one of each")


def without_key(table: Table) -> list[str]:
    """Return the names of the columns that an update changes."""
    return [name for name in table.column_names if name not in table.key]


def target(technique: Technique, table: Table) -> Table:
    """Return the table that an upsert needs, with its engine."""
    if not technique.engine:
        return table
    body = replace(table, sort=None).clickhouse_definition(*technique.engine.split(" SETTINGS "))
    return replace(table, clickhouse_body=body)
