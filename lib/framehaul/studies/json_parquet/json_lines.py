"""Conversions of JSON lines of buildings to Parquet, and the process that measures one.

`python json_lines.py NAME --compression CODEC SOURCE TARGET` imports only the library NAME. It converts ten lines of
SOURCE, then SOURCE, and prints a JSON object: `seconds`, `client_cpu_s` and `peak_rss_bytes` of the second conversion.
"""

import json
import sys
import time
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from framehaul.bench import meter
from framehaul.data.schema import ColumnType, quote_clickhouse_text, quote_postgres_text
from framehaul.studies.buildings import DUCKDB_TYPES, SCHEMA, TABLE

DATES, INTEGERS = TABLE.columns_of(ColumnType.DATE), TABLE.columns_of(ColumnType.INT32)


@cache
def _clickhouse_engine() -> Any:
    import chdb

    return chdb.connect(":memory:")


def clickhouse(source: Path, target: Path, codec: str) -> None:
    """Convert with chDB, the engine of ClickHouse as a library."""
    rows = f"file({quote_clickhouse_text(str(source))}, JSONEachRow, '{TABLE.clickhouse_structure}')"
    settings = f"SETTINGS output_format_parquet_compression_method = '{codec}'"
    file = quote_clickhouse_text(str(target))
    _clickhouse_engine().query(f"SELECT * FROM {rows} INTO OUTFILE {file} FORMAT Parquet {settings}")


def pyarrow(source: Path, target: Path, codec: str) -> None:
    """Convert with Arrow's reader and writer."""
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    # The reader converts text to timestamps but not to dates: https://arrow.apache.org/docs/python/json.html
    readable = pa.schema([field.with_type(pa.timestamp("s")) if field.name in DATES else field for field in SCHEMA])
    table = arrow_json.read_json(source, parse_options=arrow_json.ParseOptions(explicit_schema=readable))
    parquet.write_table(table.cast(SCHEMA), target, compression=codec)


def polars(source: Path, target: Path, codec: Any) -> None:
    """Convert with Polars, as a stream."""
    import polars as pl

    pl.scan_ndjson(source, schema=TABLE.polars_schema).sink_parquet(target, compression=codec)


def duckdb(source: Path, target: Path, codec: str) -> None:
    """Convert with DuckDB, which keeps the order of rows by default."""
    import duckdb

    lines, file = quote_postgres_text(str(source)), quote_postgres_text(str(target))
    rows = f"FROM read_json({lines}, format = 'newline_delimited', columns = {DUCKDB_TYPES})"
    duckdb.execute(f"COPY ({rows}) TO {file} (FORMAT parquet, COMPRESSION {codec})")


def fastparquet(source: Path, target: Path, codec: Any) -> None:
    """Convert with fastparquet, from a pandas frame."""
    import pandas as pd

    types: Any = {name: "Int32" if name in INTEGERS else "str" for name in SCHEMA.names}
    frame = pd.read_json(source, lines=True, dtype=types)
    frame[DATES] = frame[DATES].apply(pd.to_datetime, format="%Y-%m-%d")
    frame.to_parquet(target, engine="fastparquet", compression=codec)  # until pandas 4; the published one used it


def awkward(source: Path, target: Path, codec: str) -> None:
    """Convert with Awkward Array, whose reader has only the types of JSON, so that dates stay text."""
    import awkward as ak

    types = {name: {"type": ["integer" if name in INTEGERS else "string", "null"]} for name in SCHEMA.names}
    schema = {"type": "object", "properties": types, "required": SCHEMA.names}
    ak.to_parquet(ak.from_json(source, line_delimited=True, schema=schema), target, compression=codec)


CONVERSIONS = {convert.__name__: convert for convert in (clickhouse, pyarrow, polars, duckdb, fastparquet, awkward)}


def main() -> None:
    """Convert ten lines, then all of them, and print the cost of the second conversion."""
    name, _, codec, *paths = sys.argv[1:]
    convert, (source, target) = CONVERSIONS[name], map(Path, paths)
    few = target.with_suffix(".few")
    with source.open("rb") as lines:
        few.write_bytes(b"".join(islice(lines, 10)))
    convert(few, target, codec)  # the clock excludes imports and starting threads
    target.unlink()
    resident = meter.reset_peak_rss()
    cpu_before, start = time.process_time(), time.perf_counter()
    convert(source, target, codec)
    taken = {"seconds": time.perf_counter() - start, "client_cpu_s": time.process_time() - cpu_before}
    print(json.dumps(taken | {"peak_rss_bytes": meter.peak_rss_growth(resident)}))


if __name__ == "__main__":
    main()
