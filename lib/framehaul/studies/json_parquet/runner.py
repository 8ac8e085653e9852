"""Rounds over the tools that convert JSON lines to Parquet: every output is compared with the table it came from."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.data.equality import content_of, first_difference, other_shape
from framehaul.data.schema import columns_in
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.harness import meter
from framehaul.harness.passes import Ok, Pass
from framehaul.harness.rounds import Rounds, in_rounds, never, nothing
from framehaul.results.store import Status
from framehaul.studies.drivers import catalog
from framehaul.studies.drivers.catalog import Commands, ProgramError, opened, parsed, started
from framehaul.studies.json_parquet.catalog import Converter, arguments_of
from framehaul.studies.parquet import files
from framehaul.studies.warehouse import buildings

FEW_ROWS = 10
"""As many lines as the article looked at through strace; a tool for Python converts them before it is measured."""
SLOWEST_ROWS_PER_S = 1_000
"""A tool that is slower is given up."""
PRINTED_BYTES = 1 << 16
"""How much of the end of what a program printed is looked at."""
TIMES: dict[str, type] = {"seconds": float, "cpu_seconds": float}
"""The fields of the answer to a conversion."""
LOOK_SECONDS = 0.002
"""How often the memory of a program is looked at that may end at any time."""


@dataclass(frozen=True)
class Conversion:
    """One pass of one tool and codec: a row of the study's file. A missing number is None, never 0.

    `types` is `exact`, or the columns that came out as another type; `row_order` says whether rows came out where they
    were (`kept`, `changed`); `write_calls` and `write_calls_few_rows` were counted once, apart from the passes, and
    `write_calls_reason` says why they are missing.
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
    write_calls: int | None = None
    write_calls_few_rows: int | None = None
    write_calls_reason: str | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """A tool and a codec."""

    converter: Converter
    codec: str


@dataclass(frozen=True)
class Files:
    """What is converted: all lines, the first few of them, and the table that must come out, on disk."""

    directory: Path
    lines: Path
    few_lines: Path
    expected: pa.Table

    def target(self, task: Task, which: str) -> Path:
        """Where a tool writes."""
        return self.directory / f"{which}-{task.converter.name}-{task.codec}.parquet"


@contextmanager
def written(rows: int, seed: int) -> Iterator[Files]:
    """The table as JSON lines in a temporary directory, for as long as the block lasts; made batch by batch."""
    with tempfile.TemporaryDirectory(prefix="framehaul-json-") as name:
        directory = Path(name).resolve()
        table, lines, few_lines = (directory / name for name in ("table.arrow", "lines.jsonl", "few.jsonl"))
        with pa.OSFile(str(table), "wb") as sink, pa.ipc.new_file(sink, buildings.SCHEMA) as writer:
            write_lines(buildings.batches(rows, seed), lines, writer.write_batch)
        write_lines((batch.slice(0, FEW_ROWS) for batch in buildings.batches(min(rows, FEW_ROWS), seed)), few_lines)
        with pa.memory_map(str(table)) as mapped:
            yield Files(directory, lines, few_lines, pa.ipc.open_file(mapped).read_all())


def write_lines(
    batches: Iterator[pa.RecordBatch], path: Path, also: Callable[[pa.RecordBatch], object] = lambda _: None
) -> None:
    """Write one object per row, in rows' order: dates as `2026-11-21`, what is missing as null."""
    with path.open("wb") as file:
        for batch in batches:
            also(batch)
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            frame.write_ndjson(file)


def convert_in_rounds(
    tasks: Sequence[Task], files: Files, commands: Commands, rounds: Rounds,
    record: Callable[[Task, int, Pass[dict[str, Any]]], None], *, stop: threading.Event | None = None,
    progress: Callable[[str], object] = nothing, finished: Callable[[Task, int], bool] = never,
) -> None:  # fmt: skip
    """Run every task in each round; `stop`, `record` and `finished` are those of `in_rounds`.

    Before the first round the system calls of each task are counted.
    """
    calls: dict[Task, dict[str, Any]] = {}

    def done(task: Task, work: Callable[[Task, list[str], Files], dict[str, Any]]) -> dict[str, Any]:
        return work(task, commands.of(task.converter.name, task.converter.command), files)

    def keep_calls(task: Task, _: int, counted: Pass[dict[str, Any]]) -> None:
        calls[task] = counted.values if isinstance(counted, Ok) else {"write_calls_reason": counted.reason}

    # What is neither the tool's failure nor its absence ends the run.
    in_rounds(
        tasks, Rounds(1, seed=rounds.seed), lambda task, _: done(task, write_calls), keep_calls,
        progress=lambda task, _: progress(f"{task.converter.name} {task.codec}: system calls"),
        finished=lambda task, _: finished(task, rounds.passes), stop=stop, home=files.directory, failures=(),
    )  # fmt: skip
    in_rounds(
        tasks, rounds, lambda task, _: done(task, measured) | calls[task], record,
        progress=lambda task, number: progress(f"{task.converter.name} {task.codec}: pass {number}"),
        finished=finished, stop=stop, home=files.directory, failures=(),
    )  # fmt: skip


def measured(task: Task, command: list[str], files: Files) -> dict[str, Any]:
    """Convert all lines in a fresh process, and compare what came out.

    Raises ProgramError when the tool fails, WrongResultError when what came out is wrong.
    """
    target = files.target(task, "all")
    try:
        values = (_run_program if task.converter.program else _run_python)(task, command, files, target)
        wrong, row_order = difference(target, files.expected, task.codec)
        if wrong:
            raise WrongResultError(wrong)
        return values | {
            "rows_per_s": files.expected.num_rows / values["seconds"],
            "cores_used": values["client_cpu_s"] / values["seconds"],
            "output_bytes": target.stat().st_size, "row_groups": pq.read_metadata(target).num_row_groups,
            "types": types_text(pq.read_schema(target)), "row_order": row_order,
        }  # fmt: skip
    finally:
        target.unlink(missing_ok=True)


def _run_python(task: Task, command: list[str], files: Files, target: Path) -> dict[str, Any]:
    """Imports, thread pools and whatever else comes first are left out: a few lines are converted before."""
    few = files.target(task, "few")
    try:
        with started(command) as running:
            running.ask(_request(files.few_lines, few, task), TIMES)
            # The process is this pass's alone, and nothing in it is given back: to set a mark costs its time nothing.
            resident = meter.reset_peak_rss(running.process_id)
            patience = {"seconds": files.expected.num_rows / SLOWEST_ROWS_PER_S}
            answer = running.ask(_request(files.lines, target, task) | patience, TIMES)
            if not answer["seconds"]:
                raise ProgramError("it says that it took no time")
            peak_growth = meter.peak_rss_growth(resident, running.process_id)
    finally:
        few.unlink(missing_ok=True)
    return {"seconds": answer["seconds"], "client_cpu_s": answer["cpu_seconds"], "peak_rss_bytes": peak_growth}


def _run_program(task: Task, command: list[str], files: Files, target: Path) -> dict[str, Any]:
    """The process from its start to its end, which takes a few milliseconds more than its work."""
    patience, peak = _patience(files), None
    whole = [*command, *arguments_of(files.lines, target, task.codec)]
    with tempfile.TemporaryFile() as printed:
        start = time.perf_counter()
        with opened(whole, stdin=subprocess.DEVNULL, stdout=printed, stderr=printed) as process:
            # The kernel's peak at the end counts what this process had when it forked: it is looked at until then.
            with os.fdopen(os.pidfd_open(process.pid), "rb", 0) as end:
                while not select.select([end], [], [], LOOK_SECONDS)[0]:
                    peak = meter.peak_rss_bytes(process.pid) or peak
                    if time.perf_counter() - start > patience:
                        process.kill()
            seconds = time.perf_counter() - start
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if seconds > patience:
            raise ProgramError(f"it did not end within {patience:.0f} s")
        if process.returncode:
            printed.seek(max(0, printed.seek(0, os.SEEK_END) - PRINTED_BYTES))
            text = " ".join(printed.read().decode(errors="replace").split())
            raise ProgramError(text[-400:] or f"the program ended with status {process.returncode} without a word")
    return {"seconds": seconds, "client_cpu_s": usage.ru_utime + usage.ru_stime, "peak_rss_bytes": peak}


def _patience(files: Files) -> float:
    rows: int = files.expected.num_rows
    return catalog.PATIENCE_SECONDS + rows / SLOWEST_ROWS_PER_S


def _request(source: Path, target: Path, task: Task) -> dict[str, Any]:
    return {"source": str(source), "target": str(target), "codec": task.codec}


def write_calls(task: Task, command: list[str], files: Files) -> dict[str, Any]:
    """How often the tool asked the system to write into its output, for all rows and for a few.

    Counted by https://strace.io, which slows a process down: this is no pass. What is mapped into memory is not seen.
    Raises UnavailableError without strace, ProgramError when the tool fails, maybe under strace alone.
    """
    if shutil.which("strace") is None:
        raise UnavailableError("there is no strace on PATH: install it (https://strace.io), and run again")
    few, target = files.target(task, "few"), files.target(task, "all")
    pairs = ((files.few_lines, few), (files.lines, target))
    try:
        if task.converter.program:
            logs = [_traced([*command, *arguments_of(*pair, task.codec)], b"", files, (few, target)) for pair in pairs]
        else:
            requests = b"".join(json.dumps(_request(*pair, task)).encode() + b"\n" for pair in pairs)
            logs = [_traced(command, requests, files, (few, target))]
    finally:
        few.unlink(missing_ok=True)
        target.unlink(missing_ok=True)
    log = "".join(logs)
    return {"write_calls": log.count(f"<{target}>"), "write_calls_few_rows": log.count(f"<{few}>")}


def _traced(command: list[str], requests: bytes, files: Files, targets: tuple[Path, Path]) -> str:
    """The calls that write into `targets`, a line each that names the file once."""
    log = files.directory / "strace.log"
    only = [argument for target in targets for argument in ("-P", str(target))]
    # Without --seccomp-bpf every call of any kind stops the process, not only these.
    strace = ["strace", "-f", "--seccomp-bpf", "-y", "-qq", "-e", "signal=none", "-e",
              "trace=write,pwrite64,writev,pwritev,?pwritev2", *only, "-o", str(log)]  # fmt: skip
    try:
        with opened(
            [*strace, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        ) as process:  # fmt: skip
            try:
                answers, errors = process.communicate(requests, _patience(files))
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)  # the tool would go on without strace, and hold the pipes
                if isinstance(error, subprocess.TimeoutExpired):
                    raise ProgramError("under strace it did not end in time") from None
                raise
        if process.returncode:
            last = (errors.decode(errors="replace").strip().splitlines() or [f"status {process.returncode}"])[-1]
            raise ProgramError(f"under strace it failed: {last[:300]}")
        lines = answers.splitlines() if requests else []
        if len(lines) != requests.count(b"\n"):
            raise ProgramError(f"it gave {len(lines)} answers to {requests.count(b'\n')} requests")
        for line in lines:
            parsed(line, TIMES)
        return log.read_text(errors="replace")
    finally:
        log.unlink(missing_ok=True)


def difference(path: Path, expected: pa.Table, codec: str) -> tuple[str | None, str]:
    """What is wrong with a Parquet file, if anything, and what became of row order: `kept`, or `changed`.

    Nothing is wrong when it says what `expected` says, row by row, and is compressed so. Another type is no difference
    as long as it holds the same: a date as text or as a time, a wider integer.
    """
    if not path.exists():
        return "no file was written", ""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return _difference(file, expected, codec)
    except Exception as error:  # noqa: BLE001  of damaged bytes also UnicodeDecodeError, MemoryError, KeyError ...
        return f"the file cannot be read: {' '.join(str(error).split())[:300] or type(error).__name__}", ""


def _difference(file: pq.ParquetFile, expected: pa.Table, codec: str) -> tuple[str | None, str]:
    metadata = file.metadata
    names = file.schema_arrow.names
    if wrong := other_shape(names, metadata.num_rows, expected.column_names, expected.num_rows):
        return wrong, ""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    codecs = {group.column(at).compression for group in groups for at in range(metadata.num_columns)}
    if codecs != {codec.upper()}:
        return f"compressed with {', '.join(sorted(codecs))} instead of {codec.upper()}", ""
    columns, start = columns_in(expected.schema), 0
    for batch in file.iter_batches():
        batch.validate(full=True)
        here = expected.slice(start, len(batch))
        if difference := first_difference(*(content_of(rows, columns, nan_is_null=False) for rows in (here, batch))):
            elsewhere, _, row_order = files.difference(file.read(), expected)
            return (str(difference._replace(row=start + difference.row)), "") if elsewhere else (None, row_order)
        start += len(batch)
    return None, "kept"


def types_text(schema: pa.Schema) -> str:
    """`exact`, or the columns with another type than the table's, as `from_date:string;to_date:string`."""
    # How long a text may be is Arrow's affair, not the file's.
    texts = (pa.large_string(), pa.string_view())
    types = {field.name: pa.string() if field.type in texts else field.type for field in schema}
    drifted = [f"{field.name}:{types[field.name]}" for field in buildings.SCHEMA if types[field.name] != field.type]
    return ";".join(drifted) or "exact"
