"""A data set of Parquet files, one per partition: made here, or somebody's directory."""

from __future__ import annotations

import datetime as dt
import itertools
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.data import generator
from framehaul.data.schema import Table

CHUNK_ROWS = 1_000_000
"""Rows that are made at once, from a seed of their own: no more than that is in memory, however large the data set."""


class PartitionError(ValueError):
    """A directory does not hold partitions of the table; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Partition:
    """One file, and which range of the table's date it holds; no range when files overlap.

    From `low` on and up to, not including, `high`; None is no bound. The ranges of all partitions lie side by side.
    """

    number: int
    path: Path
    rows: int
    ranged: bool = False
    low: dt.date | None = None
    high: dt.date | None = None


@dataclass(frozen=True)
class Piece:
    """A run of rows or pages of something named, `start` included, `stop` not."""

    name: str
    start: int
    stop: int


def make(directory: Path, table: Table, rows: int, seed: int, partitions: int) -> list[Partition]:
    """Write a data set cut by the table's date into up to so many files; the rows are the same for any number of them.

    Raises PartitionError for a table without a date to cut by.
    """
    name = table.partition_by_month_of
    if name is None:
        raise PartitionError(f"{table.name} has no date to cut it by")
    days = [generator.FIRST_DAY + dt.timedelta(generator.DAYS * at // partitions) for at in range(1, partitions)]
    with ExitStack() as stack:
        writers = [
            stack.enter_context(pq.ParquetWriter(directory / f"part-{number:05}.parquet", table.arrow_schema))
            for number in range(partitions)
        ]
        for chunk, start in enumerate(range(0, rows, CHUNK_ROWS)):
            content = generator.arrow_table(table, min(CHUNK_ROWS, rows - start), seed + chunk)
            place = pl.Series(days, dtype=pl.Date).search_sorted(pl.Series(values=content[name]), side="right")
            for number, writer in enumerate(writers):
                writer.write_table(content.filter(pa.array((place == number).to_numpy())))
    for path in directory.glob("part-*.parquet"):
        if not pq.read_metadata(path).num_rows:
            path.unlink()
    return of_directory(directory, table)


def of_directory(directory: Path, table: Table) -> list[Partition]:
    """The Parquet files of a directory, in the order of their names.

    Raises PartitionError for no files, and for one whose columns are not those of the table.
    """
    paths = sorted(directory.glob("*.parquet"))
    if not paths:
        raise PartitionError(f"{directory.name} holds no Parquet file; each is a partition")
    for path in paths:
        columns = pq.read_schema(path).names
        if columns != table.column_names:
            raise PartitionError(f"{path.name} has the columns {columns}, and the table {table.column_names}")
    whole = [Partition(number, path, pq.read_metadata(path).num_rows) for number, path in enumerate(paths)]
    return _ranged(whole, table) or whole


def _ranged(partitions: list[Partition], table: Table) -> list[Partition] | None:
    """The partitions with their ranges, where the date is in the key and no two of them have a day in common."""
    name = table.partition_by_month_of
    if name is None or name not in table.key:
        return None
    at = table.column_names.index(name)
    spans = [(_span(partition.path, at), partition) for partition in partitions]
    known = sorted(((span, partition) for span, partition in spans if span), key=lambda pair: pair[0])
    if len(known) < len(spans) or any(one[0][1] >= other[0][0] for one, other in itertools.pairwise(known)):
        return None
    bounds = [None, *(span[0] for span, _ in known[1:]), None]
    return [
        replace(partition, ranged=True, low=low, high=high)
        for (_, partition), (low, high) in zip(known, itertools.pairwise(bounds), strict=True)
    ]


def _span(path: Path, column: int) -> tuple[dt.date, dt.date] | None:
    """The first and the last day in a file, from the statistics in its footer; None where one is not told."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(at).column(column).statistics for at in range(metadata.num_row_groups)
              if metadata.row_group(at).num_rows]  # fmt: skip
    if not groups or any(group is None or not group.has_min_max for group in groups):
        return None
    return min(group.min for group in groups), max(group.max for group in groups)


def frame_of(path: Path, table: Table) -> pl.DataFrame:
    """The rows of a file in the table's dtypes."""
    return pl.read_parquet(path).select(table.column_names).cast(pl.Schema(table.polars_schema))


def spread(sizes: dict[str, int], pieces: int) -> list[list[Piece]]:
    """What is so large each, laid end to end and cut into so many lists of about the same size; all of it, once."""
    total = sum(sizes.values())
    cuts = [total * at // pieces for at in range(pieces + 1)]
    shares: list[list[Piece]] = []
    for low, high in itertools.pairwise(cuts):
        begin, here = 0, []
        for name, size in sizes.items():
            start, stop = max(low - begin, 0), min(high - begin, size)
            if start < stop:
                here.append(Piece(name, start, stop))
            begin += size
        shares.append(here)
    return shares
