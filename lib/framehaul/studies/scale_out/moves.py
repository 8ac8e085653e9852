"""What is done with partitions: the part of a worker, and the part of the process that sends them to workers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.studies.scale_out.clickhouse import ClickHouseTarget
from framehaul.studies.scale_out.cluster import Cluster
from framehaul.studies.scale_out.partitions import Partition, Staged, frame_of
from framehaul.studies.scale_out.postgres import PostgresTarget
from framehaul.techniques import Technique

if TYPE_CHECKING:
    import dask.dataframe as dd

type Target = PostgresTarget | ClickHouseTarget


class MoveError(RuntimeError):
    """Partitions did not arrive as they were; the message says which, and the table is as it was before."""


def stage(target: Target, technique: Technique, partition: Partition) -> Staged:
    """Write one partition into a staging table that no other attempt has: what a worker does.

    Raises MoveError when other rows than those of the file are there at the end.
    """
    staged = Staged(partition, target.attempt_name(partition))
    target.stage(partition, staged.name)
    frame = frame_of(partition.path, target.table)

    async def written() -> None:
        async with opened(technique, target.for_workers) as client:
            await called(technique, client, target.table.renamed(staged.name), frame)

    if len(frame):
        asyncio.run(written())
    if (rows := target.rows_in(staged.name)) != partition.rows:
        raise MoveError(f"{rows} rows of partition {partition.number} arrived instead of {partition.rows}")
    return staged


def fetch(target: Target, technique: Technique, piece: Any) -> pl.DataFrame:
    """Read one piece: what a worker does."""
    return asyncio.run(target.read(technique, piece))


def fetch_into(target: Target, technique: Technique, directory: Path, numbered: tuple[int, Any]) -> None:
    """Read one piece into its file: what a worker does.

    The file appears whole, under a name that is the same for every attempt, and all attempts read the same rows.
    """
    number, piece = numbered
    path = directory / f"part-{number:05}.parquet"
    unfinished = directory / f".{path.name}.{secrets.token_hex(4)}"
    fetch(target, technique, piece).write_parquet(unfinished)
    unfinished.replace(path)


def write(
    target: Target, technique: Technique, partitions: Sequence[Partition], cluster: Cluster, workers: int | None = None
) -> float:
    """Put all partitions into the table, each exactly once, or leave it as it was; return the seconds that it took.

    A partition counts when the attempt that the scheduler waited for has returned its staging table. What other
    attempts left, of workers that died or seemed dead, is dropped. Raises what a worker raised, an error of Dask's
    when the workers are lost, KeyboardInterrupt when the cluster was told to stop.
    """
    begun = time.perf_counter()
    try:
        target.begin()
        target.commit(cluster.map(partial(stage, target, technique), partitions, f"write-{target.run}", workers))
    finally:
        target.end()
    return time.perf_counter() - begun


def read(
    target: Target, technique: Technique, pieces: int, directory: Path, cluster: Cluster, workers: int | None = None
) -> float:
    """Read the table into so many Parquet files of an empty directory, all of them of one state of the table.

    Returns the seconds that it took. Raises what `write` raises.
    """
    begun = time.perf_counter()
    try:
        with target.reading(pieces) as snapshot:
            into = partial(fetch_into, target, technique, directory)
            cluster.map(into, list(enumerate(snapshot)), f"read-{target.run}", workers)
    finally:
        target.end()
    return time.perf_counter() - begun


@contextmanager
def dask_frame(target: Target, technique: Technique, pieces: int) -> Iterator[dd.DataFrame]:
    """The table as a Dask dataframe of so many partitions, read by workers when a cluster's client computes it.

    All of them see one state of the table. It can be computed for as long as the block lasts.
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
