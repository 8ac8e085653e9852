"""Run the commands behind the Makefile: `python -m framehaul run|mine|tools|servers|stop|compare|submit|clean|...`."""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from framehaul.bench.study import NOTEBOOKS, Study, as_given
from framehaul.errors import FrameError, ResultsError, ServerError, SettingsError, UnavailableError
from framehaul.settings import GIVEN_TO_MAKE, PREFIX, PRESETS, PROJECT, Settings, load_settings, nearest
from framehaul.studies import registry
from framehaul.studies.registry import OWN_DATA


def main() -> int:
    """Run one command and return its exit status: 1 if something failed, 2 if arguments or settings cannot be used.

    A comparison returns 1 if something became slower or wrong.
    """
    arguments = _arguments()
    # Arguments take precedence over the environment, which takes precedence over .env.
    given = {name: value for name in GIVEN_TO_MAKE if (value := getattr(arguments, name))}
    os.environ.update({f"{PREFIX}{name.upper()}": value for name, value in given.items()})
    try:
        return COMMANDS[arguments.command](arguments, load_settings()) or 0
    except (SettingsError, ServerError, ResultsError) as error:
        print(f"framehaul: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("framehaul: interrupted; repeat the command to continue, or give FRESH=1 to start anew", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Run the chosen notebooks; with REUSE those that have stored results, with the parameters of the stored run."""
    from framehaul.bench.store import read_metadata

    results, chosen = settings.out / "results", []
    runs = read_metadata(results)["runs"] if settings.reuse else {}
    for study in registry.chosen(arguments.notebooks):
        values = registry.values(study, settings.preset, vars(arguments))
        stored = runs.get(study.notebook, {}).get("parameters", {})
        values |= {name: value for name, value in stored.items() if name in values}
        is_stored = study.only_reads or (study.notebook in runs and (results / study.results).exists())
        chosen += [(study, values)] if is_stored or not settings.reuse else []
    if settings.reuse and not (runs and chosen):
        raise ResultsError(f"{results} holds no results to report; make all OUT=... measures them")
    return _executed(chosen, settings, "index")


def _mine(arguments: argparse.Namespace, settings: Settings) -> int:
    from framehaul.studies.own_data.files import KINDS
    from framehaul.studies.own_data.study import open_frame

    if settings.data is None:
        raise SettingsError(f"DATA is missing: give the path of a file, DATA=flights.parquet; {KINDS}")
    values = registry.values(OWN_DATA, settings.preset, vars(arguments) | {"data": None})
    # The file is read here, so that an unsuitable frame is an error before a server starts.
    try:
        frame = open_frame(str(settings.data), **{name: values[name] for name in ("rows", *MINE[1:])})
    except FrameError as error:
        raise SettingsError(f"DATA={settings.data}: {error}") from error
    values["rows"] = frame.derived.content.num_rows
    del frame
    if settings.out == PROJECT:  # git ignores this directory, because data may be private
        settings = replace(settings, out=PROJECT / "mine")
    return _executed([(OWN_DATA, values)], settings, OWN_DATA.notebook)


def _variables(_: argparse.Namespace, __: Settings) -> None:
    for name, meaning in OPTIONS.items():
        print(f"  {name.upper():23}{meaning}")
    for name, several in registry.parameters().items():
        values = [", ".join(dict.fromkeys(as_given(one.of(preset)) for one in several)) for preset in PRESETS]
        text = "; ".join(map(" ".join, zip(PRESETS, values, strict=True))) if len({*values}) > 1 else values[0]
        print(f"  {name.upper():23}{several[0].help}{f' ({text})' if text else ''}")


def _executed(chosen: list[tuple[Study, dict[str, Any]]], settings: Settings, page: str) -> int:
    """Run the notebooks of studies and print the path of the page to open."""
    # Printed first, because importing Jupyter takes seconds; other commands do not need it.
    print(f"{settings.preset} run of {chosen[0][0].notebook}{' and further notebooks' * (len(chosen) > 1)}", flush=True)
    from framehaul import collected
    from framehaul.reporting import notebooks

    ok = notebooks.run(chosen, settings, registry.studies(), collected.page)
    where = settings.out.relative_to(PROJECT) if settings.out.is_relative_to(PROJECT) else settings.out
    print(f"report: {where / 'reports' / f'{page}.html'}", flush=True)
    return 0 if ok else 1


def _tools(_: argparse.Namespace, settings: Settings) -> int:
    """Build the tools that take too long to build during a run."""
    from framehaul.studies.drivers.catalog import driver_program
    from framehaul.studies.json_parquet.study import json2parquet_program

    status = 0
    for name, program in (
        ("Node's drivers, some seconds", partial(driver_program, "Node", settings, make=True)),
        ("Go's drivers, about a minute", partial(driver_program, "Go", settings, make=True)),
        ("json2parquet, about 5 minutes", partial(json2parquet_program, settings, patient=True)),
    ):
        print(f"{name} if not built yet", flush=True)
        try:
            print(f"  {program()}")
        except UnavailableError as error:
            status = 1
            print(f"framehaul: {error}", file=sys.stderr)
    return status


def _servers(_: argparse.Namespace, settings: Settings) -> None:
    from framehaul import servers

    both = servers.start(settings)
    print(f"PostgreSQL  {both.postgres.host}:{both.postgres.port}  database {both.postgres.database}")
    print(f"ClickHouse  {both.clickhouse.url}  native port {both.clickhouse.native_port}")
    if both.mode == "embedded":
        print(f"passwords   {settings.state_dir}/servers.json (only you can read it); stop them with make stop")


def _stop(_: argparse.Namespace, settings: Settings) -> None:
    from framehaul import servers

    print("stopped" if servers.stop(settings) else "nothing was running")


def _jupyter(arguments: argparse.Namespace, settings: Settings) -> int:
    """Open JupyterLab: `lab` with the servers running, `explore` with the notebook that needs none."""
    from framehaul import servers

    explore = arguments.command == "explore"
    target = str(NOTEBOOKS / "00_explorer.ipynb") if explore else f"--notebook-dir={NOTEBOOKS}"
    as_root = ["--allow-root"] * (os.geteuid() == 0)  # Jupyter refuses to run as root without this option
    with contextlib.nullcontext() if explore else servers.running(settings):
        return subprocess.run([sys.executable, "-m", "jupyterlab", target, *as_root], check=False).returncode


def _compare(arguments: argparse.Namespace, _: Settings) -> int:
    from framehaul.bench import compare
    from framehaul.reporting import comparison  # importing dataframe libraries is slow

    paths = arguments.results or [arguments.a, arguments.b]
    if len(paths) != 2 or not all(paths):  # noqa: PLR2004  A and B
        raise SettingsError("compare takes two runs: make compare A=before B=after, or framehaul compare before after")
    a, b = (registry.read_run(Path(path)) for path in paths)
    result = compare.compare(a, b, arguments.techniques)
    print(comparison.render(result))
    return result.status


def _submit(arguments: argparse.Namespace, settings: Settings) -> None:
    from framehaul.studies import machines  # importing drivers is slow

    place = machines.submit(settings.out / "results", arguments.machine).relative_to(PROJECT)
    print(f"copied to {place}. The next steps:")
    print(f"  read {place}/environment.json: it describes your machine, and will be public")
    print(f"  git switch -c {place.parent.name} && git add {place} && git commit -m 'Results of {place.parent.name}'")
    print("  and open a pull request; once it is merged, the results page shows your machine")


def _clean(_: argparse.Namespace, settings: Settings) -> None:
    from framehaul.servers import docker, embedded
    from framehaul.servers.local import stand_ins

    embedded.stop(settings)
    docker.remove(settings)
    # Files are matched by name, because the user chooses the directory, which may contain other files.
    states = [path for path in settings.state_dir.glob("*") if embedded.OURS_IN_STATE.fullmatch(path.name)]
    page = re.compile(r"index\.html|failed|assets|\d\d_\w+(\.html|\.ipynb)?")
    pages = [path for path in (settings.out / "reports").glob("*") if page.fullmatch(path.name)]
    for path in (*stand_ins(settings.state_dir), *states, *pages, *(settings.out / "results").glob("*.partial.*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # it does not exist, or contains other files
        (settings.out / "reports").rmdir()


type Command = Callable[[argparse.Namespace, Settings], int | None]
EVERY: tuple[Command, ...] = (_run, _mine, _variables, _compare, _submit, _servers, _stop, _tools, _clean)
COMMANDS = {function.__name__.removeprefix("_"): function for function in EVERY}
COMMANDS |= {"lab": _jupyter, "explore": _jupyter}
COMMANDS["compile"] = lambda *_: resolve_name("framehaul.api.compiling:compile_loops")()
MINE = ("data", "key", "sort", "mode", "csv")
"""The parameters of `make mine` that no other study has."""
OPTIONS = {
    "notebooks": "numbers or names of the notebooks to run; empty: all but those on demand",
    "preset": "effort of all studies: smoke, quick or reference; their own variables take precedence",
    "servers": "embedded, docker or external",
    "out": "directory for results, figures and reports",
    "fresh": "1: discard the passes of an interrupted run",
    "scheduler": "address of a dask.distributed scheduler, tcp://host:port",
    **{one.name: f"mine: {one.help}" for one in OWN_DATA.parameters if one.name in MINE},
    "a": "compare: the run before",
    "b": "compare: the run after",
    "techniques": "compare: words in the names of techniques",
    "machine": "submit: a name for the machine of the run",
}
"""Help texts of the arguments that are not parameters of studies."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="framehaul", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("results", nargs="*", help="compare: two runs, each a directory or a CSV file")
    parser.set_defaults(**dict.fromkeys(OPTIONS, "") | {"mode": "append"})
    known = OPTIONS | {name: several[0].help for name, several in registry.parameters().items()}
    for name, meaning in known.items():
        # Capitals are the form of the variables of make.
        without_value: dict[str, Any] = {"nargs": "?", "const": "1"} if name == "fresh" else {}
        parser.add_argument(f"--{name}", f"--{name.upper()}", help=meaning, **without_value)
    arguments, unknown = parser.parse_known_args()
    if unknown:
        name = unknown[0].removeprefix("--").partition("=")[0]
        parser.error(f"unknown variable {name}; {nearest(name.upper(), [name.upper() for name in known])}")
    if arguments.results and arguments.command != "compare":
        parser.error(f"{arguments.command} takes no {' '.join(arguments.results)!r}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
