"""Execute notebooks headlessly with servers, and export their pages; pages of failed runs are kept apart."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, TextIO

import nbformat
import papermill
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import CellTimeoutError
from papermill.exceptions import PapermillException
from traitlets import Dict
from traitlets.config import Config

from framehaul import servers
from framehaul.bench import store
from framehaul.bench.study import NOTEBOOKS, Study, imported
from framehaul.errors import ResultsError, ServerError, SettingsError
from framehaul.reporting import index, lanes, pages, progress
from framehaul.servers.embedded import LOCK_OF_A_RUN
from framehaul.settings import PROJECT, Settings

type Collect = Callable[[Path], Mapping[str, Any]]
LONGEST_FOR_SOCKETS = 70
"""The bytes of a directory's path that leave room for the names of sockets."""
LEAST_PATIENCE_SECONDS, LEAST_ROWS_PER_S = 1800, 500
"""The timeout of a cell, plus the time of its rows at this speed."""


def run(
    chosen: Sequence[tuple[Study, dict[str, Any]]], settings: Settings, known: Sequence[Study], collect: Collect
) -> bool:
    """Execute the notebooks of studies with these parameters, and write their pages under `settings.out`.

    Returns False if anything failed. The index has the pages of all `known` studies, and the results that `collect`
    returns for the results directory.

    Raises ServerError if the servers cannot be started and SettingsError if OUT cannot be written.
    """
    reports = settings.out / "reports"
    try:
        (reports / "failed").mkdir(parents=True, exist_ok=True)
        for name in ("results", "figures"):
            (settings.out / name).mkdir(exist_ok=True)
            (settings.out / name / ".writable").touch()
            (settings.out / name / ".writable").unlink()
    except OSError as error:
        raise SettingsError(f"OUT={settings.out}: {error.strerror}; choose a directory that can be written") from error

    # Kernels find servers and output by the environment, so that notebooks contain neither.
    os.environ["FRAMEHAUL_OUT"] = str(settings.out)
    os.environ["FRAMEHAUL_SERVERS"] = settings.servers
    os.environ["FRAMEHAUL_STATE_DIR"] = str(settings.state_dir)
    if settings.data is not None:
        os.environ["FRAMEHAUL_DATA"] = str(settings.data)
    os.environ["FRAMEHAUL_REUSE"] = str(int(settings.reuse))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not the user's of the same name

    with (
        progress.logged(reports / "run.log"), progress.Plan(chosen, settings) as plan, contextlib.chdir(PROJECT),
        ExitStack() as stack, _Pages(reports, known, plan, collect) as made,
    ):  # fmt: skip

        def execute(
            study: Study, values: dict[str, Any], output: progress.Lines | TextIO, own: lanes.Servers
        ) -> str | None:
            with plan.running(study, values):
                return _execute(study, values, reports, output, own)

        of_each: list[lanes.Servers] = []
        if not settings.reuse and not all(study.only_reads for study, _ in plan.left):
            print("starting the servers", flush=True)
            with plan.timed("starting the servers"):
                stack.enter_context(servers.running(settings))
                stack.enter_context(_alone(settings.state_dir))
                of_each = _servers_of_lanes(plan.left, settings, stack)
        for stage in lanes.stages(plan.left, settings.preset, apart=bool(of_each)):
            if len(stage) > 1:
                lanes.in_parallel(stage, execute, made.publish, of_each or lanes.SHARED)
            else:
                made.publish(*stage[0], execute(*stage[0], sys.stdout, {}))
        made.wait()
        plan.end(whole=not made.problems)
        for name, problem in made.problems.items():
            print(f"{name}: {problem}", file=sys.stderr)
    return not made.problems


@contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """Keep other runs from using these servers within the block.

    Raises ServerError if another run uses them: both would write into the same tables, and disturb each other.
    """
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    with (state_dir / LOCK_OF_A_RUN).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ServerError(
                f"another run (process {lock.read()}) has the servers of {state_dir}, and both would write into the "
                "same tables; wait until it ends, or give this run another FRAMEHAUL_STATE_DIR=..."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _servers_of_lanes(left: Sequence[lanes.Pair], settings: Settings, stack: ExitStack) -> list[lanes.Servers]:
    """Start servers for each lane of a smoke run, so that none waits for a table; return no servers otherwise."""
    if settings.preset != "smoke" or settings.servers != "embedded":
        return []
    stages = lanes.stages(left, settings.preset, apart=True)
    most = max(len(stage) for stage in stages if not stage[0][0].only_reads)
    try:
        homes = [stack.enter_context(servers.running_apart(settings, "lane")) for _ in lanes.SHARED[1:most]]
    except (ServerError, OSError) as error:
        print(f"one pair of servers for all notebooks: no other could be started ({error})", flush=True)
        return []
    free_ports = {"FRAMEHAUL_POSTGRES_PORT": "", "FRAMEHAUL_CLICKHOUSE_HTTP_PORT": ""}
    return [{}, *({"FRAMEHAUL_STATE_DIR": str(home)} | free_ports for home in homes)]


class Kernel(AsyncKernelManager):
    """A kernel with the environment of this process, in which `variables` replace others."""

    variables = Dict(config=True)

    async def _async_start_kernel(self, **how: Any) -> None:
        await super()._async_start_kernel(env=os.environ.copy() | self.variables, **how)

    start_kernel = _async_start_kernel


class _Pages:
    """The pages and the index of a run, which are written in a thread as notebooks end."""

    def __init__(self, reports: Path, known: Sequence[Study], plan: progress.Plan, collect: Collect) -> None:
        self._reports, self._known, self._plan, self._collect = reports, known, plan, collect
        self._maker, self._making = ThreadPoolExecutor(1, "framehaul-pages"), list[Future[None]]()
        self.problems: dict[str, str] = {}
        """The error of each notebook that failed."""

    def __enter__(self) -> Self:
        # An index is there at once; its results, which take seconds to collect, follow while the servers start.
        if not (self._reports / "index.html").exists():
            self._refresh_index(measured=False)
        self._making.append(self._maker.submit(self._refresh_index))
        return self

    def __exit__(self, *_: object) -> None:
        self._maker.shutdown()

    def publish(self, study: Study, values: dict[str, Any], problem: str | None) -> None:
        """Export the page of an executed notebook in the thread, while the next kernel starts."""
        self._making.append(self._maker.submit(self._publish, study, values, problem))

    def wait(self) -> None:
        """Wait until all pages are written; raise the exception of a page that is not."""
        for page in self._making:
            page.result()
        self._make_index({})

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

    def _refresh_index(self, *, measured: bool = True) -> None:
        # Results of an older run may be damaged, which must not end this run.
        with contextlib.suppress(ResultsError):
            self._make_index(self._plan.coming, measured=measured)

    def _make_index(self, coming: Mapping[str, str], *, measured: bool = True) -> None:
        """Write the index, with an entry for each notebook that has a page or will run, at the time in `coming`."""
        entries: list[index.Entry] = []
        results, headlines = self._reports.parent / "results", []
        for study in self._known:
            name = study.notebook
            crashed = (self._reports / "failed" / f"{name}.html").exists() and name in self.problems
            link = f"failed/{name}.html" if crashed else f"{name}.html"
            when = coming.get(name, "")
            link = link if (self._reports / link).exists() else ""
            if link or when:
                title = pages.title_of(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
                entries.append(index.Entry(name, title, study.question, link, self.problems.get(name), when))
            if study.headline:
                headlines.append(pages.shown_by(self._reports / f"{name}.ipynb", study.headline, "text/html"))
        # Notebooks with a headline come first.
        first = {study.notebook for study in self._known if study.headline}
        entries.sort(key=lambda entry: entry.name not in first)
        metadata = store.read_metadata(results)
        index.write(self._reports, entries, metadata, "\n".join(headlines), self._collect(results) if measured else {})


def _execute(
    study: Study, values: dict[str, Any], reports: Path, output: progress.Lines | TextIO, own: lanes.Servers
) -> str | None:
    """Execute a notebook, at first into `reports/failed`; return its error or None."""
    with tempfile.TemporaryDirectory(prefix="framehaul-", dir=_for_sockets(), ignore_cleanup_errors=True) as sockets:
        # Unix sockets: over TCP any account of this machine could try to talk to the kernel. A killed kernel leaves
        # its sockets, so errors of cleaning up are ignored.
        kernel = Config({"Kernel": {"transport": "ipc", "ip": f"{sockets}/kernel", "variables": dict(own)}})
        try:
            papermill.execute_notebook(
                NOTEBOOKS / f"{study.notebook}.ipynb", _unfinished(study, reports, "ipynb"), values,
                kernel_name="python3", progress_bar=sys.stderr.isatty() and output is sys.stdout, stdout_file=output,
                execution_timeout=_patience_seconds(study, values), kernel_manager_class=Kernel, config=kernel,
            )  # fmt: skip
        except (PapermillException, CellTimeoutError, RuntimeError) as error:  # the last: a kernel died or is silent
            return " ".join(str(error).split())[-300:]
    return None


def _make_page(study: Study, reports: Path, problem: str | None) -> None:
    """Export an executed notebook; it replaces an earlier page only if it did not fail."""
    notebook, failed = (_unfinished(study, reports, ending) for ending in ("ipynb", "html"))
    _strip_paths(notebook)
    pages.export(notebook, reports / failed.name if problem is None else failed)
    if problem is None:
        failed.unlink(missing_ok=True)
        pages.link_figures(notebook)
        notebook.replace(reports / notebook.name)
        if reports.parent == PROJECT and not study.on_demand:
            pages.export_markdown(reports / notebook.name, PROJECT / "docs" / f"{study.notebook}.md")
            pages.refresh_blocks(PROJECT / "README.md", pages.readme_blocks(reports / notebook.name))


def _unfinished(study: Study, reports: Path, ending: str) -> Path:
    return reports / "failed" / f"{study.notebook}.{ending}"


def _for_sockets() -> str | None:
    """Return a directory for sockets, whose paths have at most 107 bytes (unix(7)); None if the usual is short."""
    usual = tempfile.gettempdir()
    return None if len(os.fsencode(usual)) <= LONGEST_FOR_SOCKETS else "/var/tmp"  # noqa: S108  a private directory in it


def _patience_seconds(study: Study, taken: Mapping[str, Any]) -> int | None:
    """Return the timeout of a cell of a notebook with these parameters; None for no timeout."""
    further = imported(study.patience)(taken) if study.patience else 0
    if further is None:
        return None
    moved = taken.get("rows", 0) * (taken.get("rounds", 1) + taken.get("warmup", 0))
    return int(LEAST_PATIENCE_SECONDS + moved // LEAST_ROWS_PER_S + further)


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
