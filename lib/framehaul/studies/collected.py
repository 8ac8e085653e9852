"""What the results page shows: every technique wherever it was measured, in this run and in those that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from framehaul.bench import committed, store
from framehaul.bench.measured import PLACE, STANDARD, in_places
from framehaul.bench.study import Study, imported
from framehaul.errors import ResultsError
from framehaul.reporting.tables import CLASSES, dtypes_text, ratio_text
from framehaul.reporting.versions import machine_text
from framehaul.studies import registry
from framehaul.studies.registry import FIDELITY
from framehaul.techniques.registry import DRIVERS, FAMILIES, REQUIREMENTS
from framehaul.techniques.source import source, technique_named

TABLES = {"standard": STANDARD, "nested": "lists, JSON, enums and decimals beside scalars"}
"""Of `make all TABLE=...`, as a reader knows them."""
PATH = ["database", "direction", "technique"]
COLUMNS = {
    "run": "run", "study": "notebook", **{name: name for name in PATH}, "label": "label", "origin": "origin",
    "family": "family", "driver": "driver", "frame": "frame", "contract": "contract",
    **{name: name for name in PLACE}, "rows": "rows", "speed": "median_rows_per_s", "slowest": "min_rows_per_s",
    "fastest": "max_rows_per_s", "rounds": "rounds", "unstable": "unstable", "ratio": "ratio",
    "ratio_text": "ratio_text", "cpu": "cpu", "memory": "peak_rss_bytes", "wire": "wire_bytes", "dtypes": "dtypes",
    "status": "status", "reason": "reason",
}  # fmt: skip
"""Of a measurement as the page has it, and where each comes from."""


def page(results: Path) -> dict[str, Any]:
    """All that the page shows: of the run in this results directory, and of those that are committed.

    `runs`; `columns` and `rows`, one per technique and place; `techniques` by `database/direction/name`, each with the
    numbers of the `blocks` that its code is made of, which techniques share.
    """
    blocks: dict[str, int] = {}
    known: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    # A look tries few techniques; of the others the run that is committed knows.
    carried = _carried(committed.RUN) | _carried(results)
    seen = set[str]()
    for directory in {results: None, **dict.fromkeys(committed.runs())}:
        # A run that is kept among the machines as well is there once.
        found = [*_measured(directory, seen)]
        seen |= {run["run_id"] for run in store.read_metadata(directory)["runs"].values() if "run_id" in run}
        if found:
            known.append(_run(directory, kept=directory != results))
            name = known[-1]["name"]
            rows += [row | {"run": name} for row in found]
    drivers = {tuple(row[name] for name in PATH): row["driver"] for row in rows}
    techniques = {}
    for key, driver in drivers.items():
        about, code = _of_technique(*key)
        numbers = {part: [blocks.setdefault(one, len(blocks)) for one in texts] for part, texts in code.items()}
        types_of = carried.get("/".join(key), {})
        techniques["/".join(key)] = {**about, **numbers, "driver": DRIVERS.get(driver, driver), "types": types_of}
    return {
        "runs": known, "columns": [*COLUMNS], "rows": [[row[name] for name in COLUMNS] for row in rows],
        "techniques": techniques, "blocks": [*blocks],
    }  # fmt: skip


def _run(directory: Path, *, kept: bool) -> dict[str, Any]:
    """A run as a reader knows it, with the machine it was made on."""
    metadata = store.read_metadata(directory)
    machine = metadata.get("machine", {})
    runs = [metadata["runs"][one.notebook] for one in _studies() if one.notebook in metadata["runs"]]
    most = max((run["rows"] for run in runs if "rows" in run), default=0)
    size = f", up to {most:,} rows" if most else ""
    name = f"{directory.parent.name}, {directory.name}{size}" if kept else "this run"
    return {
        "name": name, "commit": metadata.get("commit", ""), "machine": machine_text(machine),
        "started": min((run["started"] for run in runs), default=""),
    }  # fmt: skip


def _studies() -> list[Study]:
    """Those whose measurements the page has."""
    return [one for one in registry.studies() if one.measured or one.measures_techniques]


def _measured(directory: Path, but: Set[str]) -> Iterator[dict[str, Any]]:
    """The rows of a run: every technique in every place, but for runs of notebooks with these ids."""
    runs = store.read_metadata(directory)["runs"]
    for study in _studies():
        path, run = directory / study.results, runs.get(study.notebook, {})
        if path.exists() and run.get("run_id") not in but:
            table = TABLES[run.get("table", "standard")]
            yield from _rows_of(study.notebook, path, path.stat().st_mtime_ns, table)


@cache
def _rows_of(notebook: str, path: Path, _: int, table: str) -> list[dict[str, Any]]:
    """Those of a results file as it is at a time; a page is made again for each notebook that ends."""
    study = next(one for one in registry.studies() if one.notebook == notebook)
    try:
        if study.measured:
            passes: pl.DataFrame = imported(study.measured)(path.parent)
        else:
            passes = store.read(path).with_columns(table=pl.lit(table))
    except ResultsError:
        return []  # of an older version: who makes the pages of its own study says so
    found = in_places(passes, sizes="race" not in {one.name for one in study.parameters})
    if found.is_empty():
        return []
    moved = pl.col("median_rows_per_s") * pl.col("seconds") / 1e6
    made = []
    for row in found.with_columns(cpu=pl.col("client_cpu_s") / moved, run=pl.lit("")).to_dicts():
        words = {
            "contract": CLASSES[row["contract"]], "family": FAMILIES.get(row["family"], row["family"]),
            "dtypes": dtypes_text(row["dtypes"] or ""), "ratio_text": ratio_text(row),
            "rounds": [[one["pass"], _short(one["speed"])] for one in row["rounds"] or []],
        }  # fmt: skip
        made.append({name: _short((row | words)[field]) for name, field in COLUMNS.items()})
    return made


def _short(value: Any) -> Any:
    """A number with the digits that anybody could tell; all else as it is."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _carried(directory: Path) -> dict[str, dict[str, str]]:
    """What becomes of each type with each technique: `exact`, `converted`, `lost` or `refused`; of those tried."""
    path = directory / FIDELITY.results
    return _carried_of(path, path.stat().st_mtime_ns) if path.exists() else {}


@cache
def _carried_of(path: Path, _: int) -> dict[str, dict[str, str]]:
    from framehaul.studies.fidelity import types  # it imports all that its cases are made of

    found: dict[str, dict[str, str]] = {}
    for row in types.carried(store.read_cells(path), PATH).to_dicts():
        found.setdefault("/".join(row[name] for name in PATH), {})[row["type"]] = row["state"]
    return found


@cache
def _of_technique(database: str, direction: str, name: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """What is said of a technique, and its code in blocks, as it stands in this checkout; nothing when it does not."""
    try:
        found, registered = source(database, direction, [name]), technique_named(database, direction, name)
    except KeyError:
        return {}, {}
    contract, asks = registered.contract, [REQUIREMENTS[one] for one in registered.requires]
    said = {} if contract is None else {
        "locks": contract.locks, "others see": contract.others_see, "a failure leaves": contract.after_failure,
    }  # fmt: skip
    about = {
        "module": registered.function.__module__,
        "about": " ".join((registered.function.__doc__ or "").split()),
        "asks": asks,
        "terms": said,
    }
    return about, {"code": [found.code, found.calls]}
