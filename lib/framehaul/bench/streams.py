"""The streamed moves as techniques: writes take record batches, reads return a frame."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.data.schema import Table
from framehaul.techniques import Technique
from framehaul.techniques.streaming import STREAMED, copy_batches, insert_batches


def _writing(move: Technique) -> Technique:
    """Return a move as a technique that writes record batches."""
    write: Callable[..., None] = copy_batches if move.database == "postgres" else insert_batches

    @wraps(move.function)
    def from_batches(client: object, table: Table, batches: Iterable[pa.RecordBatch], *rows_to_write: int) -> None:
        write(client, table, iter(batches), *rows_to_write)

    label = move.label.replace("Parquet file", "record batches")
    return replace(move, function=from_batches, frame="batches", origin="streamed", label=label)


def _reading(move: Technique) -> Technique:
    """Return a move as a technique that returns the content of its file; PostgreSQL's takes the bytes of a batch."""

    @wraps(move.function)
    def to_frame(client: object, table: Table, *batch_bytes: int) -> Any:
        with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:
            file = Path(directory) / "rows.parquet"
            move.function(client, table, file, *batch_bytes)
            return pl.from_arrow(pq.read_table(file))

    return replace(move, function=to_frame, frame="batches", origin="streamed")


STREAMS = tuple(_writing(move) if move.direction == "write" else _reading(move) for move in STREAMED)
"""All streamed moves as techniques, which keep the names of the moves."""
