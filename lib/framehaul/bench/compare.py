"""Compare two runs: techniques that became slower or wrong from A to B, and other differences between the runs.

A technique is slower or faster in B when its passes do not overlap and the rule of `bench.ratios` shows it: at most one
in twenty comparisons of runs that do not differ marks anything.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
"""The columns in which two compared sets of passes are equal; each study measures under other conditions."""
DESCRIBED = ["label", "origin", "family", "driver", "frame"]
FILTERS = ("database", "direction", "driver", "family", "frame", "origin")
LEAST_PASSES = 3
"""The minimum of passes in each run for a verdict on speed."""

Verdict = Literal["regression", "improvement", "no difference seen", "not compared", "new", "gone"]
FIGURES = ["passes", "median_rows_per_s", "min_rows_per_s", "max_rows_per_s"]
JUDGED: dict[str, Any] = {
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high"), pl.Float64),
    **dict.fromkeys(("verdict", "why"), pl.String),
}


class ComparisonError(ResultsError):
    """An error: two runs cannot be compared. The message has the reason and the remedy."""


@dataclass(frozen=True)
class Run:
    """A run: the passes of its techniques, its metadata, and the names of unfinished files."""

    name: str
    passes: pl.DataFrame
    metadata: dict[str, Any]
    unfinished: Sequence[str] = ()

    @cached_property
    def statistics(self) -> pl.DataFrame:
        """One row per study, technique and size, with the `rows_per_s` of its passes."""
        speeds = self.passes.filter(status="ok").group_by(KEY).agg("rows_per_s")
        return statistics.statistics(self.passes, KEY).join(speeds, on=KEY, how="left", maintain_order="left")


def read_run(path: Path, files: Sequence[str]) -> Run:
    """Read the run in a directory that `make all` wrote (OUT), in its results directory, or in one CSV file of it.

    `files` are the names of results files with passes of techniques. Raises ResultsError, naming the path, when no
    complete run of techniques is found.
    """
    if not path.exists():
        raise ResultsError(f"{path} does not exist; give a directory that make all wrote, or a CSV file of its results")
    directory = path / "results" if (path / "results").is_dir() else path
    paths = [directory / one for one in files if (directory / one).exists()]
    unfinished = [one.stem for one in map(Path, files) if (directory / f"{one.stem}.partial.csv").exists()]
    if path.is_file():
        directory, paths = path.parent, [path]
    if not paths:
        left = f", only passes that an interrupted run left of {', '.join(unfinished)}" if unfinished else ""
        raise ResultsError(
            f"{path} holds no results of techniques{left}; give a directory that make all wrote, or run make all there"
        )
    passes = pl.concat([store.read(file) for file in paths])
    if passes.is_empty():
        raise ResultsError(f"{paths[0]} holds no passes; run again the notebook that writes it")
    return Run(str(path), passes, store.read_metadata(directory), unfinished)


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two runs.

    `rows` has a row for each study, technique and size, regressions first: KEY, DESCRIBED, FIGURES of A, and of B as
    `..._b`, and JUDGED; `ratio` is B over A.
    """

    a: Run
    b: Run
    rows: pl.DataFrame
    drift: float | None
    """The median ratio of the techniques that have a speed in both runs; None without one."""
    compared: int
    """The number of techniques and sizes whose speeds are compared."""
    warnings: list[str]
    """Differences that change speeds, and passes that are left out."""
    changes: list[str]
    """Other differences, such as `psycopg 3.3.1 -> 3.3.2`."""

    def count(self, verdict: Verdict) -> int:
        """Return the number of rows with this verdict."""
        return len(self.rows.filter(verdict=verdict))

    @property
    def status(self) -> int:
        """The exit status: 1 with a regression, 2 when no speed could be compared, else 0."""
        if self.count("regression"):
            return 1
        return 0 if self.compared else 2


def compare(a: Run, b: Run, wanted: str = "") -> Comparison:
    """Compare B with A, all techniques or the `wanted`: `copy_binary`, `driver=psycopg direction=read`.

    Each word is a part of a technique's name, or a column and its value. Raises ComparisonError when nothing can be
    compared.
    """
    both = a.statistics.join(b.statistics, on=KEY, how="full", coalesce=True, suffix="_b", maintain_order="left_right")
    # A study that only one run has is a warning, not a row for each technique.
    studies = {*a.passes["notebook"]} & {*b.passes["notebook"]}
    both = both.filter(pl.col("notebook").is_in(studies)).with_columns(
        *(pl.coalesce(f"{name}_b", name).alias(name) for name in DESCRIBED),
        ratio=pl.col("median_rows_per_s_b") / pl.col("median_rows_per_s"),
    )
    if both.drop_nulls(["status", "status_b"]).is_empty():
        raise ComparisonError(
            f"{a.name} and {b.name} share no technique at the same size; "
            "compare runs of the same notebooks with the same ROWS"
        )
    chosen = _chosen(both, wanted)
    rows = chosen.to_dicts()
    enough = [row for row in rows if row["ratio"] and min(row["passes"], row["passes_b"]) >= LEAST_PASSES]
    _compare_speeds(enough)
    of_both = chosen.select(*KEY, *DESCRIBED, *FIGURES, *(f"{name}_b" for name in FIGURES))
    table = of_both.hstack(pl.DataFrame([_judged(row) for row in rows], schema=JUDGED))
    table = table.sort(pl.col("verdict").cast(pl.Enum(get_args(Verdict))), "ratio", *KEY, nulls_last=True)
    differences = [*_differences(a, b)]
    warnings, changes = ([text for is_warning, text in differences if is_warning is one] for one in (True, False))
    return Comparison(a, b, table, both.select(pl.median("ratio")).item(), len(enough), warnings, changes)


def _chosen(both: pl.DataFrame, wanted: str) -> pl.DataFrame:
    """Return the rows that every word of `wanted` selects; raise ComparisonError when there is no such row."""
    chosen = both
    for word in wanted.replace(",", " ").split():
        column, equals, value = word.partition("=")
        if equals and column not in FILTERS:
            raise ComparisonError(f"TECHNIQUES: {column!r} is not known; give one of {', '.join(FILTERS)}")
        chosen = chosen.filter(
            pl.col(column) == value if equals else pl.col("technique").str.contains(word, literal=True)
        )
        if chosen.is_empty():
            known = f"; there are {', '.join(sorted(set(both[column])))}" if equals else ""
            raise ComparisonError(f"TECHNIQUES={wanted!r} fits no technique in these runs at {word!r}{known}")
    return chosen


def _compare_speeds(rows: list[dict[str, Any]]) -> None:
    """Add to each row the ratio, its interval and the speed: `slower`, `faster` or nothing; judge all rows together."""
    logs = [(np.log(row["rows_per_s_b"]), np.log(row["rows_per_s"])) for row in rows]
    page = [ratios.evidence_between(after.tolist(), before.tolist()) for after, before in logs]
    errors, signs = ratios.errors(page), ratios.signs(page, [1] * len(page))
    for row, (after, before), one, (error, degrees), sign in zip(rows, logs, page, errors, signs, strict=True):
        reach = ratios.quantile(degrees) * error
        overlap = after.max() >= before.min() and after.min() <= before.max()
        row["speed"] = {-1: "slower", 0: "", 1: "faster"}[0 if overlap else sign]
        ends = (one.mean, one.mean - reach, one.mean + reach)
        row |= dict(zip(("ratio", "ratio_low", "ratio_high"), map(math.exp, ends), strict=True))


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    """Return the columns `JUDGED` of a row."""
    before, after, speed = row["status"], row["status_b"], row.get("speed")
    if before is None or after is None:
        status, reason = (before, row["reason"]) if after is None else (after, row["reason_b"])
        verdict = "new" if before is None else "gone"
        why = "" if status == "ok" else f"{status}: {reason}"
    elif before != "ok" or after != "ok":
        verdict = {("ok", "failed"): "regression", ("failed", "ok"): "improvement"}.get((before, after), "not compared")
        change = f"{before} -> {after}" if before != after else f"{after} in both"
        why = change if after == "ok" else f"{change}: {row['reason_b']}"
    else:
        was, now = row["dtypes"], row["dtypes_b"]
        drifted = f"dtypes {was} -> {now}" if was != now else ""
        few = f"too few passes: {row['passes']} and {row['passes_b']}" if speed is None else ""
        why = "; ".join(filter(None, (speed, drifted, few)))
        if speed == "slower" or (drifted and was == EXACT):
            verdict = "regression"
        elif speed == "faster" or (drifted and now == EXACT):
            verdict = "improvement"
        else:
            verdict = "not compared" if few else "no difference seen"
    judged = row | {"verdict": verdict, "why": why}
    return {name: judged.get(name) for name in JUDGED}


def _differences(a: Run, b: Run) -> Iterator[tuple[bool, str]]:
    """Yield the differences between the runs besides the speeds, each with whether it is a warning."""
    for which, run, other in (("A", a, b), ("B", b, a)):
        if "machine" not in run.metadata:
            yield True, f"{which} has no environment.json: machine, servers and libraries may differ"
        if run.unfinished:
            yield True, f"{which} holds an unfinished run of {', '.join(run.unfinished)}, which is left out"
        if alone := sorted({*run.passes["notebook"]} - {*other.passes["notebook"]}):
            yield True, f"only {which} has {', '.join(alone)}"
    shared = sorted({*a.metadata["runs"]} & {*b.metadata["runs"]} & {*a.passes["notebook"]})
    notebooks_of = defaultdict[tuple[bool, str], list[str]](list)
    for notebook in shared:
        before, after = (_conditions(run.metadata, notebook) for run in (a, b))
        for is_warning, name in dict.fromkeys([*before, *after]):
            was, now = (one.get((is_warning, name)) for one in (before, after))
            older = "machine's" in name and None in (was, now)  # older runs record less of the machine
            if was != now and not older:
                change = " -> ".join("none" if value is None else str(value) for value in (was, now))
                notebooks_of[is_warning, f"{name} {change}"].append(notebook)
    for (is_warning, text), notebooks in notebooks_of.items():
        yield is_warning, text if notebooks == shared else f"{text} ({', '.join(notebooks)})"


def _conditions(metadata: dict[str, Any], notebook: str) -> dict[tuple[bool, str], Any]:
    """Return the conditions of a notebook's run, by whether they affect speeds, and name."""
    run = metadata["runs"][notebook]
    made, server = store.made_by(metadata, run), {"transport": "TCP"} | run.get("server", {})
    machine = {(name != "system", f"the machine's {name}:"): value for name, value in made.get("machine", {}).items()}
    versions = {"Python": made.get("python"), "commit": made.get("commit")} | made.get("libraries", {})
    affecting = {
        **{f"{name}:": run[name] for name in ("rows", "warmup", "seed", "servers") if name in run},
        **{f"server {name}:": server[name] for name in ("version", "transport") if name in server},
        **{f"server setting {name}:": value for name, value in server.get("settings", {}).items()},
        **{f"server extension {name}:": value for name, value in server.get("extensions", {}).items()},
    }
    others = versions | {"passes:": run.get("passes")}
    return machine | {(name in affecting, name): value for name, value in (others | affecting).items()}
