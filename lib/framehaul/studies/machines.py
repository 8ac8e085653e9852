"""Check runs of other machines and copy them to `machines/<name>/<date>/`."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import committed, store
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


def submit(results: Path, name: str) -> Path:
    """Copy a finished run into `machines/` and return its directory.

    Raises SettingsError for an invalid name, and ResultsError with all problems of a run that is not accepted. After an
    error nothing is left in `machines/`.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"MACHINE={name!r}: give a name of 3 to 40 lower-case letters, digits and hyphens, such as ryzen-16-cores"
        )
    metadata = store.read_metadata(results)
    if unfinished := sorted(path.name for path in results.glob("*.partial.csv")):
        raise ResultsError(f"{results} has {', '.join(unfinished)} of a run that has not ended; make all resumes it")
    files = {file: study.notebook for file, study in FILES.items() if (results / file).exists()}
    runs = {notebook: metadata["runs"][notebook] for notebook in files.values() if notebook in metadata["runs"]}
    days = sorted(started[1] for run in runs.values() if (started := STARTED.fullmatch(str(run.get("started")))))
    if not days:
        raise ResultsError(f"{results} holds no finished run; make all PRESET=reference OUT=... makes one")
    place = committed.MACHINES / name / days[0]
    if place.exists():
        raise ResultsError(f"{place} exists already, and a run is submitted only once; give another MACHINE")
    fresh = place.with_name(f".{place.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        for file, notebook in files.items():
            if notebook in runs:
                shutil.copyfile(results / file, fresh / file)
        (fresh / ENVIRONMENT).write_text(json.dumps(metadata | {"runs": runs}, indent=2, sort_keys=True) + "\n", "utf8")
        if wrong := problems(fresh):
            raise ResultsError("this run is not taken:\n" + "\n".join(f"- {problem}" for problem in wrong))
        fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        for directory in (place.parent, committed.MACHINES):
            if directory.exists() and not any(directory.iterdir()):
                directory.rmdir()
    return place


def problems(directory: Path) -> list[str]:
    """Return all reasons not to accept the run in a directory, each with its remedy.

    The files may come from anybody. They are only read, and nothing in them is trusted.
    """
    return [*_problems(directory)]


def _problems(directory: Path) -> Iterator[str]:
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.name not in {*FILES, ENVIRONMENT}:
            yield f"{path.name}: only {ENVIRONMENT} and results of studies are accepted; remove it"
            return
    if (size := sum(path.stat().st_size for path in paths)) > MOST_BYTES:
        yield f"{size:,} bytes are too many: a run has at most {MOST_BYTES:,}; run it with PROFILE=0"
        return
    for missing in (study.results for study in TRANSFERS if not (directory / study.results).is_file()):
        yield f"{missing} is missing: a run has all four directions; run make all {ENOUGH} NOTEBOOKS='01 02 03 04'"
    try:
        metadata = store.read_metadata(directory)
    except ResultsError as error:
        yield str(error)
        return
    if not isinstance(metadata, dict):
        yield f"{ENVIRONMENT}: it does not describe a run; run it again"
        return
    wrong = [*_environment_problems(metadata)]
    yield from wrong
    if not wrong:
        for path in paths:
            if path.name in FILES:
                yield from _file_problems(path, metadata["runs"].get(FILES[path.name].notebook))


def _environment_problems(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Check the machine, the commit and the libraries of a run."""
    machine = metadata.get("machine")
    for part, kind in MACHINE.items():
        if not isinstance(machine, dict) or not isinstance(machine.get(part), kind):
            yield f"{ENVIRONMENT}: it lacks the machine's {part}; run it again"
    runs = metadata.get("runs")
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
        elif not _known(commit):
            yield f"made at commit {commit}, which this repository does not have; run a commit that it has (git fetch)"


def _known(commit: str) -> bool:
    return git("cat-file", "-e", f"{commit}^{{commit}}") is not None


def _file_problems(path: Path, run: Mapping[str, Any] | None) -> Iterator[str]:
    study = FILES[path.name]
    if run is None or not STARTED.fullmatch(str(run.get("started"))):
        yield f"{path.name}: {ENVIRONMENT} lacks when and how {study.notebook} was run; run it again"
        return
    for name, standard in (("seed", SEED.default), ("table", "standard")):
        if (given := run.get(name, standard)) != standard:
            yield f"{path.name}: made with {name.upper()}={given}; run it with the default, {standard}"
    kind = imported(study.rows)
    try:
        passes = store.read(path, kind)
    except ResultsError as error:
        yield str(error)
        return
    if passes.is_empty():
        yield f"{path.name}: it is empty; run {study.notebook} again"
        return
    known = set(store.columns_of(kind))
    if "run_id" in known and {*passes["run_id"]} != {str(run.get("run_id"))}:
        yield f"{path.name}: its passes are not those of the run in {ENVIRONMENT}; run {study.notebook} again"
    if "status" in known:
        yield from _status_problems(path.name, study.subject, passes)
    yield from _number_problems(path.name, passes)
    if study in TRANSFERS:
        yield from _transfer_problems(path.name, passes)


def _status_problems(name: str, subject: str, passes: pl.DataFrame) -> Iterator[str]:
    if unknown := {*passes["status"]} - {"ok", "skipped", "failed"}:
        yield f"{name}: {min(unknown)[:40]!r} is no status"
    for failed in passes.filter(status="failed")[subject].unique(maintain_order=True)[:3]:
        yield f"{name}: {failed} failed, so it has no speed; repair it or the machine, and run again"


def _number_problems(name: str, passes: pl.DataFrame) -> Iterator[str]:
    """Check that numbers are finite and that rows/s are rows divided by seconds."""
    for column, kind in passes.schema.items():
        if kind.is_float() and not passes[column].drop_nulls().is_finite().all():
            yield f"{name}: {column} has a value that is no finite number; run it again"
    if {"seconds", "rows", "rows_per_s"} <= {*passes.columns} and "calls" not in passes.columns:
        deviation = (pl.col("rows") / pl.col("seconds") / pl.col("rows_per_s") - 1).abs()
        right = (deviation <= SLACK) & (pl.col("seconds") > 0)
        for row in passes.drop_nulls(["seconds", "rows_per_s"]).filter(~right).head(1).to_dicts():
            yield f"{name}: pass {row.get('pass')} has other rows/s than its rows and seconds give; run it again"


def _transfer_problems(name: str, passes: pl.DataFrame) -> Iterator[str]:
    """Check that all techniques of a direction have passes, in enough rounds, each of them once."""
    database, direction = name.removesuffix(".csv").split("_")
    if {*passes["database"]} != {database} or {*passes["direction"]} != {direction}:
        yield f"{name}: it has passes of another direction; run it again"
        return
    known = {one.name: one for one in techniques() if (one.database, one.direction) == (database, direction)}
    for technique, label, origin in passes.select("technique", "label", "origin").unique(maintain_order=True).rows():
        if technique not in known or (known[technique].label, known[technique].origin) != (label, origin):
            yield f"{name}: {str(technique)[:80]} is no technique of this version, or has another label; run it again"
    for missing in [one for one in known if one not in {*passes["technique"]}][:3]:
        yield f"{name}: {missing} is missing, and a technique that cannot run is skipped with a reason; run it again"
    if passes.select("technique", "rows", "pass").is_duplicated().any():
        yield f"{name}: it has a pass twice; run it again"
    rounds = passes.filter(pl.col("rows") == pl.col("rows").max(), status="ok").group_by("technique").len()["len"]
    # The maximum: slow techniques may sit out.
    if (most := max(rounds, default=LEAST_ROUNDS)) < LEAST_ROUNDS:
        yield f"{name}: {most} rounds are too few for an interval; run it with {ENOUGH}, or PRESET=reference"
    if not passes["rows_per_s"].count():
        yield f"{name}: no pass has a speed; see the reasons, and run it again"
