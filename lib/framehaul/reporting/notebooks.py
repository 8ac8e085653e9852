"""Execute notebooks headlessly against servers, keep what fails apart, and make the reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillException
from traitlets.config import Config

from framehaul import servers
from framehaul.errors import SettingsError
from framehaul.reporting import pages
from framehaul.results import store
from framehaul.settings import PROJECT, Settings
from framehaul.studies import writeup
from framehaul.studies.catalog import ON_DEMAND, READ_RESULTS, STUDIES, all_notebooks
from framehaul.studies.drivers import catalog
from framehaul.studies.drivers.shapes import POSTGRES_SHAPES


def run(notebooks: list[Path], values: Mapping[str, Any], settings: Settings) -> bool:
    """Execute the notebooks and write their reports under `settings.out`; false when one, or a technique, failed.

    `values` are for the parameters of notebooks; each gets those that it has.

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
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not one of the user's of the same name

    problems: dict[str, str] = {}
    with ExitStack() as stack:
        if any(path.stem not in READ_RESULTS for path in notebooks):
            stack.enter_context(servers.running(settings))
        for notebook in notebooks:
            problem = _execute(notebook, values, reports)
            if problem:
                problems[notebook.stem] = problem
    _check_techniques(settings.out / "results", notebooks, problems)
    _make_index(reports, problems)
    for name, problem in problems.items():
        print(f"{name}: {problem}", file=sys.stderr)
    if settings.out == PROJECT and not problems:
        blocks = writeup.readme_blocks(writeup.committed_runs())
        writeup.README.write_text(pages.refresh_readme(writeup.README.read_text("utf8"), blocks), "utf8")
    return not problems


def _execute(notebook: Path, values: Mapping[str, Any], reports: Path) -> str | None:
    """Execute one notebook and export it; what went wrong, or None."""
    print(f"== {notebook.stem}", flush=True)
    unfinished = reports / "failed" / notebook.name
    page = reports / "failed" / f"{notebook.stem}.html"
    wanted = papermill.inspect_notebook(notebook)
    taken = {name: value for name, value in values.items() if name in wanted}
    problem = None
    try:
        papermill.execute_notebook(
            notebook, unfinished, taken, kernel_name="python3", cwd=PROJECT, progress_bar=sys.stderr.isatty(),
            stdout_file=sys.stdout, execution_timeout=_patience_seconds(taken),
            # Unix sockets: over TCP any account of this machine could try to talk to the kernel.
            config=Config({"KernelManager": {"transport": "ipc"}}),
        )  # fmt: skip
    except (PapermillException, CellTimeoutError, DeadKernelError) as error:
        problem = " ".join(str(error).split())[-300:]
    _strip_paths(unfinished)
    pages.export(unfinished, page)
    if problem is None:
        # Only now does it take the place of an earlier one.
        unfinished.replace(reports / notebook.name)
        page.replace(reports / page.name)
    return problem


def _patience_seconds(taken: Mapping[str, Any]) -> int | None:
    """After how long a cell of a notebook with these parameters counts as hung; None: never."""
    if taken.get("preset") == "published":
        return None  # it takes hours, most of them to make data: how many depends on the services
    passes = taken.get("passes", 1)
    moved = taken.get("rows", 0) * (passes + taken.get("warmup", 0))
    tests = len(catalog.POSTGRES) * len(POSTGRES_SHAPES) * passes
    driven = tests * (taken.get("duration", 0) + taken.get("warmup_duration", 0))
    return int(1800 + taken.get("hold", 0) + moved // 500 + 3 * round(driven))


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


def _check_techniques(directory: Path, notebooks: list[Path], problems: dict[str, str]) -> None:
    for notebook in notebooks:
        kind, what = STUDIES.get(notebook.stem, (store.Result, "technique"))
        files = store.DRIVERS | store.WAREHOUSE | store.SCALE_OUT
        path = directory / files.get(notebook.stem, f"{notebook.stem}.csv")
        if notebook.stem in problems or not path.exists():
            continue
        passes = store.read(path, kind)
        failed = passes.filter(status="failed").unique(what, maintain_order=True)
        if notebook.stem in ON_DEMAND:
            # That a path does not carry somebody's own frame is a finding; that it does so now and then is a failure.
            failed = failed.join(passes.filter(status="ok"), on=("database", "direction", what), how="semi")
        if len(failed):
            told = "; ".join(f"{name}: {reason}" for name, reason in failed.select(what, "reason").rows())
            problems[notebook.stem] = f"{len(failed)} {what}s failed: {told}"


def _make_index(reports: Path, problems: dict[str, str]) -> None:
    """One line per notebook that has a page, or that failed."""
    entries: list[pages.Entry] = []
    for notebook in all_notebooks():
        name = notebook.stem
        crashed = (reports / "failed" / f"{name}.html").exists() and name in problems
        link = f"failed/{name}.html" if crashed else f"{name}.html"
        if (reports / link).exists():
            title = pages.title_of(nbformat.read(notebook, as_version=4))
            entries.append(pages.Entry(name, title, link, problems.get(name)))
    entries.sort(key=lambda entry: "summary" not in entry.name)
    pages.write_index(reports, entries, store.read_facts(reports.parent / "results"))
