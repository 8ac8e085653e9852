"""One row of the study's file: a pass of an upsert, one watched by a reader, two at once, or one that breaks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl

from framehaul.bench import store
from framehaul.bench.store import Status
from framehaul.studies.upsert import STUDY
from framehaul.studies.upsert.frames import Case
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database, frame_and_driver

BOTH: tuple[Database, ...] = ("postgres", "clickhouse")
type Part = Literal["speed", "reader", "writers", "sent twice", "connection cut", "client killed", "server killed"]


@dataclass(frozen=True)
class Row:
    """One pass; a missing number is None, never 0. Those without a default say which it is."""

    run_id: str
    part: str
    database: str
    technique: str
    label: str
    target_rows: int
    rows: int
    share: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    written_bytes: int | None = None
    """Of PostgreSQL its log, of ClickHouse all that the server wrote into files."""
    grown_bytes: int | None = None
    """By how much the table with its indexes takes more than before."""
    dead_rows: int | None = None
    """Of PostgreSQL, what VACUUM would remove; of ClickHouse, rows stored that no reader is to see."""
    parts: int | None = None
    """Of ClickHouse: how many parts more than before."""
    read_before_s: float | None = None
    read_s: float | None = None
    """A query over the whole table, right after it."""
    surplus_rows: int | None = None
    """Of ClickHouse: rows more than there are, for who reads without FINAL."""
    reads: int | None = None
    seen: str | None = None
    """What readers saw meanwhile."""
    longest_read_s: float | None = None
    retries: int | None = None
    errors: str | None = None
    lost_rows: int | None = None
    doubled_rows: int | None = None
    mixed_rows: int | None = None
    """Of rows that both have, those of the one who has fewer."""
    left: str | None = None
    """What was there after a failure."""
    beside: int | None = None
    """Tables left beside."""
    again: str | None = None
    """What came of sending it again."""
    status: Status = "ok"
    reason: str | None = None


def identity_of(run_id: str, part: Part, technique: Technique, case: Case, number: int) -> dict[str, Any]:
    """The columns that say which pass a row is about."""
    return {
        "run_id": run_id, "part": part, "database": technique.database, "technique": technique.name,
        "label": technique.label, "target_rows": case.target, "rows": case.rows, "share": case.share, "pass_": number,
    }  # fmt: skip


def placed(directory: Path) -> pl.DataFrame:
    """The timed passes of a results directory as those of techniques, with their tables and what came into them."""
    timed = store.read(directory / STUDY.results, Row).filter(part="speed")
    names = {name: frame_and_driver(name) for name in timed["technique"].unique()}
    lacking = {name: pl.lit(None, kind) for name, kind in store.SCHEMA.items() if name not in timed.columns}
    alike = {"direction": "write", "family": "upsert", "origin": "upsert", "contract": "upsert"}
    tables = [Case(*row).there_before for row in timed.select("target_rows", "rows", "share").rows()]
    return timed.with_columns(**lacking).with_columns(
        **{column: pl.lit(value) for column, value in alike.items()},
        notebook=pl.lit(STUDY.notebook), connections=pl.lit(1),
        frame=pl.col("technique").replace({name: frame for name, (frame, _) in names.items()}),
        driver=pl.col("technique").replace({name: driver for name, (_, driver) in names.items()}),
        table=pl.Series(tables, dtype=pl.String), variant=pl.lit(""),
    )  # fmt: skip
