"""Execute notebooks headlessly against servers, keep what fails apart, and make the reports."""

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
from framehaul.reporting import blocks, index, lanes, pages, progress
from framehaul.servers.embedded import LOCK_OF_A_RUN
from framehaul.settings import PROJECT, Settings

type Collect = Callable[[Path], Mapping[str, Any]]
LONGEST_FOR_SOCKETS = 70
LEAST_PATIENCE_SECONDS, LEAST_ROWS_PER_S = 1800, 500
"""A cell counts as hung when it takes longer than this, and than rows take that move so slowly."""


def run(
    chosen: Sequence[tuple[Study, dict[str, Any]]], settings: Settings, known: Sequence[Study], collect: Collect
) -> bool:
    """Execute the notebooks of studies, each with its parameters, and write their reports under `settings.out`.

    False when something failed. The index leads to the pages of all that are `known`, and shows what `collect` finds
    in the results directory.

    Raises ServerError when the servers cannot be had and SettingsError when OUT cannot be written.
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

    # The kernels find servers and output as this process does; nothing of it stands in a notebook.
    os.environ["FRAMEHAUL_OUT"] = str(settings.out)
    os.environ["FRAMEHAUL_SERVERS"] = settings.servers
    os.environ["FRAMEHAUL_STATE_DIR"] = str(settings.state_dir)
    if settings.data is not None:
        os.environ["FRAMEHAUL_DATA"] = str(settings.data)
    os.environ["FRAMEHAUL_REUSE"] = str(int(settings.reuse))
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not one of the user's of the same name

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
            with plan.preparing("starting the servers"):
                stack.enter_context(servers.running(settings))
                stack.enter_context(_alone(settings.state_dir))
                of_each = _servers_of_lanes(plan.left, settings, stack)
        for stage in lanes.stages(plan.left, settings.preset, apart=bool(of_each)):
            if len(stage) > 1:
                lanes.beside(stage, execute, made.publish, of_each or lanes.SHARED)
            else:
                made.publish(*stage[0], execute(*stage[0], sys.stdout, {}))
        made.wait()
        plan.end(whole=not made.problems)
        for name, problem in made.problems.items():
            print(f"{name}: {problem}", file=sys.stderr)
    return not made.problems


@contextmanager
def _alone(state_dir: Path) -> Iterator[None]:
    """No other run has these servers while the block lasts.

    Raises ServerError where one has: two would write into the same tables, and measure each other.
    """
    state_dir.mkdir(mode=0o711, parents=True, exist_ok=True)
    with (state_dir / LOCK_OF_A_RUN).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ServerError(
                f"another run (process {lock.read()}) has the servers of {state_dir}, and two would write into the "
                "same tables; wait until it ends, or give this one FRAMEHAUL_STATE_DIR=... of its own"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _servers_of_lanes(left: Sequence[lanes.Pair], settings: Settings, stack: ExitStack) -> list[lanes.Servers]:
    """Servers for each lane of a smoke run, which the stack ends, so that none waits for a table; else none."""
    if settings.preset != "smoke" or settings.servers != "embedded":
        return []
    stages = lanes.stages(left, settings.preset, apart=True)
    most = max(len(stage) for stage in stages if not stage[0][0].only_reads)
    try:
        return [{}, *(stack.enter_context(_further_servers(settings)) for _ in lanes.SHARED[1:most])]
    except (ServerError, OSError) as error:
        print(f"one pair of servers for all notebooks: no other could be started ({error})", flush=True)
        return []


@contextmanager
def _further_servers(settings: Settings) -> Iterator[lanes.Servers]:
    """Servers beside those of a run for as long as the block lasts, and how a kernel finds them."""
    with servers.running_apart(settings, "lane") as home:
        yield {"FRAMEHAUL_STATE_DIR": str(home), "FRAMEHAUL_POSTGRES_PORT": "", "FRAMEHAUL_CLICKHOUSE_HTTP_PORT": ""}


class Kernel(AsyncKernelManager):
    """A kernel with this process's environment, but for some variables."""

    variables = Dict(config=True)

    async def _async_start_kernel(self, **how: Any) -> None:
        await super()._async_start_kernel(env=os.environ.copy() | self.variables, **how)

    start_kernel = _async_start_kernel


class _Pages:
    """The pages of a run and the index that leads to them, which grow as notebooks end: who waits can read them."""

    def __init__(self, reports: Path, known: Sequence[Study], plan: progress.Plan, collect: Collect) -> None:
        self._reports, self._known, self._plan, self._collect = reports, known, plan, collect
        self._maker, self._making = ThreadPoolExecutor(1, "framehaul-pages"), list[Future[None]]()
        self.problems: dict[str, str] = {}
        """What went wrong, by notebook."""

    def __enter__(self) -> Self:
        # There at once; with all results, which take seconds to collect, while the servers start.
        if not (self._reports / "index.html").exists():
            self._refresh_index(measured=False)
        self._making.append(self._maker.submit(self._refresh_index))
        return self

    def __exit__(self, *_: object) -> None:
        self._maker.shutdown()

    def publish(self, study: Study, values: dict[str, Any], problem: str | None) -> None:
        """Make the page of an executed notebook, beside the next one: its kernel takes longer until it measures."""
        self._making.append(self._maker.submit(self._publish, study, values, problem))

    def wait(self) -> None:
        """Until all pages are made; raises what kept one from it."""
        for page in self._making:
            page.result()
        self._make_index({})

    def _publish(self, study: Study, values: dict[str, Any], problem: str | None) -> None:
        try:
            with self._plan.exporting(study):
                _make_page(study, self._reports, problem)
            problem = problem or _failures(study, self._reports.parent / "results", values)
            self.problems.pop(study.notebook, None)
            if problem:
                self.problems[study.notebook] = problem
            else:
                self._plan.finished(study)
        finally:
            if sum(not page.done() for page in self._making) == 1:  # else who comes next makes it
                self._refresh_index()

    def _refresh_index(self, *, measured: bool = True) -> None:
        # What an older run left may be damaged, and keeps nobody.
        with contextlib.suppress(ResultsError):
            self._make_index(self._plan.coming, measured=measured)

    def _make_index(self, coming: Mapping[str, str], *, measured: bool = True) -> None:
        """One line per notebook that has a page, or that failed, or is among those to come, with a word on when."""
        entries: list[index.Entry] = []
        results, headlines = self._reports.parent / "results", []
        for study in self._known:
            name = study.notebook
            crashed = (self._reports / "failed" / f"{name}.html").exists() and name in self.problems
            link = f"failed/{name}.html" if crashed else f"{name}.html"
            when, there = coming.get(name, ""), (self._reports / link).exists()
            if there or when:
                title = pages.title_of(nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4))
                link = link if there else ""
                entries.append(index.Entry(name, title, study.question, link, self.problems.get(name), when))
            if study.headline:
                headlines.append(pages.shown_by(self._reports / f"{name}.ipynb", study.headline, "text/html"))
        # What has something to say at the top comes first below it as well.
        first = {study.notebook for study in self._known if study.headline}
        entries.sort(key=lambda entry: entry.name not in first)
        metadata = store.read_metadata(results)
        index.write(self._reports, entries, metadata, "\n".join(headlines), self._collect(results) if measured else {})


def _execute(
    study: Study, values: dict[str, Any], reports: Path, output: progress.Lines | TextIO, own: lanes.Servers
) -> str | None:
    """Execute one notebook, into `reports/failed` as yet; what went wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="framehaul-", dir=_for_sockets(), ignore_cleanup_errors=True) as sockets:
        # Unix sockets: over TCP any account of this machine could try to talk to the kernel. One that is killed leaves
        # them behind.
        kernel = Config({"Kernel": {"transport": "ipc", "ip": f"{sockets}/kernel", "variables": dict(own)}})
        try:
            papermill.execute_notebook(
                NOTEBOOKS / f"{study.notebook}.ipynb", _unfinished(study, reports, "ipynb"), values,
                kernel_name="python3", progress_bar=sys.stderr.isatty() and output is sys.stdout, stdout_file=output,
                execution_timeout=_patience_seconds(study, values), kernel_manager_class=Kernel, config=kernel,
            )  # fmt: skip
        except (PapermillException, CellTimeoutError, RuntimeError) as error:  # a kernel that dies, or never answers
            return " ".join(str(error).split())[-300:]
    return None


def _make_page(study: Study, reports: Path, problem: str | None) -> None:
    """Export an executed notebook; it replaces an earlier page only if nothing went wrong."""
    notebook, failed = (_unfinished(study, reports, ending) for ending in ("ipynb", "html"))
    _strip_paths(notebook)
    pages.export(notebook, reports / failed.name if problem is None else failed)
    if problem is None:
        failed.unlink(missing_ok=True)
        pages.link_figures(notebook)
        notebook.replace(reports / notebook.name)
        if reports.parent == PROJECT and not study.on_demand:
            pages.export_markdown(reports / notebook.name, PROJECT / "docs" / f"{study.notebook}.md")
            blocks.refresh_page(PROJECT / "README.md", pages.readme_blocks(reports / notebook.name))


def _unfinished(study: Study, reports: Path, ending: str) -> Path:
    return reports / "failed" / f"{study.notebook}.{ending}"


def _for_sockets() -> str | None:
    """A directory for sockets, whose paths have at most 107 bytes (unix(7)); None: the usual one is short enough."""
    usual = tempfile.gettempdir()
    return None if len(os.fsencode(usual)) <= LONGEST_FOR_SOCKETS else "/var/tmp"  # noqa: S108  a directory of ours in it


def _patience_seconds(study: Study, taken: Mapping[str, Any]) -> int | None:
    """After how long a cell of a notebook with these parameters counts as hung; None: never."""
    further = imported(study.patience)(taken) if study.patience else 0
    if further is None:
        return None
    moved = taken.get("rows", 0) * (taken.get("rounds", 1) + taken.get("warmup", 0))
    return int(LEAST_PATIENCE_SECONDS + moved // LEAST_ROWS_PER_S + further)


def _strip_paths(path: Path) -> None:
    """Take out of an executed notebook where it was executed, and the controls that have no kernel behind them now."""
    content = nbformat.read(path, as_version=4)
    content.metadata.pop("papermill", None)
    content.metadata.pop("widgets", None)
    for cell in content.cells:
        cell.metadata.pop("papermill", None)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    nbformat.write(content, path)


def _failures(study: Study, directory: Path, taken: Mapping[str, Any]) -> str | None:
    """Who failed in a study's passes, with the reasons, or None."""
    path = directory / study.results
    if not study.rows or not path.exists():
        return None
    passes, what = store.read(path, imported(study.rows)), study.subject
    failed = passes.filter(status="failed").unique(what, maintain_order=True)
    if study.on_demand or taken.get("table", "standard") != "standard":
        # That a path does not carry a frame, or its types, is a finding; that it does so now and then is a failure.
        failed = failed.join(passes.filter(status="ok"), on=("database", "direction", what), how="semi")
    reasons = "; ".join(f"{name}: {reason}" for name, reason in failed.select(what, "reason").rows())
    return f"{len(failed)} {what}s failed: {reasons}" if len(failed) else None
