"""Conversions between Arrow and dataframes that techniques share, without a Python object per value."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa

from framehaul.schema import ColumnType, Table

BATCH_ROWS = 65_536
"""Rows per record batch where nothing speaks for another number: large enough to amortise, small enough for caches."""
UUID_BYTES = 16


def from_pandas(frame: pd.DataFrame, table: Table) -> pa.Table:
    """A pandas frame as an Arrow table in `table.arrow_schema`; text is already Arrow inside pandas 3.

    Raises ValueError where a value does not fit its column, and for NULL where there may be none.
    """
    return pa.Table.from_pandas(frame, schema=table.arrow_schema, preserve_index=False)


def from_polars(frame: pl.DataFrame, table: Table) -> pa.Table:
    """A Polars frame as an Arrow table with plain strings, which every reader knows, instead of string views.

    Raises ValueError where a value does not fit its column, and for NULL where there may be none.
    """
    return fitting(frame, table).to_arrow(compat_level=pl.CompatLevel.oldest())


def fitting(frame: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The frame in the dtypes of `table.polars_schema`, at no cost where it has them already.

    Raises ValueError where a value does not fit its column, and for NULL where there may be none: some paths would
    store something else without a word.
    """
    for column in table.columns:
        values, wanted = frame[column.name], column.types.polars
        if not column.nullable and values.null_count():
            raise ValueError(f"column {column.name} may not be NULL, and {values.null_count()} of its values are")
        if values.dtype != wanted:
            try:
                cast = values.cast(wanted, strict=True)
            except pl.exceptions.PolarsError as error:
                raise ValueError(f"column {column.name}: {error}") from error
            if not cast.cast(values.dtype).equals(values, null_equal=True):
                raise ValueError(f"column {column.name} holds {values.dtype} values that {wanted} does not have")
            frame = frame.with_columns(cast)
    return frame


def to_pandas(arrow: pa.Table, table: Table) -> pd.DataFrame:
    """An Arrow table in `table.arrow_schema` as a pandas frame with the dtypes of `table.pandas_dtypes`."""
    columns: dict[str, Any] = {}
    for column in table.columns:
        values, wanted = arrow.column(column.name), column.types.arrow
        if values.type != wanted and not pa.types.is_string(wanted):  # pandas takes every kind of text as it is
            values = values.cast(wanted)
        # Through Arrow-backed dtypes where there are NULLs, so that none turns an integer into a float on the way.
        series: Any = values.to_pandas(types_mapper=pd.ArrowDtype if column.nullable else None)
        if column.pandas_dtype == "object":
            series = pd.Series(values.to_pandas().to_numpy(), dtype=object)
        columns[column.name] = series.astype(column.pandas_dtype)
    return pd.DataFrame(columns, copy=False)


def to_polars(arrow: pa.Table, table: Table) -> pl.DataFrame:
    """An Arrow table as a Polars frame with the dtypes of `table.polars_schema`; dictionaries become plain text.

    Extension types become what they are stored as, which for ADBC's numeric is its text.
    """
    for at, kind in enumerate(arrow.schema.types):
        if isinstance(kind, pa.BaseExtensionType):
            arrow = arrow.set_column(at, arrow.column_names[at], arrow.column(at).cast(kind.storage_type))
    frame = pl.from_arrow(arrow, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame.cast(pl.Schema(table.polars_schema))


def with_uuid_bytes(content: pa.Table, table: Table) -> pa.Table:
    """The content with UUIDs as 16 bytes where it holds their text: what PostgreSQL's binary formats take."""
    for name in table.columns_of(ColumnType.UUID):
        text = pl.Series(values=content.column(name))
        raw = text.str.replace_all("-", "", literal=True).str.decode("hex")
        content = content.set_column(content.column_names.index(name), name, raw.to_arrow().cast(pa.binary(16)))
    return content


def uuid_text(series: pl.Series) -> pl.Series:
    """UUIDs of 16 bytes as their 8-4-4-4-12 text; raises ValueError for other bytes."""
    raw = series.cast(pl.Binary)
    if not (raw.bin.size() == UUID_BYTES).fill_null(True).all():
        raise ValueError(f"a UUID is not {UUID_BYTES} bytes long")
    digits = raw.bin.encode("hex")
    parts = [digits.str.slice(start, length) for start, length in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    return pl.select(pl.concat_str(parts, separator="-")).to_series()


def arrow_stream(content: pa.Table, batch_rows: int = BATCH_ROWS) -> Iterator[bytes]:
    """The Arrow IPC stream of a table, record batch by record batch, each made when it is asked for."""
    return encode_stream(content.schema, content.to_batches(max_chunksize=batch_rows))


def encode_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """The Arrow IPC stream of record batches in this schema, each encoded when it is asked for."""
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()
