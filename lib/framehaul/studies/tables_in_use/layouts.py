"""The tables of the study: their keys and indexes, their existing rows, and the rows that are appended."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table
from framehaul.techniques.registry import Database

TABLE = ANALYTICS_METRICS.renamed("framehaul_in_use")
BIGINT, UUID = (
    replace(TABLE, columns=(Column("id", kind), *TABLE.columns), key=("id",))
    for kind in (ColumnType.INT64, ColumnType.UUID)
)
# https://clickhouse.com/docs/sql-reference/statements/alter/projection
PROJECTION = TABLE.clickhouse_definition("MergeTree", "", "PROJECTION sorted (SELECT * ORDER BY source_id, event_date)")
TABLES = dict.fromkeys(("nine_columns", "one_index", "three_indexes"), TABLE)
TABLES |= {"bigint_in_order": BIGINT, "random_uuid": UUID, "projection": replace(TABLE, clickhouse_body=PROJECTION)}
"""The tables by name: the key is the published one of nine columns, or a further column `id`."""
INDEXES = {"one_index": ("event_date",), "three_indexes": ("event_date", "source_id, event_date", "dimension_f")}
"""The columns of PostgreSQL's secondary indexes."""
LAYOUTS: dict[Database, list[str]] = {
    "postgres": ["nine_columns", "bigint_in_order", "random_uuid", "one_index", "three_indexes"],
    "clickhouse": ["nine_columns", "bigint_in_order", "random_uuid", "projection"],
}
FIRST_ID, SEED_STEP = 10**12, 10**9
"""The first id of appended rows, which is higher than those of existing rows; and the distance between seeds, because
adjacent seeds generate the same rows, shifted by one, whose keys would collide."""


class Case(NamedTuple):
    """A table, its number of existing rows, and the number of rows that are appended."""

    layout: str
    existing_rows: int
    rows: int


def content(table: Table, rows: int, seed: int, first_id: int = FIRST_ID) -> pa.Table:
    """Return generated rows; an `id` is an integer from `first_id` on, or a random UUID."""
    made = generator.arrow_table(table, rows, seed)
    if table.key != ("id",):
        return made
    ids = pa.chunked_array([pa.array(np.arange(first_id, first_id + rows))])
    if table is UUID:  # the generator gives each UUID to several rows
        ids = generator.arrow_table(table, rows * generator.ROWS_PER_ENTITY, seed)["id"][:rows]
    return made.set_column(0, made.schema.field(0), ids)
