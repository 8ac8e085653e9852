"""Measure the memory of calls that read a table in batches."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from framehaul.bench import recording
from framehaul.bench.children import answer_of, context, ended_with_the_block
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.everyday_api.batches import BATCH_ROWS, CALLS, BatchedCall, read_once, sums_of
from framehaul.studies.registry import EVERYDAY_API
from framehaul.techniques.registry import DATABASES

PART = 10
"""The first of the two tables is ten times smaller."""


@dataclass(frozen=True)
class BatchedRead:
    """A pass of a call that reads in batches; a missing number is None, never 0."""

    run_id: str
    database: str
    way: str
    label: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    frames: int | None = None
    arrow_bytes: int | None = None
    """The size of all rows as Arrow."""
    peak_rss_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None


@recording.study(EVERYDAY_API.notebook, BatchedRead)
def run(*, rows: int, rounds: int, seed: int) -> None:
    """Read a table of a tenth of the rows, and a table of all rows, with each call that returns batches.

    Raises ValueError for a parameter out of range.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, 0, seed)
    with (
        recording.with_servers(EVERYDAY_API, BatchedRead, schedule, rows=rows) as (this_run, both),
        ended_with_the_block(),
    ):
        # Less than one batch shows nothing about memory.
        sizes = [rows // PART, rows] if rows // PART >= BATCH_ROWS else [rows]
        this_run.expect(len(CALLS) * len(sizes) * rounds)

        def work(stop: threading.Event) -> None:
            for size in sizes:
                _read_all(this_run, both, size, schedule, stop)

        interruptible(work)


def _read_all(this_run: Recording, both: Servers, size: int, rounds: Rounds, stop: threading.Event) -> None:
    """Load a table of `size` rows on both servers and read it with each call."""
    content = generator.arrow_table(TABLE, size, rounds.seed)
    sent = sums_of(to_polars(content, TABLE), TABLE)

    def row(call: BatchedCall, number: int, outcome: Pass[dict[str, Any]]) -> BatchedRead:
        return BatchedRead(this_run.run_id, call.database, call.name, call.label, size, number, **columns_of(outcome))

    def measure(call: BatchedCall, _: int) -> dict[str, Any]:
        return _read(call, size, sent) | {"arrow_bytes": content.nbytes}

    try:
        for database in DATABASES:
            tables = tables_of(both.of(database))
            tables.create(TABLE)
            tables.load(TABLE, content)
            tables.quiesce()
        this_run.in_rounds(CALLS, rounds, measure, row, lambda call: call.name, stop=stop)
    finally:
        for database in DATABASES:
            tables_of(both.of(database)).drop(TABLE)


def _read(call: BatchedCall, rows: int, sent: dict[str, int]) -> dict[str, Any]:
    """Return what a child process measured; raises ChildError, or WrongResultError for other values."""
    found = answer_of(context(read_once.__module__), call.name, read_once, call.name)
    sums = found.pop("sums")
    wrong = ", ".join(name for name in sent if sums.get(name) != sent[name])
    return right(found | {"rows_per_s": rows / found["seconds"]}, wrong and f"other values came of: {wrong}")
