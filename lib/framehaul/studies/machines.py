"""Check a run of another machine and copy it to `machines/<name>/<date>/`."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import polars as pl

from framehaul.bench import store
from framehaul.bench.environment import git
from framehaul.bench.ratios import LEAST_ROUNDS
from framehaul.errors import ResultsError, SettingsError
from framehaul.studies.registry import TRANSFERS, studies

NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,38}[a-z0-9]")
ENOUGH = f"run make all ROUNDS={LEAST_ROUNDS} NOTEBOOKS='01 02 03 04'"


def submit(results: Path, name: str) -> Path:
    """Copy a finished run into `machines/` and return its directory.

    Passes over a dataframe of the user's own are left out. Raises SettingsError for an invalid name, and ResultsError
    with all problems of a run that is not accepted, each with its remedy.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(f"MACHINE={name!r}: give 3 to 40 lower-case letters, digits and hyphens (ryzen-16-cores)")
    metadata = store.read_metadata(results)
    files = {one.notebook: results / one.results for one in studies() if one.rows and not one.on_demand}
    runs = {one: run for one, run in metadata["runs"].items() if one in files and files[one].exists()}
    if not runs:
        raise ResultsError(f"{results} holds no finished run; make all PRESET=reference OUT=... makes one")
    if wrong := [*_problems(results, runs, str(metadata.get("commit")))]:
        raise ResultsError("\n- ".join(["this run is not taken:", *wrong]))
    place: Path = store.MACHINES / name / min(run["started"] for run in runs.values()).partition(" ")[0]
    if place.exists():
        raise ResultsError(f"{place} exists already, and a run is submitted only once; give another MACHINE")
    place.mkdir(parents=True)
    for notebook in runs:
        shutil.copy(files[notebook], place)
    (place / "environment.json").write_text(json.dumps(metadata | {"runs": runs}, indent=2, sort_keys=True) + "\n")
    return place


def _problems(results: Path, runs: dict[str, Any], commit: str) -> Iterator[str]:
    """Check that a run is of one commit and machine, and has the four directions, in enough rounds."""
    commits = {commit, *(run["commit"] for run in runs.values() if "commit" in run)}
    if len(commits) > 1 or len({run["made_with"] for run in runs.values() if "made_with" in run}) > 1:
        yield "made at several commits, on several machines or with several sets of libraries: run all again with one"
    for one in commits:
        if git("cat-file", "-e", f"{one}^{{commit}}") is None:
            yield f"commit {one[:40]}: changed, or not in this repository; commit (or git fetch) and run again"
    for study in TRANSFERS:
        if study.notebook not in runs:
            yield f"{study.results} is missing: {ENOUGH}"
            continue
        passes = store.read(results / study.results, resolve_name(study.rows))
        for failed in passes.filter(status="failed")["technique"].unique(maintain_order=True)[:3]:
            yield f"{study.results}: {failed} failed, so it has no speed; repair it or the machine, and run again"
        whole = passes.filter(pl.col("rows") == pl.col("rows").max(), status="ok").group_by("technique").len()
        if (most := max(whole["len"], default=0)) < LEAST_ROUNDS:  # slow techniques may sit out
            yield f"{study.results}: {most} rounds are too few for an interval; {ENOUGH}"
