"""What is done with partitions: a worker's part, and the part of whoever sent it there."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.studies.scale_out.cluster import Cluster
from framehaul.studies.scale_out.partitions import Partition, frame_of
from framehaul.studies.scale_out.targets import Staged, Target, attempt_name
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction

if TYPE_CHECKING:
    import dask.dataframe as dd


class MoveError(RuntimeError):
    """Partitions did not arrive as they were; the message says which, and the table is as it was before."""


@dataclass(frozen=True)
class Timing:
    """Seconds until the last partition is done, and of the common end: swap and cleaning up."""

    moving_s: float
    finishing_s: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.moving_s + self.finishing_s


def technique_of(database: Database, direction: Direction, name: str) -> Technique:
    """A technique by its name; raises ValueError for none, and for one that takes no Polars frame."""
    for technique in techniques(database, direction):
        if technique.name == name and technique.frame == "polars":
            return technique
    raise ValueError(f"there is no technique {name!r} between Polars and {database} ({direction})")


def stage(target: Target, technique: Technique, partition: Partition) -> Staged:
    """Write one partition into a staging table that no other attempt has: what a worker does.

    Raises MoveError when other rows than those of the file are there at the end.
    """
    staged = Staged(partition, attempt_name(target.table, target.run, partition))
    target.stage(partition, staged.name)
    frame = frame_of(partition.path, target.table)

    async def written() -> None:
        async with opened(technique, target.for_workers) as client:
            await called(technique, client, target.table.renamed(staged.name), frame)

    asyncio.run(written())
    if (rows := target.rows_in(staged.name)) != partition.rows:
        raise MoveError(f"{rows} rows of partition {partition.number} arrived instead of {partition.rows}")
    return staged


def fetch(target: Target, technique: Technique, piece: Any) -> pl.DataFrame:
    """Read one piece: what a worker does."""
    return asyncio.run(target.read(technique, piece))


def fetch_into(target: Target, technique: Technique, directory: Path, numbered: tuple[int, Any]) -> Path:
    """Read one piece into its file: what a worker does.

    The file appears whole, under a name that is the same for every attempt, and what they read is the same.
    """
    number, piece = numbered
    path = directory / f"part-{number:05}.parquet"
    unfinished = directory / f".{path.name}.{secrets.token_hex(4)}"
    try:
        fetch(target, technique, piece).write_parquet(unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def write(
    target: Target, technique: Technique, partitions: Sequence[Partition], cluster: Cluster, workers: int | None = None
) -> Timing:
    """Put all partitions into the table, each exactly once, or leave it as it was.

    A partition counts when the attempt that the scheduler waited for has told its staging table; what other attempts
    left, of workers that died or were thought dead, is dropped. Raises what a worker raised, ClusterError when the
    workers are lost, KeyboardInterrupt when the cluster was told to stop.
    """
    begun = time.perf_counter()
    try:
        target.begin(ranged=all(partition.ranged for partition in partitions))
        staged = cluster.map(partial(stage, target, technique), partitions, f"write-{target.run}", workers)
        moved = time.perf_counter()
        target.commit(staged)
    finally:
        target.end()
    return Timing(moved - begun, time.perf_counter() - moved)


def read(
    target: Target, technique: Technique, pieces: int, directory: Path, cluster: Cluster, workers: int | None = None
) -> Timing:
    """Read the table into so many Parquet files of an empty directory, all of them of one state of the table.

    Raises what `write` raises.
    """
    begun = time.perf_counter()
    try:
        with target.reading(pieces) as snapshot:
            into = partial(fetch_into, target, technique, directory)
            cluster.map(into, list(enumerate(snapshot)), f"read-{target.run}", workers)
            moved = time.perf_counter()
    finally:
        target.end()
        for unfinished in directory.glob(".part-*"):  # of workers that died
            unfinished.unlink(missing_ok=True)
    return Timing(moved - begun, time.perf_counter() - moved)


@contextmanager
def dask_frame(target: Target, technique: Technique, pieces: int) -> Iterator[dd.DataFrame]:
    """The table as a Dask dataframe of so many partitions, read by workers when a cluster's client computes it.

    All of them see one state of the table, for as long as the block; what is not computed by then cannot be any more.
    """
    import dask.dataframe as dd

    try:
        with target.reading(pieces) as snapshot:
            empty = pl.DataFrame(schema=target.table.polars_schema).to_pandas(use_pyarrow_extension_array=True)
            yield dd.from_map(
                partial(_fetch_pandas, target, technique), snapshot, meta=empty, label=f"framehaul-{target.run}",
                enforce_metadata=False,
            )  # fmt: skip
    finally:
        target.end()


def _fetch_pandas(target: Target, technique: Technique, piece: Any) -> Any:
    return fetch(target, technique, piece).to_pandas(use_pyarrow_extension_array=True)
