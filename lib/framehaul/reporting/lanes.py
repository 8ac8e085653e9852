"""Run notebooks in parallel if that changes no measured time."""

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

from framehaul.bench.study import Study
from framehaul.reporting.progress import Lines
from framehaul.settings import Preset

LANES = 3
"""The number of notebooks at once: one more than the cores of most machines, since notebooks also wait."""
PATIENCE_SECONDS = 20
"""The time that an interrupted kernel has to clean up its tables."""

type Pair = tuple[Study, dict[str, Any]]


def stages(left: Sequence[Pair], preset: Preset) -> list[list[Pair]]:
    """Return the notebooks in order; the notebooks of a stage may run in parallel.

    In a `smoke` run, whose times nobody compares, all may that hold no shared table.
    """

    def stage(at_pair: tuple[int, Pair]) -> str | int:
        at, (study, _) = at_pair
        if study.only_reads:
            # Other runs may have the same notebook twice: each time it summarizes the results so far.
            return "only reads" if preset == "smoke" else at
        return "parallel" if study.untimed or (preset == "smoke" and not study.holds) else at

    return [[pair for _, pair in pairs] for _, pairs in groupby(enumerate(left), stage)]


def in_parallel[T](
    stage: Sequence[Pair],
    execute: Callable[[Study, dict[str, Any], Lines], T],
    then: Callable[[Study, dict[str, Any], T], object],
) -> None:
    """Execute the notebooks of a stage, at most LANES at once, the longest first.

    `execute` gets a stream for its output, and `then` its result. An interrupt or an exception ends the other notebooks
    too, and is raised when they have ended; `then` is not called for those.
    """
    stopped = threading.Event()

    def run(study: Study, values: dict[str, Any]) -> None:
        try:
            if not stopped.is_set():
                lines = Lines(lambda line: sys.stdout.write(f"{study.number} {line}\n"))
                outcome = execute(study, values, lines)
                if not stopped.is_set():
                    then(study, values, outcome)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(LANES, "framehaul-lane") as pool:
        running = [pool.submit(run, *pair) for pair in sorted(stage, key=lambda pair: -pair[0].seconds[0])]
        try:
            pending = {*running}
            while pending:
                # A timeout is needed: Polars' handler of SIGINT restarts system calls, so no interrupt ends a wait.
                done, pending = wait(running, 0.2, "FIRST_EXCEPTION")
                for one in done:
                    one.result()
        except BaseException:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            # Kernels have their own sessions, so Ctrl-C does not reach them.
            _interrupt_kernels(until=lambda: all(one.done() for one in running))
            raise


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
