"""Results files: one row per task and pass, written as passes end, and read back typed."""

from __future__ import annotations

import csv
import datetime as dt
import fcntl
import hashlib
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, MISSING, Field, dataclass, fields
from itertools import compress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, cast, get_type_hints

import polars as pl

from framehaul.errors import ResultsError
from framehaul.settings import PROJECT

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Status = Literal["ok", "skipped", "failed"]
RUN, MACHINES = PROJECT / "results", PROJECT / "machines"
"""The committed reference run, which `make all` replaces, and runs of other machines, as `<name>/<date>/`."""
MADE_WITH = ("machine", "python", "libraries")
"""The parts of the metadata that runs must share to be comparable."""
EXACT = "exact"
"""The value of `dtypes` when all dtypes are the table's."""
type RowClass = type[DataclassInstance]
"""The dataclass of the rows of a results file."""
type Order = Callable[[list[Any]], int] | None


@dataclass(frozen=True)
class Row:
    """One pass of a study; a missing number is None, never 0.

    A study adds fields that identify the pass, without a default, and the measured fields.
    """

    run_id: str
    pass_: int
    _: KW_ONLY
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Timed(Row):
    """One pass of a study that has a speed."""

    seconds: float | None = None
    rows_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """One pass of one technique; a missing number is None, never 0. The fields are the columns of the file.

    Fields without a default identify the pass, in the rows of every study. `meter.Usage` describes the costs.
    """

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
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    wire_bytes: int | None = None
    dtypes: str | None = None
    status: Status = "ok"
    reason: str | None = None
    connections: int
    contract: str | None
    """The class of a write: `append`, `bulk_load`, `replace` or `upsert`."""
    client_system_s: float | None = None
    minor_faults: int | None = None


def schema_of(kind: RowClass) -> dict[str, type[pl.DataType]]:
    """Return the columns of a results file with rows of this class, and their types."""
    hints = get_type_hints(kind)
    numbers = {int: pl.Int64, int | None: pl.Int64, float: pl.Float64, float | None: pl.Float64}
    return {field.name.rstrip("_"): numbers.get(hints[field.name], pl.String) for field in _columns(kind)}


def _columns(kind: RowClass) -> list[Field[Any]]:
    """Return the fields of a row in the order of the file: a row that ends with its status is known to be whole."""
    return sorted(fields(kind), key=lambda one: one.kw_only is True)


SCHEMA = schema_of(Result)
CASE, BETWEEN_CASES = "case", "; "
"""The column that holds all cases of one outcome in a complete file, and what stands between them."""


@contextmanager
def writing(
    path: Path, kind: RowClass = Result, terms: Any = None, order: Order = None, *, fresh: bool = False
) -> Iterator[Writer]:
    """Write a results file `NAME.csv` row by row; raise ResultsError when that is not possible.

    Until the end the rows are JSON lines in `NAME.partial.jsonl`, after a digest of the run's terms. A run with the
    same `terms` continues them, unless it is `fresh`. An earlier complete `NAME.csv` stays until the end. With an
    `order`, which gets the values of a row, the complete file is sorted by it.
    """
    partial, text = path.with_suffix(".partial.jsonl"), json.dumps(terms, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()  # terms may have secrets
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = partial.open("a+", encoding="utf8")
    except OSError as error:
        raise ResultsError(f"cannot write {partial}: {error.strerror}; choose a writable OUT") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "wait for it, or choose another OUT"
            raise ResultsError(f"{partial} is being written by another run; {remedy}") from None
        left = [] if fresh else _left(partial, digest, [*schema_of(kind)])
        file.truncate(0)
        file.writelines(f"{line}\n" for line in (digest, *map(json.dumps, left)))
        writer = Writer(file, kind, left)
        yield writer
    put(path, writer.csv(order).encode())
    partial.unlink()


def _left(partial: Path, digest: str, columns: list[str]) -> list[list[Any]]:
    """Return the rows of an interrupted run with the same terms, without a row that was cut off.

    Failures at the end are left out: when a run is killed, its servers may end first, which fails the last pass.
    """
    first, *lines = partial.read_bytes().split(b"\n")[:-1] or [b""]
    try:
        rows = [json.loads(line) for line in lines] if first == digest.encode() else []
    except ValueError:  # it is damaged
        return []
    while rows and "status" in columns and rows[-1][columns.index("status")] == "failed":
        rows.pop()
    return rows


class Writer:
    """The rows of a results file in progress."""

    def __init__(self, file: IO[str], kind: RowClass, left: list[list[Any]]) -> None:
        self._file, self._schema, self._rows = file, schema_of(kind), left
        self._identifying = [one.default is MISSING and one.name != "run_id" for one in _columns(kind)]
        self.run_id = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        if left and "run_id" in self._schema:
            self.run_id = left[0][[*self._schema].index("run_id")]
        self.finished = set(map(self._identity, left))
        """The identity of every recorded pass of this run, and of the interrupted run that it continues."""

    def _identity(self, row: list[Any]) -> tuple[Any, ...]:
        """Return the fields that identify a pass: the fields without a default, except the run's."""
        return tuple(compress(row, self._identifying))

    def write(self, result: DataclassInstance) -> None:
        """Append one row."""
        row = _values(result)
        self._file.write(f"{json.dumps(row)}\n")
        self._file.flush()
        self._rows.append(row)
        self.finished.add(self._identity(row))

    def has(self, result: DataclassInstance) -> bool:
        """Return whether the pass of this row was recorded, by this run or an interrupted run."""
        return self._identity(_values(result)) in self.finished

    def csv(self, order: Order = None) -> str:
        """Return the rows written so far as CSV; with an `order` they are complete, and cases of one outcome a row."""
        text, rows = io.StringIO(newline=""), sorted(self._rows, key=order) if order else self._rows
        if order and CASE in self._schema:
            at, cases = [*self._schema].index(CASE), dict[tuple[Any, ...], list[str]]()
            for row in rows:
                cases.setdefault((*row[:at], *row[at + 1 :]), []).append(row[at])
            rows = [[*rest[:at], BETWEEN_CASES.join(some), *rest[at:]] for rest, some in cases.items()]
        csv.writer(text, lineterminator="\n").writerows([[*self._schema], *rows])
        return text.getvalue()

    def read(self) -> pl.DataFrame:
        """Return the rows written so far, as `read` does."""
        return pl.read_csv(self.csv().encode(), schema_overrides=self._schema)


def _values(row: DataclassInstance) -> list[Any]:
    """Return the values of a row as they are when they come back from JSON."""
    texts = json.dumps([getattr(row, one.name) for one in _columns(type(row))], default=str)
    values: list[Any] = json.loads(texts)
    return values


def put(path: Path, content: bytes) -> None:
    """Replace the content of a file atomically, because another process may read it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(content)
    fresh.replace(path)


def read(path: Path, kind: RowClass = Result) -> pl.DataFrame:
    """Return the rows of a results file; raise ResultsError when it is missing, damaged or has other columns."""
    schema = schema_of(kind)
    try:
        frame = pl.read_csv(existing(path), schema_overrides=schema)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ResultsError(f"{path} cannot be read ({reason}); run again the notebook that writes it") from error
    if {*frame.columns} != {*schema}:
        raise ResultsError(f"{path} has other columns than this version writes: another study, or older; run again")
    if "status" in schema and frame["status"].null_count():
        raise ResultsError(f"{path} is cut off in the middle of a row; run again the notebook that writes it")
    return frame.select(schema.keys())


def read_cells(path: Path) -> pl.DataFrame:
    """Return the cells of a study of outcomes, all of them text; raise ResultsError when the file is missing."""
    cells = pl.read_csv(existing(path), infer_schema=False, empty_string_is_null=False)
    if CASE not in cells.columns:
        return cells
    return cells.with_columns(pl.col(CASE).str.split(BETWEEN_CASES)).explode(CASE)


def existing(path: Path) -> Path:
    """Return the path of a results file; raise ResultsError, with the remedy, when it is missing."""
    if not path.exists():
        raise ResultsError(f"{path} does not exist; run the notebook that writes it first (make all)")
    return path


def code_digest() -> str:
    """Return a digest of the library's code and tables: a run does not continue passes of other code."""
    files = sorted(path for kind in ("*.py", "*.tsv", "*.csv") for path in (PROJECT / "lib").rglob(kind))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def write_run(directory: Path, metadata: dict[str, Any], notebook: str, run: dict[str, Any]) -> None:
    """Add the metadata of a run to `environment.json`; raise ResultsError when that file is damaged.

    The file is sorted, indented JSON. Earlier runs by another machine, or with other libraries, keep theirs, which
    `made_by` returns. Concurrent processes wait for each other.
    """
    directory.mkdir(parents=True, exist_ok=True)
    locked = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(locked, fcntl.LOCK_EX)
        before = read_metadata(directory)
        runs = before["runs"] | {notebook: run}
        others = {one["made_with"] for one in runs.values() if "made_with" in one} - {run.get("made_with")}
        maker = {part: before[part] for part in MADE_WITH if part in before}
        makers = {other: before.get("makers", {}).get(other, maker) for other in others}
        text = json.dumps({**metadata, "runs": runs, "makers": makers}, indent=2, sort_keys=True)
        put(directory / "environment.json", f"{text}\n".encode())
    finally:
        os.close(locked)


def made_by(metadata: Mapping[str, Any], run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata with the machine, Python, the libraries and the commit of this run."""
    commit = {"commit": run["commit"]} if "commit" in run else {}
    return {**metadata, **metadata.get("makers", {}).get(run.get("made_with"), {}), **commit}


def read_metadata(directory: Path) -> dict[str, Any]:
    """Return the content of `environment.json`; raise ResultsError when it is damaged. Without a file, no runs."""
    path = directory / "environment.json"
    if not path.exists():
        return {"runs": {}}
    try:
        return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf8")))
    except ValueError as error:
        raise ResultsError(f"{path} cannot be read ({error}); delete it and run again") from error
