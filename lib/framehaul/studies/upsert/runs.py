"""The run: every case in shuffled rounds, then readers, two writers at once, and faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import Any

import polars as pl

from framehaul import servers
from framehaul.bench.children import ended_with_the_block
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of
from framehaul.bench.ratios import LEAST_ROUNDS
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.trials import chosen_techniques
from framehaul.errors import ServerError, UnavailableError
from framehaul.servers import Servers
from framehaul.servers.relay import relayed
from framehaul.settings import Settings
from framehaul.studies.faults.breakable import breakable
from framehaul.studies.upsert import STUDY, faults
from framehaul.studies.upsert.crashes import ORDER, crashes
from framehaul.studies.upsert.faults import Road, TurnsRelay
from framehaul.studies.upsert.frames import Case, base, cases, check_sizes, incoming
from framehaul.studies.upsert.measure import bench_of, timed, together, two_frames, watched
from framehaul.studies.upsert.passes import BOTH, Part, Row, identity_of
from framehaul.studies.upsert.places import Bench, Place, place_of
from framehaul.techniques import Technique, upserts
from framehaul.techniques.registry import Database

MOST_ROWS = 2_000
"""Of a table that is read whole, here, after each trial."""
MOST_REPEATED_ROWS = 5_000_000
"""A table of more is made anew for every pass in half a minute: there is one round."""
LEAST_ROWS_PER_S = 40_000
"""Of a table that is made, upserted and compared."""
KILLED: Part = "server killed"
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
    check_sizes({"targets": targets, "incoming": incoming, "shares": shares})
    rounds = Rounds(passes, warmup, seed)
    broken = {database: chosen_techniques(tried, upserts(database)) for database in BOTH}
    terms: dict[str, Any] = {"tried": [one.key for some in broken.values() for one in some]}
    terms |= {"targets": [*targets], "incoming": [*incoming], "shares": [*shares], **vars(rounds)}
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
        # Servers that are killed take as long as all else here: in a look they are once.
        kills = Rounds(min(len(ORDER), passes) if passes >= LEAST_ROUNDS else 1, 0, seed)
        trials = 1 + len(shares) * passes + len(FAULTS) + kills.passes
        timed = sum(passes_of(case, passes) for case in every)
        this_run.expect(ways * (timed + warmup) + ways_broken * trials)

        def work(stop: threading.Event) -> None:
            for database in BOTH:
                cold = warmup  # also where an interrupted run has finished the first cases
                for case in every:
                    if _speed(this_run, both, database, case, Rounds(passes_of(case, passes), cold, seed), stop):
                        cold = 0
                _safety(this_run, both, database, broken[database], min(targets), sorted(shares), rounds, stop)
            _crashes(this_run, [*chain(*broken.values())], min(targets), max(shares), kills, stop)

        interruptible(work)
    return this_run.settings


def patience(values: Mapping[str, Any]) -> int:
    """Seconds that all tables may take, beside those of any notebook."""
    ways = sum(len(upserts(database)) for database in BOTH)
    made = sum(
        (passes_of(case, values["passes"]) + values["warmup"]) * (case.target + case.rows)
        for case in cases(values["targets"], values["incoming"], values["shares"])
    )
    return int(ways * made / LEAST_ROWS_PER_S)


def passes_of(case: Case, passes: int) -> int:
    """How many rounds a case gets."""
    return passes if case.target <= MOST_REPEATED_ROWS else 1


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
) -> bool:
    """Whether something of the case was left to be measured."""
    if not _is_left(this_run, "speed", upserts(database), case, rounds.passes):
        return False
    bench, come = bench_of(place_of(both.of(database)), case, rounds.seed)
    with bench:
        _rounds(this_run, "speed", upserts(database), case, lambda one, _: timed(bench, one, come), rounds, stop)
    return True


def _safety(
    this_run: Recording, both: Servers, database: Database, ways: list[Technique], target: int, shares: list[int],
    rounds: Rounds, stop: threading.Event,
) -> None:  # fmt: skip
    """What others see of the smallest table, what two writers do to each other, and what a failure leaves."""
    place, once = place_of(both.of(database)), Rounds(1, 0, rounds.seed)
    *others, share = shares
    case = Case(target, target, share)
    if _is_left(this_run, "reader", ways, case, 1):
        bench, come = bench_of(place, case, rounds.seed)
        with bench:
            _rounds(this_run, "reader", ways, case, lambda one, _: watched(bench, one, come), once, stop)
    for other in others:
        _trials(this_run, place, ways, _small(target, other), rounds, stop, {})
    _trials(this_run, place, ways, _small(target, share), rounds, stop, FAULTS)


def _small(target: int, share: int) -> Case:
    """A case whose table is read whole, here, after each trial."""
    target = min(target, MOST_ROWS)
    return Case(target, max(1, target // 10), share)


def _trials(
    this_run: Recording, place: Place, ways: list[Technique], case: Case, rounds: Rounds, stop: threading.Event,
    breaks: Mapping[Part, Fault],
) -> None:  # fmt: skip
    """Two writers at once, and all that breaks in one."""
    once, passes = Rounds(1, 0, rounds.seed), Rounds(rounds.passes, 0, rounds.seed)
    broken = [part for part in breaks if _is_left(this_run, part, ways, case, 1)]
    if not broken and not _is_left(this_run, "writers", ways, case, rounds.passes):
        return
    bench, come = bench_of(place, case, rounds.seed)
    with bench:

        def two(technique: Technique, number: int) -> dict[str, Any]:
            return together(bench, technique, two_frames(bench.there, case, rounds.seed + number))

        _rounds(this_run, "writers", ways, case, two, passes, stop)
        if not broken:
            return
        last = faults.LAST_TURNS if rounds.passes >= LEAST_ROUNDS else faults.LAST_TURNS_IN_A_LOOK
        tried: dict[Part, Fault] = {**breaks, "connection cut": partial(faults.cut, last=last)}
        with relayed(place.server, TurnsRelay) as road:
            for part in broken:
                _rounds(this_run, part, ways, case, partial(_broken, tried[part], bench, come, road), once, stop)


def _crashes(
    this_run: Recording, ways: list[Technique], target: int, share: int, rounds: Rounds, stop: threading.Event
) -> None:
    """The server is killed under all ways at once, and started again: servers of its own, whatever SERVERS says.

    Skipped where there are none to be had beside somebody's own.
    """
    case = _small(target, share)
    if not _is_left(this_run, KILLED, ways, case, rounds.passes):
        return
    there = base(case.target, rounds.seed)
    with ExitStack() as stack:
        try:
            own = stack.enter_context(breakable())
        except ServerError as error:
            if this_run.settings.servers == "embedded":
                raise
            measure = _unavailable(f"nobody's own server is killed, and an embedded one cannot be had: {error}")
        else:
            measure = crashes(own, ways, there, incoming(there, case, rounds.seed)).aftermath
        _rounds(this_run, KILLED, ways, case, measure, rounds, stop)


def _unavailable(reason: str) -> Measured:
    def measure(*_: object) -> dict[str, Any]:
        raise UnavailableError(reason)

    return measure


def _broken(fault: Fault, bench: Bench, come: pl.DataFrame, road: Road, technique: Technique, _: int) -> dict[str, Any]:
    return fault(bench, technique, come, road)


FAULTS: dict[Part, Fault] = {
    "sent twice": faults.sent_twice, "connection cut": faults.cut, "client killed": faults.killed,
}  # fmt: skip
"""What breaks, and what makes it break."""
