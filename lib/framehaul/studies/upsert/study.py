"""Measure the speed of every upsert in shuffled rounds, then a concurrent reader and writer, and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from framehaul.bench import recording, store
from framehaul.bench.children import ended_with_the_block
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Pass, Rounds, Skipped, check, columns_of, interruptible
from framehaul.bench.store import Status
from framehaul.bench.trials import chosen_techniques
from framehaul.servers import Server
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert.frames import BOTH, PER_CENT, Case, cases
from framehaul.studies.upsert.measure import killed, sent_twice, timed, together, watched
from framehaul.studies.upsert.places import Bench
from framehaul.techniques import Technique, upserts
from framehaul.techniques.registry import frame_and_driver

MOST_ROWS = 2_000
"""The maximum of rows of a table that is read as a whole after each trial."""
MOST_REPEATED_ROWS = 5_000_000
"""The maximum of rows of a table with several rounds; creating a larger one takes half a minute for each pass."""
LEAST_ROWS_PER_S = 1_500
"""A lower bound of the rows/s at which a table is created, updated and compared once for every upsert."""


@dataclass(frozen=True)
class Row:
    """A pass of an upsert; a missing number is None, never 0."""

    run_id: str
    part: str
    database: str
    technique: str
    label: str
    target_rows: int
    rows: int
    share: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    read_before_s: float | None = None
    """The seconds of a reader's query over the whole table before the upsert."""
    longest_read_s: float | None = None
    seen: str | None = None
    """The states that the reader saw while the upsert ran, each with its number of reads."""
    errors: str | None = None
    lost_rows: int | None = None
    doubled_rows: int | None = None
    mixed_rows: int | None = None
    """The rows of the writer with fewer rows, among rows with keys of both writers."""
    left: str | None = None
    """The rows of the frame in the table after the client was killed."""
    beside: int | None = None
    """The number of staging tables left after the client was killed."""
    status: Status = "ok"
    reason: str | None = None


class Trial(NamedTuple):
    """A measurement of upserts in a case, and its number of passes."""

    part: str
    case: Case
    upserts: list[Technique]
    passes: int
    measure: Callable[[Bench, Technique, int], dict[str, Any]]

    def run(self, this_run: Recording, server: Server, warmup: int, seed: int, stop: threading.Event) -> bool:
        """Measure the passes that an interrupted run has not finished; return whether there were any."""

        def row(one: Technique, number: int, outcome: Pass[dict[str, Any]]) -> Row:
            where = self.case.target_rows, self.case.rows, self.case.share
            named = this_run.run_id, self.part, one.database, one.name, one.label
            return Row(*named, *where, number, **columns_of(outcome))

        rows = [row(one, number + 1, Skipped("")) for one in self.upserts for number in range(self.passes)]
        if all(map(this_run.finished, rows)):
            return False
        with Bench(server, self.case, seed).filled() as bench:
            measure, rounds = partial(self.measure, bench), Rounds(self.passes, warmup, seed)
            this_run.in_rounds(self.upserts, rounds, measure, row, lambda one: f"{self.part}: {one.name}", stop=stop)
        return True


@recording.study(UPSERT_STUDY.notebook, Row)
def run(
    *, targets: list[int], incoming: list[int], shares: list[int], tried: str, rounds: int, warmup: int, seed: int
) -> None:  # fmt: skip
    """Measure every upsert in every case, and the upserts that `tried` selects with other clients and failures.

    Raises ValueError for a parameter out of range.
    """
    check(TARGETS=(min(targets), 1), INCOMING=(min(incoming), 1), SHARES=(min(shares), 0))
    if max(shares) > PER_CENT:
        raise ValueError(f"SHARES={max(shares)}: give whole per cent, 0 to 100")
    chosen = {database: chosen_techniques(tried, upserts(database)) for database in BOTH}
    keys, schedule = [one.key for some in chosen.values() for one in some], Rounds(rounds, warmup, seed)
    sizes = {"targets": targets, "incoming": incoming, "shares": shares}
    with (
        recording.with_servers(UPSERT_STUDY, Row, schedule, tried=keys, **sizes) as (this_run, both),
        ended_with_the_block(),
    ):
        tables = ", ".join(f"{one:,}" for one in sorted(targets))
        this_run.metadata["what"] = f"tables of {tables} rows, {rounds} rounds after {warmup} warm-up"
        every, few = cases(targets, incoming, shares), min(*targets, MOST_ROWS)
        whole, small = (Case(rows, max(1, rows // of), max(shares)) for rows, of in ((min(targets), 1), (few, 10)))
        trials = {
            database: [
                *(Trial("speed", case, upserts(database), passes_of(case, rounds), timed) for case in every),
                Trial("reader", whole, tried_here, 1, watched),  # all rows are upserted
                Trial("writers", small, tried_here, rounds, together),
                Trial("sent twice", small, tried_here, 1, sent_twice),
                Trial("client killed", small, tried_here, 1, killed),
            ]
            for database, tried_here in chosen.items()
        }
        steps = sum(one.passes * len(one.upserts) for of in trials.values() for one in of)
        this_run.expect(steps + warmup * sum(len(upserts(database)) for database in BOTH))

        def work(stop: threading.Event) -> None:
            for database, of in trials.items():
                cold = warmup  # a resumed run warms up in its first unfinished case
                for one in of:
                    if one.run(this_run, both.of(database), cold, seed, stop):
                        cold = 0

        interruptible(work)


def patience(values: Mapping[str, Any]) -> int:
    """Return the additional timeout of a cell in seconds."""
    return int((values["rounds"] + values["warmup"]) * sum(values["targets"]) // LEAST_ROWS_PER_S)


def passes_of(case: Case, passes: int) -> int:
    """Return the number of rounds of a case."""
    return passes if case.target_rows <= MOST_REPEATED_ROWS else 1


def placed(directory: Path) -> pl.DataFrame:
    """Return the timed passes of a results directory as passes of techniques, with columns of `statistics.PLACE`."""
    timed = store.read(directory / UPSERT_STUDY.results, Row).filter(part="speed")
    drivers = {name: frame_and_driver(name)[1] for name in timed["technique"].unique()}
    lacking = {name: pl.lit(None, kind) for name, kind in store.SCHEMA.items() if name not in timed.columns}
    alike = {"direction": "write", "family": "upsert", "origin": "upsert", "contract": "upsert", "variant": ""}
    cases = [Case(*row) for row in timed.select("target_rows", "rows", "share").rows()]
    tables = [f"{one.target_rows:,} rows there before, {one.exact_share} of the keys" for one in cases]
    return timed.with_columns(**lacking).with_columns(
        **{column: pl.lit(value) for column, value in alike.items()},
        notebook=pl.lit(UPSERT_STUDY.notebook), connections=pl.lit(1),
        frame=pl.col("technique").str.extract("^([a-z]+)_"), driver=pl.col("technique").replace(drivers),
        table=pl.Series(tables, dtype=pl.String),
    )  # fmt: skip
