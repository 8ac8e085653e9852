"""Compare two runs: techniques that became slower or wrong from A to B, and other differences between the runs.

A technique is slower or faster in B when its passes do not overlap and the rule of `bench.ratios` shows it: at most one
in twenty comparisons of runs that do not differ marks anything.
"""

import math
import re
from collections.abc import Sequence
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
LEAST_PASSES = 3
"""The minimum of passes in each run for a verdict on speed."""
AFFECTING = re.compile(r"(rows|warmup|seed|servers):|server |the machine's (?!system)")
"""The conditions of a run that affect speeds."""

Verdict = Literal["regression", "improvement", "no difference seen", "not compared", "new", "gone"]
FIGURES = ["passes", "median_rows_per_s", "min_rows_per_s", "max_rows_per_s"]
RATIO = ["ratio", "ratio_low", "ratio_high"]


@dataclass(frozen=True)
class Run:
    """A run: the passes of its techniques, and its metadata."""

    name: str
    passes: pl.DataFrame
    metadata: dict[str, Any]

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
    remedy = "give a directory that make all wrote"
    if not path.exists():
        raise ResultsError(f"{path} does not exist; {remedy}, or a CSV file of its results")
    directory = path / "results" if (path / "results").is_dir() else path
    paths = [path] if path.is_file() else [file for one in files if (file := directory / one).exists()]
    if not paths:
        raise ResultsError(f"{path} holds no complete results of techniques; {remedy}, or run make all there")
    passes = pl.concat([store.read(file) for file in paths])
    if passes.is_empty():
        raise ResultsError(f"{paths[0]} holds no passes; run again the notebook that writes it")
    return Run(str(path), passes, store.read_metadata(paths[0].parent))


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two runs.

    `rows` has a row for each study, technique and size, regressions first: KEY, DESCRIBED, FIGURES of A, and of B as
    `..._b`, RATIO (B over A), verdict and why. `drift` is the median ratio of all techniques, `compared` the number of
    speeds that are compared. `warnings` affect speeds, `changes`, such as `psycopg 3.3.1 -> 3.3.2`, do not.
    """

    a: Run
    b: Run
    rows: pl.DataFrame
    drift: float | None
    compared: int
    warnings: list[str]
    changes: list[str]

    def count(self, verdict: Verdict) -> int:
        """Return the number of rows with this verdict."""
        return len(self.rows.filter(verdict=verdict))

    @property
    def status(self) -> int:
        """The exit status: 1 with a regression, 2 when no speed could be compared, else 0."""
        return 1 if self.count("regression") else 0 if self.compared else 2


def compare(a: Run, b: Run, wanted: str = "") -> Comparison:
    """Compare B with A, for all techniques or those named with all words of `wanted`; raises ResultsError for none."""
    both = a.statistics.join(b.statistics, on=KEY, how="full", coalesce=True, suffix="_b", maintain_order="left_right")
    # A study that only one run has is a warning, not a row for each technique.
    studies = {*a.passes["notebook"]} & {*b.passes["notebook"]}
    both = both.filter(pl.col("notebook").is_in(studies)).with_columns(
        *(pl.coalesce(f"{name}_b", name).alias(name) for name in DESCRIBED),
        ratio=pl.col("median_rows_per_s_b") / pl.col("median_rows_per_s"),
    )
    if both.drop_nulls(["status", "status_b"]).is_empty():
        remedy = "compare runs of the same notebooks with the same ROWS"
        raise ResultsError(f"{a.name} and {b.name} share no technique at the same size; {remedy}")
    chosen = both.filter(*(pl.col("technique").str.contains(word, literal=True) for word in wanted.split()))
    if chosen.is_empty():
        raise ResultsError(f"TECHNIQUES={wanted!r}: no technique of these runs has all of it in its name")
    rows = chosen.to_dicts()
    enough = [row for row in rows if row["ratio"] and min(row["passes"], row["passes_b"]) >= LEAST_PASSES]
    _compare_speeds(enough)
    judged = [(*map(row.get, RATIO), *_judged(row)) for row in rows]
    kinds = {**dict.fromkeys(RATIO, pl.Float64()), "verdict": pl.String(), "why": pl.String()}
    of_both = chosen.select(*KEY, *DESCRIBED, *FIGURES, *(f"{name}_b" for name in FIGURES))
    table = of_both.hstack(pl.DataFrame(judged, kinds, orient="row"))
    table = table.sort(pl.col("verdict").cast(pl.Enum(get_args(Verdict))), "ratio", *KEY, nulls_last=True)
    return Comparison(a, b, table, both.select(pl.median("ratio")).item(), len(enough), *_differences(a, b))


def _compare_speeds(rows: list[dict[str, Any]]) -> None:
    """Add to each row the ratio, its interval and the speed: `slower`, `faster` or nothing; judge all rows together."""
    logs = [(np.log(row["rows_per_s_b"]), np.log(row["rows_per_s"])) for row in rows]
    page = [ratios.evidence(after, before) for after, before in logs]
    errors, signs = ratios.errors(page), ratios.signs(page, [1] * len(page))
    for row, (after, before), one, (error, degrees), sign in zip(rows, logs, page, errors, signs, strict=True):
        overlap = after.max() >= before.min() and after.min() <= before.max()
        row["speed"] = {-1: "slower", 0: "", 1: "faster"}[0 if overlap else sign]
        reach = ratios.quantile(degrees) * error
        ends = (one.mean, one.mean - reach, one.mean + reach)
        row |= dict(zip(RATIO, map(math.exp, ends), strict=True))


def _judged(row: dict[str, Any]) -> tuple[Verdict, str]:
    """Return the verdict on a row of both runs, and the reason for it."""
    before, after, speed = row["status"], row["status_b"], row.get("speed")
    if before is None or after is None:
        status, reason = (before, row["reason"]) if after is None else (after, row["reason_b"])
        return "new" if before is None else "gone", "" if status == "ok" else f"{status}: {reason}"
    if before != "ok" or after != "ok":
        change = f"{before} -> {after}" if before != after else f"{after} in both"
        changed: dict[str, Verdict] = {"ok -> failed": "regression", "failed -> ok": "improvement"}
        return changed.get(change, "not compared"), change if after == "ok" else f"{change}: {row['reason_b']}"
    was, now = row["dtypes"], row["dtypes_b"]
    drifted = f"dtypes {was} -> {now}" if was != now else ""
    few = f"too few passes: {row['passes']} and {row['passes_b']}" if speed is None else ""
    verdict: Verdict = "not compared" if few else "no difference seen"
    if speed == "slower" or (drifted and was == EXACT):
        verdict = "regression"
    elif speed == "faster" or (drifted and now == EXACT):
        verdict = "improvement"
    return verdict, "; ".join(filter(None, (speed, drifted, few)))


def _differences(a: Run, b: Run) -> tuple[list[str], list[str]]:
    """Return the differences between the runs besides the speeds: those that affect speeds, and others."""
    warnings, changes = list[str](), list[str]()
    for which, run, other in (("A", a, b), ("B", b, a)):
        if "machine" not in run.metadata:
            warnings.append(f"{which} has no environment.json: machine, servers and libraries may differ")
        if alone := sorted({*run.passes["notebook"]} - {*other.passes["notebook"]}):
            warnings.append(f"only {which} has {', '.join(alone)}")
    for notebook in sorted({*a.metadata["runs"]} & {*b.metadata["runs"]} & {*a.passes["notebook"]}):
        before, after = (_conditions(run.metadata, notebook) for run in (a, b))
        for name in before | after:
            was, now = (one.get(name) or "none" for one in (before, after))
            if was != now:
                (warnings if AFFECTING.match(name) else changes).append(f"{name} {was} -> {now}")
    return [*dict.fromkeys(warnings)], [*dict.fromkeys(changes)]


def _conditions(metadata: dict[str, Any], notebook: str) -> dict[str, Any]:
    """Return the conditions of a notebook's run by their names in the list of differences."""
    run: dict[str, Any] = metadata["runs"][notebook]
    made, server = store.made_by(metadata, run), {"transport": "TCP"} | run.get("server", {})
    parts = {"setting": server.get("settings", {}), "extension": server.get("extensions", {})}
    return {
        **{f"the machine's {name}:": value for name, value in made.get("machine", {}).items()},
        **{"Python": made.get("python"), "commit": made.get("commit")} | made.get("libraries", {}),
        **{f"{name}:": run.get(name) for name in ("passes", "rows", "warmup", "seed", "servers")},
        **{f"server {name}:": server.get(name) for name in ("version", "transport")},
        **{f"server {part} {name}:": value for part, values in parts.items() for name, value in values.items()},
    }
