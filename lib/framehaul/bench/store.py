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
from contextlib import ExitStack
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

import polars as pl

from framehaul.errors import ResultsError
from framehaul.settings import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from _typeshed import DataclassInstance

Status = Literal["ok", "skipped", "failed"]
MADE_WITH = ("machine", "python", "libraries")
"""The parts of the metadata that runs must share to be comparable."""
EXACT = "exact"
"""The value of `dtypes` when all dtypes are the table's."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One pass of one technique; a missing number is None, never 0. The fields are the columns of the file.

    Fields without a default identify the pass, in the rows of every study.
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
    """The part of `client_cpu_s` that the kernel used."""
    minor_faults: int | None = None
    """Pages of memory that the kernel gave the client."""
    other_cpu_s: float | None = None
    """CPU seconds of other processes during the pass."""
    profile_events: str | None = None
    """ClickHouse's event counts as JSON, where they were asked for."""


def columns_of(kind: type[DataclassInstance]) -> list[str]:
    """Return the columns of a results file with rows of this class."""
    return [field.name.rstrip("_") for field in fields(kind)]


def schema_of(kind: type[DataclassInstance]) -> dict[str, type[pl.DataType]]:
    """Return the columns of a results file with rows of this class, and their types."""
    hints = get_type_hints(kind)
    numbers = {int: pl.Int64, int | None: pl.Int64, float: pl.Float64, float | None: pl.Float64}
    return {field.name.rstrip("_"): numbers.get(hints[field.name], pl.String) for field in fields(kind)}


SCHEMA = schema_of(Result)


def identity(row: DataclassInstance) -> tuple[str, ...]:
    """Return the fields that identify a pass, as text: the fields without a default, except the run's."""
    return tuple("" if (value := getattr(row, name)) is None else str(value) for name in _identifying(type(row)))


def _identifying(kind: type[DataclassInstance]) -> list[str]:
    return [one.name for one in fields(kind) if one.default is MISSING and one.name != "run_id"]


class Writer:
    """A results file `NAME.csv` that is written row by row, each safe on disk before the next pass begins.

    Until the end the rows are in `NAME.partial.csv`, and a digest of the run's terms in `NAME.partial.terms`. A run
    with the same `terms` continues them, unless it is `fresh`. An earlier complete `NAME.csv` stays until the end.

    With an `order`, which gets a row as text, the complete file is sorted by it. Rows of such files come by the
    thousand and are not synced to disk one by one.
    """

    def __init__(
        self,
        path: Path,
        kind: type[DataclassInstance] = Result,
        terms: Mapping[str, Any] | None = None,
        order: Callable[[list[str]], int] | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self.path, self._kind, self._columns, self._order, self._fresh = path, kind, columns_of(kind), order, fresh
        self._partial, self._terms_file = path.with_suffix(".partial.csv"), path.with_suffix(".partial.terms")
        text = json.dumps(terms, sort_keys=True, default=str)
        self._terms = None if terms is None else hashlib.sha256(text.encode()).hexdigest()  # terms may have secrets
        self.run_id = f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        self.finished: set[tuple[str, ...]] = set()
        """The `identity` of every recorded pass of this run, and of the interrupted run that it continues."""

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                self._file = stack.enter_context(self._partial.open("a+", newline="", encoding="utf8"))
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left = self._left()
                if not left:
                    # The header comes before the terms: rows of another run are never in a file with these terms.
                    self._file.truncate(0)
                    self._file.write(_csv([self._columns]))
                    self._file.flush()
                    if self._terms is not None:
                        _replace(self._terms_file, self._terms)
                stack.pop_all()  # the file stays open until the end of the block
        except BlockingIOError:
            raise ResultsError(
                f"{self._partial} is being written by another run; wait for it, or choose another OUT"
            ) from None
        except OSError as error:
            raise ResultsError(f"cannot write {self._partial}: {error.strerror}; choose a writable OUT") from error
        names = [one.name for one in fields(self._kind)]
        which = [names.index(name) for name in _identifying(self._kind)]
        self.finished = {tuple(row[at] for at in which) for row in left}
        if left and "run_id" in self._columns:
            self.run_id = left[0][self._columns.index("run_id")]
        return self

    def _left(self) -> list[list[str]]:
        """Return the rows of an interrupted run with the same terms; remove a row that was cut off.

        Failures at the end are removed too: when a run is killed, its servers may end first, which fails the last pass.
        """
        if self._fresh or self._terms is None or not self._terms_file.exists():
            return []
        if self._terms_file.read_text("utf8", errors="replace") != self._terms:
            return []
        content = self._partial.read_bytes()
        rows = self._rows_in(content[: content.rfind(b"\n") + 1])
        while rows and "status" in self._columns and rows[-1][self._columns.index("status")] == "failed":
            rows.pop()
        if rows:
            self._file.truncate(len(_csv([self._columns, *rows]).encode()))
        return rows

    def _rows_in(self, content: bytes) -> list[list[str]]:
        """Return the rows of a file's content; none when one is not whole, or the columns differ."""
        try:
            header, *rows = csv.reader(io.StringIO(content.decode(), newline=""))
        except ValueError:  # the content is empty or not UTF-8
            return []
        return rows if header == self._columns and all(len(row) == len(header) for row in rows) else []

    def write(self, result: DataclassInstance) -> None:
        """Append one row and, without an `order`, wait until it is on disk."""
        self._file.write(_csv([["" if value is None else value for value in asdict(result).values()]]))
        self.finished.add(identity(result))
        self._file.flush()
        if self._order is None:
            os.fsync(self._file.fileno())

    def read(self) -> pl.DataFrame:
        """Return the rows written so far, as `read` does."""
        return read(self._partial, self._kind)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            if self._order is not None:
                rows = sorted(self._rows_in(self._partial.read_bytes()), key=self._order)
                _replace(self._partial, _csv([self._columns, *rows]))
            self._partial.replace(self.path)
            self._terms_file.unlink(missing_ok=True)


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _replace(path: Path, text: str) -> None:
    """Replace the content of a file atomically."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf8", newline="")
    fresh.replace(path)


def read(path: Path, kind: type[DataclassInstance] = Result) -> pl.DataFrame:
    """Return the rows of a results file; raise ResultsError when it is missing, damaged or has other columns.

    Older files may lack columns at the end; these are null if None is their default.
    """
    _check_exists(path, f" NOTEBOOKS={path.stem}" if kind is Result else "")
    schema = schema_of(kind)
    try:
        frame = pl.read_csv(path, schema_overrides=schema)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ResultsError(f"{path} cannot be read ({reason}); run again the notebook that writes it") from error
    lacking = [*schema][len(frame.columns) :]
    optional = {field.name for field in fields(kind) if field.default is None}
    if [*frame.columns, *lacking] != [*schema] or not optional.issuperset(lacking):
        raise ResultsError(
            f"{path} has other columns than this version writes; it is of another study, or older: run again"
        )
    if "status" in schema and frame["status"].null_count():
        raise ResultsError(f"{path} is cut off in the middle of a row; run again the notebook that writes it")
    return frame.with_columns(pl.lit(None, schema[column]).alias(column) for column in lacking)


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame as a CSV file, whose directory exists."""
    _replace(path, frame.write_csv())


def read_frame(path: Path) -> pl.DataFrame:
    """Return what `write_frame` wrote; raise ResultsError when the file is missing."""
    _check_exists(path)
    return pl.read_csv(path)


def read_cells(path: Path) -> pl.DataFrame:
    """Return the cells of a study of outcomes, all of them text; raise ResultsError when the file is missing."""
    _check_exists(path)
    return pl.read_csv(path, infer_schema=False, empty_string_is_null=False)


def _check_exists(path: Path, option: str = "") -> None:
    if not path.exists():
        raise ResultsError(f"{path} does not exist; run the notebook that writes it first (make all{option})")


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
        _replace(directory / "environment.json", f"{text}\n")
    finally:
        os.close(locked)


def made_by(metadata: Mapping[str, Any], run: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata with the machine, Python, the libraries and the commit of this run."""
    commit = {"commit": run["commit"]} if "commit" in run else {}
    return {**metadata, **metadata.get("makers", {}).get(run.get("made_with"), {}), **commit}


def amend_run(directory: Path, notebook: str, more: dict[str, Any]) -> None:
    """Add to the metadata of the last run of a notebook in `environment.json`."""
    metadata = read_metadata(directory)
    if run := metadata["runs"].get(notebook):
        write_run(directory, metadata, notebook, run | more)


def read_metadata(directory: Path) -> dict[str, Any]:
    """Return the content of `environment.json`; raise ResultsError when it is damaged. Without a file, no runs."""
    path = directory / "environment.json"
    if not path.exists():
        return {"runs": {}}
    try:
        metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ResultsError(f"{path} cannot be read ({error}); delete it and run again") from error
    return metadata
