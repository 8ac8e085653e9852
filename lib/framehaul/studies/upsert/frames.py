"""The existing rows, the incoming rows, and the rows expected afterwards, which Polars computes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from framehaul.data import generator
from framehaul.data.schema import Column, ColumnType, Table
from framehaul.techniques.registry import Database

BOTH: tuple[Database, ...] = ("postgres", "clickhouse")
TABLE = Table(
    "framehaul_upsert",
    (
        Column("id", ColumnType.INT64), Column("day", ColumnType.DATE), Column("label", ColumnType.TEXT),
        Column("note", ColumnType.TEXT, nullable=True), Column("amount", ColumnType.FLOAT64),
        Column("mark", ColumnType.INT32),
    ),
    ("id", "day"),
    partition_by_month_of="day",
)  # fmt: skip
"""The key is a number and the day, by which ClickHouse partitions; `mark` is the number of the frame of a row."""
KEY = list(TABLE.key)
FIRST_DAY = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
DAYS = 120
"""The number of days of the rows, which are in four partitions."""
PER_CENT = 100


@dataclass(frozen=True)
class Case:
    """The numbers of existing and incoming rows, and the percentage of incoming rows whose key exists."""

    target_rows: int
    rows: int
    share: int

    @property
    def existing(self) -> int:
        """The number of incoming rows whose key exists."""
        return min(self.target_rows, round(self.rows * self.share / PER_CENT))

    @property
    def exact_share(self) -> str:
        """The percentage in words; a single row has 0% or 100%, whatever the share."""
        return f"{PER_CENT * self.existing / self.rows:.0f}%"

    @property
    def label(self) -> str:
        """The case in words."""
        return f"{self.rows:,} row{'s' * (self.rows > 1)} into {self.target_rows:,}, {self.exact_share} there"


def cases(targets: Sequence[int], incoming: Sequence[int], shares: Sequence[int]) -> list[Case]:
    """Return for every table the most rows that fit, at all shares, and fewer rows at the largest share.

    Of several tables, the smallest has only the most rows, and the largest only the fewest at the largest share.
    Of shares that result in the same number of rows, only the largest is a case.
    """
    *smaller, largest = sorted({*targets})
    every = []
    for target in smaller or [largest]:
        *fewer, most = [rows for rows in sorted({*incoming}) if rows <= target] or [min(incoming)]
        every += [Case(target, rows, max(shares)) for rows in fewer if not smaller or target != smaller[0]]
        every += [Case(target, most, share) for share in sorted(shares)]
    every += [Case(largest, min(incoming), max(shares))] if smaller else []
    return [*{(one.target_rows, one.rows, one.existing): one for one in every}.values()]


def base(rows: int, seed: int, first: int = 0, mark: int = 0) -> pl.DataFrame:
    """Return rows with ids from `first` on, and days that follow from the ids."""
    ids = pl.int_range(first, first + rows, dtype=pl.Int64, eager=True)
    day = (ids % DAYS + FIRST_DAY).cast(pl.Int32).cast(pl.Date)
    return generator.polars_frame(TABLE, rows, seed).with_columns(id=ids, day=day, mark=pl.lit(mark, pl.Int32))


def incoming(there: pl.DataFrame, case: Case, seed: int, *, mark: int = 1, first: int | None = None) -> pl.DataFrame:
    """Return shuffled incoming rows: some of the table's keys with other values, and new rows.

    New ids begin with `first`, by default the number of rows in the table.
    """
    known = there.select(KEY).sample(case.existing, seed=seed)
    fresh = base(case.rows - case.existing, seed + 1, len(there) if first is None else first, mark)
    changed = base(case.existing, seed + 2, 0, mark).with_columns(known["id"], known["day"])
    return pl.concat([changed, fresh]).sample(fraction=1, shuffle=True, seed=seed)


def updated(there: pl.DataFrame, come: pl.DataFrame) -> pl.DataFrame:
    """Return the rows after the upsert, computed by Polars."""
    return pl.concat([there.join(come, on=KEY, how="anti"), come])
