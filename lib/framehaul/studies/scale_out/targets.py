"""Where partitions go and come from: what a database has to offer, whichever it is."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from framehaul.data.schema import Table
from framehaul.servers import ClickHouseServer, PostgresServer
from framehaul.studies.scale_out.partitions import Partition
from framehaul.techniques import Technique
from framehaul.techniques.registry import Database

RUN_DIGITS, ATTEMPT_DIGITS = 8, 6
"""Of the names of tables: a run's, and those of an attempt at a partition."""


@dataclass(frozen=True)
class Staged:
    """A partition that lies complete in a staging table."""

    partition: Partition
    name: str


class Target(Protocol):
    """A table of a database during one run; it is sent to workers, and its representation shows no password.

    The run's name is in the name of everything that it makes. Writing: `begin`, `stage` for every attempt at a
    partition, `commit`. Reading: `reading`, `read` for every attempt at a piece. At last, whatever happened, `end`.
    """

    @property
    def table(self) -> Table:
        """The table that readers see."""

    @property
    def run(self) -> str:
        """Names this run among all that there are."""

    @property
    def database(self) -> Database:
        """Whose techniques it takes."""

    @property
    def for_workers(self) -> PostgresServer | ClickHouseServer:
        """Where techniques connect to."""

    def begin(self, *, ranged: bool) -> None:
        """Make the empty table of the run, which nobody reads yet; raises ServerError."""

    def stage(self, partition: Partition, name: str) -> None:
        """Make an empty staging table; raises an error when the run is over."""

    def rows_in(self, name: str) -> int:
        """How many rows a staging table holds."""

    def commit(self, staged: Sequence[Staged]) -> None:
        """Put all partitions in the place of the table, at once: readers see what was there before, or all of them."""

    def end(self) -> None:
        """Drop what is left of the run, and end whoever still works for it; what was committed stays."""

    def drop(self) -> None:
        """Drop the table that readers see, with its rows; raises ServerError when it is not ours."""

    def reading(self, pieces: int) -> AbstractContextManager[list[Any]]:
        """So many pieces of the table as it is now, together all of it; they can be read for as long as the block."""

    async def read(self, technique: Technique, piece: Any) -> pl.DataFrame:
        """What a technique makes of one piece, on a worker."""


def new_run() -> str:
    """Names one run among all that there are."""
    return secrets.token_hex(RUN_DIGITS // 2)


def attempt_name(table: Table, run: str, partition: Partition) -> str:
    """Names the staging table of one attempt: another attempt at the same partition has another."""
    return f"{table.name}_{run}_p{partition.number}_{secrets.token_hex(ATTEMPT_DIGITS // 2)}"
