"""A frame of somebody's own in the types of its table: what Arrow wraps around values is taken off."""

from __future__ import annotations

import codecs
import io
import json
import re
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from framehaul.data.documents import ESCAPED_NUL, documents
from framehaul.data.frames import OF_A_DAY, check_fields, uuid_text, without_views_of_null
from framehaul.data.schema import ColumnType, Table

POLARS_DIGITS = 38
"""Of decimals that Polars has."""
MOST_SCALE = 76
"""Arrow's decimals have no more digits. It does not look, and casting takes time and memory by the scale."""

ZONES = zoneinfo.available_timezones()
"""Names of zones that ClickHouse has as well."""

LINES_BYTES = 1 << 26
"""Of JSON lines that are parsed at once."""
FRACTION = re.compile(r'"\\u0000([^"]+)"')


def _whole_microseconds(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.timestamp("us", values.type.tz))
    except pa.ArrowInvalid as error:
        raise ValueError(
            "holds nanoseconds inside, which PostgreSQL does not have: make them numbers, which keeps them (cast to "
            "int64), or cut them off"
        ) from error


def check_times(values: pa.Array | pa.ChunkedArray) -> None:
    """Raises ValueError for a time that no day has: Arrow's are numbers, and it does not look."""
    count = values.cast(pa.int32() if pa.types.is_time32(values.type) else pa.int64())
    ends = pc.min_max(count).as_py()
    if ends["min"] is not None and not 0 <= ends["min"] <= ends["max"] < OF_A_DAY[values.type.unit]:
        raise ValueError("holds times that no day has: make them durations, or numbers")


def _times(values: pa.Array) -> pa.Array:
    check_times(values)
    return values.cast(pa.string())


def _digits(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return pa.array([None if value is None else f"{value:f}" for value in values.to_pylist()], pa.string())


@dataclass(frozen=True)
class Innermost:
    """What becomes of a type inside of what is nested, and how that is said, if at all; `{unit}` is the type's."""

    fits: Callable[[pa.DataType], bool]
    convert: Callable[[pa.Array], pa.Array]
    said: str


INNERMOST = (
    Innermost(pa.uuid().equals, lambda of: uuid_text(pl.Series(values=of.storage)).to_arrow(), "UUIDs as text"),
    Innermost(lambda kind: isinstance(kind, pa.JsonType), lambda of: of.storage, "documents as text"),
    Innermost(pa.types.is_time, _times, "times of day as text"),
    Innermost(pa.types.is_fixed_size_binary, lambda of: of.cast(pa.binary()), "bytes of a fixed size as bytes of any"),
    Innermost(pa.types.is_duration, lambda of: of.cast(pa.int64()), "durations as whole numbers of {unit}"),
    Innermost(
        lambda kind: pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision <= POLARS_DIGITS,
        _digits, "decimals that Polars does not have as text",
    ),
    Innermost(pa.types.is_decimal256, lambda of: of.cast(pa.decimal128(of.type.precision, of.type.scale)), ""),
    Innermost(lambda kind: kind == pa.float16(), lambda of: of.cast(pa.float32()), "floats of 16 bits in 32"),
    Innermost(pa.types.is_date64, lambda of: of.cast(pa.timestamp("ms")), "date64 as timestamps"),
    Innermost(
        lambda kind: pa.types.is_timestamp(kind) and kind.tz and kind.tz not in ZONES,
        lambda of: of.cast(pa.timestamp(of.type.unit, "UTC")),
        "moments of a zone that is only an offset, or unknown here, in UTC",
    ),
    Innermost(
        lambda kind: pa.types.is_timestamp(kind) and kind.unit == "s",
        lambda of: of.cast(pa.timestamp("ms", of.type.tz)), "seconds as milliseconds",
    ),
    Innermost(
        lambda kind: pa.types.is_timestamp(kind) and kind.unit == "ns",
        _whole_microseconds, "nanoseconds, all of them whole microseconds, as such",
    ),
)  # fmt: skip
"""Both servers have these as columns, and what is nested has them in few of its paths, or in none."""

PLAIN = {
    pa.string_view(): pa.string(), pa.large_string(): pa.string(), pa.binary_view(): pa.binary(),
    pa.large_binary(): pa.binary(),
}  # fmt: skip


def unwrapped(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values without what Arrow wraps around them: dictionaries, runs, extension types, views, wide offsets.

    What is inside of nested ones is in types that both servers have there. Raises ArrowException where that cannot be
    had, and ValueError for moments with nanoseconds and times that no day has there.
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
    if pa.types.is_nested(kind):
        return _unwrapped_inside(values)
    plain = PLAIN.get(kind, kind)
    return values if plain == kind else values.cast(plain)


def _unwrapped_inside(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Nested values as `unwrapped` has them; what is outside of a slice, or under a NULL, is not looked at."""
    kind = values.type
    values = pa.chunked_array(map(_compact, values.chunks), kind)
    if is_list(kind) and pa.types.is_time(kind.value_type):
        return _lists_of_times(values)
    return pa.chunked_array([_with_plain_innermost(chunk) for chunk in (values.chunks or [pa.nulls(0, kind)])])


def _compact(array: pa.Array) -> pa.Array:
    """The array with nothing but its own values, where Arrow can pick them: it takes no lists of runs apart."""
    try:
        return array.take(pa.array(np.arange(len(array))))
    except pa.ArrowNotImplementedError:
        return array


def _lists_of_times(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Lists of times in microseconds; raises ValueError for nanoseconds, and for times that no day has."""
    check_times(pc.list_flatten(values))
    size = [values.type.list_size] if pa.types.is_fixed_size_list(values.type) else []
    try:
        return values.cast(pa.list_(pa.time64("us"), *size))
    except pa.ArrowInvalid as error:
        raise ValueError(
            "holds times with nanoseconds in lists, which PostgreSQL does not have: make them numbers, which keeps "
            "them (cast to int64), or round them"
        ) from error


def _with_plain_innermost(array: pa.Array) -> pa.Array:
    """Nested values with what is inside of them unwrapped, and in types that both servers have there."""
    array = decoded(array)
    kind = array.type
    if pa.types.is_struct(kind) and kind.num_fields:
        # Where the struct is NULL, whatever may lie under it is made NULL.
        parts = [_with_plain_innermost(part) for part in array.flatten()]
        fields = [kind.field(at).with_type(part.type) for at, part in enumerate(parts)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())
    if pa.types.is_map(kind):
        parts = [_with_plain_innermost(part) for part in array.values.flatten()]
        plain_map = pa.map_(*(part.type for part in parts))  # whose fields have the usual names, and may be NULL
        entries = pa.StructArray.from_arrays(parts, fields=[plain_map.key_field, plain_map.item_field])
        return _around(entries, array, plain_map)
    if pa.types.is_fixed_size_list(kind):
        return _lists_of_fixed_size(array)
    if is_list(kind):
        values = _with_plain_innermost(array.values)
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return _around(values, array, make(values.type)).cast(pa.list_(values.type))
    if pa.types.is_nested(kind) and not pa.types.is_run_end_encoded(kind):  # a union, or a struct of nothing
        return array
    convert = next((one.convert for one in INNERMOST if one.fits(kind)), None)
    plain = convert(array) if convert else unwrapped(pa.chunked_array([array])).combine_chunks()
    return plain if plain.type == kind else _with_plain_innermost(plain)


def decoded(array: pa.Array) -> pa.Array:
    """A dictionary of an extension type as its values; others as they are."""
    kind = array.type
    if not pa.types.is_dictionary(kind) or not isinstance(kind.value_type, pa.BaseExtensionType):
        return array
    return pa.ExtensionArray.from_storage(kind.value_type, array.dictionary.storage.take(array.indices))


def _lists_of_fixed_size(array: pa.FixedSizeListArray) -> pa.Array:
    """What is under a NULL list is made NULL: of a struct it may be an index into a dictionary of nothing."""
    size = array.type.list_size
    values = _with_plain_innermost(array.flatten())
    if not size:
        return _around(values, array, pa.list_(values.type, size))
    lists = pa.FixedSizeListArray.from_arrays(values, size)
    if not array.null_count:
        return lists
    there = array.is_valid()
    at = pc.subtract(pc.cumulative_sum(there.cast(pa.int64())), 1)
    return lists.take(pc.if_else(there, at, pa.scalar(None, pa.int64())))


def _around(inner: pa.Array, array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists or maps as they are, of other values."""
    own = array.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]  # validity and offsets
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, [inner])


def changed_inside(kind: pa.DataType) -> Iterator[str]:
    """What is to be said of the types inside of a nested one that become others."""
    if not pa.types.is_nested(kind):
        return
    for part in (kind.field(at).type for at in range(kind.num_fields)):
        if pa.types.is_dictionary(part):
            yield "categories as their values"
        while pa.types.is_dictionary(part) or pa.types.is_run_end_encoded(part):
            part = part.value_type  # noqa: PLW2901  what is wrapped
        if isinstance(part, pa.BaseExtensionType) and part not in (pa.uuid(), pa.json_()):
            yield f"{part.extension_name} as what it is stored as"
            part = part.storage_type  # noqa: PLW2901  what is wrapped
        if part == pa.int8():
            yield "integers of 8 bits in 16"
        yield from changed_inside(part)
        yield from (one.said.format(unit=getattr(part, "unit", "")) for one in INNERMOST if one.fits(part))


def with_plain_dictionaries(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dictionaries of plain values: Polars' are of views, which Arrow can neither look up nor unify."""
    kind = values.type
    chunks = [
        pa.DictionaryArray.from_arrays(
            chunk.indices.cast(pa.int32()),  # so that as many fit as all parts have together
            unwrapped(pa.chunked_array([chunk.dictionary])).combine_chunks(),
            ordered=kind.ordered,
        )
        for chunk in values.chunks
    ]
    plain = PLAIN.get(kind.value_type, kind.value_type)
    return pa.chunked_array(chunks, chunks[0].type if chunks else pa.dictionary(pa.int32(), plain))


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
            values = pa.chunked_array([_digits(values)])
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


def parsed_lines(text: bytes, schema: pa.Schema, as_documents: list[str]) -> pa.Table:
    """JSON lines in these types, without the fields that are not in the schema; these of its columns as JSON.

    Raises ArrowInvalid for other values, and ValueError for a document that jsonb does not have.
    """
    plain = pa.schema([field for field in schema if field.name not in as_documents])
    parse = pa.json.ParseOptions(explicit_schema=plain, unexpected_field_behavior="ignore")
    content = pa.json.read_json(io.BytesIO(text), pa.json.ReadOptions(block_size=LINES_BYTES), parse)
    found: dict[str, list[Any]] = {name: [] for name in as_documents}
    for line, one in lines_of(text) if as_documents else ():
        # Numbers keep all their digits, which jsonb has as well: behind a NUL, which documents cannot hold.
        if ESCAPED_NUL.search(one):
            raise ValueError(f"line {line:,} holds \\u0000, which PostgreSQL's jsonb does not have: take it out")
        values = json.loads(one, parse_float=lambda digits: f"\0{digits}")
        for name, column in found.items():
            column.append(values.get(name))
    columns = [pa.array(_documents(found[name]), pa.string()) if name in found else content[name]
               for name in schema.names]  # fmt: skip
    return pa.Table.from_arrays(columns, schema.names)


def _documents(values: list[Any]) -> list[str | None]:
    """Values of JSON, numbers with a fraction as text behind a NUL, as documents; text is one where all is text."""
    if all(value is None or (isinstance(value, str) and not value.startswith("\0")) for value in values):
        return values
    written = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
    return [document and FRACTION.sub(r"\1", document) for document in written]


def lines_of(text: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, each with its number from 1 on."""
    for number, line in enumerate(io.BytesIO(text.removeprefix(codecs.BOM_UTF8)), 1):
        if line.strip():
            yield number, line
