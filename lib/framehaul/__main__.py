"""The command behind the Makefile: `python -m framehaul run|mine|servers|stop|lab|explore|compare|clean`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

from framehaul import servers
from framehaul.errors import ResultsError, ServerError, SettingsError
from framehaul.servers import docker, embedded
from framehaul.servers.postgres import elsewhere
from framehaul.settings import PROJECT, Settings, load_settings


def main() -> int:
    """Carry out one command; exit status 1 when something failed, 2 when it was asked for something impossible.

    Of a comparison: 1 when something became slower or wrong.
    """
    arguments = _arguments()
    # What make was given goes before the environment, which goes before .env.
    for name in ("servers", "out", "data", "scheduler"):
        if getattr(arguments, name):
            os.environ[f"FRAMEHAUL_{name.upper()}"] = getattr(arguments, name)
    try:
        settings = load_settings()
        return int(COMMANDS[arguments.command](arguments, settings))
    except (SettingsError, ServerError, ResultsError) as error:
        print(f"framehaul: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("framehaul: interrupted; what was finished is in results/*.partial.csv", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    from framehaul.studies import catalog, parameters  # they import every study; the other commands need none

    given = vars(arguments)
    size = parameters.parameters_from({name: given[name] for name in ("rows", "passes", "warmup", "seed")})
    load = parameters.load_from({name: given[name] for name in ("connections", "duration", "warmup_duration", "rate")})
    others = {"hold": parameters.hold_from(arguments.hold), "preset": parameters.preset_from(arguments.preset)}
    return _executed(catalog.chosen_notebooks(arguments.notebooks), vars(size) | vars(load) | others, settings, "index")


def _mine(arguments: argparse.Namespace, settings: Settings) -> int:
    from framehaul.studies import catalog, parameters
    from framehaul.studies.own_data.files import KINDS, DataError
    from framehaul.studies.own_data.study import NOTEBOOK, open_frame

    if settings.data is None:
        raise SettingsError(f"DATA is missing: give the path of a file, DATA=flights.parquet; {KINDS}")
    given = {name: getattr(arguments, name) for name in ("passes", "warmup", "seed")}
    wanted = parameters.whole_number("rows", arguments.rows)
    parameters.parameters_from({"rows": "1", **given})
    # Read once here, so that what cannot be carried is said before a server starts.
    try:
        frame = open_frame(str(settings.data), key=arguments.key, sort=arguments.sort, rows=wanted)
    except DataError as error:
        raise SettingsError(f"DATA={settings.data}: {error}") from error
    size = parameters.parameters_from({"rows": str(frame.derived.content.num_rows), **given})
    del frame
    further = {"key": arguments.key, "sort": arguments.sort}
    return _executed(catalog.chosen_notebooks("20"), vars(size) | further, settings, NOTEBOOK)


def _executed(chosen: list[Path], values: dict[str, Any], settings: Settings, page: str) -> int:
    """Run notebooks, and say where the page is that a reader should open."""
    from framehaul.reporting import notebooks

    ok = notebooks.run(chosen, values, settings)
    where = settings.out.relative_to(PROJECT) if settings.out.is_relative_to(PROJECT) else settings.out
    print(f"report: {where / 'reports' / f'{page}.html'}")
    return 0 if ok else 1


def _servers(_: argparse.Namespace, settings: Settings) -> int:
    both = servers.start(settings)
    print(f"PostgreSQL  {both.postgres.host}:{both.postgres.port}  database {both.postgres.database}")
    print(f"ClickHouse  {both.clickhouse.url}  native port {both.clickhouse.native_port}")
    if both.mode == "embedded":
        print(f"passwords   {settings.state_dir}/servers.json (only you can read it); stop them with make stop")
    return 0


def _stop(_: argparse.Namespace, settings: Settings) -> int:
    print("stopped" if servers.stop(settings) else "nothing was running")
    return 0


def _lab(_: argparse.Namespace, settings: Settings) -> int:
    with servers.running(settings):
        return _jupyter(f"--notebook-dir={PROJECT / 'notebooks'}")


def _explore(_: argparse.Namespace, __: Settings) -> int:
    return _jupyter(str(PROJECT / "notebooks" / "00_explorer.ipynb"))


def _jupyter(*arguments: str) -> int:
    command = [sys.executable, "-m", "jupyterlab", *arguments]
    if os.geteuid() == 0:
        command.append("--allow-root")  # Jupyter wants root to say so
    return subprocess.run(command, check=False).returncode


def _compare(arguments: argparse.Namespace, _: Settings) -> int:
    from framehaul.results import compare  # it imports dataframes; the other commands need none

    for name, form in (("by", compare.By), ("format", compare.Format)):
        given, known = getattr(arguments, name), get_args(form)
        if given not in known:
            raise SettingsError(f"{name.upper()}={given!r} is unknown; use one of {', '.join(known)}")
    if len(arguments.results) != 2 or not all(arguments.results):  # noqa: PLR2004  A and B
        raise SettingsError("compare takes two runs: make compare A=before B=after, or framehaul compare before after")
    a, b = (compare.read_run(Path(path)) for path in arguments.results)
    found = compare.compare(a, b, arguments.techniques, arguments.by)
    print(compare.render(found, arguments.format))
    return found.status


def _clean(_: argparse.Namespace, settings: Settings) -> int:
    embedded.stop(settings)
    docker.remove(settings)
    for path in (settings.state_dir, elsewhere(settings.state_dir / "postgres"), settings.out / "reports"):
        shutil.rmtree(path, ignore_errors=True)
    for partial in (settings.out / "results").glob("*.partial.csv"):
        partial.unlink()
    return 0


COMMANDS = {
    "run": _run, "mine": _mine, "servers": _servers, "stop": _stop, "lab": _lab, "explore": _explore,
    "compare": _compare, "clean": _clean,
}  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="framehaul", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("results", nargs="*", help="of compare: two runs, each a directory or a CSV file")
    parser.add_argument("--servers", default="")
    parser.add_argument("--out", default="")
    parser.add_argument("--scheduler", default="")
    parser.add_argument("--notebooks", default="")
    parser.add_argument("--rows", default="100000")
    parser.add_argument("--passes", default="3")
    parser.add_argument("--warmup", default="1")
    parser.add_argument("--seed", default="20260407")
    parser.add_argument("--hold", default="120")
    parser.add_argument("--connections", default="8")
    parser.add_argument("--duration", default="1")
    parser.add_argument("--warmup-duration", default="0.25")
    parser.add_argument("--rate", default="0")
    parser.add_argument("--data", default="")
    parser.add_argument("--key", default="")
    parser.add_argument("--sort", default="")
    parser.add_argument("--preset", default="scaled")
    parser.add_argument("--techniques", default="")
    parser.add_argument("--by", default="raw")
    parser.add_argument("--format", default="text")
    arguments = parser.parse_args()
    if arguments.results and arguments.command != "compare":
        parser.error(f"{arguments.command} takes no {' '.join(arguments.results)!r}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
