"""Notebooks beside each other, where none takes a time that the others would change."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby
from typing import Any

import psutil

from framehaul.reporting.progress import Lines
from framehaul.reporting.study import Study
from framehaul.settings import Preset

LANES = 2
"""One for each core of the machines that most runs are made on."""
PATIENCE_SECONDS = 20
"""How long a kernel that is interrupted may take to put away what it has on servers."""

type Pair = tuple[Study, dict[str, Any]]


def stages(left: Sequence[Pair], preset: Preset) -> list[list[Pair]]:
    """Notebooks in the order they run in, those together that may run beside each other.

    A `smoke` run takes no time that anybody compares.
    """

    def beside_others(pair: Pair) -> bool:
        return not (pair[0].only_reads or pair[0].alone) and (pair[0].untimed or preset == "smoke")

    grouped = [(together, [*pairs]) for together, pairs in groupby(left, beside_others)]
    return [stage for together, pairs in grouped for stage in ([pairs] if together else [[pair] for pair in pairs])]


def beside[T](
    stage: Sequence[Pair], execute: Callable[[Study, dict[str, Any], Lines], T],
    then: Callable[[Study, dict[str, Any], T], object],
) -> None:  # fmt: skip
    """Execute the notebooks of a stage, some at a time, but none beside another that holds the same table.

    `execute` gets where to print. An interrupt, or what one raises, ends the others, too, and is raised when they have
    ended; `then` is not called for those.
    """
    waiting, held, ended, stopped = list(stage), set[str](), threading.Condition(), threading.Event()

    def lane() -> None:
        while True:
            with ended:
                while waiting and all(held.intersection(study.holds) for study, _ in waiting):
                    ended.wait()
                if not waiting:
                    return
                free = [pair for pair in waiting if not held.intersection(pair[0].holds)]
                # Who needs tables cannot begin at any time.
                study, values = max(free, key=lambda pair: len(pair[0].holds))
                waiting.remove((study, values))
                held.update(study.holds)
            try:
                outcome = execute(study, values, named(study.number))
                if not stopped.is_set():
                    then(study, values, outcome)
            finally:
                with ended:
                    held.difference_update(study.holds)
                    ended.notify_all()

    with ThreadPoolExecutor(LANES, "framehaul-lane") as pool:
        lanes = [pool.submit(lane) for _ in range(min(LANES, len(stage)))]
        try:
            while not all(one.done() for one in lanes):
                # Not for ever: Polars' handler of SIGINT has system calls restarted, so that an interrupt ends no wait.
                for one in wait(lanes, 0.2, "FIRST_EXCEPTION").done:
                    one.result()
        except BaseException:
            stopped.set()
            with ended:
                waiting.clear()
                ended.notify_all()
            # Kernels have sessions of their own, so that Ctrl-C reaches this process alone.
            _interrupt_kernels(until=lambda: all(one.done() for one in lanes))
            raise


def named(name: str) -> Lines:
    """What prints whole lines with a name before each."""
    return Lines(lambda line: sys.stdout.write(f"{name} {line}\n"))


def _interrupt_kernels(until: Callable[[], bool]) -> None:
    """Interrupt each kernel of this process once, those too that are about to start; kill what does not end."""
    told, began = set[int](), time.monotonic()
    while not until():
        for kernel in psutil.Process().children():
            try:
                if not any("ipykernel" in word for word in kernel.cmdline()):
                    continue
                if time.monotonic() - began > PATIENCE_SECONDS:
                    kernel.kill()
                elif kernel.pid not in told:
                    told.add(kernel.pid)
                    kernel.send_signal(signal.SIGINT)
            except psutil.NoSuchProcess:
                continue
        time.sleep(0.1)
