"""Cells of the studies of outcomes: each is tried once and recorded when it ends, from several threads."""

from __future__ import annotations

import datetime as dt
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench.recording import Recording, recording
from framehaul.data.schema import Table
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Direction
from framehaul.techniques.streaming import STREAMED, copy_batches, insert_batches

DIRECTIONS = [("postgres", "write"), ("postgres", "read"), ("clickhouse", "write"), ("clickhouse", "read")]
FEWEST: dict[Direction, set[tuple[str, str]]] = {
    "write": {("beyond", "pandas"), ("beyond", "polars"), ("streamed", "batches"), ("upsert", "polars")},
    "read": {("beyond", "polars"), ("streamed", "batches")},
}
"""Origins and kinds of frame. Writes are tried with both kinds, because pandas has an index and Polars lazy frames."""


@dataclass(frozen=True)
class Tried:
    """A cell: the columns of `recording.which`, which identify its technique.

    A study adds fields for the trial, without defaults, and for the outcome, with empty defaults.
    """

    database: str
    direction: str
    technique: str
    label: str
    origin: str
    family: str
    frame: str


@dataclass
class Trials[C: Tried]:
    """A recorder of a run's cells, from any thread, and of the reasons why others were not tried."""

    record: Callable[[C], object]
    """Record a cell with its outcome."""
    finished: Callable[[C], bool] = lambda _: False
    """Return true for a cell that an interrupted run has recorded."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """The reasons why techniques cannot run here."""
    left_out: dict[str, str] = field(default_factory=dict)
    """The reasons why a server does not allow a trial."""

    def skip(self, technique: Technique, reason: str) -> None:
        """Record that a technique cannot run here."""
        self.unavailable[" ".join(technique.key)] = reason


def _in_batches(move: Technique) -> Technique:
    """Return a streamed move as a technique: a write takes record batches, a read returns the content of its file."""
    write: Callable[..., None] = copy_batches if move.database == "postgres" else insert_batches

    @wraps(move.function)
    def from_batches(client: object, table: Table, batches: Iterable[pa.RecordBatch], *rows_to_write: int) -> None:
        write(client, table, iter(batches), *rows_to_write)

    @wraps(move.function)
    def to_frame(client: object, table: Table, *batch_bytes: int) -> Any:
        with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:
            file = Path(directory) / "rows.parquet"
            move.function(client, table, file, *batch_bytes)
            return pl.from_arrow(pq.read_table(file))

    function = to_frame if move.direction == "read" else from_batches
    label = move.label if move.direction == "read" else move.label.replace("Parquet file", "record batches")
    return replace(move, function=function, frame="batches", origin="streamed", label=label)


STREAMS = tuple(map(_in_batches, STREAMED))
"""All streamed moves as techniques, which keep the names of the moves."""


def all_techniques() -> list[Technique]:
    """Return all techniques that move a frame, without baselines, and the streamed moves, in the order of pages."""
    moving = [*(technique for technique in techniques() if technique.origin != "baseline"), *STREAMS]
    return sorted(moving, key=lambda one: DIRECTIONS.index((one.database, one.direction)))


def chosen_techniques(
    tried: str, among: Sequence[Technique] | None = None, today: dt.date | None = None
) -> list[Technique]:
    """Return `all` techniques or a part of them; raise ValueError for an unknown word.

    - `families`: the first of each direction, origin and family
    - `directions`: the first of each direction and origin, without everyday calls, which take longest
    - `fewest`: of each direction one of origin `beyond`, for writes one for each kind of frame, and one that streams
    - `tenth`: the fewest and every tenth technique, another tenth each day, so that ten days try all
    """
    every = all_techniques() if among is None else among
    if tried == "tenth":
        fewest, day = chosen_techniques("fewest", every), (today or dt.date.today()).toordinal()
        return [one for at, one in enumerate(every) if one in fewest or not (at + day) % 10]
    kinds: dict[str, Callable[[Technique], str]] = {
        "all": lambda one: one.name,
        "families": lambda one: f"{one.origin} {one.family}",
        "directions": lambda one: "" if one.origin == "everyday" else one.origin,
        "fewest": lambda one: one.frame if (one.origin, one.frame) in FEWEST[one.direction] else "",
    }
    if tried not in kinds:
        raise ValueError(f"TRIED={tried!r}: choose from {', '.join([*kinds, 'tenth'])}")
    first: dict[tuple[str, ...], Technique] = {}
    for one in every:
        if kind := kinds[tried](one):
            first.setdefault((one.database, one.direction, kind), one)
    return [*first.values()]


@contextmanager
def trials[C: Tried](
    notebook: str, file: str, kind: type[C], unit: str, chosen: Sequence[Technique]
) -> Iterator[tuple[Recording, Trials[C]]]:
    """Record cells of the `chosen` techniques; the complete file has them in the techniques' order."""
    place: dict[tuple[str, ...], int] = {one.key: at for at, one in enumerate(all_techniques())}
    terms = {"tried": [one.key for one in chosen]}  # a tenth differs after midnight
    with recording(notebook, file, kind, unit, terms, lambda row: place[tuple(row[:3])]) as this_run:
        lock = threading.Lock()

        def record(cell: C) -> None:
            with lock:
                this_run.write(cell)
                this_run.progress(cell.technique)

        cells = Trials(record, this_run.finished)
        yield this_run, cells
        this_run.metadata |= {"unavailable": cells.unavailable}
