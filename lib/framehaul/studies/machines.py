"""Check runs of other machines and copy them to `machines/<name>/<date>/`."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import polars as pl

from framehaul.bench import store
from framehaul.bench.environment import git
from framehaul.bench.ratios import LEAST_ROUNDS
from framehaul.bench.study import SEED, Study
from framehaul.errors import ResultsError, SettingsError
from framehaul.studies.registry import TRANSFERS, studies
from framehaul.techniques import techniques

NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,38}[a-z0-9]")
COMMIT = re.compile(r"[0-9a-f]{12}")
STARTED = re.compile(r"(\d{4}-\d{2}-\d{2}) \d{2}:\d{2} UTC")
ENOUGH = f"ROUNDS={LEAST_ROUNDS} RACE=0"
MOST_BYTES = 4_000_000
"""The results of all studies with `PRESET=reference` that are accepted have less than 2 MB."""
MACHINE: dict[str, type | tuple[type, ...]] = {"cpu": str, "cores": int, "memory_gib": (int, float), "system": str}
FILES = {study.results: study for study in studies() if study.rows and not study.on_demand}
"""The files that are accepted. Passes over a dataframe of the user's own are of no use to others."""


def submit(results: Path, name: str) -> Path:
    """Copy a finished run into `machines/` and return its directory.

    Raises SettingsError for an invalid name, and ResultsError with all problems of a run that is not accepted.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(f"MACHINE={name!r}: give 3 to 40 lower-case letters, digits and hyphens (ryzen-16-cores)")
    metadata = store.read_metadata(results)
    if unfinished := sorted(path.name for path in results.glob("*.partial.jsonl")):
        raise ResultsError(f"{results} has {', '.join(unfinished)} of a run that has not ended; make all resumes it")
    there = {study.notebook: file for file, study in FILES.items() if (results / file).exists()}
    runs = {notebook: metadata["runs"][notebook] for notebook in there.keys() & metadata["runs"]}
    days = [started[1] for run in runs.values() if (started := STARTED.fullmatch(str(run.get("started"))))]
    if not days:
        raise ResultsError(f"{results} holds no finished run; make all PRESET=reference OUT=... makes one")
    place = store.MACHINES / name / min(days)
    if place.exists():
        raise ResultsError(f"{place} exists already, and a run is submitted only once; give another MACHINE")
    with tempfile.TemporaryDirectory() as home:
        fresh = Path(home, "run")
        fresh.mkdir()
        for notebook in runs:
            shutil.copy(results / there[notebook], fresh)
        text = json.dumps(metadata | {"runs": runs}, indent=2, sort_keys=True)
        (fresh / "environment.json").write_text(text + "\n", "utf8")
        if wrong := problems(fresh):
            raise ResultsError("\n- ".join(["this run is not taken:", *wrong]))
        return shutil.copytree(fresh, place)


def problems(directory: Path) -> list[str]:
    """Return the reasons not to accept the run in a directory, each with its remedy.

    The files may come from anybody. They are only read, and nothing in them is trusted.
    """
    paths = sorted(directory.iterdir()) if directory.is_dir() else []
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.name not in {*FILES, "environment.json"}:
            return [f"{path.name}: only environment.json and results of studies are accepted; remove it"]
    if (size := sum(path.stat().st_size for path in paths)) > MOST_BYTES:
        return [f"{size:,} bytes are too many: a run has at most {MOST_BYTES:,}; measure fewer tables (POINTS=few)"]
    remedy = f"a run has all four directions; run make all {ENOUGH} NOTEBOOKS='01 02 03 04'"
    wrong = [f"{study.results} is missing: {remedy}" for study in TRANSFERS if directory / study.results not in paths]
    try:
        metadata: Any = store.read_metadata(directory)
        wrong += (of_run := [*_environment_problems(metadata)])
        for study in [FILES[path.name] for path in paths if path.name in FILES and not of_run]:
            passes = store.read(directory / study.results, resolve_name(study.rows))
            wrong += _file_problems(study, passes, metadata["runs"].get(study.notebook, {}))
    except ResultsError as error:
        wrong.append(str(error))
    return wrong


def _environment_problems(metadata: Any) -> Iterator[str]:
    """Check the machine, the commit and the libraries of a run."""
    machine, runs = (metadata.get(part) if isinstance(metadata, dict) else None for part in ("machine", "runs"))
    for part, kind in MACHINE.items():
        if not isinstance(machine, dict) or not isinstance(machine.get(part), kind):
            yield f"environment.json: it lacks the machine's {part}; run it again"
    if not isinstance(runs, dict) or not all(isinstance(run, dict) for run in runs.values()):
        yield "environment.json: it lacks the list of runs; run them again"
        return
    commits = {str(metadata.get("commit")), *(str(run["commit"]) for run in runs.values() if "commit" in run)}
    if len(commits) > 1 or len({str(run["made_with"]) for run in runs.values() if "made_with" in run}) > 1:
        yield "made at several commits, on several machines or with several sets of libraries: run all again with one"
    for commit in sorted(commits):
        if not COMMIT.fullmatch(commit) or git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            yield f"commit {commit[:40]}: changed, or not in this repository; commit (or git fetch) and run again"


def _file_problems(study: Study, passes: pl.DataFrame, run: Mapping[str, Any]) -> Iterator[str]:
    """Check that passes are those of their run, and that it was made with the default seed."""
    name = study.results
    if (seed := run.get("seed", SEED.default)) != SEED.default:
        yield f"{name}: made with SEED={seed}; run it with the default, {SEED.default}"
    if not STARTED.fullmatch(str(run.get("started"))) or {*passes["run_id"]} != {str(run.get("run_id"))}:
        yield f"{name}: its passes are not those of a run with a date in environment.json; run {study.notebook} again"
    for failed in passes.filter(status="failed")[study.subject].unique(maintain_order=True)[:3]:
        yield f"{name}: {failed} failed, so it has no speed; repair it or the machine, and run again"
    for column in passes.select(pl.col(pl.Float64)).columns:
        if not passes[column].drop_nulls().is_finite().all():
            yield f"{name}: {column} has a value that is no finite number; run it again"
    if study in TRANSFERS:
        yield from _transfer_problems(study, passes)


def _transfer_problems(study: Study, passes: pl.DataFrame) -> Iterator[str]:
    """Check that all techniques of a direction have passes, in enough rounds, each once and with its rows/s."""
    name, here = study.results, [one for one in techniques() if f"{one.database}_{one.direction}" == study.name]
    known = {(one.database, one.direction, one.name, one.label, one.origin) for one in here}
    found = {*passes.select("database", "direction", "technique", "label", "origin").iter_rows()}
    for technique in sorted({str(one[2])[:80] for one in known ^ found})[:3]:
        yield f"{name}: {technique} is missing (one that cannot run is skipped) or has another label; run it again"
    follows = pl.col("rows_per_s").is_close(pl.col("rows") / pl.col("seconds"), rel_tol=1e-6)
    for number in passes.drop_nulls("seconds").filter(~follows | (pl.col("seconds") <= 0))["pass"].head(1):
        yield f"{name}: pass {number} has other rows/s than its rows and seconds give; run it again"
    if passes.select("technique", "rows", "pass").is_duplicated().any():
        yield f"{name}: it has a pass twice; run it again"
    rounds = passes.filter(pl.col("rows") == pl.col("rows").max(), status="ok").group_by("technique").len()["len"]
    if (most := max(rounds, default=0)) < LEAST_ROUNDS:  # the maximum: slow techniques may sit out
        yield f"{name}: {most} rounds are too few for an interval; run it with {ENOUGH}, or PRESET=reference"
