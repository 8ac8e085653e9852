"""A file in the types of its table, which are known; it stands in the code that readers take away."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from framehaul.data.documents import ESCAPED_NUL, documents
from framehaul.data.frames import check_fields, uuid_text, without_views_of_null
from framehaul.data.schema import ColumnType, Table

MOST_SCALE = 76
"""Arrow's decimals have no more digits. It does not look, and casting takes time and memory by the scale."""

LINES_BYTES = 1 << 26
"""Of JSON lines that are parsed at once."""
FRACTION = re.compile(r'"\\u0000([^"]+)"')

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
        plain_values = with_plain_dictionaries(values)
        return unwrapped(plain_values.cast(plain_values.type.value_type))
    if pa.types.is_run_end_encoded(kind):
        return unwrapped(pc.run_end_decode(values))
    if isinstance(kind, pa.BaseExtensionType):
        return unwrapped(values.cast(kind.storage_type))
    if kind in (pa.string_view(), pa.binary_view()):
        values = pa.chunked_array(map(without_views_of_null, values.chunks), kind)
    plain = plain_type(kind)
    return values if plain == kind else values.cast(plain)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type without what is wrapped around values, and around those inside of it at any depth."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain_type(field.type)) for field in kind])
    if is_list(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else -1  # any
        return pa.list_(plain_type(kind.value_type), size)
    return PLAIN.get(kind, kind)


def with_plain_dictionaries(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dictionaries of plain values: Polars' are of views, which Arrow can neither look up nor unify."""
    kind = values.type
    chunks = [
        pa.DictionaryArray.from_arrays(
            chunk.indices, unwrapped(pa.chunked_array([chunk.dictionary])).combine_chunks(), ordered=kind.ordered
        )
        for chunk in values.chunks
    ]
    plain = PLAIN.get(kind.value_type, kind.value_type)
    return pa.chunked_array(chunks, chunks[0].type if chunks else pa.dictionary(kind.index_type, plain))


def is_list(kind: pa.DataType) -> bool:
    """Whether it is one of Arrow's kinds of lists that all paths know."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def fitted(content: pa.Table, table: Table) -> pa.Table:
    """The content in `table.arrow_schema`; raises ArrowInvalid, or ValueError, where a value would be changed."""
    columns = []
    for column in table.columns:
        values = unwrapped(content.column(column.name))
        if column.type is ColumnType.UUID and pa.types.is_fixed_size_binary(values.type):
            values = uuid_text(pl.Series(values=values)).to_arrow()
        if column.type is ColumnType.JSON and pa.types.is_nested(values.type):
            values = documents(values, column.name)
        if column.type is ColumnType.WIDE_DECIMAL and pa.types.is_decimal(values.type):
            values = pa.chunked_array([[None if value is None else f"{value:f}" for value in values.to_pylist()]])
        check_fields(values.type, column.types.arrow, column.name)
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


def read_json_lines(path: str, table: Table) -> pa.Table:
    """JSON lines in the types of the table, packed or not; a field that is missing is NULL."""
    with pa.input_stream(path, compression="detect") as stream:
        return fitted(parsed_lines(stream.read(), table.arrow_schema, table.columns_of(ColumnType.JSON)), table)


def parsed_lines(text: bytes, schema: pa.Schema, as_documents: list[str]) -> pa.Table:
    """JSON lines in these types, without the fields that are not in the schema; these of its columns as JSON.

    Raises ArrowInvalid for other values, and ValueError for a document that jsonb does not have.
    """
    plain = pa.schema([field for field in schema if field.name not in as_documents])
    parse = pa.json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
    content = pa.json.read_json(io.BytesIO(text), pa.json.ReadOptions(block_size=LINES_BYTES), parse)
    written: dict[str, list[str | None]] = {name: [] for name in as_documents}
    for line, one in lines_of(text) if as_documents else ():
        # Numbers keep all their digits, which jsonb has as well: behind a NUL, which documents cannot hold.
        if ESCAPED_NUL.search(one):
            raise ValueError(f"line {line:,} holds \\u0000, which PostgreSQL's jsonb does not have: take it out")
        values = json.loads(one, parse_float=lambda digits: f"\0{digits}")
        for name, texts in written.items():
            value = values.get(name)
            document = None if value is None else json.dumps(value, ensure_ascii=False)
            texts.append(document and FRACTION.sub(r"\1", document))
    columns = [pa.array(written[name], pa.string()) if name in written else content[name] for name in schema.names]
    return pa.Table.from_arrays(columns, schema.names)


def lines_of(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number from 1 on."""
    for number, line in enumerate(io.BytesIO(text.removeprefix(codecs.BOM_UTF8)), 1):
        if line.strip():
            yield number, line
