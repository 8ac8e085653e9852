"""Write and read a table by partitions: the functions of workers, and of the process that distributes partitions."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench.measure import called, opened
from framehaul.errors import WrongResultError
from framehaul.studies.scale_out.clickhouse import ClickHouseTarget
from framehaul.studies.scale_out.cluster import Cluster
from framehaul.studies.scale_out.partitions import Partition, frame_of
from framehaul.studies.scale_out.postgres import PostgresTarget
from framehaul.techniques import Technique

type Target = PostgresTarget | ClickHouseTarget


def stage(target: Target, technique: Technique, partition: Partition) -> str:
    """Write one partition, on a worker, to a staging table of this attempt, and return the table's name.

    Raises WrongResultError when the staging table has another number of rows than the file.
    """
    name = target.staging_name(partition)
    target.stage(partition, name)
    frame = frame_of(partition.path, target.table)

    async def write_frame() -> None:
        async with opened(technique, target.for_workers) as client:
            await called(technique, client, target.table.renamed(name), frame)

    if len(frame):
        asyncio.run(write_frame())
    if (rows := target.rows_in(name)) != partition.rows:
        raise WrongResultError(f"{rows} rows of partition {partition.number} arrived instead of {partition.rows}")
    return name


def write(
    target: Target, technique: Technique, partitions: Sequence[Partition], cluster: Cluster, workers: int | None = None
) -> None:
    """Replace the table by all partitions, each exactly once, or leave it unchanged.

    The staging table of the attempt whose result the scheduler returns is committed. Staging tables of other attempts,
    by workers that died or seemed dead, are dropped. Raises a worker's error, Dask's error when the workers are lost,
    and KeyboardInterrupt when `cluster.stop` was set.
    """
    try:
        target.begin()
        names = cluster.map(partial(stage, target, technique), partitions, f"write-{target.run}", workers)
        target.commit(dict(zip(names, partitions, strict=True)))
    finally:
        target.end()


def fetch(target: Target, technique: Technique, piece: Any) -> pl.DataFrame:
    """Read one piece, on a worker."""
    return asyncio.run(target.read(technique, piece))


def fetch_into(target: Target, technique: Technique, directory: Path, numbered: tuple[int, Any]) -> None:
    """Read one piece, on a worker, to a file that appears when it is complete.

    All attempts use the same file name and read the same rows.
    """
    number, piece = numbered
    path = directory / f"part-{number:05}.parquet"
    unfinished = directory / f".{path.name}.{secrets.token_hex(4)}"
    fetch(target, technique, piece).write_parquet(unfinished)
    unfinished.replace(path)


def read(
    target: Target, technique: Technique, pieces: int, directory: Path, cluster: Cluster, workers: int | None = None
) -> None:
    """Read one state of the table to `pieces` Parquet files in an empty directory; raises the errors of `write`."""
    try:
        with target.reading(pieces) as snapshot:
            into = partial(fetch_into, target, technique, directory)
            cluster.map(into, [*enumerate(snapshot)], f"read-{target.run}", workers)
    finally:
        target.end()
