"""A file in the types of its table, which are known; it stands in the code that readers take away."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from framehaul.data.frames import uuid_text, without_views_of_null
from framehaul.data.schema import ColumnType, Table

MOST_SCALE = 76
"""Arrow's decimals have no more digits. It does not look, and casting takes time and memory by the scale."""

PLAIN = {
    pa.string_view(): pa.string(), pa.large_string(): pa.string(), pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}  # fmt: skip


def unwrapped(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values without what Arrow wraps around them: dictionaries, runs, extension types, views, wide offsets.

    Raises ArrowException where they cannot be had.
    """
    kind = values.type
    if pa.types.is_decimal(kind) and abs(kind.scale) > MOST_SCALE:
        raise pa.ArrowInvalid(f"{kind} has a scale that no decimal has")
    if pa.types.is_dictionary(kind):
        return unwrapped(values.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return unwrapped(pc.run_end_decode(values))
    if isinstance(kind, pa.BaseExtensionType):
        return unwrapped(values.cast(kind.storage_type))
    if kind in (pa.string_view(), pa.binary_view()):
        values = pa.chunked_array(map(without_views_of_null, values.chunks), kind)
    plain = PLAIN.get(kind, kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        plain = pa.list_(PLAIN.get(kind.value_type, kind.value_type))
    return values if plain == kind else values.cast(plain)


def fitted(content: pa.Table, table: Table) -> pa.Table:
    """The content in `table.arrow_schema`; raises ArrowInvalid, or ValueError, where a value would be changed."""
    columns = []
    for column in table.columns:
        values = unwrapped(content.column(column.name))
        if column.type is ColumnType.UUID and pa.types.is_fixed_size_binary(values.type):
            values = uuid_text(pl.Series(values=values)).to_arrow()
        columns.append(values.cast(column.types.arrow))
    return pa.Table.from_arrays(columns, schema=table.arrow_schema)


def undamaged(content: pa.Table) -> pa.Table:
    """The content; raises ValueError with the column that is damaged: pyarrow takes offsets and text as they stand."""
    for name, column in zip(content.column_names, content.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueError(f"column {name}: {error}") from error
    return content


def read_parquet(path: str, table: Table) -> pa.Table:
    """A Parquet file in the types of the table; INT96 are read as microseconds."""
    content = pq.read_table(path, coerce_int96_timestamp_unit="us", page_checksum_verification=True)
    return fitted(undamaged(content), table)


def read_ipc(path: str, table: Table) -> pa.Table:
    """An Arrow file (which Feather is, too) or stream in the types of the table."""
    with pa.OSFile(path) as file:
        is_file = file.read(6) == b"ARROW1"
        file.seek(0)
        content = (pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)).read_all()
        return fitted(undamaged(content), table)


def read_csv(path: str, table: Table) -> pa.Table:
    """A CSV in the types of the table; an empty field is NULL, and so, outside of text, are NA, NULL and the like."""
    parse = pa.csv.ParseOptions(delimiter="\t" if ".tsv" in path.lower() else ",", newlines_in_values=True)
    texts = table.columns_of(ColumnType.TEXT)
    others = [name for name in table.column_names if name not in texts]
    types = {column.name: column.types.arrow for column in table.columns}
    of_text = pa.csv.ConvertOptions(
        include_columns=texts, column_types=types, null_values=[""], strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )  # fmt: skip
    of_others = pa.csv.ConvertOptions(include_columns=others, column_types=types)
    parts = [pa.csv.read_csv(path, None, parse, convert)
             for convert, names in ((of_text, texts), (of_others, others)) if names]  # fmt: skip
    columns = {name: part.column(name) for part in parts for name in part.column_names}
    return fitted(pa.table(columns), table)
