"""Choose the technique for a call, and say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import polars as pl

from framehaul.data.schema import NO_NATIVE, ColumnType, Table
from framehaul.errors import TableError
from framehaul.techniques import contract, techniques
from framehaul.techniques.contract import APPEND, Contract
from framehaul.techniques.registry import Database, upserts

if TYPE_CHECKING:
    import pandas as pd

type Mode = Literal["append", "replace", "upsert"]
MODES: tuple[Mode, ...] = ("append", "replace", "upsert")
TEXTS = (ColumnType.TEXT, ColumnType.UUID, ColumnType.JSON, ColumnType.BYTES)
"""Kinds that ClickHouse takes sooner as Native blocks than as Arrow; numbers it takes sooner as Arrow."""
FEW_ROWS, FEW_ROWS_WITHOUT_LOOPS, LEAST_SORTED_ROWS = 15_000, 2_000_000, 10_000
"""Fewer rows go unsorted: into ClickHouse if compiled loops have or have not been started, and into PostgreSQL."""


@dataclass(frozen=True)
class Choice:
    """A technique by name, why it was taken, and the terms of a write."""

    technique: str
    reason: str
    terms: Contract
    not_taken: Mapping[str, str] = field(default_factory=dict)
    """Faster techniques on other terms, and the reason why each was not taken."""
    ddl: str = ""
    """The CREATE TABLE for a table that is missing."""

    def __str__(self) -> str:
        lines = [
            f"{self.technique}\n{self.reason}\nlocks: {self.terms.locks}",
            f"visible while it runs: {self.terms.others_see}\nleft after a failure: {self.terms.after_failure}",
            *(f"faster, not taken: {name}: {why}" for name, why in self.not_taken.items()),
        ]
        return "\n".join([*lines, self.ddl] if self.ddl else lines)


TERMS: dict[Mode, tuple[Contract, ...]] = {
    "append": (*APPEND.values(), contract.LOCKED),
    "replace": (*APPEND.values(),),
    "upsert": (contract.UPSERT, contract.UPSERT_SNAPSHOT, contract.UPSERT_BLOCKS),
}
"""The terms of techniques for a mode. None of them alters a user's table."""


def named_techniques(database: Database, mode: Mode) -> list[str]:
    """Return the names of the techniques that `framehaul.write` takes by name in this mode."""
    client = {"postgres": "psycopg", "clickhouse": "http_client"}[database]
    exact = [one for one in (*techniques(database, "write"), *upserts(database)) if one.origin in ("beyond", "upsert")]
    return [one.name for one in exact if one.client == client and one.contract in TERMS[mode]]


def choose(
    frame: pl.DataFrame | pd.DataFrame, table: Table, engine: str, mode: Mode, technique: str = "", *,
    has_loops: bool = True,
) -> Choice:  # fmt: skip
    """Return a fast technique that keeps every value, or the named one; PostgreSQL's tables have no `engine`.

    Without `has_loops`, compiled loops would have to be started, which takes half a second.

    Raises TableError for an unknown mode, a technique that `framehaul.write` does not take in this mode, and a table
    that the mode does not suit.
    """
    if mode not in MODES:
        raise TableError(f"mode={mode!r}: choose from {', '.join(MODES)}")
    if technique and technique not in (taken := named_techniques("clickhouse" if engine else "postgres", mode)):
        raise TableError(f"technique={technique!r}: with mode={mode!r} choose from {', '.join(taken)}")
    kind, rows = "polars" if isinstance(frame, pl.DataFrame) else "pandas", len(frame)
    few = rows < (FEW_ROWS if has_loops else FEW_ROWS_WITHOUT_LOOPS)
    choice = _for_clickhouse(kind, table, engine, mode, few) if engine else _for_postgres(kind, table, rows, mode)
    return replace(choice, technique=technique, reason="as asked for") if technique else choice


def _for_postgres(frame: str, table: Table, rows: int, mode: Mode) -> Choice:
    """Choose one in one transaction and without a lock that readers meet."""
    from framehaul.techniques.beyond.postgres_write import refused_array

    lacks_array = refused_array(table, zones=True) is not None
    if mode == "upsert":
        if not table.key:
            raise TableError(f"table {table.reference} has no primary key within the frame: an upsert needs one")
        if lacks_array:
            how = "INSERT ... ON CONFLICT: pgpq has no such arrays"
            return Choice("polars_psycopg_pipeline_on_conflict", how, contract.UPSERT)
        how = "binary COPY into a temporary table, then INSERT ... ON CONFLICT"
        return Choice("polars_pgpq_temporary_on_conflict", how, contract.UPSERT)
    terms = contract.REPLACED_IN_TRANSACTION if mode == "replace" else APPEND["postgres"]
    if lacks_array:
        return Choice("polars_psycopg_copy_binary", "binary COPY row by row: pgpq has no such arrays", terms)
    if table.key and rows >= LEAST_SORTED_ROWS:
        why = "rows in the order of the primary key append to its index instead of hitting random pages of it"
        not_taken = {
            f"{frame}_pgpq_key_last": "it locks the table, against readers and writers",
            "polars_pgpq_presorted_two_connections": "its two transactions may leave half of the rows",
        }
        return Choice(f"{frame}_pgpq_presorted", why, terms, not_taken)
    why = "too few rows for sorting to pay" if table.key else "there is no key to sort by"
    return Choice(f"{frame}_pgpq_copy_binary", f"binary COPY as the rows are: {why}", terms)


def _for_clickhouse(frame: str, table: Table, engine: str, mode: Mode, is_few: bool) -> Choice:
    """Choose one that locks nothing."""
    terms = contract.REPLACED_BESIDE if mode == "replace" else APPEND["clickhouse"]
    what = f"table {table.reference} is a {engine}"
    if mode == "replace" and "MergeTree" not in engine and engine not in ("Memory", "Log", "TinyLog", "StripeLog"):
        raise TableError(f"{what}, whose copy shares its rows: replace the table below it")
    if mode == "replace" and engine.startswith("Replicated"):
        raise TableError(f"{what}, of which one replica alone would be replaced: fill another, and EXCHANGE ON CLUSTER")
    if mode == "upsert":
        if "ReplacingMergeTree" not in engine or not table.key:
            needs = "a ReplacingMergeTree, sorted by its key and read with FINAL; or use mode='replace'"
            raise TableError(f"{what}: an upsert needs {needs}")
        why = "a ReplacingMergeTree keeps the last row of each key"
        return Choice("polars_http_client_replacing", why, contract.UPSERT_BLOCKS)
    if not is_few and table.key and table.columns_of(*TEXTS) and not table.columns_of(*NO_NATIVE):
        why = "Native blocks of one partition each, sorted as the table is: the server neither splits nor sorts"
        return Choice(f"{frame}_http_client_native_presorted", why, terms)
    why = "few rows for compiled loops" if is_few else "no sorting key, no text, or a type that Native blocks lack"
    return Choice(f"{frame}_http_client_arrow_stream", f"an Arrow stream: {why}", terms)
