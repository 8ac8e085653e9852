"""Collect the data of the results page: the measurements of all techniques in this run and the committed runs."""

from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import polars as pl

from framehaul.bench import store
from framehaul.bench.statistics import in_places
from framehaul.errors import ResultsError
from framehaul.reporting.tables import CLASSES, cell_text, dtypes_text, machines_text
from framehaul.studies import registry
from framehaul.studies.registry import FIDELITY
from framehaul.techniques.registry import DRIVERS, FAMILIES, REQUIREMENTS
from framehaul.techniques.source import source, technique_named

STUDIES = {one.notebook: one for one in registry.studies() if one.measured or one.measures_techniques}
"""The studies whose measurements the page shows, by notebook."""
PATH = ["database", "direction", "technique"]
COLUMNS = {
    "run": "run", "study": "notebook", **{name: name for name in PATH}, "label": "label", "origin": "origin",
    "family": "family", "frame": "frame", "contract": "contract", "table": "table", "network": "road",
    "variant": "variant", "rows": "rows", "rows_per_s": "median_rows_per_s", "slowest": "min_rows_per_s",
    "fastest": "max_rows_per_s", "rounds": "rounds", "unstable": "unstable", "ratio": "ratio",
    "ratio_text": "ratio_text", "cpu_s": "cpu", "memory_bytes": "peak_rss_bytes", "wire_bytes": "wire_bytes",
    "dtypes": "dtypes", "status": "status", "reason": "reason",
}  # fmt: skip
"""The columns of the page and the fields of results that they show; `cpu_s` is per million rows."""


def page(results: Path) -> dict[str, Any]:
    """Return the data of the page for the run in a results directory and the committed runs.

    The keys are `runs`, `columns`, `rows` (one per technique and place) and `techniques` by `database/direction/name`.
    """
    known, rows, seen = list[dict[str, Any]](), list[dict[str, Any]](), set[str]()
    committed = sorted(store.MACHINES.glob("*/*/environment.json"), reverse=True)  # the latest of a machine first
    for directory in dict.fromkeys([results, *(path.parent for path in committed)]):
        metadata, found = store.read_metadata(directory), []
        for notebook, study in STUDIES.items():
            path, run = directory / study.results, metadata["runs"].get(notebook, {})
            # A run that is also committed under `machines` is shown once.
            if path.exists() and run.get("run_id") not in seen:
                found += _rows_of(notebook, path, path.stat().st_mtime_ns)
        seen |= {run["run_id"] for run in metadata["runs"].values() if "run_id" in run}
        if found:
            known.append(_run(directory, metadata) | ({"name": "this run"} if directory == results else {}))
            rows += [row | {"run": known[-1]["name"]} for row in found]
    carried: dict[str, dict[str, str]] = {}
    # A quick run tries few techniques; the types of the others come from the committed run.
    for path in (store.RUN / FIDELITY.results, results / FIDELITY.results):
        carried |= _carried(path, path.stat().st_mtime_ns) if path.exists() else {}
    techniques = {}
    for key, driver in {tuple(row[name] for name in PATH): row["driver"] for row in rows}.items():
        types = carried.get("/".join(key), {})
        techniques["/".join(key)] = {**_about(*key), "driver": DRIVERS.get(driver, driver), "types": types}
    shown = [[row[name] for name in COLUMNS] for row in rows]
    return {"runs": known, "columns": [*COLUMNS], "rows": shown, "techniques": techniques}


def _run(directory: Path, metadata: dict[str, Any]) -> dict[str, Any]:
    runs = [metadata["runs"][notebook] for notebook in STUDIES if notebook in metadata["runs"]]
    most = max((run["rows"] for run in runs if "rows" in run), default=0)
    name = f"{directory.parent.name}, {directory.name}" + (f", up to {most:,} rows" if most else "")
    started, machine = min((run["started"] for run in runs), default=""), machines_text(metadata, runs)
    return {"name": name, "commit": metadata.get("commit", ""), "machine": machine, "started": started}


@cache
def _rows_of(notebook: str, path: Path, _: int) -> list[dict[str, Any]]:
    """Return the rows of a file, cached by its modification time: the page is made again after every notebook."""
    study = STUDIES[notebook]
    try:
        passes: pl.DataFrame = resolve_name(study.measured)(path.parent) if study.measured else store.read(path)
    except ResultsError:
        return []  # a file of an older version, which the page of its study reports
    found = in_places(passes, sizes="race" not in {one.name for one in study.parameters})
    if found.is_empty():
        return []
    moved = pl.col("median_rows_per_s") * pl.col("seconds") / 1e6
    rows = []
    for row in found.with_columns(cpu=pl.col("client_cpu_s") / moved, run=pl.lit("")).to_dicts():
        row["contract"], row["family"] = CLASSES[row["contract"]], FAMILIES.get(row["family"], row["family"])
        row["ratio_text"], row["dtypes"] = cell_text(row, "ratio", "{:.2f}x".format), dtypes_text(row["dtypes"] or "")
        row["rounds"] = [[one["pass"], _short(one["speed"])] for one in row["rounds"] or []]
        rows.append({"driver": row["driver"]} | {name: _short(row[field]) for name, field in COLUMNS.items()})
    return rows


def _short(value: Any) -> Any:
    """Return a float rounded to four significant digits, and other values unchanged."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


@cache
def _carried(path: Path, _: int) -> dict[str, dict[str, str]]:
    """Return the state of each type (`exact`, `converted`, `lost`, `refused`) for each technique of a file's matrix."""
    from framehaul.studies.fidelity import cases  # importing it is slow

    found: dict[str, dict[str, str]] = {}
    for *key, kind, state in cases.carried(store.read_cells(path), PATH).select(*PATH, "type", "state").iter_rows():
        found.setdefault("/".join(key), {})[kind] = state
    return found


@cache
def _about(database: str, direction: str, name: str) -> dict[str, Any]:
    """Return description, terms and code of a technique, or nothing if this checkout does not have it."""
    try:
        registered = technique_named(database, direction, name)
    except KeyError:
        return {}
    terms, contract = {}, registered.contract
    if contract is not None:
        terms = {"locks": contract.locks, "visible while it runs": contract.others_see}
        terms["left after a failure"] = contract.after_failure
    about = " ".join((registered.function.__doc__ or "").split())
    asks, code = [REQUIREMENTS[one] for one in registered.requires], source(database, direction, [name])
    return {"module": registered.function.__module__, "asks": asks, "terms": terms, "about": about, "code": code}
