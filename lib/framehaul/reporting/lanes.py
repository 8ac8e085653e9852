"""Run notebooks in parallel if that changes no measured time."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby
from typing import Any

import psutil

from framehaul.bench.study import Study
from framehaul.reporting.progress import Lines
from framehaul.settings import Preset

LANES = 3
"""The number of notebooks at once: one more than the cores of most machines, since notebooks also wait."""
PATIENCE_SECONDS = 20
"""The time that an interrupted kernel has to clean up its tables."""

type Pair = tuple[Study, dict[str, Any]]
type Servers = Mapping[str, str]
"""The environment variables by which a kernel finds its servers."""

SHARED: Sequence[Servers] = ({},) * LANES
"""The servers of each lane, if all lanes share them."""


def stages(left: Sequence[Pair], preset: Preset, *, apart: bool = False) -> list[list[Pair]]:
    """Return the notebooks in order; the notebooks of a stage may run in parallel.

    In a `smoke` run most may, because nobody compares its times, and all may if lanes have servers of their own
    (`apart`).
    """

    def stage(at_pair: tuple[int, Pair]) -> str | int:
        at, (study, _) = at_pair
        if study.only_reads:
            # Other runs may have the same notebook twice: each time it summarizes the results so far.
            return "only reads" if preset == "smoke" else at
        return "parallel" if study.untimed or (preset == "smoke" and (apart or not study.alone)) else at

    return [[pair for _, pair in pairs] for _, pairs in groupby(enumerate(left), stage)]


def in_parallel[T](
    stage: Sequence[Pair],
    execute: Callable[[Study, dict[str, Any], Lines, Servers], T],
    then: Callable[[Study, dict[str, Any], T], object],
    servers: Sequence[Servers] = SHARED,
) -> None:
    """Execute the notebooks of a stage, one at a time in each lane, and none while another uses the same table.

    `servers` has the servers of each lane. `execute` gets a stream for its output and the servers of its lane; `then`
    gets its result. An interrupt or an exception ends the other notebooks too, and is raised when they have ended;
    `then` is not called for those.
    """
    waiting, ended, stopped = list(stage), threading.Condition(), threading.Event()
    held = {id(each): set[str]() for each in servers}
    shared = len(held) < len(servers)

    def lane(own: Servers) -> None:
        taken = held[id(own)]
        while True:
            with ended:
                while waiting and all(taken.intersection(study.holds) for study, _ in waiting):
                    ended.wait()
                if not waiting:
                    return
                free = [pair for pair in waiting if not taken.intersection(pair[0].holds)]
                # First the notebooks that use the most tables, which can begin least often, and of these the longest.
                study, values = max(free, key=lambda pair: (shared and len(pair[0].holds), pair[0].seconds))
                waiting.remove((study, values))
                taken.update(study.holds)
            try:
                outcome = execute(study, values, named(study.number), own)
                if not stopped.is_set():
                    then(study, values, outcome)
            finally:
                with ended:
                    taken.difference_update(study.holds)
                    ended.notify_all()

    with ThreadPoolExecutor(len(servers), "framehaul-lane") as pool:
        lanes = [pool.submit(lane, own) for own in servers[: len(stage)]]
        try:
            while not all(one.done() for one in lanes):
                # A timeout is needed: Polars' handler of SIGINT restarts system calls, so no interrupt ends a wait.
                for one in wait(lanes, 0.2, "FIRST_EXCEPTION").done:
                    one.result()
        except BaseException:
            stopped.set()
            with ended:
                waiting.clear()
                ended.notify_all()
            # Kernels have their own sessions, so Ctrl-C does not reach them.
            _interrupt_kernels(until=lambda: all(one.done() for one in lanes))
            raise


def named(name: str) -> Lines:
    """Return a stream that prints whole lines with a name before each."""
    return Lines(lambda line: sys.stdout.write(f"{name} {line}\n"))


def _interrupt_kernels(until: Callable[[], bool]) -> None:
    """Interrupt each kernel of this process once, including kernels that are starting; kill kernels that do not end."""
    interrupted, began = set[int](), time.monotonic()
    while not until():
        for kernel in psutil.Process().children():
            try:
                if not any("ipykernel" in word for word in kernel.cmdline()):
                    continue
                if time.monotonic() - began > PATIENCE_SECONDS:
                    kernel.kill()
                elif kernel.pid not in interrupted:
                    interrupted.add(kernel.pid)
                    kernel.send_signal(signal.SIGINT)
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.1)
