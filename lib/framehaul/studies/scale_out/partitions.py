"""A table cut by its date: Parquet files, and the tables of a database that they come from and go to."""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.data import generator
from framehaul.data.schema import Table


@dataclass(frozen=True)
class Range:
    """The rows whose date is at least `low` and less than `high`; None is no bound."""

    low: dt.date | None
    high: dt.date | None

    def condition(self, column: str) -> str:
        """Return it as SQL."""
        bounds = ((self.low, ">="), (self.high, "<"))
        return " AND ".join(f"{column} {than} '{bound}'" for bound, than in bounds if bound is not None) or "true"


@dataclass(frozen=True)
class Partition:
    """A file with all rows of a range."""

    number: int
    path: Path
    rows: int
    range: Range


@dataclass(frozen=True)
class Staged:
    """A partition that is complete in a staging table."""

    partition: Partition
    name: str


@dataclass(frozen=True)
class Target:
    """A table of a database during one run; it is sent to workers, and its representation shows no password.

    The run's name is in the name of everything that it makes. `postgres` and `clickhouse` have these methods:

    - To write: `begin` makes the empty table of the run, `stage` an empty staging table, or raises an error when the
      run is over; `rows_in` counts a staging table; `commit` replaces the table by all partitions at once, so that
      readers see what was there before, or all of them.
    - To read: `reading` gives pieces of one state of the table, `read` reads one of them on a worker.
    - At last, whatever happened, `end` drops what is left of the run and ends the workers' statements; what was
      committed stays.
    """

    server: Any = field(repr=False)
    table: Table
    run: str = field(default_factory=partial(secrets.token_hex, 4))

    @property
    def new(self) -> Table:
        """The table of the run, which takes the place of the table that readers see."""
        return self.table.renamed(f"{self.table.name}_{self.run}")

    def attempt_name(self, partition: Partition) -> str:
        """Return a name for the staging table of one attempt; no other attempt has it."""
        return f"{self.new.name}_p{partition.number}_{secrets.token_hex(3)}"


def ranges(count: int) -> list[Range]:
    """Cut the days of the generated data into ranges of about the same length."""
    cuts = [generator.FIRST_DAY + dt.timedelta(generator.DAYS * at // count) for at in range(1, count)]
    return [Range(low, high) for low, high in itertools.pairwise([None, *cuts, None])]


def make(directory: Path, table: Table, rows: int, seed: int, partitions: int) -> list[Partition]:
    """Write a data set into a file for each range in a new directory; the rows are the same for any number of files."""
    directory.mkdir()
    content = generator.arrow_table(table, rows, seed)
    cut = ranges(partitions)
    dates = pl.Series(values=content[date_of(table)])
    places = pl.Series([each.low for each in cut[1:]], dtype=pl.Date).search_sorted(dates, side="right")
    made = []
    for number, each in enumerate(cut):
        path, part = directory / f"part-{number:05}.parquet", content.filter(pa.array((places == number).to_numpy()))
        pq.write_table(part, path)
        made.append(Partition(number, path, part.num_rows, each))
    return made


def date_of(table: Table) -> str:
    """Return the name of the date by which a table is cut."""
    assert table.partition_by_month_of is not None
    return table.partition_by_month_of


def frame_of(path: Path, table: Table) -> pl.DataFrame:
    """Return the rows of a file in the table's dtypes."""
    return pl.read_parquet(path).select(table.column_names).cast(pl.Schema(table.polars_schema))
