"""The rows of the study's results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from framehaul.bench import store
from framehaul.bench.store import Status
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert.frames import Case
from framehaul.techniques.registry import Database, frame_and_driver

BOTH: tuple[Database, ...] = ("postgres", "clickhouse")
type Part = Literal["speed", "reader", "writers", "sent twice", "client killed"]


@dataclass(frozen=True)
class Row:
    """A pass of an upsert; a missing number is None, never 0."""

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
    read_before_s: float | None = None
    """The seconds of a reader's query over the whole table before the upsert."""
    longest_read_s: float | None = None
    seen: str | None = None
    """The states that the reader saw while the upsert ran, each with its number of reads."""
    errors: str | None = None
    lost_rows: int | None = None
    doubled_rows: int | None = None
    mixed_rows: int | None = None
    """The rows of the writer with fewer rows, among rows with keys of both writers."""
    left: str | None = None
    """The rows of the frame in the table after the client was killed."""
    beside: int | None = None
    """The number of staging tables left after the client was killed."""
    status: Status = "ok"
    reason: str | None = None


def placed(directory: Path) -> pl.DataFrame:
    """Return the timed passes of a results directory as passes of techniques, with the columns of `measured.PLACE`."""
    timed = store.read(directory / UPSERT_STUDY.results, Row).filter(part="speed")
    names = {name: frame_and_driver(name) for name in timed["technique"].unique()}
    lacking = {name: pl.lit(None, kind) for name, kind in store.SCHEMA.items() if name not in timed.columns}
    alike = {"direction": "write", "family": "upsert", "origin": "upsert", "contract": "upsert"}
    tables = [Case(*row).there_before for row in timed.select("target_rows", "rows", "share").rows()]
    return timed.with_columns(**lacking).with_columns(
        **{column: pl.lit(value) for column, value in alike.items()},
        notebook=pl.lit(UPSERT_STUDY.notebook), connections=pl.lit(1),
        frame=pl.col("technique").replace({name: frame for name, (frame, _) in names.items()}),
        driver=pl.col("technique").replace({name: driver for name, (_, driver) in names.items()}),
        table=pl.Series(tables, dtype=pl.String), variant=pl.lit(""),
    )  # fmt: skip
