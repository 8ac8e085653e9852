"""Partitions of a table by its date: Parquet files, and the methods of the databases that they are written to."""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from framehaul.data import generator
from framehaul.data.schema import Table


@dataclass(frozen=True)
class Range:
    """The rows whose date is at least `low` and less than `high`; None means no bound."""

    low: dt.date | None
    high: dt.date | None

    def condition(self, column: str) -> str:
        """Return the range as a condition in SQL."""
        bounds = ((self.low, ">="), (self.high, "<"))
        return " AND ".join(f"{column} {than} '{bound}'" for bound, than in bounds if bound is not None) or "true"


@dataclass(frozen=True)
class Partition:
    """A Parquet file with all rows of a range."""

    number: int
    path: Path
    rows: int
    range: Range


@dataclass(frozen=True)
class Target:
    """A table of a database during one run; workers receive it, and its representation shows no password.

    The name of the run is part of every name that it creates. The subclasses have these methods:

    - Write: `begin` creates the empty table of the run. `stage` creates an empty staging table, or raises an error when
      the run is over. `rows_in` counts the rows of a staging table. `commit` replaces the table by all partitions at
      once: readers see the old table or all partitions.
    - Read: `reading` yields pieces of one state of the table, `read` reads a piece on a worker.
    - `end`, which is always called, drops all tables of the run and ends the workers' statements; it undoes no commit.
    """

    server: Any = field(repr=False)
    table: Table
    run: str = field(default_factory=partial(secrets.token_hex, 4))

    @property
    def new(self) -> Table:
        """The table of the run, which replaces the table that readers see."""
        return self.table.renamed(f"{self.table.name}_{self.run}")

    def staging_name(self, partition: Partition) -> str:
        """Return a new name for the staging table of one attempt."""
        return f"{self.new.name}_p{partition.number}_{secrets.token_hex(3)}"


def ranges(count: int) -> list[Range]:
    """Return ranges of nearly equal length that cover the days of the generated data."""
    cuts = [generator.FIRST_DAY + dt.timedelta(generator.DAYS * at // count) for at in range(1, count)]
    return [Range(low, high) for low, high in itertools.pairwise([None, *cuts, None])]


def make(directory: Path, table: Table, rows: int, seed: int, partitions: int) -> list[Partition]:
    """Write the rows of a seed to a new directory, one Parquet file per range of dates."""
    directory.mkdir()
    content = generator.arrow_table(table, rows, seed)
    dates = pl.Series(values=content[date_of(table)])
    made = []
    for number, each in enumerate(ranges(partitions)):
        inside = (dates >= (each.low or dt.date.min)) & (dates < (each.high or dt.date.max))
        path, part = directory / f"part-{number:05}.parquet", content.filter(inside.to_arrow())
        pq.write_table(part, path)
        made.append(Partition(number, path, part.num_rows, each))
    return made


def date_of(table: Table) -> str:
    """Return the column of dates by which a table is partitioned."""
    assert table.partition_by_month_of is not None
    return table.partition_by_month_of


def frame_of(path: Path, table: Table) -> pl.DataFrame:
    """Return the rows of a file in the table's dtypes."""
    return pl.read_parquet(path).select(table.column_names).cast(pl.Schema(table.polars_schema))
