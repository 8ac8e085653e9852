"""Conversions of JSON lines to Parquet, each in a process of its own and compared with the table it came from."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench.meter import children_cpu_s
from framehaul.bench.passes import last_line
from framehaul.bench.store import EXACT, Status
from framehaul.errors import WrongResultError
from framehaul.settings import PROJECT
from framehaul.studies.json_parquet.catalog import Converter
from framehaul.studies.parquet import files as parquet_files
from framehaul.studies.warehouse import buildings

FEW_ROWS = 10
"""A tool for Python converts as many lines before it is measured."""
START_SECONDS = 120
"""How long a process may take to start, on top of its conversion."""
SLOWEST_ROWS_PER_S = 1_000
"""A tool that is slower is given up."""


@dataclass(frozen=True)
class Conversion:
    """One pass of one tool and codec: a row of the study's file. A missing number is None, never 0.

    `types` is `exact`, or the columns that came out as another type; `row_order` is `kept` or `changed`.
    `peak_rss_bytes` is missing for a program of its own.
    """

    run_id: str
    converter: str
    label: str
    codec: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    cores_used: float | None = None
    peak_rss_bytes: int | None = None
    output_bytes: int | None = None
    row_groups: int | None = None
    types: str | None = None
    row_order: str | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """A tool and a codec."""

    converter: Converter
    codec: str


@dataclass(frozen=True)
class Files:
    """The lines that are converted, the first few of them, and the table that must come out."""

    directory: Path
    lines: Path
    few_lines: Path
    expected: pa.Table


@contextmanager
def written(rows: int, seed: int) -> Iterator[Files]:
    """Write the table as JSON lines into a temporary directory, for as long as the block lasts.

    A line is one object: dates as `2026-11-21`, what is missing as null.
    """
    with tempfile.TemporaryDirectory(prefix="framehaul-json-", ignore_cleanup_errors=True) as name:
        directory, expected = Path(name).resolve(), buildings.table(rows, seed)
        files = Files(directory, directory / "lines.jsonl", directory / "few.jsonl", expected)
        frame = pl.from_arrow(expected)
        assert isinstance(frame, pl.DataFrame)
        frame.write_ndjson(files.lines)
        frame.head(FEW_ROWS).write_ndjson(files.few_lines)
        yield files


def measured(task: Task, command: list[str], files: Files) -> dict[str, Any]:
    """Convert all lines in a fresh process, and compare what came out.

    Raises WrongResultError when the tool fails or takes too long, and when what came out is wrong.
    """
    target = files.directory / f"{task.converter.name}-{task.codec}.parquet"
    paths = [str(files.lines), str(target)]
    arguments = ["--compression", task.codec, *paths] if task.converter.program else [*paths, task.codec]
    try:
        values = _converted([*command, *arguments], files, program=task.converter.program)
        wrong, row_order = difference(target, files.expected, task.codec)
        if wrong:
            raise WrongResultError(wrong)
        return values | {
            "rows_per_s": files.expected.num_rows / values["seconds"],
            "cores_used": values["client_cpu_s"] / values["seconds"],
            "output_bytes": target.stat().st_size,
            "row_groups": pq.read_metadata(target).num_row_groups,
            "types": types_text(pq.read_schema(target)),
            "row_order": row_order,
        }
    finally:
        target.unlink(missing_ok=True)


def _converted(command: list[str], files: Files, *, program: bool) -> dict[str, Any]:
    """What a conversion took: a tool for Python prints it, a program is timed from its start to its end."""
    patience = START_SECONDS + files.expected.num_rows / SLOWEST_ROWS_PER_S
    before, start = children_cpu_s(), time.perf_counter()
    try:
        done = subprocess.run(
            command if program else [*command, str(files.few_lines)],
            cwd=PROJECT,
            env=os.environ | {"TMPDIR": str(files.directory)},  # chDB keeps files where temporary ones go
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=patience,
        )
    except subprocess.TimeoutExpired:
        raise WrongResultError(f"it did not end within {patience:.0f} s") from None
    taken = {"seconds": time.perf_counter() - start, "client_cpu_s": children_cpu_s() - before}
    if done.returncode:
        said = last_line(done.stderr.decode(errors="replace"), f"it ended with status {done.returncode} without a word")
        raise WrongResultError(said[:400])
    if program:
        return taken
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        raise WrongResultError("it did not print what the conversion took") from None


def difference(path: Path, expected: pa.Table, codec: str) -> tuple[str | None, str]:
    """What is wrong with a Parquet file, if anything, and what became of row order: `kept`, or `changed`.

    Another type is no difference as long as it holds the same values: a date as text or as a time, a wider integer.
    """
    if not path.exists():
        return "no file was written", ""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata, received = file.metadata, file.read()
            received.validate(full=True)
    except Exception as error:  # noqa: BLE001  of damaged bytes also UnicodeDecodeError, MemoryError, KeyError ...
        return f"the file cannot be read: {' '.join(str(error).split())[:300] or type(error).__name__}", ""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    codecs = {group.column(at).compression for group in groups for at in range(metadata.num_columns)}
    if codecs != {codec.upper()}:
        return f"compressed with {', '.join(sorted(codecs))} instead of {codec.upper()}", ""
    wrong, _, row_order = parquet_files.difference(received, expected)
    return wrong, row_order


def types_text(schema: pa.Schema) -> str:
    """`exact`, or the columns with another type than the table's, as `from_date:string;to_date:string`."""
    # How long a text may be is Arrow's affair, not the file's.
    texts = (pa.large_string(), pa.string_view())
    types = {field.name: pa.string() if field.type in texts else field.type for field in schema}
    drifted = [f"{field.name}:{types[field.name]}" for field in buildings.SCHEMA if types[field.name] != field.type]
    return ";".join(drifted) or EXACT
