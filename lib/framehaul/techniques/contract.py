"""The terms of writes: their locks, the rows visible while they run, and the rows left after a failure."""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Contract:
    """The terms of a write."""

    kind: Literal["append", "bulk_load", "replace", "upsert"]
    """`append` adds rows to a table that others use; `bulk_load` needs an empty table, replaces it or locks it;
    `replace` deletes all rows of the table; `upsert` replaces rows with the same key."""
    locks: str
    others_see: str
    """The rows that are visible while it runs."""
    after_failure: str
    """The rows that a failure leaves in the table."""


POSTGRES_APPEND = Contract("append", "nothing but its own rows", "nothing until it commits", "nothing")
CLICKHOUSE_APPEND = Contract("append", "nothing", "every block as soon as it is written", "the blocks written before")
"""Each block of an INSERT is atomic: https://clickhouse.com/docs/guides/inserting-data#characteristics-of-inserts"""
APPEND = {"postgres": POSTGRES_APPEND, "clickhouse": CLICKHOUSE_APPEND}
"""The terms of a plain INSERT or COPY, by database."""
HALVES = Contract(
    "append", "nothing but its own rows", "each half as soon as it commits", "the half of the other connection"
)
LOCKED = replace(POSTGRES_APPEND, kind="bulk_load", locks="the table, against readers and writers")
LOST_UPDATES = "nothing: rows that others write at the same time are lost"
REPLACED = Contract("bulk_load", LOST_UPDATES, "the table as it was, until all of it is replaced at once", "nothing")
CHANGED_SETTING = "nothing; it changes a setting of the table, which stays changed"
TRIED_AGAIN = "the blocks written before; tried again, each of them once"
IDEMPOTENT = replace(CLICKHOUSE_APPEND, locks=CHANGED_SETTING, after_failure=TRIED_AGAIN)

STAGING_TABLE = "a staging table if the client was killed"

REPLACED_IN_TRANSACTION = Contract("replace", LOCKED.locks, "nothing: they wait until it commits", "the old rows")
REPLACED_BESIDE = Contract("replace", LOST_UPDATES, REPLACED.others_see, f"the old rows; {STAGING_TABLE}")
UPSERT = Contract("upsert", "rows that it changes", "nothing until it commits", "nothing")
UPSERT_SNAPSHOT = replace(UPSERT, after_failure="nothing; of two writers that add the same key at once, one fails")
BLOCKS = f"{CLICKHOUSE_APPEND.others_see}; without FINAL both rows until a merge"
UPSERT_BLOCKS = Contract("upsert", "nothing", BLOCKS, "the blocks written before; safe to retry")
UPSERT_EXCHANGED = replace(REPLACED_BESIDE, kind="upsert")
PARTITIONS = f"the partitions replaced before; {STAGING_TABLE}"
CHANGED = f"possibly only the changed rows; {STAGING_TABLE}"
UPSERT_PARTITIONS = Contract("upsert", LOST_UPDATES, "each partition as soon as it is replaced", PARTITIONS)
UPSERT_PATCHED = Contract("upsert", "nothing", "changed rows first, then new rows", CHANGED)
MISSING = f"possibly missing rows until it is retried; {STAGING_TABLE}"
UPSERT_DELETED = Contract("upsert", "nothing", "changed rows are missing for a while", MISSING)
ALL_OR_NOTHING = (UPSERT, UPSERT_SNAPSHOT, UPSERT_EXCHANGED)
"""The terms of atomic upserts."""
