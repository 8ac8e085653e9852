"""What a warehouse is to a route: a table that takes files, and gives back what is in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pyarrow as pa

TABLE = "framehaul_buildings"
"""The table that files are loaded into; on BigQuery the beginning of its name."""
CSV, PARQUET = ".csv.gz", ".parquet"


class WarehouseError(RuntimeError):
    """A warehouse could not load a file; the message names the file and says what the warehouse said."""


class Target(Protocol):
    """The table of buildings in an open warehouse, empty at first."""

    def load(self, files: Sequence[Path], parallel: int) -> None:
        """Put the rows of all files into the table, each exactly once, up to `parallel` files at a time.

        The files are all gzip CSV (`.csv.gz`: no header, columns in the order of SCHEMA, NULL as an empty field that is
        not quoted, lines that end with a line feed alone) or all Parquet (`.parquet`). Returns when the rows are
        committed. Raises ValueError for other files, and WarehouseError for one that cannot be loaded; what the table
        holds then is of no use.
        """

    def content(self) -> pa.Table:
        """The whole table, with the columns of SCHEMA and the rows in any order."""


def kind_of(files: Sequence[Path]) -> str:
    """The suffix that all files have, CSV or PARQUET; raises ValueError when they have none of these in common."""
    for kind in (CSV, PARQUET):
        if files and all(file.name.endswith(kind) for file in files):
            return kind
    names = ", ".join(file.name for file in files) or "no file"
    raise ValueError(f"cannot load {names}: give files that are all {CSV} or all {PARQUET}")


def each_at_once(load: Callable[[Path], None], files: Sequence[Path], parallel: int) -> None:
    """Call `load` for every file, in up to `parallel` threads; after an error, which is raised, no other is begun."""
    failed = threading.Event()

    def unless_failed(file: Path) -> None:
        if failed.is_set():
            return
        try:
            load(file)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(unless_failed, files))
