"""Parquet files as they are tried: written by each writer, taken apart, read back and compared with what was sent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.data.equality import content_of, difference_in_any_order, first_difference, other_shape
from framehaul.data.schema import columns_in
from framehaul.errors import UnavailableError, WrongResultError
from framehaul.harness.passes import Ok, Pass, attempt, columns_of
from framehaul.results.store import EXACT, Status
from framehaul.servers import PostgresServer
from framehaul.studies.parquet.writers import NONE, SNAPPY, ZSTD_3, Codec, Options, Writer

BARELY = 0.9
"""Compressed over uncompressed bytes from which a chunk was barely worth compressing; the article's mark."""

# https://tech.marksblogg.com/postgresql-to-bigquery.html: ClickHouse 22.9, Snappy, 130,099,920 rows.
PUBLISHED_ROW_GROUP_ROWS = 65_505

type Part = Literal["defaults", "codec", "published", "per_column"]
type Sizes = dict[str, tuple[int, int]]
"""Compressed and uncompressed bytes of each column of a file."""


@dataclass(frozen=True)
class Chunk:
    """A column chunk: one column of one row group of a file. The fields are the columns of the file of results."""

    trial: str
    writer: str
    label: str
    part: Part
    row_group: int
    rows: int
    column: str
    physical_type: str
    codec: str
    encodings: str
    dictionary_page: str
    statistics: str
    offset_index: str
    column_index: str
    compressed_bytes: int
    uncompressed_bytes: int
    ratio: float


@dataclass(frozen=True)
class RoundTrip:
    """One file written and read back: a row of the study's file. A missing number is None, never 0.

    `columns` are the codecs of columns that have another than `codec`, `against` the trial that they are compared with,
    `types` what is read back in another type, `row_order` whether rows came back where they were (`kept`, `changed`).
    """

    run_id: str
    trial: str
    writer: str
    label: str
    part: Part
    codec: str
    level: int | None
    columns: str | None
    against: str | None
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
    """A writer, what it is asked for, and the codec of all columns of which the options name no other."""

    name: str
    part: Part
    writer: Writer
    codec: Codec
    options: Options
    against: str | None = None


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


def tasks_per_column(writer: Writer, survey: dict[Codec, Sizes]) -> list[Task]:
    """The choices of a codec for each column, from what each codec made of it."""
    best = min(survey, key=lambda codec: sum(compressed for compressed, _ in survey[codec].values()))
    return [
        *(_per_column(writer, f"{codec.text} spared", codec, spared(codec, survey[codec]))
          for codec in (SNAPPY, ZSTD_3)),
        _per_column(writer, "least", best, least(survey)),
    ]  # fmt: skip


def spared(codec: Codec, sizes: Sizes) -> dict[str, Codec]:
    """No compression for a column that it leaves at `BARELY` or more of its bytes, `codec` for the others."""
    return {name: NONE if compressed >= BARELY * plain else codec for name, (compressed, plain) in sizes.items()}


def least(survey: dict[Codec, Sizes]) -> dict[str, Codec]:
    """For each column the codec that leaves the fewest bytes; the first of those that leave the same."""
    names = next(iter(survey.values()))
    return {name: min(survey, key=lambda codec: survey[codec][name][0]) for name in names}


def _per_column(writer: Writer, choice: str, codec: Codec, columns: dict[str, Codec]) -> Task:
    name = f"{writer.name}_{choice.replace(' ', '_')}"
    return Task(name, "per_column", writer, codec, Options(codec, columns=columns), trial_name(writer, codec))


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

    def measured(self, task: Task) -> tuple[dict[str, Any], list[Chunk]]:
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
                "file_bytes": path.stat().st_size, "row_groups": len({chunk.row_group for chunk in chunks}),
                "write_seconds": write_seconds, "read_seconds": read_seconds,
                "write_cpu_s": write_cpu_s if task.writer.in_process else None, "read_cpu_s": read_cpu_s,
                "types": types, "row_order": row_order,
            }, chunks  # fmt: skip

    def chunks(self, task: Task) -> list[Chunk]:
        """What is in the file of a task; no clock."""
        with self._file_of(task) as (path, write):
            write()
            return chunks_of(task, pq.read_metadata(path))

    def survey(self, writer: Writer) -> dict[Codec, Sizes]:
        """What each codec that a writer offers makes of each column; no clock."""
        return {task.codec: sizes_of(self.chunks(task)) for task in tasks_of((writer,)) if task.part != "published"}

    @contextmanager
    def _file_of(self, task: Task) -> Iterator[tuple[Path, Callable[[], None]]]:
        """Where the file of a task is to be, for as long as the block lasts, and what writes it."""
        client, path = self.clients[task.writer.name], self.directory / f"{task.name}.parquet"
        if not isinstance(client, Ok):
            raise UnavailableError(client.reason)
        try:
            yield path, lambda: task.writer.save(client.values, self.content, path, task.options)
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


def chunks_of(task: Task, metadata: pq.FileMetaData) -> list[Chunk]:
    """All column chunks of a file, as its footer describes them."""
    return [
        _chunk(task, group, metadata.row_group(group), column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]


def _chunk(task: Task, group: int, row_group: Any, column: int) -> Chunk:
    chunk = row_group.column(column)
    return Chunk(
        trial=task.name, writer=task.writer.name, label=task.writer.label, part=task.part, row_group=group,
        rows=row_group.num_rows, column=chunk.path_in_schema, physical_type=chunk.physical_type,
        codec=chunk.compression, encodings=", ".join(sorted(chunk.encodings)),
        dictionary_page=_yes(chunk.has_dictionary_page), statistics=_yes(chunk.is_stats_set),
        offset_index=_yes(chunk.has_offset_index), column_index=_yes(chunk.has_column_index),
        compressed_bytes=chunk.total_compressed_size, uncompressed_bytes=chunk.total_uncompressed_size,
        ratio=chunk.total_compressed_size / chunk.total_uncompressed_size,
    )  # fmt: skip


def sizes_of(chunks: Iterable[Chunk]) -> Sizes:
    """Compressed and uncompressed bytes of each column of a file, over all row groups."""
    compressed, plain = Counter[str](), Counter[str]()
    for chunk in chunks:
        compressed[chunk.column] += chunk.compressed_bytes
        plain[chunk.column] += chunk.uncompressed_bytes
    return {name: (compressed[name], plain[name]) for name in compressed}


def other_codec(task: Task, chunks: list[Chunk]) -> str | None:
    """What is wrong with the codecs of a file, if anything: a setting may be ignored without a word."""
    for chunk in chunks:
        wanted = task.options.columns.get(chunk.column, task.codec).in_file
        if chunk.codec != wanted:
            return f"column {chunk.column} is compressed with {chunk.codec} instead of {wanted}"
    return None


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


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def row_of(run_id: str, task: Task, rows: int, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
    """A pass of a task as a row of results."""
    own = ";".join(f"{name}:{codec.text}" for name, codec in task.options.columns.items() if codec != task.codec)
    return RoundTrip(
        run_id=run_id, trial=task.name, writer=task.writer.name, label=task.writer.label, part=task.part,
        codec=task.codec.name, level=task.codec.level, columns=own or None, against=task.against, rows=rows,
        pass_=number, **columns_of(ended),
    )  # fmt: skip
