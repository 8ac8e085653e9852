"""Check runs of other machines and copy them to `machines/<name>/<date>/`."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import store
from framehaul.bench.environment import git
from framehaul.bench.ratios import LEAST_ROUNDS
from framehaul.bench.study import SEED, imported
from framehaul.errors import ResultsError, SettingsError
from framehaul.studies.registry import TRANSFERS, studies
from framehaul.techniques import techniques

NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,38}[a-z0-9]")
COMMIT = re.compile(r"[0-9a-f]{12}")
STARTED = re.compile(r"(\d{4}-\d{2}-\d{2}) \d{2}:\d{2} UTC")
ENOUGH = f"ROUNDS={LEAST_ROUNDS} RACE=0"
MOST_BYTES = 20_000_000
"""All studies with `PRESET=reference` have 13 MB: half is the fidelity matrix, nearly half is stored by PROFILE."""
ENVIRONMENT = "environment.json"
MACHINE: dict[str, type | tuple[type, ...]] = {"cpu": str, "cores": int, "memory_gib": (int, float), "system": str}
FILES = {study.results: study for study in studies() if study.rows and not study.on_demand}
"""The files that are accepted. Passes over a dataframe of the user's own are of no use to others."""
SLACK = 1e-6
"""The deviation of rows/s from rows and seconds by which they may be rounded."""


def submit(results: Path, name: str) -> Path:
    """Copy a finished run into `machines/` and return its directory.

    Raises SettingsError for an invalid name, and ResultsError with all problems of a run that is not accepted.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"MACHINE={name!r}: give a name of 3 to 40 lower-case letters, digits and hyphens, such as ryzen-16-cores"
        )
    metadata = store.read_metadata(results)
    if unfinished := sorted(path.name for path in results.glob("*.partial.jsonl")):
        raise ResultsError(f"{results} has {', '.join(unfinished)} of a run that has not ended; make all resumes it")
    there = {study.notebook: file for file, study in FILES.items() if (results / file).exists()}
    runs = {notebook: metadata["runs"][notebook] for notebook in there.keys() & metadata["runs"]}
    days = sorted(started[1] for run in runs.values() if (started := STARTED.fullmatch(str(run.get("started")))))
    if not days:
        raise ResultsError(f"{results} holds no finished run; make all PRESET=reference OUT=... makes one")
    place = store.MACHINES / name / days[0]
    if place.exists():
        raise ResultsError(f"{place} exists already, and a run is submitted only once; give another MACHINE")
    with tempfile.TemporaryDirectory() as home:
        fresh = Path(home, "run")
        fresh.mkdir()
        for notebook in runs:
            shutil.copyfile(results / there[notebook], fresh / there[notebook])
        (fresh / ENVIRONMENT).write_text(json.dumps(metadata | {"runs": runs}, indent=2, sort_keys=True) + "\n", "utf8")
        if wrong := problems(fresh):
            raise ResultsError("this run is not taken:\n" + "\n".join(f"- {problem}" for problem in wrong))
        return shutil.copytree(fresh, place)


def problems(directory: Path) -> list[str]:
    """Return all reasons not to accept the run in a directory, each with its remedy.

    The files may come from anybody. They are only read, and nothing in them is trusted.
    """
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.name not in {*FILES, ENVIRONMENT}:
            return [f"{path.name}: only {ENVIRONMENT} and results of studies are accepted; remove it"]
    if (size := sum(path.stat().st_size for path in paths)) > MOST_BYTES:
        return [f"{size:,} bytes are too many: a run has at most {MOST_BYTES:,}; run it with PROFILE=0"]
    missing = [
        f"{study.results} is missing: a run has all four directions; run make all {ENOUGH} NOTEBOOKS='01 02 03 04'"
        for study in TRANSFERS
        if not (directory / study.results).is_file()
    ]
    try:
        metadata: Any = store.read_metadata(directory)
    except ResultsError as error:
        return [*missing, str(error)]
    wrong = [*_environment_problems(metadata if isinstance(metadata, dict) else {})]
    read = [] if wrong else [path for path in paths if path.name in FILES]
    return [*missing, *wrong, *(one for path in read for one in _file_problems(path, metadata["runs"]))]


def _environment_problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Check the machine, the commit and the libraries of a run."""
    machine, runs = metadata.get("machine"), metadata.get("runs")
    for part, kind in MACHINE.items():
        if not isinstance(machine, dict) or not isinstance(machine.get(part), kind):
            yield f"{ENVIRONMENT}: it lacks the machine's {part}; run it again"
    if not isinstance(runs, dict) or not all(isinstance(run, dict) for run in runs.values()):
        yield f"{ENVIRONMENT}: it lacks the list of runs; run them again"
        return
    commits = {str(metadata.get("commit")), *(str(run["commit"]) for run in runs.values() if "commit" in run)}
    if len(commits) > 1:
        yield f"made at several commits ({', '.join(sorted(commits))}): run all studies again at one commit"
    if len({str(run["made_with"]) for run in runs.values() if "made_with" in run}) > 1:
        yield "made on several machines or with several sets of libraries: run all studies again with one"
    for commit in sorted(commits):
        if not COMMIT.fullmatch(commit):
            yield f"made at commit {commit[:40]}: code that was changed, or is in no repository; commit and run again"
        elif git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            yield f"made at commit {commit}, which this repository does not have; run a commit that it has (git fetch)"


def _file_problems(path: Path, runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Check that a file has the passes of its run, and was made with the default seed and table."""
    study, name = FILES[path.name], path.name
    run = runs.get(study.notebook, {})
    if not STARTED.fullmatch(str(run.get("started"))):
        yield f"{name}: {ENVIRONMENT} lacks when and how {study.notebook} was run; run it again"
        return
    for variable, standard in (("seed", SEED.default), ("table", "standard")):
        if (given := run.get(variable, standard)) != standard:
            yield f"{name}: made with {variable.upper()}={given}; run it with the default, {standard}"
    try:
        passes = store.read(path, imported(study.rows))
    except ResultsError as error:
        yield str(error)
        return
    if {*passes["run_id"]} != {str(run.get("run_id"))}:
        yield f"{name}: its passes are not those of the run in {ENVIRONMENT}; run {study.notebook} again"
    for failed in passes.filter(status="failed")[study.subject].unique(maintain_order=True)[:3]:
        yield f"{name}: {failed} failed, so it has no speed; repair it or the machine, and run again"
    for column in passes.select(pl.col(pl.Float64)).columns:
        if not passes[column].drop_nulls().is_finite().all():
            yield f"{name}: {column} has a value that is no finite number; run it again"
    if study in TRANSFERS:
        yield from _transfer_problems(name, passes)


def _transfer_problems(name: str, passes: pl.DataFrame) -> Iterator[str]:
    """Check that all techniques of a direction have passes, in enough rounds, each once and with its rows/s."""
    here = [one for one in techniques() if f"{one.database}_{one.direction}.csv" == name]
    known = [(one.database, one.direction, one.name, one.label, one.origin) for one in here]
    found = passes.select("database", "direction", "technique", "label", "origin").unique(maintain_order=True).rows()
    for one in [one for one in found if one not in known]:
        yield f"{name}: {str(one[:3])[:80]} is no technique of this version, or has another label; run it again"
    for missing in [one for one in known if one not in found][:3]:
        yield f"{name}: {missing[2]} is missing, and a technique that cannot run is skipped with a reason; run it again"
    follows = (pl.col("rows") / pl.col("seconds") / pl.col("rows_per_s") - 1).abs() <= SLACK
    for number in passes.drop_nulls("seconds").filter(~follows | (pl.col("seconds") <= 0))["pass"].head(1):
        yield f"{name}: pass {number} has other rows/s than its rows and seconds give; run it again"
    if passes.select("technique", "rows", "pass").is_duplicated().any():
        yield f"{name}: it has a pass twice; run it again"
    rounds = passes.filter(pl.col("rows") == pl.col("rows").max(), status="ok").group_by("technique").len()["len"]
    if (most := max(rounds, default=0)) < LEAST_ROUNDS:  # the maximum: slow techniques may sit out
        yield f"{name}: {most} rounds are too few for an interval; run it with {ENOUGH}, or PRESET=reference"
