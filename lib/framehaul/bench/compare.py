"""Compare two runs: which techniques became slower or wrong from A to B, and what else differs between the runs.

A technique is slower in B, or faster, where its passes do not overlap and the rule of `bench.ratios` shows it: of
comparisons of runs in which nothing differs, one in twenty at most marks anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from framehaul.bench import ratios, statistics, store
from framehaul.bench.store import EXACT
from framehaul.errors import ResultsError

KEY = ["notebook", *statistics.NAMES, "rows"]
"""What has to be the same for two sets of passes to be compared; each study runs under conditions of its own."""
FILTERS = ("database", "direction", "driver", "family", "frame", "origin")
LEAST_PASSES = 3
"""Of each run; with fewer, nothing is said of a technique's speed."""

Verdict = Literal["regression", "improvement", "no difference seen", "not compared", "new", "gone"]


class ComparisonError(ResultsError):
    """Two runs cannot be compared; the message says why and what to give instead."""


@dataclass(frozen=True)
class Run:
    """The passes of a run's techniques, where and with what they were made, and the names of unfinished files."""

    name: str
    passes: pl.DataFrame
    metadata: dict[str, Any]
    unfinished: tuple[str, ...] = ()

    @cached_property
    def statistics(self) -> pl.DataFrame:
        """One row per study, technique and size, with the `rows_per_s` of its passes."""
        speeds = self.passes.filter(status="ok").group_by(KEY).agg(
            "rows_per_s"
        )  # fmt: skip
        return statistics.statistics(self.passes, KEY).join(speeds, on=KEY, how="left", maintain_order="left")


def read_run(path: Path, files: Sequence[str], name: str = "") -> Run:
    """The run in a directory that `make all` wrote (OUT), in the results directory of one, or in one CSV file of it.

    `files` are the names of those whose rows are passes of techniques.

    Raises ResultsError, naming the path, when there is no complete run of techniques.
    """
    if path.is_file():
        if path.name.endswith(".partial.csv"):
            raise ResultsError(f"{path} is what an interrupted run left; give a complete file, or run again")
        return _run(name or path.name, path.parent, [path], ())
    if not path.is_dir():
        raise ResultsError(f"{path} does not exist; give a directory that make all wrote, or a CSV file of its results")
    directory = path / "results" if (path / "results").is_dir() else path
    paths = [file for one in files if (file := directory / one).exists()]
    unfinished = tuple(
        stem for one in files if (directory / f"{(stem := one.removesuffix('.csv'))}.partial.csv").exists()
    )
    if not paths:
        left = f", only what an interrupted run left of {', '.join(unfinished)}" if unfinished else ""
        raise ResultsError(
            f"{path} holds no results of techniques{left}; give a directory that make all wrote, or run make all there"
        )
    return _run(name or str(path), directory, paths, unfinished)


def _run(name: str, directory: Path, files: list[Path], unfinished: tuple[str, ...]) -> Run:
    passes = pl.concat([store.read(file) for file in files])
    if passes.is_empty():
        raise ResultsError(f"{files[0]} holds no passes; run again the notebook that writes it")
    return Run(name, passes, store.read_metadata(directory), unfinished)


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two runs.

    `rows` has a row for each study, technique and size, regressions first: KEY and what the techniques are; passes,
    median, min and max rows/s of both runs (of B as `..._b`); ratio (B over A), ratio_low and ratio_high, verdict and
    why.
    """

    a: Run
    b: Run
    rows: pl.DataFrame
    drift: float | None
    """The median ratio of the techniques that have a speed in both runs; None without one."""
    compared: int
    """Of how many techniques and sizes the speeds are compared."""
    warnings: list[str]
    """What makes the speeds of the runs differ, or keeps something out of the comparison."""
    changes: list[str]
    """What else differs, as `psycopg 3.3.1 -> 3.3.2`."""

    def count(self, verdict: Verdict) -> int:
        """How many rows have this verdict."""
        return len(self.rows.filter(verdict=verdict))

    @property
    def status(self) -> int:
        """The exit status: 1 with a regression, 2 when no speed could be compared, else 0."""
        if self.count("regression"):
            return 1
        return 0 if self.compared else 2


def compare(a: Run, b: Run, wanted: str = "") -> Comparison:
    """Compare B with A, all techniques or those that are `wanted`: `copy_binary`, `driver=psycopg direction=read`.

    Each word has to be in a technique's name, or to be a column and its value. Raises ComparisonError when nothing can
    be compared.
    """
    both = a.statistics.join(b.statistics, on=KEY, how="full", coalesce=True, suffix="_b", maintain_order="left_right")
    # A study that only one of them made is said once, not technique by technique.
    studies = set(a.passes["notebook"]) & set(b.passes["notebook"])
    both = both.filter(pl.col("notebook").is_in(studies)).with_columns(
        pl.coalesce(f"{name}_b", name).alias(name) for name in ("label", "origin", "family", "driver", "frame")
    )
    timed = both.filter(pl.col("median_rows_per_s").is_not_null() & pl.col("median_rows_per_s_b").is_not_null())
    if both.filter(pl.col("status").is_not_null() & pl.col("status_b").is_not_null()).is_empty():
        raise ComparisonError(
            f"{a.name} ({_sizes(a)}) and {b.name} ({_sizes(b)}) share no technique at the same size; "
            "compare runs of the same notebooks with the same ROWS"
        )
    over = (timed["median_rows_per_s_b"] / timed["median_rows_per_s"]).to_numpy()
    drift = float(np.median(over)) if len(over) else None
    chosen = _chosen(both, wanted)
    told = _told(_enough(chosen))
    rows = [_row(row, told.get(_key(row))) for row in chosen.to_dicts()]
    place = {verdict: at for at, verdict in enumerate(get_args(Verdict))}
    table = pl.DataFrame(rows, schema=SCHEMA).sort(
        pl.col("verdict").replace_strict(place), "ratio", *KEY, nulls_last=True
    )
    warnings, changes = _differences(a, b)
    return Comparison(a, b, table, drift, len(told), warnings, changes)


SCHEMA: dict[str, type[pl.DataType]] = {
    **{name: store.SCHEMA[name] for name in (*KEY, "label", "origin", "family", "driver", "frame")},
    **{
        f"{name}{run}": kind
        for run in ("", "_b")
        for name, kind in (("passes", pl.Int64), ("median_rows_per_s", pl.Float64), ("min_rows_per_s", pl.Float64),
                           ("max_rows_per_s", pl.Float64))
    },
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), pl.Float64),
    "verdict": pl.String, "why": pl.String,
}  # fmt: skip
"""The columns of `Comparison.rows`."""


def _enough(timed: pl.DataFrame) -> pl.DataFrame:
    """Those with a speed and passes enough in both runs."""
    speeds = pl.col("median_rows_per_s").is_not_null() & pl.col("median_rows_per_s_b").is_not_null()
    return timed.filter(speeds & (pl.min_horizontal("passes", "passes_b") >= LEAST_PASSES))


@dataclass(frozen=True)
class Told:
    """What two runs show of a technique: B's speed over A's, between which ends it is, and what is said of it."""

    ratio: float
    low: float
    high: float
    speed: str
    """`slower`, `faster`, or nothing."""


def _told(enough: pl.DataFrame) -> dict[tuple[Any, ...], Told]:
    """Return what the passes show of each technique, by its KEY; the rule counts all of them as one page."""
    told: dict[tuple[Any, ...], Told] = {}
    rows = enough.to_dicts()
    speeds = [(np.log(row["rows_per_s_b"]), np.log(row["rows_per_s"])) for row in rows]
    page = [ratios.evidence_between(after.tolist(), before.tolist()) for after, before in speeds]
    signs = ratios.signs(page, [1] * len(page))
    for row, (after, before), one, (error, degrees), sign in zip(
        rows, speeds, page, ratios.errors(page), signs, strict=True
    ):
        reach = ratios.quantile(degrees) * error
        apart = after.max() < before.min() or after.min() > before.max()
        speed = {-1: "slower", 0: "", 1: "faster"}[sign if apart else 0]
        middle, low, high = (math.exp(one.middle + at) for at in (0, -reach, reach))
        told[_key(row)] = Told(middle, low, high, speed)
    return told


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def _sizes(run: Run) -> str:
    """Which studies there are at which sizes: `01 at 100,000 rows; 06 at 10,000, 100,000 rows`."""
    sizes = run.passes.group_by("notebook").agg(pl.col("rows").unique().sort()).sort("notebook")
    return "; ".join(f"{name[:2]} at {', '.join(f'{rows:,}' for rows in counts)} rows" for name, counts in sizes.rows())


def conditions(wanted: str) -> dict[str, pl.Expr]:
    """What each word asks of the rows of techniques; raises ComparisonError for a column that is not in FILTERS."""
    found = {}
    for word in wanted.replace(",", " ").split():
        column, equals, value = word.partition("=")
        if equals and column not in FILTERS:
            raise ComparisonError(f"TECHNIQUES: {column!r} is not known; give one of {', '.join(FILTERS)}")
        found[word] = pl.col(column) == value if equals else pl.col("technique").str.contains(word, literal=True)
    return found


def _chosen(both: pl.DataFrame, wanted: str) -> pl.DataFrame:
    chosen = both
    for word, condition in conditions(wanted).items():
        chosen = chosen.filter(condition)
        if chosen.is_empty():
            column, equals, _ = word.partition("=")
            known = f"; there are {', '.join(sorted(set(both[column])))}" if equals else ""
            raise ComparisonError(f"TECHNIQUES={wanted!r} fits no technique in these runs at {word!r}{known}")
    return chosen


def _row(row: dict[str, Any], told: Told | None) -> dict[str, Any]:
    """One technique: its ratio where both runs have a speed, and what is to be said."""
    columns = {name: row.get(name) for name in SCHEMA}
    before, after = row["status"], row["status_b"]
    if before is None or after is None:
        status, reason = (before, row["reason"]) if after is None else (after, row["reason_b"])
        why = "" if status == "ok" else f"{status}: {reason}"
        return columns | {"verdict": "new" if before is None else "gone", "why": why}
    if before != "ok" or after != "ok":
        change = f"{before} -> {after}" if before != after else f"{after} in both"
        verdict = {("ok", "failed"): "regression", ("failed", "ok"): "improvement"}.get((before, after), "not compared")
        return columns | {"verdict": verdict, "why": change if after == "ok" else f"{change}: {row['reason_b']}"}
    if told is None:
        columns["ratio"] = row["median_rows_per_s_b"] / row["median_rows_per_s"]
    else:
        columns |= {"ratio": told.ratio, "ratio_low": told.low, "ratio_high": told.high}
    verdict, why = _judged(row, told)
    return columns | {"verdict": verdict, "why": why}


def _judged(row: dict[str, Any], told: Told | None) -> tuple[Verdict, str]:
    """What becomes of a technique that was right in both runs."""
    was, now = row["dtypes"], row["dtypes_b"]
    drifted = f"dtypes {was} -> {now}" if was != now else ""
    speed = told.speed if told else ""
    few = "" if told else f"too few passes: {row['passes']} and {row['passes_b']}"
    why = "; ".join(filter(None, (speed, drifted, few)))
    if speed == "slower" or (drifted and was == EXACT):
        return "regression", why
    if speed == "faster" or (drifted and now == EXACT):
        return "improvement", why
    return ("not compared" if few else "no difference seen"), why


def _differences(a: Run, b: Run) -> tuple[list[str], list[str]]:
    """What differs between the runs beside the speeds: what is a warning, and what is not."""
    warnings: list[str] = []
    changes: list[str] = []
    for run, other in ((a, b), (b, a)):
        which = "A" if run is a else "B"
        if "machine" not in run.metadata:
            warnings.append(
                f"{which} has no environment.json: nobody knows whether machine, servers and libraries differ"
            )
        if run.unfinished:
            warnings.append(f"{which} holds an unfinished run of {', '.join(run.unfinished)}, which is left out")
        if alone := sorted(set(run.passes["notebook"]) - set(other.passes["notebook"])):
            warnings.append(f"only {which} has {', '.join(alone)}")
    if "machine" in a.metadata and "machine" in b.metadata:
        machines = a.metadata["machine"], b.metadata["machine"]
        known = machines[0].keys() & machines[1].keys()  # an older run has recorded less
        for name, before, after in _changed(*({name: one[name] for name in one if name in known} for one in machines)):
            text = f"{name}: {before} -> {after}" if name != "cpu_flags" else f"{name}: not the same"
            (changes if name == "system" or name.startswith("out_") else warnings).append(f"the machine's {text}")
        changes += [f"{name} {before} -> {after}" for name, before, after in _changed(*_named(a, b))]
    notebooks_of: dict[str, list[str]] = {}
    for notebook in sorted(set(a.metadata["runs"]) & set(b.metadata["runs"]) & set(a.passes["notebook"])):
        before, after = (_conditions(run.metadata["runs"][notebook]) for run in (a, b))
        for name, was, now in _changed(before, after):
            notebooks_of.setdefault(f"{name}: {was} -> {now}", []).append(notebook)
    for text, notebooks in notebooks_of.items():
        (changes if text.startswith("passes:") else warnings).append(f"{text} ({', '.join(notebooks)})")
    return warnings, changes


def _named(a: Run, b: Run) -> Iterator[dict[str, Any]]:
    """Versions of each run's libraries, with Python's and the commit."""
    for run in (a, b):
        yield {"Python": run.metadata["python"], "commit": run.metadata["commit"], **run.metadata["libraries"]}


def _conditions(run_metadata: dict[str, Any]) -> dict[str, Any]:
    """What a notebook was run with, flat; what changes the speed, and how many passes."""
    server = run_metadata.get("server", {})
    return {
        **{name: run_metadata.get(name) for name in ("rows", "passes", "warmup", "seed", "servers")},
        "server version": server.get("version"),
        "server transport": server.get("transport", "TCP"),
        **{f"server setting {name}": value for name, value in server.get("settings", {}).items()},
        **{f"server extension {name}": value for name, value in server.get("extensions", {}).items()},
    }


def _changed(before: dict[str, Any], after: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was != now:
            yield name, "none" if was is None else was, "none" if now is None else now
