"""Parquet: the files of six writers taken apart, and the cost of each codec."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import chdb
import duckdb
import fastparquet
import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from framehaul.bench import store
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Ok, Rounds, attempt, in_rounds, right
from framehaul.data.schema import quote_clickhouse_text, quote_postgres_text
from framehaul.servers import PostgresServer
from framehaul.servers.tables import PostgresTables
from framehaul.settings import load_settings
from framehaul.studies import buildings
from framehaul.studies.buildings import TABLE
from framehaul.studies.registry import PARQUET
from framehaul.techniques.clients import connected_duckdb, open_psycopg_parquet_stream


@dataclass(frozen=True)
class Writer:
    """A writer, its default codec, and all codecs that are measured.

    `write` writes rows to a file with a codec such as `snappy`, or `zstd 3` with pyarrow; None selects the default.
    `opened` makes the client that `write` takes, such as a connection; it raises UnavailableError if it cannot.
    """

    name: str
    label: str
    default: str
    offers: tuple[str, ...]
    write: Callable[[Any, pa.Table, Path, str | None], None]
    opened: Callable[[PostgresServer, pa.Table], AbstractContextManager[Any]] = lambda *_: nullcontext()


NAME_IN_FILES = {"none": "uncompressed", "lz4": "lz4_raw"}
"""Codecs with another name in files, and as options of DuckDB, fastparquet and pg_parquet.

There `lz4` would select the older framing (https://parquet.apache.org/docs/file-format/data-pages/compression/).
"""


@contextmanager
def _pg_parquet(server: PostgresServer, content: pa.Table) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection to a server that holds the rows; raises UnavailableError without the extension."""
    with open_psycopg_parquet_stream(server) as connection, PostgresTables(server).loaded(TABLE, content):
        yield connection


def pyarrow_write_table(_client: None, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with Arrow's writer, in C++."""
    name, _, level = (codec or "snappy").partition(" ")
    pq.write_table(content, path, compression=name, compression_level=int(level) if level else None)


def polars_write_parquet(_client: None, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with Polars, in Rust; the clock includes converting text to Polars' layout."""
    chosen: Any = {"compression": "uncompressed" if codec == "none" else codec} if codec else {}
    pl.DataFrame(pl.from_arrow(content, rechunk=False)).write_parquet(path, **chosen)


def duckdb_copy(connection: duckdb.DuckDBPyConnection, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with DuckDB, which scans the Arrow table in place.

    Options: https://duckdb.org/docs/current/data/parquet/overview
    """
    option = f", CODEC '{NAME_IN_FILES.get(codec, codec)}'" if codec else ""
    connection.register("buildings", content)
    connection.execute(f"COPY buildings TO {quote_postgres_text(str(path))} (FORMAT parquet{option})")


def chdb_into_outfile(engine: Any, content: pa.Table, path: Path, codec: str | None) -> None:  # noqa: ARG001
    """Write with ClickHouse as a library, which finds the Arrow table by its name, and may reorder rows.

    Settings: https://clickhouse.com/docs/interfaces/formats/Parquet
    """
    setting = f" SETTINGS output_format_parquet_compression_method = '{codec}'" if codec else ""
    target = quote_clickhouse_text(str(path))
    engine.query(f"SELECT * FROM Python(content) INTO OUTFILE {target} FORMAT Parquet{setting}")


def fastparquet_write(_client: None, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with fastparquet, from a pandas frame; it has no dates, so they become timestamps."""
    # Without a nullable dtype, integers with NULL would become floats.
    frame = content.to_pandas(date_as_object=False, types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    fastparquet.write(str(path), frame, compression=NAME_IN_FILES.get(codec, codec).upper() if codec else None)


def pg_parquet_copy(connection: psycopg.Connection[Any], _content: pa.Table, path: Path, codec: str | None) -> None:
    """Write in PostgreSQL, from a table, with an extension in Rust; the file comes over the connection.

    Options: https://github.com/CrunchyData/pg_parquet#copy-options
    """
    option = f", compression '{NAME_IN_FILES.get(codec, codec)}'" if codec else ""
    statement = f"COPY {TABLE.postgres_name} TO STDOUT WITH (FORMAT parquet{option})"
    with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        file.writelines(copy)


CODECS = ("none", "snappy", "lz4", "zstd", "gzip")
LEVELS = ("none", "snappy", "lz4", "zstd 1", "zstd 3", "zstd 9", "gzip 1", "gzip 6")

WRITERS = (
    Writer("pyarrow", "pyarrow", "snappy", LEVELS, pyarrow_write_table),
    Writer("polars", "Polars", "zstd", CODECS, polars_write_parquet),
    Writer("duckdb", "DuckDB", "snappy", CODECS, duckdb_copy, lambda *_: connected_duckdb()),
    Writer("clickhouse", "ClickHouse (chDB)", "zstd", CODECS, chdb_into_outfile, lambda *_: closing(chdb.connect())),
    Writer("fastparquet", "fastparquet", "none", CODECS, fastparquet_write),
    Writer("pg_parquet", "pg_parquet", "snappy", CODECS, pg_parquet_copy, _pg_parquet),
)

CHUNKS = "parquet_chunks.csv"
FIELDS = {
    "column": "path_in_schema", "physical_type": "physical_type", "codec": "compression", "encodings": "encodings",
    "dictionary_page": "has_dictionary_page", "page_index": "has_offset_index",
    "compressed_bytes": "total_compressed_size", "uncompressed_bytes": "total_uncompressed_size",
}  # fmt: skip
"""The columns of `chunks_of`, and pyarrow's names for them."""


@dataclass(frozen=True)
class RoundTrip(store.Row):
    """A pass that writes a file and reads it back; a missing number is None, never 0.

    `part` is `defaults` when the writer chose the codec itself, and `codec` otherwise. `types` and `row_order` are
    those of `buildings.difference`.
    """

    trial: str
    writer: str
    label: str
    part: str
    codec: str
    rows: int
    file_bytes: int | None = None
    row_groups: int | None = None
    write_seconds: float | None = None
    read_seconds: float | None = None
    types: str | None = None
    row_order: str | None = None


type Trial = tuple[Writer, str]


@recorded(PARQUET, RoundTrip)
def run(this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Write and read every file in rounds, then record the column chunks of each writer's default file."""
    content, both = buildings.table(rows, seed), this_run.servers()
    trials = [(writer, codec) for writer in WRITERS for codec in writer.offers]
    home = Path(this_run.entered(tempfile.TemporaryDirectory(prefix="framehaul-")))
    path = home / "file.parquet"

    @cache
    def client_of(writer: Writer) -> Any:
        return this_run.entered(writer.opened(both.postgres, content))

    def name(trial: Trial) -> str:
        return f"{trial[0].name}_{trial[1].replace(' ', '_')}"

    def labels(trial: Trial) -> tuple[object, ...]:
        writer, codec = trial
        kind = "defaults" if codec == writer.default else "codec"
        return name(trial), writer.name, writer.label, kind, codec, rows

    def measure(trial: Trial, _: int = 0) -> dict[str, Any]:
        return measured(trial, client_of(trial[0]), content, path)

    in_rounds(trials, Rounds(rounds, warmup, seed), measure, this_run.log(this_run.rows(RoundTrip, labels), name), home)
    # Chunks are read outside the rounds, which an interrupted run does not repeat.
    default_files = []
    for trial in ((writer, writer.default) for writer in WRITERS):
        if isinstance(attempt(partial(measure, trial)), Ok):
            names = pl.lit(name(trial)).alias("trial"), pl.lit(trial[0].label).alias("label")
            default_files.append(chunks_of(path).select(*names, pl.all()))
    store.put(this_run.settings.out / "results" / CHUNKS, pl.concat(default_files).write_csv().encode())


def chunks() -> pl.DataFrame:
    """Return the column chunks of each writer's default file, which the last run recorded; see `chunks_of`."""
    return pl.read_csv(store.existing(load_settings().out / "results" / CHUNKS))


def measured(trial: Trial, client: Any, content: pa.Table, path: Path) -> dict[str, Any]:
    """Replace the file at a path, read it back and verify it, and return the values of the pass.

    Raises WrongResultError if the file holds other rows or uses another codec, and the writer's own errors.
    """
    writer, codec = trial
    path.unlink(missing_ok=True)
    start = time.perf_counter()
    writer.write(client, content, path, None if codec == writer.default else codec)
    written = time.perf_counter()
    received = pq.read_table(path)
    times = {"write_seconds": written - start, "read_seconds": time.perf_counter() - written}
    received.validate(full=True)
    wrong, types, row_order = buildings.difference(received, content)
    name, found = codec.partition(" ")[0], chunks_of(path)
    wanted = "UNCOMPRESSED" if name == "none" else name.upper()
    if others := {*found["codec"]} - {wanted}:  # a writer may ignore a setting without an error
        wrong = wrong or f"compressed with {', '.join(sorted(others))} instead of {wanted}"
    sizes = {"file_bytes": path.stat().st_size, "row_groups": found["row_group"].n_unique()}
    return right(sizes | times | {"types": types, "row_order": row_order}, wrong)


def chunks_of(path: Path) -> pl.DataFrame:
    """Return one row per column chunk of a file (one column of one row group), as the file's footer describes it."""
    metadata = pq.read_metadata(path)
    rows = []
    for number, at in product(range(metadata.num_row_groups), range(metadata.num_columns)):
        group = metadata.row_group(number)
        values = {name: getattr(group.column(at), field) for name, field in FIELDS.items()}
        rows.append({"row_group": number, "rows": group.num_rows, **values})
    return pl.DataFrame(rows).with_columns(pl.col("encodings").list.sort().list.join(", "))
