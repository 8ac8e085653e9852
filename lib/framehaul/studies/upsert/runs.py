"""The run: every case in shuffled rounds, then readers, two writers at once, and faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import polars as pl

from framehaul import servers
from framehaul.harness.environment import server_versions
from framehaul.harness.passes import Pass, columns_of
from framehaul.harness.recording import Recording, recording
from framehaul.harness.rounds import Rounds, check, in_rounds, interruptible
from framehaul.harness.trials import chosen_techniques
from framehaul.servers import Servers
from framehaul.servers.relay import relayed
from framehaul.settings import Settings
from framehaul.studies.upsert import STUDY, faults
from framehaul.studies.upsert.faults import Road, TurnsRelay
from framehaul.studies.upsert.frames import Case, cases, check_sizes
from framehaul.studies.upsert.measure import bench_of, timed, together, two_frames, watched
from framehaul.studies.upsert.passes import BOTH, Part, Row, identity_of
from framehaul.studies.upsert.places import Bench, Place, place_of
from framehaul.studies.upsert.processes import ended_with_the_block
from framehaul.techniques import Technique, upserts
from framehaul.techniques.registry import Database

MOST_ROWS = 2_000
"""Of a table that is read whole, here, after each trial."""
type Fault = Callable[[Bench, Technique, pl.DataFrame, Road], dict[str, Any]]
type Measured = Callable[[Technique, int], dict[str, Any]]


def run(
    *, targets: Sequence[int], incoming: Sequence[int], shares: Sequence[int], tried: str, passes: int,
    warmup: int, seed: int,
) -> Settings:  # fmt: skip
    """Measure every way of an upsert, and write the results.

    Raises ValueError for a parameter that makes no sense, ServerError and ResultsError for what their names say.
    """
    for name, given, least in (("TARGETS", targets, 1), ("INCOMING", incoming, 1), ("SHARES", shares, 0)):
        for one in given:
            check(**{name: (one, least)})
    check_sizes({"targets": targets, "shares": shares})
    rounds = Rounds(passes, warmup, seed)
    broken = {database: chosen_techniques(tried, upserts(database)) for database in BOTH}
    terms = {"tried": tried, "targets": [*targets], "incoming": [*incoming], "shares": [*shares], **vars(rounds)}
    with (
        recording(STUDY.notebook, STUDY.results, Row, "upsert", terms) as this_run,
        servers.running(this_run.settings) as both,
        ended_with_the_block(),
    ):
        versions = "; ".join(server_versions(both).values())
        tables = ", ".join(f"{one:,}" for one in sorted(targets))
        this_run.metadata |= terms | {
            "servers": both.mode, "server": {"version": versions},
            "what": f"tables of {tables} rows, {passes} passes after {warmup} warm-up",
        }  # fmt: skip
        every = cases(targets, incoming, shares)
        ways, ways_broken = (sum(map(len, of)) for of in (map(upserts, BOTH), broken.values()))
        this_run.expect(ways * (len(every) * passes + warmup) + ways_broken * (1 + passes + len(FAULTS)))

        def work(stop: threading.Event) -> None:
            for database in BOTH:
                for at, case in enumerate(every):
                    _speed(this_run, both, database, case, Rounds(passes, 0 if at else warmup, seed), stop)
                _safety(this_run, both, database, broken[database], min(targets), max(shares), rounds, stop)

        interruptible(work)
    return this_run.settings


def _rounds(
    this_run: Recording, part: Part, ways: list[Technique], case: Case, measure: Measured, rounds: Rounds,
    stop: threading.Event,
) -> None:  # fmt: skip
    """These ways in shuffled rounds."""

    def row(technique: Technique, number: int, outcome: Pass[dict[str, Any]]) -> Row:
        return Row(**identity_of(this_run.run_id, part, technique, case, number), **columns_of(outcome))

    record, finished = this_run.passes(row)
    in_rounds(
        ways, rounds, measure, record, stop=stop, finished=finished,
        progress=lambda technique, _: this_run.progress(f"{part}: {technique.name}"),
    )  # fmt: skip


def _is_left(this_run: Recording, part: Part, ways: list[Technique], case: Case, passes: int) -> bool:
    """Whether an interrupted run has not finished this part: else no table has to be made for it."""
    rows = (Row(**identity_of("", part, one, case, at)) for one in ways for at in range(1, passes + 1))
    return not all(map(this_run.finished, rows))


def _speed(
    this_run: Recording, both: Servers, database: Database, case: Case, rounds: Rounds, stop: threading.Event
) -> None:
    if not _is_left(this_run, "speed", upserts(database), case, rounds.passes):
        return
    bench, come = bench_of(place_of(both.of(database)), case, rounds.seed)
    with bench:
        _rounds(this_run, "speed", upserts(database), case, lambda one, _: timed(bench, one, come), rounds, stop)


def _safety(
    this_run: Recording, both: Servers, database: Database, ways: list[Technique], target: int, share: int,
    rounds: Rounds, stop: threading.Event,
) -> None:  # fmt: skip
    """What others see of the smallest table, what two writers do to each other, and what a failure leaves."""
    place, once = place_of(both.of(database)), Rounds(1, 0, rounds.seed)
    case = Case(target, target, share)
    if _is_left(this_run, "reader", ways, case, 1):
        bench, come = bench_of(place, case, rounds.seed)
        with bench:
            _rounds(this_run, "reader", ways, case, lambda one, _: watched(bench, one, come), once, stop)
    target = min(target, MOST_ROWS)
    _trials(this_run, place, ways, Case(target, max(1, target // 10), share), rounds, stop)


def _trials(
    this_run: Recording, place: Place, ways: list[Technique], case: Case, rounds: Rounds, stop: threading.Event
) -> None:
    once, passes = Rounds(1, 0, rounds.seed), Rounds(rounds.passes, 0, rounds.seed)
    broken = [part for part in FAULTS if _is_left(this_run, part, ways, case, 1)]
    if not broken and not _is_left(this_run, "writers", ways, case, rounds.passes):
        return
    bench, come = bench_of(place, case, rounds.seed)
    with bench:

        def two(technique: Technique, number: int) -> dict[str, Any]:
            return together(bench, technique, two_frames(bench.there, case, rounds.seed + number))

        _rounds(this_run, "writers", ways, case, two, passes, stop)
        with relayed(place.server, TurnsRelay) as road:
            for part in broken:
                _rounds(this_run, part, ways, case, partial(_broken, FAULTS[part], bench, come, road), once, stop)


def _broken(fault: Fault, bench: Bench, come: pl.DataFrame, road: Road, technique: Technique, _: int) -> dict[str, Any]:
    return fault(bench, technique, come, road)


FAULTS: dict[Part, Fault] = {
    "sent twice": faults.sent_twice, "connection cut": faults.cut, "client killed": faults.killed,
}  # fmt: skip
"""What breaks, and what makes it break."""
