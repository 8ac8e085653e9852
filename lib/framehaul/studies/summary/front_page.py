"""Which technique to take for which case, and on which terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.reporting.tables import (
    Column,
    Listing,
    Row,
    speed_text,
    where,
    words,
)
from framehaul.studies.summary.needs import compiled, needs
from framehaul.studies.transfers import findings
from framehaul.techniques import techniques, upserts
from framehaul.techniques.contract import CLICKHOUSE_APPEND, IDEMPOTENT, POSTGRES_APPEND
from framehaul.techniques.registry import DATABASES, Database, Direction
from framehaul.techniques.streaming import MOVES


@dataclass(frozen=True)
class Case:
    """What somebody wants of a transfer, and which techniques give it."""

    text: str
    database: Database
    direction: Direction
    fits: Callable[[Row], bool] = lambda _: True
    contract: str | None = None


def _usual(row: Row) -> bool:
    return row["driver"] in findings.USUAL_DRIVERS and not compiled(row)


def _pandas(row: Row) -> bool:
    return bool(row["frame"] == "pandas")


CASES = (
    Case("append, fastest", "postgres", "write", contract="append"),
    Case(
        "append, all rows at once or none", "postgres", "write",
        lambda row: terms_of(row) == vars(POSTGRES_APPEND), "append",
    ),
    Case("append, with psycopg alone", "postgres", "write", _usual, "append"),
    Case("bulk load of a table that nobody uses meanwhile", "postgres", "write", contract="bulk_load"),
    Case("Polars frame, fastest", "postgres", "read", lambda row: not _pandas(row)),
    Case("pandas frame, fastest", "postgres", "read", _pandas),
    Case("with psycopg alone", "postgres", "read", _usual),
    Case("append, fastest", "clickhouse", "write", lambda row: terms_of(row) == vars(CLICKHOUSE_APPEND), "append"),
    Case(
        "append, safe to send again after a failure", "clickhouse", "write",
        lambda row: terms_of(row) == vars(IDEMPOTENT), "append",
    ),
    Case("replace the whole table, all rows at once or none", "clickhouse", "write", contract="bulk_load"),
    Case("append, no client but Python's own", "clickhouse", "write", _usual, "append"),
    Case("Polars frame, fastest", "clickhouse", "read", lambda row: not _pandas(row)),
    Case("pandas frame, fastest", "clickhouse", "read", _pandas),
)  # fmt: skip


def which_table(summary: pl.DataFrame, others: Sequence[Row] = (), root: str = "") -> Listing:
    """The fastest technique with exact dtypes for each case, and its terms.

    `others` are rows of what other studies have measured: networks, upserts, streams. Where the run has no technique
    that fits, one of the registry stands there, and no speed. `root` leads to the project's directory.
    """
    columns = [
        words("you want", "case"),
        words("take", lambda row: _linked(row, root)),
        Column("rows/s", lambda row: speed_text(row, "median_rows_per_s") or "not in this run"),
        words("needs", needs),
        words("locks", lambda row: terms_of(row).get("locks")),
        words("others see meanwhile", lambda row: terms_of(row).get("others_see")),
        words("a failure leaves", lambda row: terms_of(row).get("after_failure")),
    ]
    rows = [row for case in CASES if (row := _best(case, summary))]
    return Listing(columns, [*rows, *({**row, "case": f"{where(row)}: {row['case']}"} for row in others)])


def terms_of(row: Row) -> dict[str, str]:
    """What a write asks of others and leaves; nothing of a read, or of a technique that is there no more."""
    every = *techniques(row["database"], row["direction"]), *MOVES, *upserts(row["database"])
    known = {one.key: one for one in every}
    technique = known.get((row["database"], row["direction"], row["technique"]))
    return vars(technique.contract) if technique and technique.contract else {}


def _best(case: Case, summary: pl.DataFrame) -> dict[str, Any] | None:
    """The row of the first technique that fits: of those measured, else of the registry."""
    measured = findings.raced(summary).filter(database=case.database, direction=case.direction, dtypes="exact")
    known = [vars(one) | {"technique": one.name, "median_rows_per_s": None, "status": "ok", "unstable": False}
             for one in techniques(case.database, case.direction) if one.origin != "baseline"]  # fmt: skip
    for row in (*measured.to_dicts(), *known):
        if case.contract in (None, terms_of(row).get("kind")) and case.fits(row):
            return row | {"case": f"{DATABASES[case.database]} {case.direction}: {case.text}"}
    return None


def _linked(row: Row, root: str) -> str:
    """A technique's name, which leads to its file."""
    of = {"streamed": "streaming"}.get(row["origin"], f"{row['origin']}/{row['database']}_{row['direction']}")
    return f"[`{row['technique']}`]({root}lib/framehaul/techniques/{of}.py)"
