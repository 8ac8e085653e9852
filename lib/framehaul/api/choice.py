"""Choose the technique for a call, and say why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from framehaul.api.lookup import Relation
from framehaul.data.schema import ARRAYS, NO_NATIVE, Column, ColumnType
from framehaul.errors import TableError
from framehaul.techniques import techniques
from framehaul.techniques.contract import (
    APPEND,
    IDEMPOTENT,
    REPLACED,
    REPLACED_BESIDE,
    REPLACED_IN_TRANSACTION,
    UPSERT,
    UPSERT_BLOCKS,
    UPSERT_SNAPSHOT,
    Contract,
)
from framehaul.techniques.registry import Database, upserts

type Mode = Literal["append", "replace", "upsert"]
MODES: tuple[Mode, ...] = ("append", "replace", "upsert")
MODULES = (
    ("framehaul.techniques.beyond.postgres_write", "framehaul.techniques.upsert.postgres_write"),
    ("framehaul.techniques.beyond.clickhouse_write", "framehaul.techniques.upsert.clickhouse_write"),
)
"""Where the techniques for PostgreSQL and for ClickHouse are."""
FEW_ROWS = 10_000
"""Below it sorting by the key, or compiled loops, gain less than they cost."""


@dataclass(frozen=True)
class Choice:
    """A technique by name, why it was taken, and the terms of a write."""

    technique: str
    reason: str
    terms: Contract | None = None
    not_taken: Mapping[str, str] = field(default_factory=dict)
    """Faster techniques on other terms, and the reason why each was not taken."""
    ddl: str = ""
    """The CREATE TABLE for a table that is missing."""

    def __str__(self) -> str:
        lines = [self.technique, self.reason]
        if self.terms:
            lines += [
                f"locks: {self.terms.locks}", f"visible while it runs: {self.terms.others_see}",
                f"left after a failure: {self.terms.after_failure}",
            ]  # fmt: skip
        lines += [f"faster, not taken: {name}: {why}" for name, why in self.not_taken.items()]
        return "\n".join([*lines, self.ddl] if self.ddl else lines)


def technique_function(name: str) -> Callable[..., None]:
    """Return the function of a technique, whose module alone is imported: others load drivers that it does not need.

    Raises TableError for a name that `framehaul.write` does not take.
    """
    for module in MODULES[name.partition("_")[2].startswith("http_client")]:
        if function := getattr(import_module(module), name, None):
            return function  # type: ignore[no-any-return]
    raise TableError(f"technique={name!r}: name one over psycopg (pgpq) or http.client, as explain() does")


SUITS: dict[Mode, Callable[[Contract], bool]] = {
    "append": lambda terms: terms.kind in ("append", "bulk_load") and terms not in (IDEMPOTENT, REPLACED),
    "replace": lambda terms: terms.kind == "append" and terms != IDEMPOTENT,
    "upsert": lambda terms: terms in (UPSERT, UPSERT_SNAPSHOT, UPSERT_BLOCKS),
}
"""The terms that a technique has to have for a mode. None of them alters a user's table."""


def named_techniques(database: Database, mode: Mode) -> list[str]:
    """Return the names of the techniques that `framehaul.write` takes by name in this mode."""
    known = [*techniques(database, "write"), *upserts(database)]
    clients = {"postgres": "psycopg", "clickhouse": "http_client"}
    return [
        one.name for one in known
        if one.client == clients[database] and one.contract and SUITS[mode](one.contract) and one.origin != "framehaul"
    ]  # fmt: skip


def check_technique(name: str, database: Database, mode: Mode) -> None:
    """Raise TableError for a technique that `framehaul.write` does not take in this mode."""
    taken = named_techniques(database, mode)
    if name not in taken:
        raise TableError(f"technique={name!r}: with mode={mode!r} choose from {', '.join(taken)}")


def choose_postgres_write(frame: str, table: Relation, rows: int, mode: Mode) -> Choice:
    """Return a fast technique that keeps every value, in one transaction and without a lock that readers meet."""
    terms = REPLACED_IN_TRANSACTION if mode == "replace" else APPEND["postgres"]
    if mode == "upsert":
        if not table.key:
            raise TableError(f"table {table.reference} has no primary key within the frame: an upsert needs one")
        if any(map(_is_array_that_pgpq_lacks, table.columns)):
            return Choice(
                "polars_psycopg_pipeline_on_conflict", "INSERT ... ON CONFLICT: pgpq has no such arrays", UPSERT
            )
        return Choice(
            "polars_pgpq_temporary_on_conflict",
            "binary COPY into a temporary table, then INSERT ... ON CONFLICT",
            UPSERT,
        )
    if any(map(_is_array_that_pgpq_lacks, table.columns)):
        return Choice("polars_psycopg_copy_binary", "binary COPY row by row: pgpq has no such arrays", terms)
    if table.key and rows >= FEW_ROWS:
        return Choice(
            f"{frame}_pgpq_presorted",
            "rows in the order of the primary key append to its index instead of hitting random pages of it", terms,
            {
                f"{frame}_pgpq_key_last": "it locks the table, against readers and writers",
                "polars_pgpq_presorted_two_connections": "its two transactions may leave half of the rows",
            },
        )  # fmt: skip
    why = "too few rows for sorting to pay" if table.key else "there is no key to sort by"
    return Choice(f"{frame}_pgpq_copy_binary", f"binary COPY as the rows are: {why}", terms)


def _is_array_that_pgpq_lacks(column: Column) -> bool:
    element = column.element if column.type in ARRAYS else None
    return element is not None and (element.type is ColumnType.UUID or bool(getattr(element.types.arrow, "tz", None)))


def choose_clickhouse_write(frame: str, engine: str, table: Relation, rows: int, mode: Mode) -> Choice:
    """Return a fast technique that keeps every value and locks nothing."""
    terms = REPLACED_BESIDE if mode == "replace" else APPEND["clickhouse"]
    if mode == "replace" and "MergeTree" not in engine and engine not in ("Memory", "Log", "TinyLog", "StripeLog"):
        raise TableError(
            f"table {table.reference} is a {engine}, whose copy shares its rows: replace the table below it"
        )
    if mode == "upsert":
        if "ReplacingMergeTree" not in engine or not table.key:
            raise TableError(
                f"table {table.reference} is a {engine}: an upsert needs a ReplacingMergeTree, sorted by its "
                "key and read with FINAL; or use mode='replace'"
            )
        return Choice(
            "polars_http_client_replacing", "a ReplacingMergeTree keeps the last row of each key", UPSERT_BLOCKS
        )
    if rows >= FEW_ROWS and table.key and not table.columns_of(*NO_NATIVE):
        return Choice(
            f"{frame}_http_client_native_presorted",
            "Native blocks of one partition each, sorted as the table is: the server neither splits nor sorts", terms,
        )  # fmt: skip
    why = "few rows" if rows < FEW_ROWS else "no sorting key, or a type that Native blocks are not made of"
    return Choice(f"{frame}_http_client_arrow_stream", f"an Arrow stream: {why}", terms)
