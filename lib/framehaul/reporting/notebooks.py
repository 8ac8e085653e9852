"""Run notebooks headlessly with servers, one after another, resume a run, and export the pages.

Pages of failed notebooks are kept apart.
"""

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import nbformat
import papermill
from papermill.exceptions import PapermillException
from tqdm import tqdm
from traitlets.config import Config

from framehaul import servers
from framehaul.bench import environment, store
from framehaul.bench.study import NOTEBOOKS, START_SECONDS, Study
from framehaul.errors import ResultsError, ServerError, SettingsError
from framehaul.reporting import pages, tables
from framehaul.servers.embedded import LOCK_OF_A_RUN, locked
from framehaul.settings import PREFIX, PROJECT, Settings

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

    with contextlib.chdir(PROJECT), ExitStack() as stack:
        plan = Plan(chosen, settings)
        made = stack.enter_context(_Pages(reports, known, plan, collect))
        if not settings.reuse and not all(study.only_reads for study, _ in plan.left):
            print("starting the servers", flush=True)
            stack.enter_context(servers.running(settings))
            settings.state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
            if not locked(stack.enter_context((settings.state_dir / LOCK_OF_A_RUN).open("a"))):
                raise ServerError(
                    f"another run has the servers of {settings.state_dir}, and both would write into the same tables; "
                    "wait until it ends, or give this run another FRAMEHAUL_STATE_DIR=..."
                )
        for at, (study, values) in enumerate(plan.left):
            plan.announce(at)
            made.publish(study, _execute(reports, study, values))
        problems = made.finish()
        plan.end(whole=not problems)
        for problem in problems:
            print(problem, file=sys.stderr)
    return not problems


class _Pages(ThreadPoolExecutor):
    """The pages and the index of a run, which are written in a thread as notebooks end."""

    def __init__(self, reports: Path, known: Sequence[Study], plan: "Plan", collect: Collect) -> None:
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
        pages.export(notebook, reports / failed.name if problem is None else failed)
        pages.tidy(notebook)
        if problem is None:
            failed.unlink(missing_ok=True)
            notebook = notebook.replace(reports / notebook.name)
            if reports.parent == PROJECT and not study.on_demand:
                pages.export_markdown(notebook, PROJECT / "docs" / f"{study.notebook}.md")
                pages.refresh_blocks(PROJECT / "README.md", pages.shown_by(notebook, "text/markdown"))
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


def _execute(reports: Path, study: Study, values: dict[str, Any]) -> str | None:
    """Execute a notebook, at first into `reports/failed`; return its error or None."""
    short = "/var/tmp"  # noqa: S108  a private directory in it: paths of sockets have at most 107 bytes (unix(7))
    with tempfile.TemporaryDirectory(prefix="framehaul-", dir=short, ignore_cleanup_errors=True) as sockets:
        # Unix sockets: over TCP any account of this machine could try to talk to the kernel. A killed kernel leaves
        # its sockets, so errors of cleaning up are ignored.
        kernel = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        try:
            papermill.execute_notebook(
                NOTEBOOKS / f"{study.notebook}.ipynb", reports / "failed" / f"{study.notebook}.ipynb", values,
                kernel_name="python3", progress_bar=False, stdout_file=sys.stdout, config=kernel,
                store_widget_state=False,
            )  # fmt: skip
        except (PapermillException, RuntimeError) as error:  # the last: a kernel died or is silent
            return " ".join(str(error).split())[-300:]
    return None


def _failures(study: Study, directory: Path) -> str | None:
    """Return the failures in a study's passes with their reasons, or None."""
    path = directory / study.results
    if not study.rows or not path.exists():
        return None
    passes, what = store.read(path, resolve_name(study.rows)), study.subject
    failed = passes.filter(status="failed").unique(what, maintain_order=True)
    if study.on_demand:
        # A technique that cannot move a frame at all is a finding; one that fails in some passes only is a failure.
        failed = failed.join(passes.filter(status="ok"), on=("database", "direction", what), how="semi")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.select(what, "reason").rows())
    return f"{len(failed)} {what}s failed: {reasons}" if len(failed) else None


class Plan:
    """The notebooks of a run in order, their expected times, and the notebooks that an interrupted run finished."""

    def __init__(self, chosen: Sequence[Pair], settings: Settings) -> None:
        self._settings, self._began = settings, time.monotonic()
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
        count = len({study.notebook for study, _ in chosen})
        where = "" if settings.out == PROJECT else " in OUT"
        print(
            f"{settings.preset}: {count} notebook{'s' if count > 1 else ''}, about {self._remaining(0)} on two cores; "
            f"pages as they come: reports/index.html{where}",
            flush=True,
        )
        if self._done:
            names = " ".join(sorted(self._done))
            print(f"resumes an interrupted run, which finished {names}; FRESH=1 starts anew")

    def announce(self, at: int) -> None:
        """Print which notebook begins, which one is next, and the expected time of all that are left."""
        then = f"next: {self.left[at + 1][0].notebook}, " if at + 1 < len(self.left) else ""
        about = f"{at + 1} of {len(self.left)}; {then}about {self._remaining(at)} left"
        print(f"== {self.left[at][0].notebook} ({about})", flush=True)

    def _remaining(self, at: int) -> str:
        """Return the expected time of the notebooks from a place on."""
        preset, reuse, left = self._settings.preset, self._settings.reuse, self.left[at:]
        times = (START_SECONDS if reuse else study.expected_seconds(values, preset) for study, values in left)
        return tqdm.format_interval(sum(times))

    def finished(self, study: Study) -> None:
        """Record a notebook that need not run again if this run is interrupted."""
        self._done.append(study.notebook)
        store.put(self._file, json.dumps({"terms": self._terms, "finished": self._done}).encode())

    def end(self, *, whole: bool) -> None:
        """Print the time of the run; a run that is `whole` is not resumed."""
        if whole:
            self._file.unlink(missing_ok=True)
        print(f"took {tqdm.format_interval(time.monotonic() - self._began)}")
