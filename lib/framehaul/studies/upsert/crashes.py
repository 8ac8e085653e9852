"""What is left when the server is killed under upserts: every way at once, each held before one of its messages."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from framehaul.bench.measure import quiet_drivers
from framehaul.bench.passes import Failed, Ok, Pass, Skipped, attempt
from framehaul.data.frames import from_polars
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers.relay import relayed
from framehaul.studies.faults.breakable import BreakableServers
from framehaul.studies.upsert.faults import (
    DONE,
    TurnsRelay,
    opened_counting,
    outcome_of,
    state_of,
    stops,
    turns_of,
)
from framehaul.studies.upsert.frames import TABLE, updated
from framehaul.studies.upsert.passes import BOTH
from framehaul.studies.upsert.places import Bench, place_of, upsert
from framehaul.studies.upsert.processes import POLL_SECONDS
from framehaul.techniques import Technique
from framehaul.techniques.upsert.rows import target

ORDER = (2, 1, 3, 4, 5, 6)
"""Before which of its last messages an upsert is held in a round, the last is 1; at first where a client is killed."""


@dataclass
class Crashes:
    """Upserts of these rows on servers that may be killed."""

    broken: BreakableServers
    ways: Sequence[Technique]
    there: pl.DataFrame
    come: pl.DataFrame
    _stops: Mapping[Technique, Pass[list[int]]]
    """Before which of its bytes an upsert can be held, of each that runs at all."""
    _held: set[Technique] = field(default_factory=set)
    _number: int = 0
    """The last round in which the servers were killed."""

    def kill(self, number: int) -> None:
        """Hold all ways before the message of this round, each in a table of its own, kill both servers, start them."""
        until = threading.Event()
        held = {one: threading.Event() for one in self.ways if isinstance(self._stops[one], Ok)}
        for one in held:
            tables, table = place_of(self.broken.servers.of(one.database)).tables(one), self._table(one)
            tables.create(table)
            tables.load(table, from_polars(self.there, TABLE))
        with quiet_drivers(), ThreadPoolExecutor(len(self.ways)) as pool:
            running = {one: pool.submit(self._upsert, one, number, event, until) for one, event in held.items()}
            try:
                for one, future in running.items():
                    while not held[one].wait(POLL_SECONDS) and not future.done():
                        pass
                self.broken.kill(*BOTH)
            finally:
                until.set()
        self._held = {one for one, event in held.items() if event.is_set()}
        self.broken.start(*BOTH)
        self._number = number

    def _upsert(self, technique: Technique, number: int, held: threading.Event, until: threading.Event) -> None:
        known = self._stops[technique]
        assert isinstance(known, Ok)
        after = known.values[max(0, len(known.values) - ORDER[number - 1])]
        server = self.broken.servers.of(technique.database)
        # Whatever it raises: what counts is what is left.
        with (
            relayed(server, TurnsRelay) as road, contextlib.suppress(Exception),
            opened_counting(technique, road) as (client, relay),
        ):  # fmt: skip
            relay.hold(after, in_client_bytes=True, held=held, until=until)
            technique.function(client, self._table(technique), self.come)

    def _table(self, technique: Technique) -> Table:
        # As long a name as that of the table whose messages were counted.
        return target(technique, TABLE.renamed(f"{TABLE.name[:-2]}{self.ways.index(technique):02}"))

    def aftermath(self, technique: Technique, number: int) -> dict[str, Any]:
        """What is left of an upsert after the kill of this round, and whether it is right when it is sent again.

        Raises UnavailableError or RuntimeError where it does not run at all, RuntimeError where it was over before the
        server was killed, WrongResultError where it is not right.
        """
        match self._stops[technique]:
            case Skipped(reason):
                raise UnavailableError(reason)
            case Failed(reason):
                raise RuntimeError(reason)
        if number != self._number:
            self.kill(number)
        if technique not in self._held:
            raise RuntimeError(f"{technique.name} was over before the server could be killed")
        place, table = place_of(self.broken.servers.of(technique.database)), self._table(technique)
        place.wait(table)
        after = updated(self.there, self.come)
        state = state_of(place.tables(technique).content(table), self.there, after)
        beside = place.beside(table)
        upsert(technique, place.server, table, self.come)
        again = state_of(place.tables(technique).content(table), self.there, after)
        place.plain.drop(table)
        return outcome_of(Counter([state]), beside, [] if again == DONE else [again])


def crashes(broken: BreakableServers, ways: Sequence[Technique], there: pl.DataFrame, come: pl.DataFrame) -> Crashes:
    """Upserts to be broken, whose messages are known from one that nothing breaks."""
    found: dict[Technique, Pass[list[int]]] = {}
    for database in {one.database for one in ways}:
        with (
            Bench(place_of(broken.servers.of(database)), there, updated(there, come)) as bench,
            relayed(bench.place.server, TurnsRelay) as road,
        ):
            for one in ways:
                if one.database == database:
                    found[one] = attempt(lambda: stops(*turns_of(bench, one, come, road)))  # noqa: B023  called here
    return Crashes(broken, ways, there, come, found)
