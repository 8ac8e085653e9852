"""Measure the speed of every upsert in shuffled rounds, then a concurrent reader and writer, and failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from framehaul.bench import recording
from framehaul.bench.children import ended_with_the_block
from framehaul.bench.passes import Pass, Skipped, columns_of
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds, interruptible
from framehaul.bench.trials import chosen_techniques
from framehaul.servers import Server
from framehaul.studies.registry import UPSERT_STUDY
from framehaul.studies.upsert.frames import Case, cases, check_sizes
from framehaul.studies.upsert.measure import killed, sent_twice, timed, together, watched
from framehaul.studies.upsert.passes import BOTH, Part, Row
from framehaul.studies.upsert.places import Bench
from framehaul.techniques import Technique, upserts

MOST_ROWS = 2_000
"""The maximum of rows of a table that is read as a whole after each trial."""
MOST_REPEATED_ROWS = 5_000_000
"""The maximum of rows of a table with several rounds; creating a larger one takes half a minute for each pass."""
LEAST_ROWS_PER_S = 40_000
"""A lower bound for the speed at which a table is created, upserted and compared."""


@dataclass(frozen=True)
class Trial:
    """A measurement of upserts in a case, and its number of passes."""

    part: Part
    case: Case
    upserts: list[Technique]
    passes: int
    measure: Callable[[Bench, Technique, int], dict[str, Any]]

    def run(self, this_run: Recording, server: Server, warmup: int, seed: int, stop: threading.Event) -> bool:
        """Measure the passes that an interrupted run has not finished; return whether there were any."""
        where = self.case.target_rows, self.case.rows, self.case.share

        def row(one: Technique, number: int, outcome: Pass[dict[str, Any]]) -> Row:
            named = this_run.run_id, self.part, one.database, one.name, one.label
            return Row(*named, *where, number, **columns_of(outcome))

        def name(one: Technique) -> str:
            return f"{self.part}: {one.name}"

        rows = [row(one, number, Skipped("")) for one in self.upserts for number in range(1, self.passes + 1)]
        if all(map(this_run.finished, rows)):
            return False
        with Bench(server, self.case, seed) as bench:
            rounds = Rounds(self.passes, warmup, seed)
            this_run.in_rounds(self.upserts, rounds, partial(self.measure, bench), row, name, stop=stop)
        return True


@recording.study(UPSERT_STUDY.notebook, Row)
def run(
    *, targets: list[int], incoming: list[int], shares: list[int], tried: str, rounds: int, warmup: int, seed: int
) -> None:  # fmt: skip
    """Measure every upsert in every case, and the upserts that `tried` selects with other clients and failures.

    Raises ValueError for a parameter out of range.
    """
    sizes = {"targets": targets, "incoming": incoming, "shares": shares}
    check_sizes(sizes)
    chosen = {database: chosen_techniques(tried, upserts(database)) for database in BOTH}
    keys, schedule = [one.key for some in chosen.values() for one in some], Rounds(rounds, warmup, seed)
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
    known = sum(len(upserts(database)) for database in BOTH)
    made = sum(
        (passes_of(case, values["rounds"]) + values["warmup"]) * (case.target_rows + case.rows)
        for case in cases(values["targets"], values["incoming"], values["shares"])
    )
    return int(known * made / LEAST_ROWS_PER_S)


def passes_of(case: Case, passes: int) -> int:
    """Return the number of rounds of a case."""
    return passes if case.target_rows <= MOST_REPEATED_ROWS else 1
