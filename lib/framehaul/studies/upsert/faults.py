"""What is left when an upsert breaks: between two of its messages, in the midst of one, or with its client."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars as pl

from framehaul.bench.measure import quiet_drivers
from framehaul.bench.passes import right
from framehaul.data.schema import Table
from framehaul.errors import UnavailableError
from framehaul.servers import Server
from framehaul.studies.faults.wire import BreakingRelay
from framehaul.studies.upsert.frames import KEY
from framehaul.studies.upsert.measure import again
from framehaul.studies.upsert.places import Bench, opened, upsert
from framehaul.studies.upsert.processes import POLL_SECONDS, processes, writes
from framehaul.techniques import Technique

LAST_TURNS = 5
"""Of the messages of a client, before how many of the last ones the connection is cut, each in a trial of its own."""
LAST_TURNS_IN_A_LOOK = 2
"""Before what commits, and what comes before that."""
MIDDLE = 0.5
"""Of the bytes, after which it is cut as well."""
DONE, NOTHING = "all", "nothing"


class TurnsRelay(BreakingRelay):
    """Also tells where each message of the client begins: the bytes it had sent when the server had answered."""

    work_seconds = 0.05  # between two messages it has answered everything

    def __init__(self, *targets: tuple[str, int]) -> None:
        super().__init__(*targets)
        self.turns: list[int] = []
        self._answered = True

    def renew(self) -> None:
        """Break nothing, as if nothing had been broken."""
        self.mend()
        self.struck, self._answered = False, True
        self.turns.clear()
        self.count()

    async def _lets_through(self, count: int, *, from_client: bool) -> bool:
        if from_client and self._answered:
            self.turns.append(self.from_client_bytes)
        self._answered = not from_client
        return await super()._lets_through(count, from_client=from_client)


type Road = tuple[Server, TurnsRelay | None]
"""The server as it is reached through a relay, and that, or as it is, where nothing can be between."""


@contextmanager
def clear(road: Road) -> Iterator[tuple[Server, TurnsRelay]]:
    """The road with nothing broken on it; raises UnavailableError where nothing can be broken."""
    through, relay = road
    if relay is None:
        raise UnavailableError("nothing can break a connection that is encrypted, or a socket: connect plainly")
    relay.renew()
    try:
        yield through, relay
    finally:
        relay.mend()


@contextmanager
def opened_counting(technique: Technique, road: Road) -> Iterator[tuple[Any, TurnsRelay]]:
    """The client of a technique, and the relay, which counts from here."""
    with clear(road) as (through, relay), contextlib.ExitStack() as stack:
        client = stack.enter_context(opened(technique, through))
        relay.renew()
        yield client, relay
        with contextlib.suppress(Exception):  # closing what is broken says nothing new
            stack.close()


def turns_of(bench: Bench, technique: Technique, come: pl.DataFrame, road: Road) -> tuple[list[int], int]:
    """Where each message of an upsert begins that nothing breaks, and how many bytes there are."""
    table = bench.fresh(technique)
    with opened_counting(technique, road) as (client, relay):
        technique.function(client, table, come)
        return [*relay.turns], relay.from_client_bytes


def sent_twice(bench: Bench, technique: Technique, come: pl.DataFrame, _: Road) -> dict[str, Any]:
    """The same frame a second time; raises WrongResultError where the table is then another."""
    table = bench.fresh(technique)
    upsert(technique, bench.place.server, table, come, come)
    return right({"again": "right"}, bench.difference(technique))


def stops(turns: list[int], size: int, last: int = LAST_TURNS) -> list[int]:
    """After how many bytes of the client something breaks: in the midst, and before each of the last messages.

    It does when a byte more than those before a message comes.
    """
    return sorted({int(size * MIDDLE), *(turn + 1 for turn in turns[-last:] if turn)})


def cut(bench: Bench, technique: Technique, come: pl.DataFrame, road: Road, last: int = LAST_TURNS) -> dict[str, Any]:
    """The connection ends in the midst, and before each of the last messages: what is left each time, and sent again.

    Raises WrongResultError where sending it again leaves something else than the update.
    """
    turns, size = turns_of(bench, technique, come, road)
    left: collections.Counter[str] = collections.Counter()
    beside = 0
    wrong: list[str] = []
    for after in stops(turns, size, last):
        table = bench.fresh(technique)
        # Whatever it raises: what counts is what is left.
        with quiet_drivers(), contextlib.suppress(Exception), opened_counting(technique, road) as (client, relay):
            relay.strike("cut", after, in_client_bytes=True)
            technique.function(client, table, come)
        state, beside_now, said = aftermath(bench, technique, table, come)
        left[state] += 1
        beside = max(beside, beside_now)
        wrong += [said] if said != "right" else []
    return outcome_of(left, beside, wrong)


def outcome_of(left: collections.Counter[str], beside: int, wrong: list[str]) -> dict[str, Any]:
    """The columns of a row about what was left."""
    text = "; ".join(f"{state} {count}" for state, count in left.most_common())
    return right({"left": text, "beside": beside, "again": "right"}, "; sent again: ".join(["", *wrong[:1]]) or None)


def aftermath(bench: Bench, technique: Technique, table: Table, come: pl.DataFrame) -> tuple[str, int, str]:
    """What is left when the server has noticed, how many tables beside, and what comes of sending it again."""
    bench.place.wait(table)
    found = bench.place.tables(technique).content(table)
    beside = bench.place.beside()
    return state_of(found, bench.there, bench.expected), beside, again(bench, technique, table, come)


def state_of(found: pl.DataFrame, there: pl.DataFrame, expected: pl.DataFrame) -> str:
    """`nothing` of the frame, `all`, `rows missing`, `rows twice`, or a part of it."""
    columns = found.columns
    here, before, after = (frame.select(columns).sort(columns) for frame in (found, there, expected))
    if here.equals(after):
        return DONE
    if here.equals(before):
        return NOTHING
    if here.select(KEY).n_unique() < len(here):
        return "rows twice"
    return "rows missing" if len(before.join(here, on=KEY, how="anti")) else "a part"


def killed(bench: Bench, technique: Technique, come: pl.DataFrame, road: Road) -> dict[str, Any]:
    """The client's process is killed while it sends the last but one of its messages: it can tidy up nothing."""
    turns, size = turns_of(bench, technique, come, road)
    table = bench.fresh(technique)
    after = next((turn + 1 for turn in turns[-2:] if turn), int(size * MIDDLE))
    held, until = threading.Event(), threading.Event()
    context = processes()
    with clear(road) as (through, relay):
        ready, go = context.Event(), context.Event()
        child = context.Process(
            target=writes, args=(technique.database, technique.name, through, table, come, ready, go)
        )
        child.start()
        try:
            while not ready.wait(POLL_SECONDS) and child.is_alive():
                pass
            relay.hold(after, in_client_bytes=True, held=held, until=until)
            go.set()
            while not held.wait(POLL_SECONDS) and child.is_alive():
                pass
        finally:
            child.kill()
            child.join()
            until.set()
    if not held.is_set():
        raise RuntimeError(f"{technique.name} was over before it could be killed")
    state, beside, said = aftermath(bench, technique, table, come)
    return outcome_of(collections.Counter([state]), beside, [said] if said != "right" else [])
