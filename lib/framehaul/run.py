"""Execute notebooks headlessly against servers, keep what fails apart, and make the reports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.exceptions import PapermillException
from traitlets.config import Config

from framehaul import report, results, servers
from framehaul.drivers import contenders
from framehaul.drivers import report as drivers
from framehaul.drivers.shapes import POSTGRES_SHAPES
from framehaul.drivers.toolbench import Load, Measurement
from framehaul.measure import Parameters
from framehaul.pgbench import presets
from framehaul.pgbench import rounds as pgbench
from framehaul.scale_out import study as scale_out
from framehaul.settings import PROJECT, Settings, SettingsError
from framehaul.warehouse import anatomy, json_rounds, json_study, parquet_files, transfer

NOTEBOOKS = PROJECT / "notebooks"
READ_RESULTS = ("00_explorer", "05_summary", "07_levers")
"""Notebooks that read the results of others and need no server."""
ON_DEMAND = {"00_explorer", "20_your_dataframe"}
"""Notebooks that run only when they are asked for."""

STUDIES: dict[str, tuple[type[Any], str]] = {
    drivers.POSTGRES_NOTEBOOK: (Measurement, "driver"),
    drivers.CLICKHOUSE_NOTEBOOK: (Measurement, "driver"),
    transfer.NOTEBOOK: (transfer.Pass, "route"),
    anatomy.NOTEBOOK: (parquet_files.Pass, "trial"),
    json_study.NOTEBOOK: (json_rounds.Pass, "converter"),
    pgbench.NOTEBOOK: (pgbench.Pass, "service"),
    scale_out.NOTEBOOK: (scale_out.Pass, "label"),
}
"""The notebooks whose passes are not those of techniques: what a pass is, and the column that says who ran."""


def all_notebooks() -> list[Path]:
    """Every notebook there is, by number."""
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def chosen_notebooks(numbers: str) -> list[Path]:
    """The notebooks with these numbers (`01 02`), or all but those ON_DEMAND; they come in the order they run in.

    Raises SettingsError for a number that no notebook has.
    """
    known = {path.name.partition("_")[0]: path for path in all_notebooks()}
    wanted = numbers.replace(",", " ").split()
    for number in wanted:
        if number not in known:
            raise SettingsError(f"NOTEBOOKS: there is no notebook {number!r}; choose from {' '.join(known)}")
    chosen = [known[number] for number in wanted] or [path for path in known.values() if path.stem not in ON_DEMAND]
    # What only reads results comes after all that make some.
    return sorted(chosen, key=lambda path: (path.stem in READ_RESULTS, path.name))


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
        blocks = report.readme_blocks(report.committed_runs())
        report.README.write_text(report.refresh_readme(report.README.read_text("utf8"), blocks), "utf8")
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
    report.export(unfinished, page)
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
    tests = len(contenders.POSTGRES) * len(POSTGRES_SHAPES) * passes
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
        kind, what = STUDIES.get(notebook.stem, (results.Result, "technique"))
        files = results.DRIVERS | results.WAREHOUSE | results.SCALE_OUT
        path = directory / files.get(notebook.stem, f"{notebook.stem}.csv")
        if notebook.stem in problems or not path.exists():
            continue
        passes = results.read(path, kind)
        failed = passes.filter(status="failed").unique(what, maintain_order=True)
        if notebook.stem in ON_DEMAND:
            # That a path does not carry somebody's own frame is a finding; that it does so now and then is a failure.
            failed = failed.join(passes.filter(status="ok"), on=("database", "direction", what), how="semi")
        if len(failed):
            told = "; ".join(f"{name}: {reason}" for name, reason in failed.select(what, "reason").rows())
            problems[notebook.stem] = f"{len(failed)} {what}s failed: {told}"


def _make_index(reports: Path, problems: dict[str, str]) -> None:
    """One line per notebook that has a page, or that failed."""
    entries: list[report.Entry] = []
    for notebook in all_notebooks():
        name = notebook.stem
        crashed = (reports / "failed" / f"{name}.html").exists() and name in problems
        link = f"failed/{name}.html" if crashed else f"{name}.html"
        if (reports / link).exists():
            title = report.title_of(nbformat.read(notebook, as_version=4))
            entries.append(report.Entry(name, title, link, problems.get(name)))
    entries.sort(key=lambda entry: "summary" not in entry.name)
    report.write_index(reports, entries, results.read_facts(reports.parent / "results"))


def whole_number(name: str, text: str) -> int:
    """A number from the command line; raises SettingsError that names it."""
    if not text.strip().lstrip("-").isdecimal():
        raise SettingsError(f"{name.upper()}={text!r}: give a whole number")
    return int(text)


def number(name: str, text: str) -> float:
    """A number from the command line, which may have a fraction; raises SettingsError that names it."""
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{name.upper()}={text!r}: give a number") from None


def parameters_from(text: dict[str, str]) -> Parameters:
    """Parameters from the command line; raises SettingsError that names the one that is no whole number."""
    numbers: dict[str, Any] = {name: whole_number(name, value) for name, value in text.items()}
    with _refused_as_setting():
        return Parameters(**numbers)


def hold_from(text: str) -> int:
    """For how many seconds a load is held, from the command line; raises SettingsError when it is none."""
    seconds = whole_number("hold", text)
    if seconds < 1:
        raise SettingsError(f"HOLD={seconds}: give a whole number of at least 1")
    return seconds


def preset_from(text: str) -> str:
    """The name of a preset for pgbench, from the command line; raises SettingsError when there is none of that name."""
    with _refused_as_setting():
        presets.tests(text)
    return text


@contextmanager
def _refused_as_setting() -> Iterator[None]:
    """What a parameter's own check refuses is a mistake of whoever gave it on the command line."""
    try:
        yield
    except ValueError as error:
        raise SettingsError(str(error)) from error


def load_from(text: dict[str, str]) -> Load:
    """What the study of drivers asks of a server, as given to make; raises SettingsError that names what is bad."""
    numbers: dict[str, Any] = {
        name: (whole_number if name == "connections" else number)(name, value) for name, value in text.items()
    }
    with _refused_as_setting():
        return Load(**numbers)
