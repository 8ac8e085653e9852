"""How each tool for Python converts JSON lines of buildings to Parquet, and the process that it runs in.

`python -m framehaul.studies.json_parquet.json_lines NAME SOURCE TARGET CODEC FEW_LINES` converts the few lines first,
then the source, and prints one JSON object: `seconds`, `client_cpu_s` and `peak_rss_bytes` of the second conversion.
Only the tool that is asked for is imported.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from framehaul.bench import meter
from framehaul.studies.warehouse import buildings

type Convert = Callable[[Path, Path, str], object]
"""Reads JSON lines from the first path and writes the second as Parquet with this codec."""


def clickhouse() -> Convert:
    """clickhouse-local, as the embedded engine."""
    import chdb

    from framehaul.data.schema import quote_clickhouse_text

    engine = chdb.connect(":memory:")

    def convert(source: Path, target: Path, codec: str) -> None:
        engine.query(
            f"SELECT * FROM file({quote_clickhouse_text(str(source))}, JSONEachRow, '{buildings.CLICKHOUSE_COLUMNS}') "
            f"INTO OUTFILE {quote_clickhouse_text(str(target))} FORMAT Parquet "
            f"SETTINGS output_format_parquet_compression_method = '{codec}'"
        )

    return convert


def pyarrow() -> Convert:
    """Arrow's own reader and writer."""
    from pyarrow import json as arrow_json
    from pyarrow import parquet

    # Its reader takes dates from text only as times: https://arrow.apache.org/docs/python/json.html
    dates = {field.name: pa.timestamp("s") for field in buildings.SCHEMA if field.type == pa.date32()}
    readable = pa.schema([(field.name, dates.get(field.name, field.type)) for field in buildings.SCHEMA])
    options = arrow_json.ParseOptions(explicit_schema=readable)

    def convert(source: Path, target: Path, codec: str) -> None:
        table = arrow_json.read_json(source, parse_options=options).cast(buildings.SCHEMA)
        parquet.write_table(table, target, compression=codec)

    return convert


def polars() -> Convert:
    """Polars, streaming."""
    import polars as pl

    types = {pa.int32(): pl.Int32, pa.date32(): pl.Date, pa.string(): pl.String}
    schema = {field.name: types[field.type] for field in buildings.SCHEMA}

    def convert(source: Path, target: Path, codec: Any) -> None:
        pl.scan_ndjson(source, schema=schema).sink_parquet(target, compression=codec)

    return convert


def duckdb() -> Convert:
    """DuckDB, which keeps the order of rows unless told otherwise."""
    import duckdb

    from framehaul.data.schema import quote_postgres_text

    columns = ", ".join(f"{field.name}: '{buildings.DUCKDB_TYPES[field.type]}'" for field in buildings.SCHEMA)
    connection = duckdb.connect()

    def convert(source: Path, target: Path, codec: str) -> None:
        connection.execute(
            f"COPY (FROM read_json({quote_postgres_text(str(source))}, "
            f"format = 'newline_delimited', columns = {{{columns}}})) "
            f"TO {quote_postgres_text(str(target))} (FORMAT parquet, COMPRESSION {codec})"
        )

    return convert


def fastparquet() -> Convert:
    """fastparquet, with pandas before it."""
    import warnings

    import pandas as pd
    from pandas.errors import Pandas4Warning

    # pandas 4 will drop this engine; it is what was published.
    warnings.filterwarnings("ignore", "The 'fastparquet' engine is deprecated", Pandas4Warning)
    types: Any = {field.name: "Int32" if field.type == pa.int32() else "str" for field in buildings.SCHEMA}
    dates = [field.name for field in buildings.SCHEMA if field.type == pa.date32()]

    def convert(source: Path, target: Path, codec: Any) -> None:
        frame = pd.read_json(source, lines=True, dtype=types)
        frame[dates] = frame[dates].apply(pd.to_datetime, format="%Y-%m-%d")
        frame.to_parquet(target, engine="fastparquet", compression=codec)

    return convert


def awkward() -> Convert:
    """Awkward Array, whose reader knows the types of JSON alone: dates stay text."""
    import awkward as ak

    properties = {
        field.name: {"type": ["integer" if field.type == pa.int32() else "string", "null"]}
        for field in buildings.SCHEMA
    }
    schema = {"type": "object", "properties": properties, "required": [*properties]}

    def convert(source: Path, target: Path, codec: str) -> None:
        array = ak.from_json(source, line_delimited=True, schema=schema)
        ak.to_parquet(array, target, compression=codec)

    return convert


PYTHON: dict[str, Callable[[], Convert]] = {
    opened.__name__: opened for opened in (clickhouse, pyarrow, polars, duckdb, fastparquet, awkward)
}


def main() -> None:
    """Convert the few lines, then all of them, and print what the second conversion took."""
    name, source, target, codec, few_lines = sys.argv[1:]
    convert, few = PYTHON[name](), Path(f"{target}.few")
    convert(Path(few_lines), few, codec)  # imports, thread pools and whatever else comes first
    few.unlink()
    resident = meter.reset_peak_rss()
    cpu_before, start = time.process_time(), time.perf_counter()
    convert(Path(source), Path(target), codec)
    seconds, cpu_after = time.perf_counter() - start, time.process_time()
    taken = {"seconds": seconds, "client_cpu_s": cpu_after - cpu_before}
    print(json.dumps(taken | {"peak_rss_bytes": meter.peak_rss_growth(resident)}))


if __name__ == "__main__":
    main()
