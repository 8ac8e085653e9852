"""The blocks of the front page: one table that answers, and one that says which technique to take on which terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.reporting.tables import (
    Column,
    Listing,
    Row,
    ratio_text,
    speed_text,
    spread_text,
    where,
    where_and_class,
    words,
)
from framehaul.studies.summary.needs import compiled, needs
from framehaul.studies.transfers import findings
from framehaul.techniques import techniques
from framehaul.techniques.contract import CLICKHOUSE_APPEND, IDEMPOTENT, POSTGRES_APPEND
from framehaul.techniques.registry import DATABASES, Database, Direction

FEW_TIES = 2
"""So many are named; more are counted."""


def answer_table(summary: pl.DataFrame, cores: int | None = None) -> Listing:
    """The fastest technique of each direction and class of writes, over the best published, and against the bound."""
    bounds = {
        (past.database, past.direction, past.contract): past.bound for past in findings.past_published(summary, cores)
    }

    def of_bound(row: Row) -> float | None:
        bound = bounds.get((row["database"], row["direction"], row["contract"]))
        return row["median_rows_per_s"] / bound.both if bound else None

    columns = [
        words("direction", where_and_class),
        words("fastest technique", "label"),
        words("not told apart from it", "tied", few),
        Column("rows/s, median", lambda row: speed_text(row, "median_rows_per_s")),
        Column("min to max", spread_text),
        Column("ratio to the best published", ratio_text),
        Column("share of the bound", of_bound, "{:.0%}"),
    ]
    return Listing(columns, findings.winners(summary))


def few(labels: list[str]) -> str:
    """Some labels, or how many they are."""
    return "; ".join(labels) if len(labels) <= FEW_TIES else f"{len(labels)} others"


@dataclass(frozen=True)
class Case:
    """What somebody wants of a transfer, and which techniques give it."""

    text: str
    database: Database
    direction: Direction
    fits: Callable[[Row], bool] = lambda _: True
    """Of a row, whose `terms` are those of its contract."""
    contract: str | None = None


def _usual(row: Row) -> bool:
    return row["driver"] in findings.USUAL_DRIVERS and not compiled(row)


def _pandas(row: Row) -> bool:
    return bool(row["frame"] == "pandas")


CASES = (
    Case("append, fastest", "postgres", "write", contract="append"),
    Case(
        "append, all rows at once or none", "postgres", "write",
        lambda row: row["terms"] == vars(POSTGRES_APPEND), "append",
    ),
    Case("append, with psycopg alone", "postgres", "write", _usual, "append"),
    Case("bulk load of a table that nobody uses meanwhile", "postgres", "write", contract="bulk_load"),
    Case("Polars frame, fastest", "postgres", "read", lambda row: not _pandas(row)),
    Case("pandas frame, fastest", "postgres", "read", _pandas),
    Case("with psycopg alone", "postgres", "read", _usual),
    Case("append, fastest", "clickhouse", "write", lambda row: row["terms"] == vars(CLICKHOUSE_APPEND), "append"),
    Case(
        "append, safe to send again after a failure", "clickhouse", "write",
        lambda row: row["terms"] == vars(IDEMPOTENT), "append",
    ),
    Case("replace the whole table, all rows at once or none", "clickhouse", "write", contract="bulk_load"),
    Case("append, no client but Python's own", "clickhouse", "write", _usual, "append"),
    Case("Polars frame, fastest", "clickhouse", "read", lambda row: not _pandas(row)),
    Case("pandas frame, fastest", "clickhouse", "read", _pandas),
)  # fmt: skip


def which_table(summary: pl.DataFrame, there_already: Sequence[Row] = ()) -> Listing:
    """The fastest technique with exact dtypes for each case, and its terms; `there_already` are rows of upserts.

    Where the run has none that fits, one of the registry stands there, and no speed.
    """
    columns = [
        words("you want", "case"),
        words("take", _linked),
        Column("rows/s", lambda row: speed_text(row, "median_rows_per_s") or "not in this run"),
        words("needs", needs),
        words("locks", lambda row: row["terms"].get("locks")),
        words("others see meanwhile", lambda row: row["terms"].get("others_see")),
        words("a failure leaves", lambda row: row["terms"].get("after_failure")),
    ]
    rows = [row for case in CASES if (row := _best(case, summary))]
    upserts = [{**row, "case": f"{where(row)}: {row['case']}"} for row in there_already]
    return Listing(columns, [*rows, *upserts])


def _best(case: Case, summary: pl.DataFrame) -> dict[str, Any] | None:
    """The row of the first technique that fits: of those measured, else of the registry."""
    terms = {one.name: vars(one.contract) if one.contract else {} for one in techniques(case.database, case.direction)}
    measured = findings.raced(summary).filter(database=case.database, direction=case.direction, dtypes="exact")
    known = [vars(one) | {"technique": one.name, "median_rows_per_s": None, "status": "ok", "unstable": False}
             for one in techniques(case.database, case.direction) if one.origin != "baseline"]  # fmt: skip
    for row in (*measured.to_dicts(), *known):
        whole = row | {"terms": terms.get(row["technique"], {})}
        kind = whole["terms"].get("kind")
        if (case.contract is None or kind == case.contract) and case.fits(whole):
            return whole | {"case": f"{DATABASES[case.database]} {case.direction}: {case.text}"}
    return None


def _linked(row: Row) -> str:
    """A technique's name, which leads to its file, for a page in the project's directory."""
    path = f"lib/framehaul/techniques/{row['origin']}/{row['database']}_{row['direction']}.py"
    return f"[`{row['technique']}`]({path})"
