"""Plan a run, run notebooks in parallel if that changes no measured time, report progress, and resume a run."""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import Any, Self, TextIO

import polars as pl
import psutil

from framehaul.bench import environment, store
from framehaul.bench.study import NOTEBOOKS, START_SECONDS, Study
from framehaul.reporting.pages import put
from framehaul.settings import PROJECT, Preset, Settings

MINUTE, HOUR = 60, 3600
LANES = 3
"""The number of notebooks at once: one more than the cores of most machines, since notebooks also wait."""
PATIENCE_SECONDS = 20
"""The time that an interrupted kernel has to clean up its tables."""

type Pair = tuple[Study, dict[str, Any]]


class Plan:
    """The notebooks of a run in order, their expected times, and the notebooks that an interrupted run finished."""

    def __init__(self, chosen: Sequence[Pair], settings: Settings) -> None:
        self._count, self._settings = len({study.notebook for study, _ in chosen}), settings
        self._results = settings.out / "results"
        # A run can be resumed after a report.
        self._file = self._results / f"{'report' if settings.reuse else 'run'}.partial.json"
        # All that decides the results: code, notebooks, parameters, settings, libraries, machine.
        sources = [(NOTEBOOKS / f"{study.notebook}.ipynb").read_text("utf8") for study, _ in chosen]
        made_with = environment.digest(environment.metadata(settings))
        terms = [store.code_digest(), vars(settings.of_a_run()), made_with, sources, [values for _, values in chosen]]
        self._terms = hashlib.sha256(json.dumps(terms, sort_keys=True, default=str).encode()).hexdigest()
        self._done = [] if settings.fresh else self._finished_before()
        self.left = [(study, values) for study, values in chosen if study.notebook not in self._done]
        # The last notebook is the summary, which is made again at the end of every run.
        self.left += [pair for pair in chosen[-1:] if pair not in self.left]
        if settings.preset == "smoke":
            # A smoke run is too short for a first summary: studies that only read run once, and last. Those that hold
            # no shared table come first, because they may run in parallel.
            once = [pair for at, pair in enumerate(self.left) if pair not in self.left[:at]]
            self.left = sorted(once, key=lambda pair: (pair[0].only_reads, bool(pair[0].holds), pair[0].headline))
        self._waiting, self._times = list(self.left), list[tuple[str, str, float]]()

    def _finished_before(self) -> list[str]:
        """Return the notebooks that an interrupted run with the same terms finished."""
        try:
            before = json.loads(self._file.read_text("utf8"))
            return list(before["finished"]) if before["terms"] == self._terms else []
        except (OSError, ValueError, KeyError, TypeError):
            return []  # without a file, or with a damaged one, all notebooks run

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        what = f"{self._settings.preset}: {self._count} notebook{'s' if self._count > 1 else ''}"
        about = duration(self._expected(self.left))
        where = "" if self._settings.out == PROJECT else " in OUT"
        print(f"{what}, about {about} on two cores; pages as they come: reports/index.html{where}")
        if self._done:
            names = " ".join(sorted(self._done))
            print(f"resumes an interrupted run, which finished {names}; FRESH=1 starts anew")
        sys.stdout.flush()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._settings.reuse:
            times = pl.DataFrame(self._times, ["notebook", "part", "seconds"], orient="row")
            times.write_csv(self._results / "timing.csv", float_precision=3)

    @contextmanager
    def running(self, study: Study, values: dict[str, Any]) -> Iterator[None]:
        """Print that a notebook runs and which is next, and record its time."""
        remaining = duration(self._expected(self._waiting))
        self._waiting.remove((study, values))
        then = f"next: {self._waiting[0][0].notebook}, " if self._waiting else ""
        at = len(self.left) - len(self._waiting)
        # One call writes the whole line, because another notebook may begin at the same moment.
        sys.stdout.write(f"== {study.notebook} ({at} of {len(self.left)}; {then}about {remaining} left)\n")
        sys.stdout.flush()
        with self.timed("run", study.notebook):
            yield

    def _expected(self, studies: Sequence[Pair]) -> float:
        if self._settings.reuse:
            return float(START_SECONDS * len(studies))
        return sum(study.expected_seconds(values, self._settings.preset) for study, values in studies)

    @contextmanager
    def timed(self, part: str, notebook: str = "") -> Iterator[None]:
        """Record the time of the block as a part of the run, or of a notebook."""
        began = time.monotonic()
        yield
        self._times.append((notebook, part, time.monotonic() - began))

    def finished(self, study: Study) -> None:
        """Record a notebook that need not run again if this run is interrupted."""
        self._done.append(study.notebook)
        put(self._file, json.dumps({"terms": self._terms, "finished": self._done}).encode())

    def end(self, *, whole: bool) -> None:
        """Print the time of the run; a run that is `whole` is not resumed."""
        if whole:
            self._file.unlink(missing_ok=True)
        print(f"took {duration(time.monotonic() - self._began)}", flush=True)


def duration(seconds: float) -> str:
    """Return a duration as text: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 1.5 * MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE:.0f} min" if seconds < 1.5 * HOUR else f"{seconds / HOUR:.1f} h"


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Write the output of the block into a file as well, each line with the time of day before it."""

    def log(line: str) -> None:
        if not file.closed:  # code that kept a stream may write after the block
            file.write(f"{dt.datetime.now():%H:%M:%S} {line}\n")

    out, err = Lines(log, sys.stdout), Lines(log, sys.stderr)
    with path.open("w", buffering=1, encoding="utf8") as file, redirect_stdout(out), redirect_stderr(err):
        yield


class Lines(io.TextIOBase):
    """A stream that passes whole lines to `take`, and of a progress bar only its last state.

    All text goes to `terminal` at once, if it is given.
    """

    def __init__(self, take: Callable[[str], object], terminal: TextIO | None = None) -> None:
        self._take, self._terminal, self._line = take, terminal, ""

    def write(self, text: str) -> int:
        """Pass on the lines that are complete, and keep the rest."""
        if self._terminal:
            self._terminal.write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._take(line.rstrip().rpartition("\r")[2])
        self._line = self._line.rpartition("\r")[2]
        return len(text)

    def flush(self) -> None:
        """Flush the terminal."""
        if self._terminal:
            self._terminal.flush()

    def isatty(self) -> bool:
        """Return whether a progress bar can be drawn."""
        return self._terminal is not None and self._terminal.isatty()

    def close(self) -> None:
        """Do nothing: the terminal is not ours, and may be closed when this stream is garbage-collected."""


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
