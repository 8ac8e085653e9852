"""Measure every writer of Parquet with each of its codecs, and record the column chunks of its default file."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import recording, store
from framehaul.bench.passes import Ok, Pass, attempt, columns_of, right
from framehaul.bench.rounds import Rounds, check, interruptible
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
    """A pass that writes a file and reads it back; a missing number is None, never 0.

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


type Trial = tuple[Writer, str]
"""A writer and the codec of its file, such as `snappy` or `zstd 3`."""


@recording.study(PARQUET.notebook, RoundTrip)
def run(*, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Write and read every file in rounds, then record the column chunks of each writer's default file."""
    check(ROWS=(rows, 1))
    schedule, content = Rounds(rounds, warmup, seed), buildings.table(rows, seed)
    trials = [(writer, codec) for writer in WRITERS for codec in writer.offers]
    with (
        recording.with_servers(PARQUET, RoundTrip, schedule, rows=rows) as (this_run, both),
        tempfile.TemporaryDirectory(prefix="framehaul-") as directory,
        ExitStack() as stack,
    ):
        this_run.expect(len(trials) * (warmup + rounds))
        home, path = Path(directory), Path(directory) / "file.parquet"

        @cache
        def client_of(writer: Writer) -> Any:
            return stack.enter_context(writer.opened(both.postgres, content))

        def name(trial: Trial) -> str:
            return f"{trial[0].name}_{trial[1].replace(' ', '_')}"

        def row(trial: Trial, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
            writer, codec = trial
            labels = name(trial), writer.name, writer.label, "defaults" if codec == writer.default else "codec", codec
            return RoundTrip(this_run.run_id, *labels, rows, number, **columns_of(ended))

        def made(trial: Trial) -> tuple[dict[str, Any], pl.DataFrame]:
            return measured(trial, client_of(trial[0]), content, path)

        def measure(trial: Trial, _: int) -> dict[str, Any]:
            return made(trial)[0]

        interruptible(lambda stop: this_run.in_rounds(trials, schedule, measure, row, name, stop=stop, home=home))
        # Chunks are read outside the rounds, which an interrupted run does not repeat.
        default_files = []
        for writer in WRITERS:
            trial = writer, writer.default
            if isinstance(ended := attempt(partial(made, trial)), Ok):
                names = pl.lit(name(trial)).alias("trial"), pl.lit(writer.label).alias("label")
                default_files.append(ended.values[1].select(*names, pl.all()))
        store.write_frame(this_run.settings.out / "results" / CHUNKS, pl.concat(default_files))


def chunks() -> pl.DataFrame:
    """Return the column chunks of each writer's default file, which the last run recorded; see `chunks_of`."""
    return store.read_frame(load_settings().out / "results" / CHUNKS)


def measured(trial: Trial, client: Any, content: pa.Table, path: Path) -> tuple[dict[str, Any], pl.DataFrame]:
    """Write, read back and verify one file; return the values of its pass, and its `chunks_of`.

    Raises WrongResultError if the file holds other rows or uses another codec, and the writer's own errors.
    """
    writer, codec = trial
    try:
        start = time.perf_counter()
        writer.write(client, content, path, None if codec == writer.default else codec)
        written = time.perf_counter()
        received = pq.read_table(path)
        times = {"write_seconds": written - start, "read_seconds": time.perf_counter() - written}
        received.validate(full=True)
        found = chunks_of(path)
        wrong, types, row_order = buildings.difference(received, content)
        # A writer may ignore a setting without an error.
        wanted = split(codec, none="uncompressed")[0].upper()
        for column, used in found.filter(pl.col("codec") != wanted).select("column", "codec").rows():
            wrong = wrong or f"column {column} is compressed with {used} instead of {wanted}"
        sizes = {"file_bytes": path.stat().st_size, "row_groups": found["row_group"].n_unique()}
        return right((sizes | times | {"types": types, "row_order": row_order}, found), wrong)
    finally:
        path.unlink(missing_ok=True)


def chunks_of(path: Path) -> pl.DataFrame:
    """Return one row per column chunk of a file (one column of one row group), as the file's footer describes it."""
    metadata = pq.read_metadata(path)
    rows = []
    for number, at in product(range(metadata.num_row_groups), range(metadata.num_columns)):
        group = metadata.row_group(number)
        values = {name: getattr(group.column(at), field) for name, field in FIELDS.items()}
        rows.append({"row_group": number, "rows": group.num_rows, **values})
    return pl.DataFrame(rows).with_columns(pl.col("encodings").list.sort().list.join(", "))
