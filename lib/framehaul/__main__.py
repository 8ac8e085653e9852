"""The command behind the Makefile: `python -m framehaul run|servers|stop|lab|clean`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from framehaul import servers
from framehaul.servers import ServerError, docker, embedded
from framehaul.servers.postgres import elsewhere
from framehaul.settings import PROJECT, Settings, SettingsError, load_settings


def main() -> int:
    """Carry out one command; exit status 1 when something failed, 2 when it was asked for something impossible."""
    arguments = _arguments()
    # What make was given goes before the environment, which goes before .env.
    for name in ("servers", "out", "scheduler"):
        if getattr(arguments, name):
            os.environ[f"FRAMEHAUL_{name.upper()}"] = getattr(arguments, name)
    try:
        settings = load_settings()
        return int(COMMANDS[arguments.command](arguments, settings))
    except (SettingsError, ServerError) as error:
        print(f"framehaul: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("framehaul: interrupted; what was finished is in results/*.partial.csv", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, settings: Settings) -> int:
    from framehaul import run  # it imports all of Jupyter; the other commands need none of it

    parameters = run.parameters_from({name: getattr(arguments, name) for name in ("rows", "passes", "warmup", "seed")})
    hold = run.whole_number("hold", arguments.hold)
    if hold < 1:
        raise SettingsError(f"HOLD={hold}: give a whole number of at least 1")
    names = ("connections", "duration", "warmup_duration", "rate")
    load = run.load_from({name: getattr(arguments, name) for name in names})
    ok = run.run(run.chosen_notebooks(arguments.notebooks), parameters, hold, load, settings)
    where = settings.out.relative_to(PROJECT) if settings.out.is_relative_to(PROJECT) else settings.out
    print(f"report: {where / 'reports' / 'index.html'}")
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
    command = [sys.executable, "-m", "jupyterlab", f"--notebook-dir={PROJECT / 'notebooks'}"]
    if os.geteuid() == 0:
        command.append("--allow-root")  # Jupyter wants root to say so
    with servers.running(settings):
        return subprocess.run(command, check=False).returncode


def _clean(_: argparse.Namespace, settings: Settings) -> int:
    embedded.stop(settings)
    docker.remove(settings)
    for path in (settings.state_dir, elsewhere(settings.state_dir / "postgres"), settings.out / "reports"):
        shutil.rmtree(path, ignore_errors=True)
    for partial in (settings.out / "results").glob("*.partial.csv"):
        partial.unlink()
    return 0


COMMANDS = {"run": _run, "servers": _servers, "stop": _stop, "lab": _lab, "clean": _clean}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="framehaul", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", choices=COMMANDS)
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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
