"""Run notebooks headlessly with servers, some of them in parallel, resume a run, and export the pages.

Pages of failed notebooks are kept apart. Notebooks run in parallel only where that changes no measured time.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

import nbformat
import papermill
import polars as pl
import psutil
from nbclient.exceptions import CellTimeoutError
from papermill.exceptions import PapermillException
from tqdm import tqdm
from traitlets.config import Config

from framehaul import servers
from framehaul.bench import environment, store
from framehaul.bench.study import NOTEBOOKS, START_SECONDS, Study, imported
from framehaul.errors import ResultsError, ServerError, SettingsError
from framehaul.reporting import pages, tables
from framehaul.servers.embedded import LOCK_OF_A_RUN, locked
from framehaul.settings import PREFIX, PROJECT, Preset, Settings

LEAST_PATIENCE_SECONDS, LEAST_ROWS_PER_S = 1800, 500
"""The timeout of a cell, plus the time of its rows at this speed."""
LANES = 3
"""The number of notebooks at once: one more than the cores of most machines, since notebooks also wait."""
PATIENCE_SECONDS = 20
"""The time that an interrupted kernel has to clean up its tables."""

type Pair = tuple[Study, dict[str, Any]]
type Collect = Callable[[Path], Mapping[str, Any]]


def run(chosen: Sequence[Pair], settings: Settings, known: Sequence[Study], collect: Collect) -> bool:
    """Execute notebooks with these parameters, and write their pages under `settings.out`; return False if any failed.

    The index has the pages of all `known` studies, and the results that `collect` returns for the results directory.
    Raises ServerError if the servers cannot be started and SettingsError if OUT cannot be written.
    """
    reports = settings.out / "reports"
    try:
        for name in ("reports/failed", "results", "figures"):
            (settings.out / name).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=settings.out / name).close()
    except OSError as error:
        raise SettingsError(f"OUT={settings.out}: {error.strerror}; choose a directory that can be written") from error

    # Kernels find servers and output by the environment, so that notebooks contain neither.
    for name in ("out", "servers", "state_dir", "data"):
        if value := getattr(settings, name):
            os.environ[f"{PREFIX}{name.upper()}"] = str(value)
    os.environ[f"{PREFIX}REUSE"] = str(int(settings.reuse))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not the user's of the same name

    with logged(reports / "run.log"), contextlib.chdir(PROJECT), ExitStack() as stack:
        plan = Plan(chosen, settings)
        made = stack.enter_context(_Pages(reports, known, plan, collect))
        execute = partial(_execute, plan, reports)
        if not settings.reuse and not all(study.only_reads for study, _ in plan.left):
            print("starting the servers")
            with plan.timed("starting the servers"):
                stack.enter_context(servers.running(settings))
                stack.enter_context(_alone(settings.state_dir))
        for stage in stages(plan.left, settings.preset):
            if len(stage) > 1:
                in_parallel(stage, execute, made.publish)
            else:
                made.publish(stage[0][0], execute(*stage[0], sys.stdout))
        problems = made.finish()
        plan.end(whole=not problems)
        for problem in problems:
            print(problem, file=sys.stderr)
    return not problems


@contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Keep other runs from using these servers within the block; raises ServerError if another run uses them."""
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    with (state_dir / LOCK_OF_A_RUN).open("a") as lock:
        if not locked(lock):
            raise ServerError(
                f"another run has the servers of {state_dir}, and both would write into the same tables; wait until "
                "it ends, or give this run another FRAMEHAUL_STATE_DIR=..."
            )
        yield


class _Pages(ThreadPoolExecutor):
    """The pages and the index of a run, which are written in a thread as notebooks end."""

    def __init__(self, reports: Path, known: Sequence[Study], plan: Plan, collect: Collect) -> None:
        super().__init__(1, "framehaul-pages")
        self._reports, self._known, self._plan, self._collect = reports, known, plan, collect
        self._problems: dict[str, str | None] = {}
        self._making = [self.submit(self._refresh_index)]

    def publish(self, study: Study, problem: str | None) -> None:
        """Export the page of an executed notebook in the thread, while the next kernel starts."""
        self._making.append(self.submit(self._publish, study, problem))

    def finish(self) -> list[str]:
        """Wait until all pages are written, and return the errors of notebooks; raise the exception of a page."""
        for page in self._making:
            page.result()
        self._write_index()
        return [f"{name}: {problem}" for name, problem in self._problems.items() if problem]

    def _publish(self, study: Study, problem: str | None) -> None:
        """Export the page of a notebook; it replaces an earlier page only if the notebook did not fail."""
        reports, failed = self._reports, self._reports / "failed" / f"{study.notebook}.html"
        notebook = failed.with_suffix(".ipynb")
        with self._plan.timed("page", study.notebook):
            pages.export(notebook, reports / failed.name if problem is None else failed)
            pages.tidy(notebook)
            if problem is None:
                failed.unlink(missing_ok=True)
                notebook = notebook.replace(reports / notebook.name)
                if reports.parent == PROJECT and not study.on_demand:
                    pages.export_markdown(notebook, PROJECT / "docs" / f"{study.notebook}.md")
                    pages.refresh_blocks(PROJECT / "README.md", pages.readme_blocks(notebook))
        self._problems[study.notebook] = problem or _failures(study, reports.parent / "results")
        if not self._problems[study.notebook]:
            self._plan.finished(study)
        self._refresh_index()

    def _refresh_index(self) -> None:
        # Results of an older run may be damaged, which must not end this run.
        with contextlib.suppress(ResultsError):
            self._write_index()

    def _write_index(self) -> None:
        """Write the index, with an entry for each notebook that has a page."""
        results, headlines, entries = self._reports.parent / "results", [], []
        metadata = store.read_metadata(results)
        for study in sorted(self._known, key=lambda study: not study.headline):  # studies with a headline come first
            name, problem = study.notebook, self._problems.get(study.notebook)
            links = [f"failed/{name}.html"] if problem else []
            link = next((one for one in (*links, f"{name}.html") if (self._reports / one).exists()), "")
            if link:
                entry = {"question": study.question, "link": link, "problem": problem}
                entry["title"] = pages.title_of(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
                if run := metadata["runs"].get(name):
                    entry["made"] = f"{tables.size_text(run)}, {run['started']}"
                entries.append(entry)
            if study.headline and (notebook := self._reports / f"{name}.ipynb").exists():
                headlines.append(pages.shown_by(notebook, "text/html").get(study.headline, ""))
        pages.write_index(self._reports, entries, metadata, "\n".join(headlines), self._collect(results))


def _execute(plan: Plan, reports: Path, study: Study, values: dict[str, Any], output: Lines | TextIO) -> str | None:
    """Execute a notebook, at first into `reports/failed`; return its error or None."""
    further = imported(study.patience)(values) if study.patience else 0
    moved = values.get("rows", 0) * (values.get("rounds", 1) + values.get("warmup", 0))
    patience_s = None if further is None else int(LEAST_PATIENCE_SECONDS + moved // LEAST_ROWS_PER_S + further)
    short = "/var/tmp"  # noqa: S108  a private directory in it: paths of sockets have at most 107 bytes (unix(7))
    directory = tempfile.TemporaryDirectory(prefix="framehaul-", dir=short, ignore_cleanup_errors=True)
    with plan.running(study, values), directory as sockets:
        # Unix sockets: over TCP any account of this machine could try to talk to the kernel. A killed kernel leaves
        # its sockets, so errors of cleaning up are ignored.
        kernel = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        try:
            papermill.execute_notebook(
                NOTEBOOKS / f"{study.notebook}.ipynb", reports / "failed" / f"{study.notebook}.ipynb", values,
                kernel_name="python3", progress_bar=False, stdout_file=output, execution_timeout=patience_s,
                config=kernel, store_widget_state=False,
            )  # fmt: skip
        except (PapermillException, CellTimeoutError, RuntimeError) as error:  # the last: a kernel died or is silent
            return " ".join(str(error).split())[-300:]
    return None


def _failures(study: Study, directory: Path) -> str | None:
    """Return the failures in a study's passes with their reasons, or None."""
    path = directory / study.results
    if not study.rows or not path.exists():
        return None
    passes, what = store.read(path, imported(study.rows)), study.subject
    failed = passes.filter(status="failed").unique(what, maintain_order=True)
    if study.on_demand:
        # A technique that cannot move a frame at all is a finding; one that fails in some passes only is a failure.
        failed = failed.join(passes.filter(status="ok"), on=("database", "direction", what), how="semi")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.select(what, "reason").rows())
    return f"{len(failed)} {what}s failed: {reasons}" if len(failed) else None


class Plan:
    """The notebooks of a run in order, their expected times, and the notebooks that an interrupted run finished."""

    def __init__(self, chosen: Sequence[Pair], settings: Settings) -> None:
        self._settings, self._began, self._times = settings, time.monotonic(), list[tuple[str, str, float]]()
        # A run can be resumed after a report.
        self._file = settings.out / "results" / f"{'report' if settings.reuse else 'run'}.partial.json"
        # All that decides the results: code, notebooks, parameters, settings, libraries, machine.
        sources = [(NOTEBOOKS / f"{study.notebook}.ipynb").read_text("utf8") for study, _ in chosen]
        made_with = environment.digest(environment.metadata(settings))
        terms = [store.code_digest(), vars(settings.of_a_run()), made_with, sources, [values for _, values in chosen]]
        self._terms = hashlib.sha256(json.dumps(terms, sort_keys=True, default=str).encode()).hexdigest()
        self._done: list[str] = []
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # the file is missing or damaged
            before = json.loads(self._file.read_text("utf8"))
            if before["terms"] == self._terms and not settings.fresh:
                self._done = list(before["finished"])
        self.left = [(study, values) for study, values in chosen if study.notebook not in self._done]
        # The last notebook is the summary, which is made again at the end of every run.
        self.left += [pair for pair in chosen[-1:] if pair not in self.left]
        if settings.preset == "smoke":
            # A smoke run is too short for a first summary: studies that only read run once, and last. Those that hold
            # no shared table come first, because they may run in parallel.
            once = [pair for at, pair in enumerate(self.left) if pair not in self.left[:at]]
            self.left = sorted(once, key=lambda pair: (pair[0].only_reads, bool(pair[0].holds), pair[0].headline))
        self._waiting, count = list(self.left), len({study.notebook for study, _ in chosen})
        where = "" if settings.out == PROJECT else " in OUT"
        print(
            f"{settings.preset}: {count} notebook{'s' if count > 1 else ''}, about {self._remaining()} on two cores; "
            f"pages as they come: reports/index.html{where}"
        )
        if self._done:
            names = " ".join(sorted(self._done))
            print(f"resumes an interrupted run, which finished {names}; FRESH=1 starts anew")

    @contextmanager
    def running(self, study: Study, values: dict[str, Any]) -> Iterator[None]:
        """Print that a notebook runs and which is next, and record its time."""
        remaining = self._remaining()
        self._waiting.remove((study, values))
        then = f"next: {self._waiting[0][0].notebook}, " if self._waiting else ""
        at = len(self.left) - len(self._waiting)
        # One call writes the whole line, because another notebook may begin at the same moment.
        sys.stdout.write(f"== {study.notebook} ({at} of {len(self.left)}; {then}about {remaining} left)\n")
        with self.timed("run", study.notebook):
            yield

    def _remaining(self) -> str:
        """Return the expected time of the notebooks that have not begun."""
        preset, reuse = self._settings.preset, self._settings.reuse
        return tqdm.format_interval(
            sum(START_SECONDS if reuse else study.expected_seconds(values, preset) for study, values in self._waiting)
        )

    @contextmanager
    def timed(self, part: str, notebook: str = "") -> Iterator[None]:
        """Record the time of the block as a part of the run, or of a notebook."""
        began = time.monotonic()
        yield
        self._times.append((notebook, part, time.monotonic() - began))

    def finished(self, study: Study) -> None:
        """Record a notebook that need not run again if this run is interrupted."""
        self._done.append(study.notebook)
        pages.put(self._file, json.dumps({"terms": self._terms, "finished": self._done}).encode())

    def end(self, *, whole: bool) -> None:
        """Print the time of the run and store that of its parts; a run that is `whole` is not resumed."""
        if not self._settings.reuse:
            times = pl.DataFrame(self._times, ["notebook", "part", "seconds"], orient="row")
            times.write_csv(self._file.with_name("timing.csv"), float_precision=3)
        if whole:
            self._file.unlink(missing_ok=True)
        print(f"took {tqdm.format_interval(time.monotonic() - self._began)}")


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
            self._terminal.flush()
        *lines, rest = (self._line + text).split("\n")
        self._line = rest.rpartition("\r")[2]
        for line in lines:
            self._take(line.rstrip().rpartition("\r")[2])
        return len(text)


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
    then: Callable[[Study, T], object],
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
                    then(study, outcome)
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
