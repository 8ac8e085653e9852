"""One side of a guard: a process in its environment, which makes passes as it is asked to, a line of JSON at a time.

`python -m framehaul.studies.guard.worker '{"side": "a", "rows": 20000, ...}'` reads requests from standard input.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import queue
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from itertools import pairwise
from typing import Any, Protocol, cast

import psutil

from framehaul import servers
from framehaul.data import generator
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.harness.measure import Passes, Returned, Way
from framehaul.harness.meter import Meter, Moved, Usage, give_back_memory, settle, settled
from framehaul.harness.passes import attempt, columns_of
from framehaul.harness.trials import Trials
from framehaul.servers import Server, Servers
from framehaul.settings import load_settings
from framehaul.studies.drivers.driver import NotOfferedError
from framehaul.studies.fidelity.trial import Cell, run_cells
from framehaul.studies.guard.rows import table_of
from framehaul.studies.guard.shapes import Shapes, is_shape
from framehaul.techniques import Technique
from framehaul.techniques.clients import awaited
from framehaul.techniques.registry import Database, Direction, named

GRACE_SECONDS = 20
"""How long a side may go on after nobody asks any more."""

type Block = Callable[[], AbstractContextManager[Any]]


class Worker:
    """Makes passes of techniques, and of shapes of queries, over tables of its own, for as long as the block lasts."""

    def __init__(
        self, both: Servers, stack: ExitStack, *, side: str, mark: str, rows: int, seed: int, slower: float
    ) -> None:
        self._both, self._stack, self._mark, self._side = both, stack, mark, side
        self._rows, self._seed, self._slower = rows, seed, slower
        self._runner = stack.enter_context(asyncio.Runner())
        self._passes: dict[tuple[str, str], Passes] = {}
        self._shapes: dict[str, Shapes] = {}
        stack.enter_context(settled())

    def answer(self, do: str, **given: Any) -> dict[str, Any]:
        """What a request comes to, with its status and the reason."""
        known: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self._open, "open_shapes": self._open_shapes, "one": self._one, "replay": self._replay,
            "growth": self._growth, "allocations": self._allocations, "cells": self._cells,
        }  # fmt: skip
        work = known[do]
        wrong: list[WrongResultError] = []

        def noting() -> dict[str, Any]:
            try:
                return work(**given)
            except WrongResultError as error:
                wrong.append(error)
                raise

        return columns_of(attempt(noting)) | {"wrong": bool(wrong)}

    def _open(self, database: Database, direction: Direction, frames: list[str]) -> dict[str, Any]:
        table = table_of(self._mark, self._side, direction)
        content = generator.arrow_table(table, self._rows, self._seed)
        passes = Passes(self._both.of(database), table, content, {direction}, frames)
        self._passes[database, direction] = self._stack.enter_context(passes)
        return {}

    def _open_shapes(self, database: Database) -> dict[str, Any]:
        self._shapes[database] = Shapes(self._both, self._stack, database, self._mark, self._side)
        return {}

    def _path(self, key: list[Any]) -> _Path:
        if is_shape(key[2]):
            return _Shape(self._shapes[key[0]], key[2], self._both.of(key[0]), self._slower)
        technique = named(key[0], key[1], key[2])
        return _Moves(self._passes[key[0], key[1]], technique, self._both.of(key[0]), self._slower, self._runner)

    def _one(self, key: list[Any], ports: list[int] | None = None) -> dict[str, Any]:
        """A pass on the server, verified."""
        return self._path(key).one(ports)

    def _replay(self, key: list[Any], ports: list[int], calls: int) -> dict[str, Any]:
        """Client CPU seconds of calls that a recording answers; frames that come of them are verified."""
        path = self._path(key)
        return {"client_cpu_s": sum(path.replayed(ports) for _ in range(calls))}

    def _growth(self, key: list[Any], ports: list[int], calls: int) -> dict[str, Any]:
        """By how many bytes the process grows with each of so many calls, and of so many after them: the lesser growth.

        What allocators take once, for whoever has done nothing for a while, or hold for later, is none.
        """
        path = self._path(key)
        path.replayed(ports)
        kept = [_kept_bytes()]
        for _ in range(2):
            for _ in range(calls):
                path.replayed(ports)
            kept.append(_kept_bytes())
        return {"growth_bytes": max(0, min(after - before for before, after in pairwise(kept))) // calls}

    def _allocations(self, key: list[Any], ports: list[int]) -> dict[str, Any]:
        """What Python's own allocator gave to a call at most, in bytes; that of a library in Rust or C is not in it."""
        peaks: list[int] = []

        @contextmanager
        def traced() -> Iterator[None]:
            tracemalloc.start()
            try:
                yield
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()

        self._path(key).within(traced, ports)
        return {"python_bytes": peaks[-1]}

    def _cells(self, key: list[Any]) -> dict[str, Any]:
        """What it does with every edge case."""
        technique = named(key[0], key[1], key[2])
        cells: list[Cell] = []
        trials: Trials[Cell] = Trials(cells.append)
        run_cells(self._both, [technique], trials)
        return {"cells": {f"{one.case} ({one.session})": [one.outcome, one.detail] for one in cells}}


class _Path(Protocol):
    """What a side does with a technique, or with a shape."""

    def one(self, ports: list[int] | None) -> dict[str, Any]:
        """A call on the server, or through these ports to it, verified."""

    def replayed(self, ports: list[int]) -> float:
        """The client's CPU seconds of a call that is answered at these ports; what comes of it is verified."""

    def within(self, block: Block, ports: list[int]) -> None:
        """The same within a block, with nothing looked at."""


def _through(server: Server, ports: list[int]) -> Server:
    through: Server = cast("Any", server).through(*ports)
    return through


class _Moves:
    """A technique that moves the rows of a table."""

    def __init__(
        self, passes: Passes, technique: Technique, server: Server, slower: float, runner: asyncio.Runner
    ) -> None:
        self._passes, self._server, self._runner = passes, server, runner
        self._technique = _within(technique, partial(slowed, slower)) if slower else technique

    def one(self, ports: list[int] | None) -> dict[str, Any]:
        """A pass."""
        moved = self._runner.run(self._passes.one(self._technique, 1, self._way(ports) if ports else None))
        return {"seconds": moved.seconds, "dtypes": moved.dtypes, "server_cpu_s": moved.usage.server_cpu_s}

    def replayed(self, ports: list[int]) -> float:
        """What its frames were is verified."""
        returned, moved = self._sent(self._technique, ports)
        for one in returned:
            if one is not None:
                self._passes.checked(one, self._technique)
        return moved.usage.client_cpu_s

    def within(self, block: Block, ports: list[int]) -> None:
        """The call, and nothing around it."""
        self._sent(_within(self._technique, block), ports)

    def _sent(self, technique: Technique, ports: list[int]) -> tuple[list[Returned], Moved]:
        while (done := self._runner.run(self._passes.sent(technique, 1, self._way(ports)))) is None:
            pass
        return done

    def _way(self, ports: list[int]) -> Callable[[], AbstractContextManager[Way]]:
        return lambda: nullcontext(Way(_through(self._server, ports), Meter()))  # what answers is no server of ours


class _Shape:
    """A driver that is asked a shape."""

    def __init__(self, shapes: Shapes, name: str, server: Server, slower: float) -> None:
        self._shapes, self._name, self._server, self._slower = shapes, name, server, slower
        self._took: tuple[float, Usage] | None = None

    def one(self, ports: list[int] | None) -> dict[str, Any]:
        """A call."""
        returned = self._sent(ports, partial(self._clock, Meter(self._server.process_id)))
        self._shapes.verified(self._name, returned, stored=True)
        assert self._took is not None
        seconds, usage = self._took
        types = self._shapes.types(self._name, returned)
        return {"seconds": seconds, "dtypes": types, "server_cpu_s": usage.server_cpu_s}

    def replayed(self, ports: list[int]) -> float:
        """What the last query gave is verified."""
        self._shapes.verified(self._name, self._sent(ports, partial(self._clock, Meter())), stored=False)
        assert self._took is not None
        return self._took[1].client_cpu_s

    def within(self, block: Block, ports: list[int]) -> None:
        """Its queries; connected before."""
        self._sent(ports, block)

    def _sent(self, ports: list[int] | None, block: Block) -> Any:
        try:
            return self._shapes.sent(self._name, _through(self._server, ports) if ports else self._server, block)
        except NotOfferedError as error:
            raise UnavailableError(str(error)) from error

    @contextmanager
    def _clock(self, meter: Meter) -> Iterator[None]:
        meter.start()
        begun = time.perf_counter()
        with slowed(self._slower) if self._slower else nullcontext():
            yield
        self._took = time.perf_counter() - begun, meter.stop()


def _kept_bytes() -> int:
    gc.collect()
    give_back_memory()
    return int(psutil.Process().memory_info().rss)


@contextmanager
def slowed(share: float) -> Iterator[None]:
    """So much more CPU time than the block takes: a slow-down that is known, to see whether it is found."""
    begun = time.process_time()
    yield
    until = time.process_time() * (1 + share) - begun * share
    while time.process_time() < until:
        pass


def _within(technique: Technique, block: Block) -> Technique:
    @wraps(technique.function)
    async def function(*arguments: Any) -> Any:
        with block():
            return await awaited(technique.function(*arguments))

    return replace(technique, function=function)


def main() -> None:
    """Answer requests until there are no more."""
    given = json.loads(sys.argv[1])
    # Drivers print what they like; answers go where only they go.
    answers = os.fdopen(os.dup(1), "w", encoding="utf8")
    os.dup2(2, 1)
    threading.current_thread().name = f"guard {given['side']}"
    with servers.running(load_settings()) as both, ExitStack() as stack:
        worker = Worker(both, stack, **given)
        print(json.dumps({"status": "ok", "reason": None}), file=answers, flush=True)
        for line in iter(_requests().get, ""):
            print(json.dumps(worker.answer(**json.loads(line))), file=answers, flush=True)
            settle()  # what is used for the first time is imported then


def _requests() -> queue.SimpleQueue[str]:
    """What comes, until there is no more: then who is still at work has so much time to end."""
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            requests.put(line)
        requests.put("")
        time.sleep(GRACE_SECONDS)
        os._exit(1)  # a driver hangs, and who would have ended this process is gone

    threading.Thread(target=read, daemon=True).start()
    return requests


if __name__ == "__main__":
    main()
