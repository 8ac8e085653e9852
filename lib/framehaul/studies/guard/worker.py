"""One side of a guard: a process in its environment, which makes passes as it is asked to, a line of JSON at a time.

`python -m framehaul.studies.guard.worker '{"side": "a", "rows": 20000, ...}'` reads requests from standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from typing import Any, cast

import psutil

from framehaul import servers
from framehaul.data import generator
from framehaul.errors import WrongResultError
from framehaul.harness.measure import Passes, Way
from framehaul.harness.meter import Meter, settle, settled
from framehaul.harness.passes import attempt, columns_of
from framehaul.harness.trials import Trials
from framehaul.servers import Servers
from framehaul.settings import load_settings
from framehaul.studies.fidelity.trial import Cell, run_cells
from framehaul.studies.guard.rows import table_of
from framehaul.techniques import Technique
from framehaul.techniques.clients import awaited
from framehaul.techniques.registry import Database, Direction, named


class Worker:
    """Makes passes of techniques over tables of its own, for as long as the block lasts."""

    def __init__(
        self, both: Servers, stack: ExitStack, *, side: str, mark: str, rows: int, seed: int, slower: float
    ) -> None:
        self._both, self._stack, self._mark, self._side = both, stack, mark, side
        self._rows, self._seed, self._slower = rows, seed, slower
        self._runner = stack.enter_context(asyncio.Runner())
        self._passes: dict[tuple[str, str], Passes] = {}
        stack.enter_context(settled())

    def answer(self, do: str, **given: Any) -> dict[str, Any]:
        """What a request comes to, with its status and the reason."""
        known: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self._open, "one": self._one, "replay": self._replay, "allocations": self._allocations,
            "cells": self._cells,
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

    def _found(self, key: list[Any]) -> tuple[Technique, Passes]:
        technique = named(key[0], key[1], key[2])
        if self._slower:
            technique = slowed(technique, self._slower)
        return technique, self._passes[key[0], key[1]]

    def _one(self, key: list[Any], ports: list[int] | None = None) -> dict[str, Any]:
        """A pass on the server, verified."""
        technique, passes = self._found(key)
        way = self._way(technique, ports) if ports else None
        moved = self._runner.run(passes.one(technique, 1, way))
        return {"seconds": moved.seconds, "dtypes": moved.dtypes}

    def _way(self, technique: Technique, ports: list[int]) -> Callable[[], AbstractContextManager[Way]]:
        server = cast("Any", self._both.of(technique.database))
        return lambda: nullcontext(Way(server.through(*ports), Meter(server.process_id)))

    def _replay(self, key: list[Any], ports: list[int], calls: int) -> dict[str, Any]:
        """Client CPU seconds of calls that a recording answers; frames that come of them are verified."""
        technique, passes = self._found(key)
        way, seconds = self._way(technique, ports), 0.0
        for _ in range(calls):
            while (done := self._runner.run(passes.sent(technique, 1, way))) is None:
                pass
            returned, moved = done
            for one in returned:
                if one is not None:
                    passes.checked(one, technique)
            seconds += moved.usage.client_cpu_s
        return {"client_cpu_s": seconds, "rss_bytes": psutil.Process().memory_info().rss}

    def _allocations(self, key: list[Any], ports: list[int]) -> dict[str, Any]:
        """What Python's own allocator gave to a call at most, in bytes; that of a library in Rust or C is not in it."""
        technique, passes = self._found(key)
        peaks: list[int] = []

        @contextmanager
        def traced() -> Iterator[None]:
            tracemalloc.start()
            try:
                yield
                peaks.append(tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()

        watched, way = _within(technique, traced), self._way(technique, ports)
        while self._runner.run(passes.sent(watched, 1, way)) is None:
            pass
        return {"python_bytes": peaks[-1]}

    def _cells(self, key: list[Any]) -> dict[str, Any]:
        """What it does with every edge case."""
        technique = self._found(key)[0]
        cells: list[Cell] = []
        trials: Trials[Cell] = Trials(cells.append)
        run_cells(self._both, [technique], trials)
        return {"cells": {f"{one.case} ({one.session})": [one.outcome, one.detail] for one in cells}}


def slowed(technique: Technique, share: float) -> Technique:
    """The technique with so much more CPU time: a slow-down that is known, to see whether it is found."""

    @contextmanager
    def slower() -> Iterator[None]:
        begun = time.process_time()
        yield
        until = time.process_time() * (1 + share) - begun * share
        while time.process_time() < until:
            pass

    return _within(technique, slower)


def _within(technique: Technique, block: Callable[[], AbstractContextManager[None]]) -> Technique:
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
        for line in sys.stdin:
            print(json.dumps(worker.answer(**json.loads(line))), file=answers, flush=True)
            settle()  # what is used for the first time is imported then


if __name__ == "__main__":
    main()
