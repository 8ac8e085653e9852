"""One row per technique and pass: written as passes end, read back typed, summarised when rendering."""

from __future__ import annotations

import csv
import datetime as dt
import json
import math
import os
import secrets
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import DataclassInstance
    from numpy.typing import NDArray

Status = Literal["ok", "skipped", "failed"]
DIRECTIONS = ("01_postgres_write", "02_postgres_read", "03_clickhouse_write", "04_clickhouse_read")
"""The notebooks that measure every technique of a database and direction."""
SCALING = "06_scaling"
"""The notebook that measures how cost grows with rows."""
FIDELITY, FAULTS = "fidelity.csv", "faults.csv"
"""What became of awkward values, and of faults, on every path; written by `08_fidelity` and `09_faults`."""
DRIVERS = {"10_postgres_drivers": "postgres_drivers.csv", "11_clickhouse_clients": "clickhouse_clients.csv"}
"""The notebooks that compare drivers, and the passes that each writes."""
WAREHOUSE = {
    "12_postgres_to_warehouse": "warehouse_routes.csv",
    "13_parquet_anatomy": "parquet_codecs.csv",
    "14_json_to_parquet": "json_to_parquet.csv",
}
"""The notebooks on the way to a warehouse, and the passes that each writes."""
SCALE_OUT = {"21_scale_out": "scale_out.csv"}
"""The notebook that moves partitions with several workers, and its passes."""
NAMES = ["database", "direction", "technique"]
"""What tells the techniques of a run of one size apart."""
UNSTABLE_VARIATION = 0.10
"""Coefficient of variation from which a technique's figures are marked as unstable."""


@dataclass(frozen=True)
class Result:
    """One pass of one technique; a missing number is None, never 0. The fields are the columns of the file."""

    run_id: str
    notebook: str
    database: str
    direction: str
    technique: str
    label: str
    origin: str
    family: str
    driver: str
    frame: str
    rows: int
    pass_: int
    seconds: float | None
    rows_per_s: float | None
    client_cpu_s: float | None
    server_cpu_s: float | None
    peak_rss_bytes: int | None
    wire_bytes: int | None
    dtypes: str | None
    status: Status
    reason: str | None


def columns_of(kind: type[DataclassInstance]) -> list[str]:
    """The columns of a file of such rows."""
    return [field.name.rstrip("_") for field in fields(kind)]


def schema_of(kind: type[DataclassInstance]) -> dict[str, type[pl.DataType]]:
    """Its columns with their types, read back."""
    hints = get_type_hints(kind)
    numbers = {int: pl.Int64, int | None: pl.Int64, float: pl.Float64, float | None: pl.Float64}
    return {
        column: numbers.get(hints[field.name], pl.String)
        for column, field in zip(columns_of(kind), fields(kind), strict=True)
    }


SCHEMA = schema_of(Result)


class ResultsError(RuntimeError):
    """Results cannot be written or read; the message names the file and the remedy."""


def new_run_id() -> str:
    """Names one run: when it began, and four random digits."""
    return f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


class Writer:
    """Writes `NAME.csv` row by row, each safe on disk before the next pass begins.

    Until the end the rows are in `NAME.partial.csv`: what an interrupted run has finished stays there, and the results
    of an earlier complete run stay in `NAME.csv`.
    """

    def __init__(self, path: Path, kind: type[DataclassInstance] = Result) -> None:
        self.path, self._columns = path, columns_of(kind)
        self._partial = path.with_suffix(".partial.csv")

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._partial.open("w", newline="", encoding="utf8")
        except OSError as error:
            raise ResultsError(f"cannot write {self._partial}: {error.strerror}; choose a writable OUT") from error
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(self._columns)
        return self

    def write(self, result: DataclassInstance) -> None:
        """Append one row and wait until it is on disk."""
        self._writer.writerow("" if value is None else value for value in asdict(result).values())
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            self._partial.replace(self.path)


def read(path: Path, kind: type[DataclassInstance] = Result) -> pl.DataFrame:
    """The rows of a results file; raises ResultsError when it is missing, damaged or has other columns."""
    if not path.exists():
        only = f" NOTEBOOKS='{path.stem[:2]}'" if path.stem[:2].isdigit() else ""
        raise ResultsError(f"{path} does not exist; run the notebook that writes it first (make all{only})")
    schema = schema_of(kind)
    try:
        frame = pl.read_csv(path, schema_overrides=schema)
    except (OSError, pl.exceptions.PolarsError) as error:
        told = str(error).strip().splitlines()[0]
        raise ResultsError(f"{path} cannot be read ({told}); run again the notebook that writes it") from error
    if frame.columns != [*schema]:
        raise ResultsError(
            f"{path} has other columns than this version writes; it is of another study, or older: run again"
        )
    if "status" in schema and frame["status"].null_count():
        raise ResultsError(f"{path} is cut off in the middle of a row; run again the notebook that writes it")
    return frame


def read_all(directory: Path) -> pl.DataFrame:
    """The rows of the complete results files of the four directions in a directory; studies beside them stay apart."""
    files = sorted(directory / f"{name}.csv" for name in DIRECTIONS if (directory / f"{name}.csv").exists())
    return pl.concat([pl.DataFrame(schema=SCHEMA), *map(read, files)])


def write_cells(path: Path, cells: Sequence[DataclassInstance]) -> None:
    """Write dataclasses of one kind as CSV, all at once: an interrupted run leaves the last complete file in place.

    Raises ResultsError when the file cannot be written.
    """
    partial = path.with_suffix(".partial.csv")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", newline="", encoding="utf8") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(cells[0])], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(cell) for cell in cells)
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}; choose a writable OUT") from error


def read_cells(path: Path) -> pl.DataFrame:
    """What `write_cells` wrote, all of it text; raises ResultsError when it is not there."""
    if not path.exists():
        raise ResultsError(f"{path} does not exist; run the notebook that writes it first (make all)")
    return pl.read_csv(path, infer_schema=False, empty_string_is_null=False)


def read_streams(directory: Path) -> pl.DataFrame:
    """The passes of the streamed moves of the scaling study; no rows when it was not run."""
    path = directory / f"{SCALING}.csv"
    return streams_among(read(path)) if path.exists() else pl.DataFrame(schema=SCHEMA)


def streams_among(growth: pl.DataFrame) -> pl.DataFrame:
    """Of the passes of the scaling study, those of the streamed moves."""
    return growth.filter(pl.col("technique").str.starts_with("stream_"), status="ok")


def write_environment(path: Path, facts: dict[str, Any]) -> None:
    """Record where and with what a run was made, as sorted, indented JSON."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf8")
    fresh.replace(path)


def read_facts(directory: Path) -> dict[str, Any]:
    """The content of `environment.json`; empty runs when there is none, ResultsError when it is damaged."""
    path = directory / "environment.json"
    if not path.exists():
        return {"runs": {}}
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ResultsError(f"{path} cannot be read ({error}); delete it and run again") from error
    return facts


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per technique of a database and direction, fastest first, those without a time last.

    Adds passes, avg_s, mean, min, max and median rows/s, variation (coefficient of, over passes), unstable, and the
    ratio of medians to the fastest published technique with its bootstrap 95% interval.
    """
    timed = statistics(passes)
    ratios = _ratios(passes, timed)
    return timed.join(ratios, on=NAMES, how="left").sort(
        ["database", "direction", "median_rows_per_s"],
        descending=[True, True, True],
        nulls_last=True,
        maintain_order=True,
    )


def statistics(passes: pl.DataFrame, names: Sequence[str] = NAMES) -> pl.DataFrame:
    """One row per technique, or whatever else `names` tells apart, in order of appearance.

    Adds what `summary` adds, but for the ratio. A technique that ever failed has no speed.
    """
    failed = passes.group_by(names).agg((pl.col("status") == "failed").any().alias("any_failed"))
    ok = pl.col("status") == "ok"
    timed = passes.group_by([*names, "label", "origin", "family", "driver", "frame"], maintain_order=True).agg(
        *(pl.col(name).first() for name in ("rows",) if name not in names),
        ok.sum().alias("passes"),
        pl.col("seconds").filter(ok).mean().alias("avg_s"),
        pl.col("rows_per_s").filter(ok).mean().alias("mean_rows_per_s"),
        pl.col("rows_per_s").filter(ok).min().alias("min_rows_per_s"),
        pl.col("rows_per_s").filter(ok).max().alias("max_rows_per_s"),
        pl.col("rows_per_s").filter(ok).median().alias("median_rows_per_s"),
        (pl.col("rows_per_s").filter(ok).std() / pl.col("rows_per_s").filter(ok).mean()).alias("variation"),
        *(
            pl.col(name).filter(ok).median()
            for name in ("client_cpu_s", "server_cpu_s", "peak_rss_bytes", "wire_bytes")
        ),
        pl.col("dtypes").filter(ok).first(),
        pl.col("status").filter(pl.col("status") != "ok").first().fill_null("ok"),
        pl.col("reason").drop_nulls().first(),
    )
    return timed.join(failed, on=names).with_columns(
        # A technique that was ever wrong is not fast.
        pl.when("any_failed").then(pl.lit("failed")).otherwise("status").alias("status"),
        (pl.col("variation") > UNSTABLE_VARIATION).fill_null(False).alias("unstable"),
        *(pl.when("any_failed").then(None).otherwise(pl.col(name)).alias(name) for name in timed.columns
          if name.endswith("rows_per_s") or name == "avg_s"),
    ).drop("any_failed")  # fmt: skip


def _ratios(passes: pl.DataFrame, timed: pl.DataFrame) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for (database, direction), group in timed.group_by("database", "direction", maintain_order=True):
        base = group.filter((pl.col("origin") == "published") & pl.col("median_rows_per_s").is_not_null())
        if base.is_empty():
            continue
        best = base.sort("median_rows_per_s", descending=True)["technique"][0]
        here = passes.filter(database=database, direction=direction, status="ok")
        speeds = {str(name): part.sort("pass") for (name,), part in here.group_by("technique")}
        for name in group.filter(pl.col("median_rows_per_s").is_not_null())["technique"]:
            ratio, low, high = ratio_with_interval(speeds[name], speeds[best])
            rows.append(
                {"database": database, "direction": direction, "technique": name,
                 "ratio": ratio, "ratio_low": low, "ratio_high": high}
            )  # fmt: skip
    columns = {"database": pl.String, "direction": pl.String, "technique": pl.String,
               "ratio": pl.Float64, "ratio_low": pl.Float64, "ratio_high": pl.Float64}  # fmt: skip
    return pl.DataFrame(rows, schema=columns)


def ratio_with_interval(left: pl.DataFrame, right: pl.DataFrame, resamples: int = 2_000) -> tuple[float, float, float]:
    """Ratio of median rows/s of two techniques of one run, and its bootstrap 95% interval.

    Rounds are resampled, not passes: within a round both ran on the machine in the same state. With three rounds the
    interval is about as wide as their spread, and says no more than that.
    """
    pairs = left.select("pass", "rows_per_s").join(right.select("pass", "rows_per_s"), on="pass")
    a, b = pairs["rows_per_s"].to_numpy(), pairs["rows_per_s_right"].to_numpy()
    if not len(pairs):
        nothing = float("nan")
        return nothing, nothing, nothing
    rounds = np.random.default_rng(0).integers(0, len(a), (resamples, len(a)))
    ratios = np.median(a[rounds], axis=1) / np.median(b[rounds], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(a) / np.median(b)), float(low), float(high)


def unpaired_ratio(
    left: NDArray[np.float64], right: NDArray[np.float64], noise: float, level: float, resamples: int = 2_000
) -> tuple[float, float, float]:
    """Ratio of the medians of rows/s of passes from two runs, left over right, and its bootstrap interval.

    Rounds of two runs have nothing in common, so each side is resampled by itself. Resampling a few passes alone never
    leaves their range, whatever the level, and takes passes that agree by chance for certainty: every resampled pass is
    therefore moved by normal noise (a smoothed bootstrap, Efron 1979, https://doi.org/10.1214/aos/1176344552), whose
    standard deviation on the logarithm of rows/s is `noise`. The interval is the normal one with the bootstrap's
    standard error, again on logarithms: levels far out in the tails would need resamples by the hundred thousand.
    """
    random = np.random.default_rng(0)

    def medians(passes: NDArray[np.float64]) -> NDArray[np.float64]:
        size = resamples, len(passes)
        drawn = np.log(passes)[random.integers(0, len(passes), size)] + noise * random.standard_normal(size)
        return np.asarray(np.median(drawn, axis=1))

    ratio = float(np.median(left) / np.median(right))
    reach = NormalDist().inv_cdf((1 + level) / 2) * float(np.std(medians(left) - medians(right)))
    return ratio, ratio * math.exp(-reach), ratio * math.exp(reach)
