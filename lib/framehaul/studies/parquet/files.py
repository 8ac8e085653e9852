"""Parquet files as they are tried: written by each writer, taken apart, read back and compared with what was sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench.passes import Ok, Pass, attempt, columns_of
from framehaul.bench.store import EXACT, Status
from framehaul.data.equality import content_of, difference_in_any_order, first_difference, other_shape
from framehaul.data.schema import columns_in
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.servers import PostgresServer
from framehaul.studies.parquet.writers import SNAPPY, Codec, Options, Writer

# https://tech.marksblogg.com/postgresql-to-bigquery.html: ClickHouse 22.9, Snappy, 130,099,920 rows.
PUBLISHED_ROW_GROUP_ROWS = 65_505

type Part = Literal["defaults", "codec", "published"]


@dataclass(frozen=True)
class RoundTrip:
    """One file written and read back: a row of the study's file. A missing number is None, never 0.

    `types` is what is read back in another type, `row_order` says whether rows came back in their order (`kept`) or
    not (`changed`).
    """

    run_id: str
    trial: str
    writer: str
    label: str
    part: Part
    codec: str
    level: int | None
    rows: int
    pass_: int
    file_bytes: int | None = None
    row_groups: int | None = None
    write_seconds: float | None = None
    read_seconds: float | None = None
    write_cpu_s: float | None = None
    read_cpu_s: float | None = None
    types: str | None = None
    row_order: str | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """A writer, what it is asked for, and the codec of its file."""

    name: str
    part: Part
    writer: Writer
    codec: Codec
    options: Options


# What is tried


def tasks_of(writers: tuple[Writer, ...]) -> list[Task]:
    """Each writer by its defaults, with each other codec that it offers, and as the published file was made."""
    tasks = []
    for writer in writers:
        for codec in writer.offers:
            own = codec == writer.default
            tasks.append(
                Task(trial_name(writer, codec), "defaults" if own else "codec", writer, codec,
                     Options() if own else Options(codec))
            )  # fmt: skip
        published = Options(SNAPPY, PUBLISHED_ROW_GROUP_ROWS)
        tasks.append(Task(f"{writer.name}_published", "published", writer, SNAPPY, published))
    return tasks


def trial_name(writer: Writer, codec: Codec) -> str:
    """What the trial of a writer with a codec for all columns is called."""
    return f"{writer.name}_{codec.text.replace(' ', '_')}"


# What is measured


@dataclass(frozen=True)
class Bench:
    """The rows that are written, a directory for their files, and the client of each writer, or why there is none."""

    content: pa.Table
    directory: Path
    clients: dict[str, Pass[Any]]

    def measured(self, task: Task) -> tuple[dict[str, Any], pl.DataFrame]:
        """Write, read back and verify one file: the values of its pass, and what is in it.

        Raises WrongResultError where it does not hold what was sent, or as it was asked for, and whatever a writer
        raises.
        """
        with self._file_of(task) as (path, write):
            _, write_seconds, write_cpu_s = _timed(write)
            content, read_seconds, read_cpu_s = _timed(lambda: pq.read_table(path))
            content.validate(full=True)
            chunks = chunks_of(task, pq.read_metadata(path))
            wrong, types, row_order = difference(content, self.content)
            if wrong := wrong or other_codec(task, chunks):
                raise WrongResultError(wrong)
            return {
                "file_bytes": path.stat().st_size, "row_groups": chunks["row_group"].n_unique(),
                "write_seconds": write_seconds, "read_seconds": read_seconds,
                "write_cpu_s": write_cpu_s if task.writer.in_process else None, "read_cpu_s": read_cpu_s,
                "types": types, "row_order": row_order,
            }, chunks  # fmt: skip

    @contextmanager
    def _file_of(self, task: Task) -> Iterator[tuple[Path, Callable[[], None]]]:
        """Where the file of a task is to be, for as long as the block lasts, and what writes it."""
        client, path = self.clients[task.writer.name], self.directory / f"{task.name}.parquet"
        if not isinstance(client, Ok):
            raise UnavailableError(client.reason)
        try:
            yield path, lambda: task.writer.write(client.values, self.content, path, task.options)
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def opened(writers: tuple[Writer, ...], content: pa.Table, server: PostgresServer, directory: Path) -> Iterator[Bench]:
    """The writers, for as long as the block lasts; who cannot be had raises UnavailableError when used."""
    with ExitStack() as stack:

        def client_of(writer: Writer) -> Any:
            return stack.enter_context(writer.opened(server, content))

        clients = {writer.name: attempt(partial(client_of, writer), failures=()) for writer in writers}
        yield Bench(content, directory, clients)


def _timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it returns, its seconds, and the CPU seconds of all threads of this process."""
    cpu, start = time.process_time(), time.perf_counter()
    returned = work()
    return returned, time.perf_counter() - start, time.process_time() - cpu


def chunks_of(task: Task, metadata: pq.FileMetaData) -> pl.DataFrame:
    """Return one row per column chunk of a file (one column of one row group), as the file's footer describes it."""
    rows = []
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for at in range(metadata.num_columns):
            chunk = row_group.column(at)
            rows.append(
                {
                    "trial": task.name,
                    "writer": task.writer.name,
                    "label": task.writer.label,
                    "part": task.part,
                    "row_group": group,
                    "rows": row_group.num_rows,
                    "column": chunk.path_in_schema,
                    "physical_type": chunk.physical_type,
                    "codec": chunk.compression,
                    "encodings": ", ".join(sorted(chunk.encodings)),
                    "dictionary_page": chunk.has_dictionary_page,
                    "statistics": chunk.is_stats_set,
                    "offset_index": chunk.has_offset_index,
                    "column_index": chunk.has_column_index,
                    "compressed_bytes": chunk.total_compressed_size,
                    "uncompressed_bytes": chunk.total_uncompressed_size,
                }
            )
    return pl.DataFrame(rows)


def other_codec(task: Task, chunks: pl.DataFrame) -> str | None:
    """What is wrong with the codecs of a file, if anything: a setting may be ignored without a word."""
    wrong = chunks.filter(pl.col("codec") != task.codec.in_file)
    if wrong.is_empty():
        return None
    return f"column {wrong['column'][0]} is compressed with {wrong['codec'][0]} instead of {task.codec.in_file}"


def difference(received: pa.Table, sent: pa.Table) -> tuple[str | None, str, str]:
    """What is wrong with a table that was read back, if anything; which types drifted, and what became of row order.

    Values are compared in the types that were sent: a date that became a timestamp must be midnight.
    """
    if wrong := other_shape(received.column_names, received.num_rows, sent.column_names, sent.num_rows):
        return wrong, "", ""
    drifted = [f"{one.name}:{one.type}" for one, sent_as in zip(received.schema, sent.schema, strict=True)
               if one.type != sent_as.type]  # fmt: skip
    types, columns = ";".join(drifted) or EXACT, columns_in(sent.schema)
    ours, theirs = (content_of(table, columns, nan_is_null=False) for table in (sent, received))
    first = first_difference(ours, theirs)
    if first is None:
        return None, types, "kept"
    wrong = difference_in_any_order(ours, theirs, key=())
    return (f"{wrong}: {first}", types, "") if wrong else (None, types, "changed")


def row_of(run_id: str, task: Task, rows: int, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
    """A pass of a task as a row of results."""
    return RoundTrip(
        run_id=run_id, trial=task.name, writer=task.writer.name, label=task.writer.label, part=task.part,
        codec=task.codec.name, level=task.codec.level, rows=rows, pass_=number, **columns_of(ended),
    )  # fmt: skip
