"""Notebooks beside each other, where none takes a time that the others would change."""

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
"""One more than most machines have cores: each waits for servers now and then."""
PATIENCE_SECONDS = 20
"""How long a kernel that is interrupted may take to put away what it has on servers."""

type Pair = tuple[Study, dict[str, Any]]
type Servers = Mapping[str, str]
"""The variables of the environment by which a kernel finds its servers."""


SHARED: Sequence[Servers] = ({},) * LANES
"""The same servers for all lanes."""


def stages(left: Sequence[Pair], preset: Preset, *, apart: bool = False) -> list[list[Pair]]:
    """Notebooks in the order they run in, those together that may run beside each other.

    A `smoke` run takes no time that anybody compares. Its lanes may have servers each: then they are `apart`.
    """

    def together(at_pair: tuple[int, Pair]) -> str | int:
        at, (study, _) = at_pair
        if study.only_reads:
            # Elsewhere the same one may come again: it sums up what is there by then.
            return "what only reads" if preset == "smoke" else at
        beside_others = study.untimed or (preset == "smoke" and (apart or not study.alone))
        return "beside others" if beside_others else at

    return [[pair for _, pair in pairs] for _, pairs in groupby(enumerate(left), together)]


def beside[T](
    stage: Sequence[Pair], execute: Callable[[Study, dict[str, Any], Lines, Servers], T],
    then: Callable[[Study, dict[str, Any], T], object], servers: Sequence[Servers] = SHARED,
) -> None:  # fmt: skip
    """Execute the notebooks of a stage, one a lane at a time, but none beside another that holds the same table.

    `servers` has those of each lane. `execute` gets where to print, and the servers of its lane. An interrupt, or what
    one raises, ends the others, too, and is raised when they have ended; `then` is not called for those.
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
                # Who waits for others' tables cannot begin at any time, and what takes long is not left for the end.
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
