"""Runs of other machines, `machines/<name>/<date>/`: what is taken, and what keeps a run from it."""

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
"""At `PRESET=reference` all studies have 13 MB, half of it the fidelity matrix, nearly half what PROFILE keeps."""
ENVIRONMENT = "environment.json"
MACHINE: dict[str, type | tuple[type, ...]] = {"cpu": str, "cores": int, "memory_gib": (int, float), "system": str}
FILES = {study.results: study for study in studies() if study.rows and not study.on_demand}
"""What may come: passes; nobody else has a use for those of a dataframe of one's own."""
SLACK = 1e-6


def submit(results: Path, name: str) -> Path:
    """Take a finished run into `machines/`, all at once, and say where it stands.

    Raises SettingsError for a name that cannot be one, and ResultsError with all that keeps the run from being taken;
    nothing is left of it then.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"MACHINE={name!r}: give the machine a name of 3 to 40 small letters, digits and hyphens, as ryzen-16-cores"
        )
    metadata = store.read_metadata(results)
    unfinished = sorted(path.name for path in results.glob("*.partial.csv"))
    if unfinished:
        raise ResultsError(
            f"{results} has {', '.join(unfinished)} of a run that has not ended; make all goes on with it"
        )
    found = [one for one in FILES if (results / one).exists() and FILES[one].notebook in metadata["runs"]]
    runs = {FILES[one].notebook: metadata["runs"][FILES[one].notebook] for one in found}
    days = sorted(made[1] for run in runs.values() if (made := STARTED.fullmatch(str(run.get("started")))))
    if not days:
        raise ResultsError(f"{results} holds no run that is done; make all PRESET=reference OUT=... makes one")
    place = committed.MACHINES / name / days[0]
    if place.exists():
        raise ResultsError(f"{place} is there already; a run is taken once, so give another MACHINE")
    fresh = place.with_name(f".{place.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        for one in found:
            shutil.copyfile(results / one, fresh / one)
        (fresh / ENVIRONMENT).write_text(json.dumps(metadata | {"runs": runs}, indent=2, sort_keys=True) + "\n", "utf8")
        if said := problems(fresh):
            raise ResultsError("this run is not taken:\n" + "\n".join(f"- {one}" for one in said))
        fresh.rename(place)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        for left in (place.parent, committed.MACHINES):
            if left.exists() and not any(left.iterdir()):
                left.rmdir()
    return place


def problems(directory: Path) -> list[str]:
    """All that keeps a run in such a directory from being taken, each with its remedy; empty when nothing does.

    Its files are only read, and nothing in them is believed: who sends them may be anybody.
    """
    return [*_problems(directory)]


def _problems(directory: Path) -> Iterator[str]:
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.name not in {*FILES, ENVIRONMENT}:
            yield f"{path.name}: only {ENVIRONMENT} and results of studies are taken; leave it out"
            return
    if (size := sum(path.stat().st_size for path in paths)) > MOST_BYTES:
        yield f"{size:,} bytes are too many: a run has at most {MOST_BYTES:,}; run it with PROFILE=0"
        return
    for lacking in (one.results for one in TRANSFERS if not (directory / one.results).is_file()):
        yield f"{lacking} is missing: the four directions are the least; run make all {ENOUGH} NOTEBOOKS='01 02 03 04'"
    try:
        metadata = store.read_metadata(directory)
    except ResultsError as error:
        yield str(error)
        return
    if not isinstance(metadata, dict):
        yield f"{ENVIRONMENT}: it is no record of a run; run it again"
        return
    whole = [*_of_environment(metadata)]
    yield from whole
    if not whole:
        for path in paths:
            if path.name in FILES:
                yield from _of_file(path, metadata["runs"].get(FILES[path.name].notebook))


def _of_environment(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Where and with what it was made."""
    machine, commit = metadata.get("machine"), metadata.get("commit")
    for part, kind in MACHINE.items():
        if not isinstance(machine, dict) or not isinstance(machine.get(part), kind):
            yield f"{ENVIRONMENT}: it does not say the machine's {part}; run it again"
    runs = metadata.get("runs")
    if not isinstance(runs, dict) or not all(isinstance(run, dict) for run in runs.values()):
        yield f"{ENVIRONMENT}: it does not say which runs these are; run them again"
        return
    commits = {str(commit), *(str(run["commit"]) for run in runs.values() if "commit" in run)}
    if len(commits) > 1:
        yield f"made at several commits ({', '.join(sorted(commits))}): a run is of one; run all again"
    made_with = {str(run["made_with"]) for run in runs.values() if "made_with" in run}
    if len(made_with) > 1:
        yield "made on several machines, or with several sets of libraries: a run is of one; run all again"
    for one in sorted(commits):
        if not COMMIT.fullmatch(one):
            yield f"made at commit {one[:40]}: code that was changed, or is in no repository; commit it and run again"
        elif not _known(one):
            yield f"made at commit {one}, which this repository does not have; run one that it has (git fetch)"


def _known(commit: str) -> bool:
    return git("cat-file", "-e", f"{commit}^{{commit}}") is not None


def _of_file(path: Path, run: Mapping[str, Any] | None) -> Iterator[str]:
    study = FILES[path.name]
    if run is None or not STARTED.fullmatch(str(run.get("started"))):
        yield f"{path.name}: {ENVIRONMENT} does not say when and how {study.notebook} was run; run it again"
        return
    if run.get("seed", SEED.default) != SEED.default:
        yield f"{path.name}: made with SEED={run['seed']}, so of other data; run it with that of all, {SEED.default}"
    if run.get("table", "standard") != "standard":
        yield f"{path.name}: made with TABLE={run['table']}; run it with the table of all, standard"
    kind = imported(study.rows)
    try:
        passes = store.read(path, kind)
    except ResultsError as error:
        yield str(error)
        return
    if passes.is_empty():
        yield f"{path.name}: it holds nothing; run {study.notebook} again"
        return
    known = set(store.columns_of(kind))
    if "run_id" in known and {*passes["run_id"]} != {str(run.get("run_id"))}:
        yield f"{path.name}: its passes are not those of the run in {ENVIRONMENT}; run {study.notebook} again"
    if "status" in known:
        yield from _failed(path.name, study.subject, passes)
    yield from _of_numbers(path.name, passes)
    if study in TRANSFERS:
        yield from _of_transfers(path.name, passes)


def _failed(name: str, subject: str, passes: pl.DataFrame) -> Iterator[str]:
    if unknown := {*passes["status"]} - {"ok", "skipped", "failed"}:
        yield f"{name}: the status {min(unknown)[:40]!r} is none"
    for who in passes.filter(status="failed")[subject].unique(maintain_order=True)[:3]:
        yield f"{name}: {who} failed; what is wrong has no speed, so mend it, or the machine, and run again"


def _of_numbers(name: str, passes: pl.DataFrame) -> Iterator[str]:
    """What cannot be: numbers that are none, speeds that are not rows by seconds, passes that are there twice."""
    for column, kind in passes.schema.items():
        if kind.is_float() and not passes[column].drop_nulls().is_finite().all():
            yield f"{name}: {column} has a number that is none; run it again"
    if {"seconds", "rows", "rows_per_s"} <= {*passes.columns} and "calls" not in passes.columns:
        right = ((pl.col("rows") / pl.col("seconds") / pl.col("rows_per_s") - 1).abs() <= SLACK) & (
            pl.col("seconds") > 0
        )
        for row in passes.drop_nulls(["seconds", "rows_per_s"]).filter(~right).head(1).to_dicts():
            yield f"{name}: pass {row.get('pass')} has other rows/s than its rows and seconds give; run it again"


def _of_transfers(name: str, passes: pl.DataFrame) -> Iterator[str]:
    """That everybody is there who can be, under their own name, in enough rounds, each of them once."""
    database, direction = name.removesuffix(".csv").split("_")
    if {*passes["database"]} != {database} or {*passes["direction"]} != {direction}:
        yield f"{name}: it has passes of another direction; run it again"
        return
    ours = {one.name: one for one in techniques() if (one.database, one.direction) == (database, direction)}
    for technique, label, origin in passes.select("technique", "label", "origin").unique(maintain_order=True).rows():
        if technique not in ours or (ours[technique].label, ours[technique].origin) != (label, origin):
            yield f"{name}: {str(technique)[:80]} is no technique of this version, or of another name; run this commit"
    there = {*passes["technique"]}
    for lacking in [one for one in ours if one not in there][:3]:
        yield f"{name}: {lacking} is missing; who cannot run is skipped with a reason, so run it again"
    if passes.select("technique", "rows", "pass").is_duplicated().any():
        yield f"{name}: a pass is there twice; run it again"
    rounds = passes.filter(pl.col("rows") == pl.col("rows").max(), status="ok").group_by("technique").len()["len"]
    if (most := max(rounds, default=LEAST_ROUNDS)) < LEAST_ROUNDS:  # of the leaders: others may sit out
        yield f"{name}: {most} rounds are too few for an interval; run it with {ENOUGH}, or PRESET=reference"
    if not passes["rows_per_s"].count():
        yield f"{name}: nothing in it has a speed; see the reasons, and run it again"
