"""The terms of writes: what they lock, what others see while they run, and what a failure leaves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

ContractKind = Literal["append", "bulk_load", "replace", "upsert"]


@dataclass(frozen=True)
class Contract:
    """The terms of a write."""

    kind: ContractKind
    """`append` adds rows, with others at work in the table; `bulk_load` needs an empty table, replaces it or locks it;
    `replace` deletes all rows that the table has; `upsert` replaces rows with the same key."""
    locks: str
    others_see: str
    """Which of the rows are visible while it runs."""
    after_failure: str
    """What a failure leaves in the table."""


POSTGRES_APPEND = Contract("append", "nothing but its own rows", "nothing until it commits", "nothing")
CLICKHOUSE_APPEND = Contract("append", "nothing", "every block as soon as it is written", "the blocks written before")
"""An INSERT is atomic by the block: https://clickhouse.com/docs/guides/inserting-data#characteristics-of-inserts"""

APPEND = {"postgres": POSTGRES_APPEND, "clickhouse": CLICKHOUSE_APPEND}
"""The terms of a plain INSERT or COPY, by database."""
HALVES = replace(
    POSTGRES_APPEND, others_see="each half as soon as it commits", after_failure="the half of the other connection"
)
LOCKED = replace(POSTGRES_APPEND, kind="bulk_load", locks="the table, against readers and writers")
REPLACED = Contract("bulk_load", "nothing", "the table as it was, until all of it is replaced at once", "nothing")
IDEMPOTENT = replace(
    CLICKHOUSE_APPEND, locks="nothing; it changes a setting of the table, which stays changed",
    after_failure="the blocks written before; tried again, each of them once",
)  # fmt: skip

REPLACED_IN_TRANSACTION = Contract(
    "replace",
    "the table, against readers and writers",
    "nothing: they wait until it commits",
    "the rows that were there",
)
REPLACED_BESIDE = replace(
    REPLACED, kind="replace", locks="nothing: what others write meanwhile is lost",
    after_failure="the rows that were there; a table beside them where the client died",
)  # fmt: skip
UPSERT = Contract("upsert", "rows that it changes", "nothing until it commits", "nothing")
UPSERT_SNAPSHOT = replace(UPSERT, after_failure="nothing; of two at once that bring the same new key, one fails")
UPSERT_SWAP = replace(UPSERT, locks="the table against writers, and at its end against readers")
UPSERT_BLOCKS = Contract(
    "upsert", "nothing", "every block as soon as it is written; without FINAL both rows until a merge",
    "the blocks written before; sent again it is right",
)  # fmt: skip
UPSERT_EXCHANGED = Contract(
    "upsert", "nothing: what others write meanwhile is lost", "the table as it was, until all is replaced at once",
    "a table beside, when the client died",
)  # fmt: skip
UPSERT_PARTITIONS = replace(
    UPSERT_EXCHANGED, others_see="each partition as soon as it is replaced",
    after_failure="the partitions replaced before; a table beside, when the client died",
)  # fmt: skip
UPSERT_PATCHED = Contract(
    "upsert", "nothing", "rows that change first, then new ones",
    "maybe the changed rows alone; tables beside, when the client died",
)  # fmt: skip
UPSERT_DELETED = Contract(
    "upsert", "nothing", "rows that change are missing for a while",
    "maybe rows missing until it is sent again; a table beside, when the client died",
)  # fmt: skip
ALL_OR_NOTHING = (UPSERT, UPSERT_SNAPSHOT, UPSERT_SWAP, UPSERT_EXCHANGED)
"""The terms of atomic upserts."""
