"""A file's content in the types of its table; it stands in the code that readers take away."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.frames import uuid_text
from framehaul.schema import ColumnType, Table


def unwrapped(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values without what Arrow wraps around them: dictionaries, runs, extension types, views, wide offsets."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return unwrapped(values.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return unwrapped(pc.run_end_decode(values))
    if isinstance(kind, pa.BaseExtensionType):
        return unwrapped(values.cast(kind.storage_type))
    if kind in (pa.string_view(), pa.large_string()):
        return values.cast(pa.string())
    return values.cast(pa.binary()) if kind in (pa.binary_view(), pa.large_binary()) else values


def fitted(content: pa.Table, table: Table) -> pa.Table:
    """The content in `table.arrow_schema`; raises ArrowInvalid, or ValueError, where a value would be changed."""
    columns = []
    for column in table.columns:
        values = unwrapped(content.column(column.name))
        if column.type is ColumnType.UUID and pa.types.is_fixed_size_binary(values.type):
            values = uuid_text(pl.Series(values=values)).to_arrow()
        columns.append(values.cast(column.types.arrow))
    return pa.Table.from_arrays(columns, schema=table.arrow_schema)
