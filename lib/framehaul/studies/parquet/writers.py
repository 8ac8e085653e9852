"""Writers of Parquet files: a function for each, and the codecs that it offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
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
from framehaul.servers import PostgresServer
from framehaul.servers.tables import PostgresTables
from framehaul.studies.buildings import TABLE
from framehaul.techniques.clients import connected_duckdb, open_psycopg_parquet_stream

type Write = Callable[[Any, pa.Table, Path, str | None], None]
"""Writes rows to a file with a codec such as `snappy` or `zstd 3`; None selects the writer's default codec."""


@dataclass(frozen=True)
class Writer:
    """A writer, its default codec, and all codecs that are measured.

    `opened` makes the client that `write` takes, such as a connection; it raises UnavailableError if it cannot.
    """

    name: str
    label: str
    default: str
    offers: tuple[str, ...]
    write: Write
    opened: Callable[[PostgresServer, pa.Table], AbstractContextManager[Any]] = lambda *_: nullcontext()


def split(codec: str, **names: str) -> tuple[str, int | None]:
    """Return the name of a codec, replaced as in `names`, and its level or None."""
    name, _, level = codec.partition(" ")
    return names.get(name, name), int(level) if level else None


@contextmanager
def _duckdb(_server: PostgresServer, content: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with connected_duckdb() as connection:
        connection.register("buildings", content)
        yield connection


@contextmanager
def _pg_parquet(server: PostgresServer, content: pa.Table) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection to a server that holds the rows; raises UnavailableError without the extension."""
    tables = PostgresTables(server)
    with open_psycopg_parquet_stream(server) as connection:
        try:
            tables.create(TABLE)
            tables.load(TABLE, content)
            yield connection
        finally:
            tables.drop(TABLE)


def pyarrow_write_table(_client: None, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with Arrow's writer, in C++."""
    name, level = split(codec or "snappy")
    pq.write_table(content, path, compression=name, compression_level=level)


def polars_write_parquet(_client: None, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with Polars, in Rust; the clock includes converting text to Polars' layout."""
    chosen: Any = {}
    if codec is not None:
        chosen["compression"], chosen["compression_level"] = split(codec, none="uncompressed")
    pl.DataFrame(pl.from_arrow(content, rechunk=False)).write_parquet(path, **chosen)


def duckdb_copy(connection: duckdb.DuckDBPyConnection, _content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with DuckDB, which scans the Arrow table in place.

    Options: https://duckdb.org/docs/current/data/parquet/overview
    """
    options = _copy_options(codec, "CODEC", "COMPRESSION_LEVEL")
    connection.execute(f"COPY buildings TO {quote_postgres_text(str(path))} (FORMAT parquet{options})")


def chdb_into_outfile(engine: Any, content: pa.Table, path: Path, codec: str | None) -> None:  # noqa: ARG001
    """Write with ClickHouse as a library, which finds the Arrow table by its name, and may reorder rows.

    Settings: https://clickhouse.com/docs/interfaces/formats/Parquet
    """
    settings = ""
    if codec is not None:
        name, level = split(codec)
        settings = f" SETTINGS output_format_parquet_compression_method = '{name}'"
        settings += "" if level is None else f", output_format_compression_level = {level}"
    target = quote_clickhouse_text(str(path))
    engine.query(f"SELECT * FROM Python(content) INTO OUTFILE {target} FORMAT Parquet{settings}")


def fastparquet_write(_client: None, content: pa.Table, path: Path, codec: str | None) -> None:
    """Write with fastparquet, from a pandas frame; it has no dates, so they become timestamps."""
    # Without a nullable dtype, integers with NULL would become floats.
    frame = content.to_pandas(date_as_object=False, types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    name, level = split(codec or "none", none="UNCOMPRESSED", lz4="LZ4_RAW")
    compression = {"_default": {"type": name.upper(), "args": None if level is None else {"level": level}}}
    fastparquet.write(str(path), frame, compression=compression)


def pg_parquet_copy(connection: psycopg.Connection[Any], _content: pa.Table, path: Path, codec: str | None) -> None:
    """Write in PostgreSQL, from a table, with an extension in Rust; the file comes over the connection.

    Options: https://github.com/CrunchyData/pg_parquet#copy-options
    """
    options = _copy_options(codec, "compression", "compression_level")
    statement = f"COPY {TABLE.postgres_name} TO STDOUT WITH (FORMAT parquet{options})"
    with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        file.writelines(copy)


def _copy_options(codec: str | None, name_option: str, level_option: str) -> str:
    """Return the options of a COPY statement, after its format; DuckDB and pg_parquet use the same codec names.

    `lz4` would select the older framing (https://parquet.apache.org/docs/file-format/data-pages/compression/).
    """
    if codec is None:
        return ""
    name, level = split(codec, none="uncompressed", lz4="lz4_raw")
    return f", {name_option} '{name}'" + ("" if level is None else f", {level_option} {level}")


OWN_LEVELS = ("none", "snappy", "lz4", "zstd", "gzip")
LEVELS = ("none", "snappy", "lz4", "zstd 1", "zstd 3", "zstd 9", "gzip 1", "gzip 6")

PYARROW = Writer("pyarrow", "pyarrow", "snappy", LEVELS, pyarrow_write_table)
WRITERS = (
    PYARROW,
    Writer("polars", "Polars", "zstd", OWN_LEVELS, polars_write_parquet),
    Writer("duckdb", "DuckDB", "snappy", OWN_LEVELS, duckdb_copy, _duckdb),
    Writer(
        "clickhouse", "ClickHouse (chDB)", "zstd", OWN_LEVELS, chdb_into_outfile,
        lambda *_: closing(chdb.connect(":memory:")),
    ),
    Writer("fastparquet", "fastparquet", "none", OWN_LEVELS, fastparquet_write),
    Writer("pg_parquet", "pg_parquet", "snappy", OWN_LEVELS, pg_parquet_copy, _pg_parquet),
)  # fmt: skip
