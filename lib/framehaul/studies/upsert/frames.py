"""What is in the table, what comes, and what has to be there afterwards: the same update, done in Polars."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul.bench.rounds import check
from framehaul.data import generator
from framehaul.data.schema import Column, ColumnType, Table

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
"""A key of a number and the day that ClickHouse partitions by; `mark` says which frame a row has come with."""
KEY = list(TABLE.key)
FIRST_DAY = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days
DAYS = 120
"""Rows are spread over so many days, which is four partitions."""
PER_CENT = 100


@dataclass(frozen=True)
class Case:
    """How many rows are there, how many come, and how many per cent of these are there already."""

    target_rows: int
    rows: int
    share: int

    @property
    def label(self) -> str:
        """As a reader knows it."""
        return f"{self.rows:,} row{'s' * (self.rows > 1)} into {self.target_rows:,}, {self._there} there"

    @property
    def there_before(self) -> str:
        """The table that they come into."""
        return f"{self.target_rows:,} rows there before, {self._there} of the keys"

    @property
    def _there(self) -> str:
        return f"{PER_CENT * self.existing / self.rows:.0f}%"  # of one row all or none, whatever the share

    @property
    def existing(self) -> int:
        """Rows that come and are there."""
        return min(self.target_rows, round(self.rows * self.share / PER_CENT))


def check_sizes(values: Mapping[str, Any]) -> None:
    """Raises ValueError, naming it, for a number that is too small, or a share that is none."""
    for name, least in (("targets", 1), ("incoming", 1), ("shares", 0)):
        for one in values[name]:
            check(**{name.upper(): (one, least)})
    for share in values["shares"]:
        if not 0 <= share <= PER_CENT:
            raise ValueError(f"SHARES={share}: give whole per cent, 0 to 100")


def cases(targets: Sequence[int], incoming: Sequence[int], shares: Sequence[int]) -> list[Case]:
    """Of every table the most rows that fit, of all shares, and fewer rows, of the largest share.

    Two tables have less: the smallest only the most rows, the largest only the fewest, of the largest share. Where
    there is one table alone it has all. Of shares that are the same work, as of one row, the largest stands for all.
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
    """Rows with ids from `first` on, each with a day of its own choosing."""
    ids = pl.int_range(first, first + rows, dtype=pl.Int64, eager=True)
    day = (ids % DAYS + FIRST_DAY).cast(pl.Int32).cast(pl.Date)
    return generator.polars_frame(TABLE, rows, seed).with_columns(id=ids, day=day, mark=pl.lit(mark, pl.Int32))


def incoming(there: pl.DataFrame, case: Case, seed: int, *, mark: int = 1, first: int | None = None) -> pl.DataFrame:
    """Rows that come: of what is there some with other values, and new ones, in no order.

    New ids begin with `first`; behind as many as are there, unless it is given.
    """
    known = there.select(KEY).sample(case.existing, seed=seed)
    fresh = base(case.rows - case.existing, seed + 1, len(there) if first is None else first, mark)
    changed = base(case.existing, seed + 2, 0, mark).with_columns(known["id"], known["day"])
    return pl.concat([changed, fresh]).sample(fraction=1, shuffle=True, seed=seed)


def updated(there: pl.DataFrame, come: pl.DataFrame) -> pl.DataFrame:
    """The same update, done in Polars."""
    return pl.concat([there.join(come, on=KEY, how="anti"), come])
