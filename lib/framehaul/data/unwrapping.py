"""Unwrap Arrow values: dictionaries, runs, extension types and views become plain values."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.frames import uuid_text, without_views_of_null

TEXTS, BYTES = (pa.string_view(), pa.large_string()), (pa.binary_view(), pa.large_binary())
PLAIN = dict.fromkeys(TEXTS, pa.string()) | dict.fromkeys(BYTES, pa.binary())


def unwrapped(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return scalars as plain values, UUIDs as text; what is nested stays as it is, but for lists of UUIDs.

    Raises ArrowException where Arrow cannot unpack them.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        plain = with_plain_dictionaries(values)
        return unwrapped(plain.cast(plain.type.value_type))
    if pa.types.is_run_end_encoded(kind):
        return unwrapped(pc.run_end_decode(values))
    if kind == pa.uuid():
        return pa.chunked_array([_text_of_uuids(chunk) for chunk in values.chunks], pa.string())
    if isinstance(kind, pa.BaseExtensionType):
        return unwrapped(values.cast(kind.storage_type))
    if is_list(kind) and kind.value_type == pa.uuid():
        return pa.chunked_array(map(_lists_of_text, values.chunks), pa.list_(pa.string()))
    if kind in (pa.string_view(), pa.binary_view()):
        values = pa.chunked_array(map(without_views_of_null, values.chunks), kind)
    return values.cast(PLAIN[kind]) if kind in PLAIN else values


def _text_of_uuids(uuids: pa.ExtensionArray) -> pa.Array:
    return uuid_text(pl.Series(values=uuids.storage)).to_arrow().cast(pa.string())


def _lists_of_text(lists: pa.Array) -> pa.Array:
    """Return lists of UUIDs as lists of text; values outside of a slice or below a NULL are dropped."""
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(lists.cast(pa.list_(pa.binary(16)))), 0))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(offsets, _text_of_uuids(lists.flatten()), mask=lists.is_null())


def with_plain_dictionaries(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return dictionaries of plain values: Polars' are of views, which Arrow can neither look up nor unify."""
    kind = values.type
    if isinstance(kind.value_type, pa.BaseExtensionType):
        return values
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
    """Return whether a type is one of Arrow's lists that all paths support."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def undamaged(content: pa.Table) -> pa.Table:
    """Return the content; raises ValueError with a column that is damaged: pyarrow trusts offsets and text."""
    for name, column in zip(content.column_names, content.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowException as error:
            raise ValueError(f"column {name}: {error}") from error
    return content
