"""Execute notebooks headlessly with servers, and export their pages; pages of failed runs are kept apart."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError
from papermill.exceptions import PapermillException
from traitlets.config import Config

from framehaul import servers
from framehaul.bench import store
from framehaul.bench.study import NOTEBOOKS, Study, imported
from framehaul.errors import ResultsError, ServerError, SettingsError
from framehaul.reporting import pages, progress
from framehaul.servers.embedded import LOCK_OF_A_RUN, locked
from framehaul.settings import PREFIX, PROJECT, Settings

type Collect = Callable[[Path], Mapping[str, Any]]
LEAST_PATIENCE_SECONDS, LEAST_ROWS_PER_S = 1800, 500
"""The timeout of a cell, plus the time of its rows at this speed."""


def run(chosen: Sequence[progress.Pair], settings: Settings, known: Sequence[Study], collect: Collect) -> bool:
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

    with (
        progress.logged(reports / "run.log"), progress.Plan(chosen, settings) as plan, contextlib.chdir(PROJECT),
        ExitStack() as stack, _Pages(reports, known, plan, collect) as made,
    ):  # fmt: skip

        def execute(study: Study, values: dict[str, Any], output: progress.Lines | TextIO) -> str | None:
            with plan.running(study, values):
                return _execute(study, values, reports, output)

        if not settings.reuse and not all(study.only_reads for study, _ in plan.left):
            print("starting the servers", flush=True)
            with plan.timed("starting the servers"):
                stack.enter_context(servers.running(settings))
                stack.enter_context(_alone(settings.state_dir))
        for stage in progress.stages(plan.left, settings.preset):
            if len(stage) > 1:
                progress.in_parallel(stage, execute, made.publish)
            else:
                made.publish(*stage[0], execute(*stage[0], sys.stdout))
        made.wait()
        plan.end(whole=not made.problems)
        for name, problem in made.problems.items():
            print(f"{name}: {problem}", file=sys.stderr)
    return not made.problems


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

    def __init__(self, reports: Path, known: Sequence[Study], plan: progress.Plan, collect: Collect) -> None:
        super().__init__(1, "framehaul-pages")
        self._reports, self._known, self._plan, self._collect = reports, known, plan, collect
        self.problems: dict[str, str] = {}
        """The error of each notebook that failed."""
        self._making = [self.submit(self._refresh_index)]

    def publish(self, study: Study, values: dict[str, Any], problem: str | None) -> None:
        """Export the page of an executed notebook in the thread, while the next kernel starts."""
        self._making.append(self.submit(self._publish, study, values, problem))

    def wait(self) -> None:
        """Wait until all pages are written; raise the exception of a page that is not."""
        for page in self._making:
            page.result()
        self._make_index()

    def _publish(self, study: Study, values: dict[str, Any], problem: str | None) -> None:
        try:
            with self._plan.timed("page", study.notebook):
                _make_page(study, self._reports, problem)
            problem = problem or _failures(study, self._reports.parent / "results", values)
            self.problems.pop(study.notebook, None)
            if problem:
                self.problems[study.notebook] = problem
            else:
                self._plan.finished(study)
        finally:
            if sum(not page.done() for page in self._making) == 1:  # otherwise the next page refreshes it
                self._refresh_index()

    def _refresh_index(self) -> None:
        # Results of an older run may be damaged, which must not end this run.
        with contextlib.suppress(ResultsError):
            self._make_index()

    def _make_index(self) -> None:
        """Write the index, with an entry for each notebook that has a page."""
        results, headlines, entries = self._reports.parent / "results", [], []
        for study in sorted(self._known, key=lambda study: not study.headline):  # studies with a headline come first
            name, problem = study.notebook, self.problems.get(study.notebook)
            links = [f"failed/{name}.html"] if problem else []
            link = next((one for one in (*links, f"{name}.html") if (self._reports / one).exists()), "")
            if link:
                title = pages.title_of(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
                entries.append(pages.Entry(name, title, study.question, link, problem))
            if study.headline:
                headlines.append(pages.shown_by(self._reports / f"{name}.ipynb", study.headline, "text/html"))
        metadata = store.read_metadata(results)
        pages.write_index(self._reports, entries, metadata, "\n".join(headlines), self._collect(results))


def _execute(study: Study, values: dict[str, Any], reports: Path, output: progress.Lines | TextIO) -> str | None:
    """Execute a notebook, at first into `reports/failed`; return its error or None."""
    further = imported(study.patience)(values) if study.patience else 0
    moved = values.get("rows", 0) * (values.get("rounds", 1) + values.get("warmup", 0))
    patience_s = None if further is None else int(LEAST_PATIENCE_SECONDS + moved // LEAST_ROWS_PER_S + further)
    short = "/var/tmp"  # noqa: S108  a private directory in it: paths of sockets have at most 107 bytes (unix(7))
    with tempfile.TemporaryDirectory(prefix="framehaul-", dir=short, ignore_cleanup_errors=True) as sockets:
        # Unix sockets: over TCP any account of this machine could try to talk to the kernel. A killed kernel leaves
        # its sockets, so errors of cleaning up are ignored.
        kernel = Config({"KernelManager": {"transport": "ipc", "ip": f"{sockets}/kernel"}})
        try:
            papermill.execute_notebook(
                NOTEBOOKS / f"{study.notebook}.ipynb", reports / "failed" / f"{study.notebook}.ipynb", values,
                kernel_name="python3", progress_bar=sys.stderr.isatty() and output is sys.stdout, stdout_file=output,
                execution_timeout=patience_s, config=kernel,
            )  # fmt: skip
        except (PapermillException, CellTimeoutError, RuntimeError) as error:  # the last: a kernel died or is silent
            return " ".join(str(error).split())[-300:]
    return None


def _make_page(study: Study, reports: Path, problem: str | None) -> None:
    """Export an executed notebook; it replaces an earlier page only if it did not fail."""
    failed = reports / "failed" / f"{study.notebook}.html"
    notebook = failed.with_suffix(".ipynb")
    _strip_paths(notebook)
    pages.export(notebook, reports / failed.name if problem is None else failed)
    if problem is None:
        failed.unlink(missing_ok=True)
        pages.link_figures(notebook)
        notebook.replace(reports / notebook.name)
        if reports.parent == PROJECT and not study.on_demand:
            pages.export_markdown(reports / notebook.name, PROJECT / "docs" / f"{study.notebook}.md")
            pages.refresh_blocks(PROJECT / "README.md", pages.readme_blocks(reports / notebook.name))


def _strip_paths(path: Path) -> None:
    """Remove local paths from an executed notebook, and widgets, which do not work without a kernel."""
    content = nbformat.read(path, as_version=4)
    content.metadata.pop("papermill", None)
    content.metadata.pop("widgets", None)
    for cell in content.cells:
        cell.metadata.pop("papermill", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    nbformat.write(content, path)


def _failures(study: Study, directory: Path, taken: Mapping[str, Any]) -> str | None:
    """Return the failures in a study's passes with their reasons, or None."""
    path = directory / study.results
    if not study.rows or not path.exists():
        return None
    passes, what = store.read(path, imported(study.rows)), study.subject
    failed = passes.filter(status="failed").unique(what, maintain_order=True)
    if study.on_demand or taken.get("table", "standard") != "standard":
        # A technique that cannot move a frame at all is a finding; one that fails in some passes only is a failure.
        failed = failed.join(passes.filter(status="ok"), on=("database", "direction", what), how="semi")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.select(what, "reason").rows())
    return f"{len(failed)} {what}s failed: {reasons}" if len(failed) else None
