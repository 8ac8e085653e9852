"""The study of Parquet files: every writer with every codec it offers, and the column chunks of its default file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul import servers
from framehaul.bench import recording, store
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Ok, Pass, attempt, columns_of, right
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.settings import load_settings
from framehaul.studies import buildings
from framehaul.studies.parquet.writers import WRITERS, Writer, split
from framehaul.studies.registry import PARQUET

CHUNKS = "parquet_chunks.csv"
FIELDS = {
    "column": "path_in_schema", "physical_type": "physical_type", "codec": "compression", "encodings": "encodings",
    "dictionary_page": "has_dictionary_page", "page_index": "has_offset_index",
    "compressed_bytes": "total_compressed_size", "uncompressed_bytes": "total_uncompressed_size",
}  # fmt: skip
"""The columns of `chunks_of`, and pyarrow's names for them."""


@dataclass(frozen=True)
class RoundTrip:
    """One file written and read back, a row of the study's results. A missing number is None, never 0.

    `part` is `defaults` when the writer chose the codec itself, and `codec` otherwise. `types` and `row_order` are
    those of `buildings.difference`.
    """

    run_id: str
    trial: str
    writer: str
    label: str
    part: str
    codec: str
    rows: int
    pass_: int
    file_bytes: int | None = None
    row_groups: int | None = None
    write_seconds: float | None = None
    read_seconds: float | None = None
    types: str | None = None
    row_order: str | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Trial:
    """A writer and the codec of its file, such as `snappy` or `zstd 3`."""

    writer: Writer
    codec: str

    @property
    def name(self) -> str:
        """The name in results."""
        return f"{self.writer.name}_{self.codec.replace(' ', '_')}"

    @property
    def by_default(self) -> bool:
        """Whether this is the writer's default codec."""
        return self.codec == self.writer.default


def trials_of(*writers: Writer) -> list[Trial]:
    """Return each writer with each codec that it offers."""
    return [Trial(writer, codec) for writer in writers for codec in writer.offers]


@recording.study(PARQUET.notebook, RoundTrip)
def run(*, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Write and read every file in rounds, then record the column chunks of each writer's default file.

    Raises ValueError for a parameter that makes no sense, ServerError when no server can be started, ResultsError
    when the results cannot be written.
    """
    check(ROWS=(rows, 1))
    schedule, content, trials = Rounds(rounds, warmup, seed), buildings.table(rows, seed), trials_of(*WRITERS)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording.recording(PARQUET.notebook, PARQUET.results, RoundTrip, "file", terms) as this_run,
        servers.running(this_run.settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-") as directory,
        ExitStack() as stack,
    ):
        this_run.expect(len(trials) * (warmup + rounds))
        path = Path(directory) / "file.parquet"

        @cache
        def client_of(writer: Writer) -> Any:
            return stack.enter_context(writer.opened(both.postgres, content))

        def row(trial: Trial, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
            writer, part = trial.writer, "defaults" if trial.by_default else "codec"
            return RoundTrip(
                this_run.run_id, trial.name, writer.name, writer.label, part, trial.codec, rows, number,
                **columns_of(ended),
            )  # fmt: skip

        def measure(trial: Trial, _: int = 0) -> tuple[dict[str, Any], pl.DataFrame]:
            return measured(trial, client_of(trial.writer), content, path)

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: in_rounds(
                trials, schedule, lambda trial, number: measure(trial, number)[0], record, stop=stop,
                progress=lambda trial, _: this_run.progress(trial.name), finished=finished, home=Path(directory),
            )
        )  # fmt: skip
        # Chunks are read apart from the rounds, which an interrupted run does not repeat.
        ended = {trial: attempt(partial(measure, trial)) for trial in trials if trial.by_default}
        default_files = pl.concat(
            one.values[1].select(pl.lit(trial.name).alias("trial"), pl.lit(trial.writer.label).alias("label"), pl.all())
            for trial, one in ended.items() if isinstance(one, Ok)
        )  # fmt: skip
        store.write_frame(this_run.settings.out / "results" / CHUNKS, default_files)
        this_run.metadata |= terms | {"servers": both.mode, "server": server_versions(both)}


def chunks() -> pl.DataFrame:
    """Return the column chunks of each writer's default file, as the last run recorded them; see `chunks_of`."""
    return store.read_frame(load_settings().out / "results" / CHUNKS)


def measured(trial: Trial, client: Any, content: pa.Table, path: Path) -> tuple[dict[str, Any], pl.DataFrame]:
    """Write, read back and verify one file; return the values of its pass, and its `chunks_of`.

    Raises WrongResultError if the file holds other rows or uses another codec, and the writer's own errors.
    """
    try:
        asked = None if trial.by_default else trial.codec
        _, write_seconds = _timed(lambda: trial.writer.write(client, content, path, asked))
        received, read_seconds = _timed(lambda: pq.read_table(path))
        received.validate(full=True)
        found = chunks_of(path)
        wrong, types, row_order = buildings.difference(received, content)
        # A writer may ignore a setting without an error.
        wanted = split(trial.codec, none="uncompressed")[0].upper()
        for column, codec in found.filter(pl.col("codec") != wanted).select("column", "codec").rows():
            wrong = wrong or f"column {column} is compressed with {codec} instead of {wanted}"
        values = {
            "file_bytes": path.stat().st_size, "row_groups": found["row_group"].n_unique(),
            "write_seconds": write_seconds, "read_seconds": read_seconds, "types": types, "row_order": row_order,
        }  # fmt: skip
        return right((values, found), wrong)
    finally:
        path.unlink(missing_ok=True)


def _timed[V](work: Callable[[], V]) -> tuple[V, float]:
    start = time.perf_counter()
    returned = work()
    return returned, time.perf_counter() - start


def chunks_of(path: Path) -> pl.DataFrame:
    """Return one row per column chunk of a file (one column of one row group), as the file's footer describes it."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return pl.DataFrame(
        {"row_group": number, "rows": group.num_rows}
        | {name: getattr(group.column(at), field) for name, field in FIELDS.items()}
        for number, group in enumerate(groups) for at in range(group.num_columns)
    ).with_columns(pl.col("encodings").list.sort().list.join(", "))  # fmt: skip
