"""One row per technique and pass: written as passes end, read back typed, summarised when rendering."""

from __future__ import annotations

import csv
import datetime as dt
import fcntl
import hashlib
import io
import json
import os
import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_type_hints

import polars as pl

from framehaul.errors import ResultsError
from framehaul.settings import PROJECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import DataclassInstance

Status = Literal["ok", "skipped", "failed"]
EXACT = "exact"
"""Of dtypes, that they are those that were sent."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One pass of one technique; a missing number is None, never 0. The fields are the columns of the file.

    Those without a default say which pass it is; that holds for the rows of every study.
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
    """`append`, `bulk_load`, `replace` or `upsert`; of a write."""
    client_system_s: float | None = None
    """Of `client_cpu_s`, what the kernel took."""
    minor_faults: int | None = None
    """Pages of memory that the kernel had to give the client."""
    other_cpu_s: float | None = None
    """CPU of neither client nor server, while the pass ran."""
    profile_events: str | None = None
    """What ClickHouse counted meanwhile, as JSON, where that was asked for."""


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


def optional_of(kind: type[DataclassInstance]) -> set[str]:
    """Its columns that are empty unless something else is given."""
    return {column for column, field in zip(columns_of(kind), fields(kind), strict=True) if field.default is None}


SCHEMA = schema_of(Result)


def new_run_id() -> str:
    """Names one run: when it began, and four random digits."""
    return f"{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def identifying(kind: type[DataclassInstance]) -> list[str]:
    """The fields that say which pass a row is about: those without a default, but for the run."""
    return [one.name for one in fields(kind) if one.default is MISSING and one.name != "run_id"]


def identity(row: DataclassInstance) -> tuple[str, ...]:
    """Which pass a row is about, as text."""
    values = (getattr(row, name) for name in identifying(type(row)))
    return tuple("" if value is None else str(value) for value in values)


class Writer:
    """Writes `NAME.csv` row by row, each safe on disk before the next pass begins.

    Until the end the rows are in `NAME.partial.csv`, and in `NAME.partial.terms` a digest of what they were made with:
    what an interrupted run has finished stays there, for one of the same `terms` to go on from, and the results of an
    earlier complete run stay in `NAME.csv`.

    Nothing of such a run is taken where it is to be `fresh`.

    With an `order` the complete file is sorted by it, which gets a row as text. Such rows come by the thousand: they
    outlast the end of the process, not of the machine.
    """

    def __init__(
        self, path: Path, kind: type[DataclassInstance] = Result, terms: Mapping[str, Any] | None = None,
        order: Callable[[list[str]], int] | None = None, *, fresh: bool = False,
    ) -> None:  # fmt: skip
        self._fresh = fresh
        self.path, self._kind, self._columns, self._order = path, kind, columns_of(kind), order
        self._partial, self._terms_file = path.with_suffix(".partial.csv"), path.with_suffix(".partial.terms")
        text = json.dumps(terms, sort_keys=True, default=str)
        self._terms = None if terms is None else hashlib.sha256(text.encode()).hexdigest()  # there may be secrets in it
        self.run_id = new_run_id()
        self.finished: set[tuple[str, ...]] = set()
        """The passes that are there, those of an interrupted run on the same terms among them, by their `identity`."""

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                self._file = stack.enter_context(self._partial.open("a+", newline="", encoding="utf8"))
                left = self._begin()
                stack.pop_all()  # from here on it is for the end of the block
        except BlockingIOError:
            raise ResultsError(
                f"{self._partial} is being written by another run; wait for it, or choose another OUT"
            ) from None
        except OSError as error:
            raise ResultsError(f"cannot write {self._partial}: {error.strerror}; choose a writable OUT") from error
        names = [one.name for one in fields(self._kind)]
        which = [names.index(name) for name in identifying(self._kind)]
        self.finished = {tuple(row[at] for at in which) for row in left}
        if left and "run_id" in self._columns:
            self.run_id = left[0][self._columns.index("run_id")]
        return self

    def _begin(self) -> list[list[str]]:
        """Nobody else writes from here on. The rows that are left, or none, under the terms of this run."""
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = [] if self._fresh else self._left()
        self._writer = csv.writer(self._file, lineterminator="\n")
        if not left:  # what is there goes before the terms do, so that it never stands under those of another run
            self._file.truncate(0)
            self._writer.writerow(self._columns)
            self._file.flush()
            if self._terms is not None:
                terms = self._terms_file.with_suffix(".new")
                terms.write_text(self._terms, "utf8")
                terms.replace(self._terms_file)
        return left

    def _left(self) -> list[list[str]]:
        """The rows that a run on the same terms has left; the piece of one behind them is removed.

        So are failures at the end: when a run is killed its servers may end before it, and what was under way fails.
        """
        if self._terms is None or not self._terms_file.exists():
            return []
        if self._terms_file.read_text("utf8", errors="replace") != self._terms:
            return []
        content = self._partial.read_bytes()
        for part in (content, content[: content.rfind(b"\n") + 1]):
            try:
                whole = part.decode()
            except UnicodeDecodeError:
                continue
            if rows := self._rows_in(whole):
                kept = max((at for at, row in enumerate(rows, 1) if not self._failed(row)), default=0)
                failures = io.StringIO(newline="")
                csv.writer(failures, lineterminator="\n").writerows(rows[kept:])
                self._file.truncate(len(whole.removesuffix(failures.getvalue()).encode()))
                return rows[:kept]
        return []

    def _failed(self, row: list[str]) -> bool:
        return "status" in self._columns and row[self._columns.index("status")] == "failed"

    def _rows_in(self, text: str) -> list[list[str]]:
        """The rows of a file's text; none when one is not whole, or it is of another kind."""
        header, *rows = [*csv.reader(io.StringIO(text, newline=""))] or [[]]
        whole = text.endswith("\n") and header == self._columns and all(len(row) == len(header) for row in rows)
        return rows if whole else []

    def write(self, result: DataclassInstance) -> None:
        """Append one row and, where rows keep their order, wait until it is on disk."""
        self._writer.writerow("" if value is None else value for value in asdict(result).values())
        self.finished.add(identity(result))
        self._file.flush()
        if self._order is None:
            os.fsync(self._file.fileno())

    def read(self) -> pl.DataFrame:
        """The rows there are so far, as `read` gives them."""
        return read(self._partial, self._kind)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            if self._order is not None:
                rows = sorted(self._rows_in(self._partial.read_bytes().decode()), key=self._order)
                fresh = self._partial.with_suffix(".new")
                with fresh.open("w", newline="", encoding="utf8") as file:
                    csv.writer(file, lineterminator="\n").writerows([self._columns, *rows])
                fresh.replace(self._partial)
            self._partial.replace(self.path)
            self._terms_file.unlink(missing_ok=True)


def read(path: Path, kind: type[DataclassInstance] = Result) -> pl.DataFrame:
    """The rows of a results file; raises ResultsError when it is missing, damaged or has other columns.

    Columns that rows of this kind have been given since, at their end and with None as a default, are empty in older
    files.
    """
    if not path.exists():
        only = f" NOTEBOOKS={path.stem}" if kind is Result else ""
        raise ResultsError(f"{path} does not exist; run the notebook that writes it first (make all{only})")
    schema = schema_of(kind)
    try:
        frame = pl.read_csv(path, schema_overrides=schema)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ResultsError(f"{path} cannot be read ({reason}); run again the notebook that writes it") from error
    lacking = [*schema][len(frame.columns) :]
    if [*frame.columns, *lacking] != [*schema] or not optional_of(kind).issuperset(lacking):
        raise ResultsError(
            f"{path} has other columns than this version writes; it is of another study, or older: run again"
        )
    if "status" in schema and frame["status"].null_count():
        raise ResultsError(f"{path} is cut off in the middle of a row; run again the notebook that writes it")
    return frame.with_columns(pl.lit(None, schema[column]).alias(column) for column in lacking)


def write_frame(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame as CSV, all at once: before, the last one stays there.

    Raises ResultsError when the file cannot be written.
    """
    partial = path.with_suffix(".partial.csv")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.write_csv(partial)
        partial.replace(path)
    except OSError as error:
        raise ResultsError(f"cannot write {path}: {error.strerror}; choose a writable OUT") from error


def read_frame(path: Path) -> pl.DataFrame:
    """Read what `write_frame` wrote; raises ResultsError when it is not there."""
    return pl.read_csv(_there(path))


def read_cells(path: Path) -> pl.DataFrame:
    """Read the cells of a study of outcomes, all of it text; raises ResultsError when they are not there."""
    return pl.read_csv(_there(path), infer_schema=False, empty_string_is_null=False)


def _there(path: Path) -> Path:
    if not path.exists():
        raise ResultsError(f"{path} does not exist; run the notebook that writes it first (make all)")
    return path


def code_digest() -> str:
    """Of the library as it stands, with its tables: passes of other code are not continued."""
    files = sorted(path for kind in ("*.py", "*.tsv") for path in (PROJECT / "lib").rglob(kind))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def write_run(directory: Path, metadata: dict[str, Any], notebook: str, run: dict[str, Any]) -> None:
    """Record in `environment.json` where and with what a run was made, beside those of other notebooks.

    As sorted, indented JSON, by one process at a time. Raises ResultsError when what is there is damaged.
    """
    with one_at_a_time(directory):
        runs = read_metadata(directory)["runs"] | {notebook: run}
        fresh = directory / "environment.new"
        fresh.write_text(json.dumps({**metadata, "runs": runs}, indent=2, sort_keys=True) + "\n", encoding="utf8")
        fresh.replace(directory / "environment.json")


def amend_run(directory: Path, notebook: str, more: dict[str, Any]) -> None:
    """Add to what `environment.json` says of the last run of a notebook."""
    metadata = read_metadata(directory)
    if run := metadata["runs"].get(notebook):
        write_run(directory, metadata, notebook, run | more)


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """No other process changes results there while the block lasts."""
    directory.mkdir(parents=True, exist_ok=True)
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def read_metadata(directory: Path) -> dict[str, Any]:
    """The content of `environment.json`; empty runs when there is none, ResultsError when it is damaged."""
    path = directory / "environment.json"
    if not path.exists():
        return {"runs": {}}
    try:
        metadata: dict[str, Any] = json.loads(path.read_text(encoding="utf8"))
    except ValueError as error:
        raise ResultsError(f"{path} cannot be read ({error}); delete it and run again") from error
    return metadata
