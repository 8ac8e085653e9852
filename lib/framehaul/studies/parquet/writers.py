"""Writers of Parquet files: one small function for each, and which codecs it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
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

from framehaul.data.schema import quote_clickhouse_text, quote_postgres_text
from framehaul.errors import ServerError
from framehaul.servers import PostgresServer
from framehaul.servers.tables import PostgresTables
from framehaul.studies.warehouse.routes import SOURCE
from framehaul.techniques.clients import connected_duckdb, open_psycopg_parquet_stream


@dataclass(frozen=True)
class Codec:
    """A codec, by one name for all writers, and its level; None is the writer's own level, or none to choose."""

    name: str
    level: int | None = None

    @property
    def text(self) -> str:
        """As a reader says it: `zstd 3`."""
        return self.name if self.level is None else f"{self.name} {self.level}"

    @property
    def in_file(self) -> str:
        """As pyarrow names it in a file's metadata."""
        return "UNCOMPRESSED" if self.name == "none" else self.name.upper()


@dataclass(frozen=True)
class Options:
    """How a file is written: what is None stays as the writer has it by default."""

    codec: Codec | None = None
    row_group_rows: int | None = None


type Write = Callable[[Any, pa.Table, Path, Options], None]


@dataclass(frozen=True)
class Writer:
    """A writer, the codec that it takes when nobody asks for one, and all that it is tried with.

    `opened` gives what `write` takes first, such as a connection; it raises UnavailableError where it cannot be had.
    """

    name: str
    label: str
    default: Codec
    offers: tuple[Codec, ...]
    opened: Callable[[PostgresServer, pa.Table], AbstractContextManager[Any]]
    write: Write
    in_process: bool = True
    """Whether its CPU time is this process's."""


def _nothing(_server: PostgresServer, _content: pa.Table) -> AbstractContextManager[None]:
    return nullcontext()


@contextmanager
def _duckdb(_server: PostgresServer, content: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with connected_duckdb() as connection:
        connection.register("buildings", content)
        yield connection


def _chdb(_server: PostgresServer, _content: pa.Table) -> AbstractContextManager[chdb.state.sqlitelike.Connection]:
    return closing(chdb.connect(":memory:"))


@contextmanager
def _pg_parquet(server: PostgresServer, content: pa.Table) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a server that holds the rows; raises UnavailableError without the extension."""
    tables = PostgresTables(server)
    with open_psycopg_parquet_stream(server) as connection:
        try:
            tables.create(SOURCE)
            tables.load(SOURCE, content)
            yield connection
        finally:
            # Where the server is gone for good, the next run drops what is ours.
            with suppress(ServerError):
                tables.drop(SOURCE)


def pyarrow_write_table(_client: None, content: pa.Table, path: Path, options: Options) -> None:
    """Arrow's own writer in C++."""
    codec: Any = "snappy" if options.codec is None else options.codec.name
    level: Any = None if options.codec is None else options.codec.level
    pq.write_table(content, path, row_group_size=options.row_group_rows, compression=codec, compression_level=level)


def polars_write_parquet(_client: None, content: pa.Table, path: Path, options: Options) -> None:
    """Polars, in Rust; its strings are of another layout than Arrow's, and are made on the way."""
    chosen: dict[str, Any] = {}
    if options.codec is not None:
        name = "uncompressed" if options.codec.name == "none" else options.codec.name
        chosen = {"compression": name, "compression_level": options.codec.level}
    frame = pl.from_arrow(content, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(path, row_group_size=options.row_group_rows, **chosen)


def duckdb_copy(connection: duckdb.DuckDBPyConnection, _content: pa.Table, path: Path, options: Options) -> None:
    """DuckDB scans the Arrow table as it lies in memory (https://duckdb.org/docs/current/data/parquet/overview)."""
    chosen = _copy_options(options, codec="CODEC", level="COMPRESSION_LEVEL", row_group_rows="ROW_GROUP_SIZE")
    connection.execute(f"COPY buildings TO {quote_postgres_text(str(path))} (FORMAT parquet{chosen})")


def chdb_into_outfile(
    engine: chdb.state.sqlitelike.Connection,
    content: pa.Table,  # noqa: ARG001  # chDB finds it by its name
    path: Path,
    options: Options,
) -> None:
    """The engine of ClickHouse as a library scans the Arrow table with several threads: rows may change places.

    Settings: https://clickhouse.com/docs/interfaces/formats/Parquet
    """
    settings: dict[str, str | int | None] = {"output_format_parquet_row_group_size": options.row_group_rows}
    if options.codec is not None:
        settings["output_format_parquet_compression_method"] = f"'{options.codec.name}'"
        settings["output_format_compression_level"] = options.codec.level
    given = ", ".join(f"{name} = {value}" for name, value in settings.items() if value is not None)
    engine.query(
        f"SELECT * FROM Python(content) INTO OUTFILE {quote_clickhouse_text(str(path))} FORMAT Parquet"
        + (f" SETTINGS {given}" if given else "")
    )


def fastparquet_write(_client: None, content: pa.Table, path: Path, options: Options) -> None:
    """fastparquet, in Python and Cython, takes a pandas frame and knows no dates: they become timestamps."""
    # Integers of numpy cannot be NULL: they would become floats.
    frame = content.to_pandas(date_as_object=False, types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    chosen: dict[str, Any] = {}
    if options.codec is not None:
        name = {"none": "UNCOMPRESSED", "lz4": "LZ4_RAW"}.get(options.codec.name, options.codec.name.upper())
        level = None if options.codec.level is None else {"level": options.codec.level}
        chosen = {"compression": name if level is None else {"_default": {"type": name, "args": level}}}
    if options.row_group_rows is not None:
        # A number would be made into groups of equal size.
        chosen["row_group_offsets"] = [*range(0, content.num_rows, options.row_group_rows)]
    fastparquet.write(str(path), frame, **chosen)


def pg_parquet_copy(connection: psycopg.Connection[Any], _content: pa.Table, path: Path, options: Options) -> None:
    """PostgreSQL itself, from its own table, by an extension in Rust; the file comes over the connection.

    Options: https://github.com/CrunchyData/pg_parquet#copy-options
    """
    chosen = _copy_options(options, codec="compression", level="compression_level", row_group_rows="row_group_size")
    statement = f"COPY {SOURCE.postgres_name} TO STDOUT WITH (FORMAT parquet{chosen})"
    with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for block in copy:
            file.write(block)


def _copy_options(options: Options, *, codec: str, level: str, row_group_rows: str) -> str:
    """The options of a COPY statement, after its format; DuckDB and pg_parquet have the same names for codecs.

    Plain `lz4` would be the older framing (https://parquet.apache.org/docs/file-format/data-pages/compression/).
    """
    chosen = ""
    if options.codec is not None:
        name = {"none": "uncompressed", "lz4": "lz4_raw"}.get(options.codec.name, options.codec.name)
        chosen += f", {codec} '{name}'"
        chosen += "" if options.codec.level is None else f", {level} {options.codec.level}"
    return chosen + ("" if options.row_group_rows is None else f", {row_group_rows} {options.row_group_rows}")


NONE, SNAPPY, LZ4, ZSTD, GZIP = map(Codec, ("none", "snappy", "lz4", "zstd", "gzip"))
OWN_LEVELS = (NONE, SNAPPY, LZ4, ZSTD, GZIP)
ZSTD_3 = Codec("zstd", 3)
LEVELS = (NONE, SNAPPY, LZ4, Codec("zstd", 1), ZSTD_3, Codec("zstd", 9), Codec("gzip", 1), Codec("gzip", 6))

PYARROW = Writer("pyarrow", "pyarrow", SNAPPY, LEVELS, _nothing, pyarrow_write_table)
WRITERS = (
    PYARROW,
    Writer("polars", "Polars", ZSTD, OWN_LEVELS, _nothing, polars_write_parquet),
    Writer("duckdb", "DuckDB", SNAPPY, OWN_LEVELS, _duckdb, duckdb_copy),
    Writer("clickhouse", "ClickHouse (chDB)", ZSTD, OWN_LEVELS, _chdb, chdb_into_outfile),
    Writer("fastparquet", "fastparquet", NONE, OWN_LEVELS, _nothing, fastparquet_write),
    Writer("pg_parquet", "pg_parquet", SNAPPY, OWN_LEVELS, _pg_parquet, pg_parquet_copy, in_process=False),
)
