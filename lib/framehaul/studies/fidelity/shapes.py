"""Define shapes of frames: other dtypes, chunks, orders and indexes, and frames that do not fit their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate, chain, pairwise
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from framehaul.data.schema import Column, ColumnType, list_types

type Shape = Callable[[Any], Any]
"""A function that reshapes a frame with the table's dtypes."""

TEXTS = ("given", "family")
"""Two columns of one type."""
LONE_SURROGATE = "\ud800"
"""Half of a surrogate pair of UTF-16, which a Python string may contain and UTF-8 cannot encode."""


def _swapped(frame: Any) -> Any:
    at = dict(zip(TEXTS, TEXTS[::-1], strict=True))
    return frame[[at.get(name, name) for name in frame.columns]]


def _both(polars: Shape, pandas: Shape) -> dict[str, Shape]:
    return {"polars": polars, "pandas": pandas}


def _as_it_is(frame: Any) -> Any:
    return frame


def in_batches(content: pa.Table) -> list[pa.RecordBatch]:
    """Return record batches of the first row, no rows, the rows between, and the last row."""
    rows = content.num_rows
    return _cut(content, 0, min(rows, 1), min(rows, 1), max(rows - 1, min(rows, 1)), rows)


def _cut(content: pa.Table, *places: int) -> list[pa.RecordBatch]:
    """Return a record batch for each part between these places, also for empty parts."""
    whole = pa.record_batch([column.combine_chunks() for column in content.columns], schema=content.schema)
    return [whole.slice(first, end - first) for first, end in pairwise(places)]


def _with_column(content: pa.Table, name: str, values: Any) -> pa.Table:
    return content.set_column(content.column_names.index(name), name, values)


def _dictionaries(content: pa.Table) -> list[pa.RecordBatch]:
    """Return text as dictionaries that differ between batches, one with unused keys, and once as plain text."""
    parts = [content.slice(0, 2), content.slice(2, 1), content.slice(3)]
    for name in TEXTS:
        first, _, last = (part.column(name).combine_chunks() for part in parts)
        keys = pa.array(["of no row", *dict.fromkeys(last.to_pylist()), None])
        indexes = pc.index_in(last, keys).cast(pa.int8())
        parts[0] = _with_column(parts[0], name, first.dictionary_encode())
        parts[2] = _with_column(parts[2], name, pa.DictionaryArray.from_arrays(indexes, keys))
    return [batch for part in parts for batch in part.to_batches()]


def _texts_of_every_kind(content: pa.Table) -> list[pa.RecordBatch]:
    """Return batches of text with offsets of 32 bits, with offsets of 64 bits, and as views."""
    parts = []
    for at, kind in enumerate((pa.string(), pa.large_string(), pa.string_view())):
        part = content.slice(2 * at, 2)
        for name in TEXTS:
            part = _with_column(part, name, part.column(name).cast(kind))
        parts.append(part)
    return [batch for part in parts for batch in part.to_batches()]


def _nulls_last(content: pa.Table) -> list[pa.RecordBatch]:
    """Return batches of which only the last has NULL."""
    flags = content.column("flag")
    return [*content.filter(flags.is_valid()).to_batches(), *content.filter(flags.is_null()).to_batches()]


def _nulls_of_no_type(content: pa.Table) -> list[pa.RecordBatch]:
    """Return batches of which the first has a column of Arrow's null type."""
    flags = content.column("flag")
    nulls = content.filter(flags.is_null())
    nulls = _with_column(nulls, "flag", pa.nulls(nulls.num_rows))
    return [*nulls.to_batches(), *content.filter(flags.is_valid()).to_batches()]


def _then(change: Callable[[pa.Table], pa.Table]) -> Shape:
    """Return a shape of two batches, of which the second is changed."""
    return lambda content: [*content.slice(0, 2).to_batches(), *change(content.slice(2)).combine_chunks().to_batches()]


def _second_as(name: str, kind: pa.DataType) -> Shape:
    """Return a shape of two batches, of which the second has a column of another type."""
    return _then(lambda content: _with_column(content, name, content.column(name).cast(kind)))


def _as_int64(name: str) -> dict[str, Shape]:
    frames = _both(
        lambda frame: frame.with_columns(pl.col(name).cast(pl.Int64)), lambda frame: frame.astype({name: "int64"})
    )
    return frames | {"batches": _second_as(name, pa.int64())}


def _pandas_filtered(frame: pd.DataFrame) -> pd.DataFrame:
    twice = pd.concat([frame, frame]).sort_values("id", ignore_index=True)
    return twice.loc[twice.index % 2 == 1]


def _multi_indexed(frame: pd.DataFrame) -> pd.DataFrame:
    level = range(len(frame))
    return frame.set_axis(pd.MultiIndex.from_arrays([level, level], names=["outer", "inner"]), axis="index")


def _filtered(frame: pl.DataFrame, *, in_chunks: bool = False) -> pl.DataFrame:
    """Return rows that were filtered from one chunk, or from several."""
    twice = pl.concat([frame, frame]).sort("id")
    if in_chunks:
        twice = pl.concat([twice[:3], twice[3:4], twice[4:]], rechunk=False)
    return twice.filter(pl.Series([True, False] * len(frame)))


def _chunked(frame: Any) -> Any:
    parts = [frame[:2], frame[2:3], frame[3:]]
    return pl.concat(parts, rechunk=False) if isinstance(frame, pl.DataFrame) else pd.concat(parts)


def _slice_of_more(frame: Any) -> Any:
    if isinstance(frame, pl.DataFrame):
        return pl.concat([frame, frame], rechunk=True)[len(frame) :]
    return pd.concat([frame, frame], ignore_index=True).iloc[len(frame) :]


def _columns_of_two_levels(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(pd.MultiIndex.from_product([["of"], list(frame.columns)]), axis="columns")


NESTED: dict[Column, list[Any]] = {
    Column("numbers", ColumnType.LIST): [[1, 2**53 + 1], [], [-(2**63)], [4], [5, 6]],
    Column("words", ColumnType.LIST, exactly=list_types(ColumnType.TEXT.value)): [
        ["a", None], ['{"'], [], [""], ["b", "a"],
    ],
    Column("place", ColumnType.STRUCT): [{"a": at, "b": text} for at, text in enumerate(["x", None, "'", "", "x"])],
    Column("pairs", ColumnType.MAP): [[("k", 1)], [], [("", None), ("l", 2**63 - 1)], [], [("k", 5)]],
    Column("deep", ColumnType.NESTED_LIST): [[[1], []], [], [[None]], [[7, 8]], [[], []]],
}  # fmt: skip
"""The nested columns of the table for `NESTED_SHAPES`, with their values."""


def _nested_backed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the nested columns as `ArrowDtype`, in two chunks."""
    backed = {}
    for column in NESTED:
        values = frame[column.name].tolist()
        chunks = pa.chunked_array([pa.array(part, column.types.arrow) for part in (values[:2], values[2:])])
        backed[column.name] = pd.Series(pd.arrays.ArrowExtensionArray(chunks), frame.index)
    return frame.assign(**backed)


def _lists_of_numpy(frame: pd.DataFrame) -> pd.DataFrame:
    """Return lists as numpy arrays, as `read_parquet` does."""
    return frame.assign(
        numbers=pd.Series([np.array(value, np.int64) for value in frame["numbers"]], frame.index, dtype=object),
        words=pd.Series([np.array(value, object) for value in frame["words"]], frame.index, dtype=object),
    )


def _odd_name(frame: pd.DataFrame) -> pd.DataFrame:
    with_more = frame.assign(more=1)
    return with_more.set_axis(pd.Index([*frame.columns, LONE_SURROGATE], dtype=object), axis="columns")


NESTED_SHAPES: dict[str, Mapping[str, Shape]] = {
    "nested columns": _both(_as_it_is, _as_it_is) | {"batches": pa.Table.to_batches},
    "nested columns, several chunks": _both(_chunked, _chunked)
    | {"batches": lambda content: _cut(content, 0, 0, 2, 3, len(content))},
    "nested columns, filtered": _both(lambda frame: _filtered(frame, in_chunks=True), _pandas_filtered),
    "nested columns, a slice of more": _both(_slice_of_more, _slice_of_more),
    "nested columns, Python objects": {"pandas": lambda frame: frame.astype(object)},
    "nested columns, Arrow-backed": {"pandas": _nested_backed},
    "nested columns, nullable dtypes": {"pandas": lambda frame: frame.convert_dtypes()},
    "nested columns, lists of numpy": {"pandas": _lists_of_numpy},
    "nested columns, long offsets": {"batches": _second_as("numbers", pa.large_list(pa.int64()))},
}
"""The shapes of frames with `NESTED_COLUMNS`."""
SHAPES: dict[str, Mapping[str, Shape]] = {
    "as the table is": _both(_as_it_is, _as_it_is) | {"batches": pa.Table.to_batches},
    "several chunks": _both(_chunked, _chunked) | {"batches": lambda content: _cut(content, 0, 2, 3, len(content))},
    "an empty batch first, last and between": {"batches": lambda content: _cut(content, 0, 0, 2, 2, 5, 5)},
    "batches of one row": {"batches": lambda content: _cut(content, *range(len(content) + 1))},
    "a dictionary that differs from batch to batch": {"batches": _dictionaries},
    "text laid out otherwise from batch to batch": {"batches": _texts_of_every_kind},
    "NULL in the last batch alone": {"batches": _nulls_last},
    "NULL without a type in the first batch": {"batches": _nulls_of_no_type},
    "filtered": _both(_filtered, _pandas_filtered),
    "filtered, in chunks": {"polars": lambda frame: _filtered(frame, in_chunks=True)},
    "categories for text": _both(
        lambda frame: frame.with_columns(pl.col(TEXTS).cast(pl.Categorical)),
        lambda frame: frame.astype(dict.fromkeys(TEXTS, "category")),
    ),
    "an enum for text": {
        "polars": lambda frame: frame.with_columns(
            pl.col(name).cast(pl.Enum(frame[name].unique(maintain_order=True))) for name in TEXTS
        )
    },
    "two columns in the other order": _both(_swapped, _swapped)
    | {"batches": _then(lambda content: content.select([*content.column_names[::-1]]))},
    "wider integers": _as_int64("id"),
    "integers for floats": _as_int64("ratio"),
    "a lazy frame": {"polars": lambda frame: frame.lazy()},
    "a named index": {"pandas": lambda frame: frame.rename_axis("row")},
    "an index of two levels": {"pandas": _multi_indexed},
    "the key as index": {"pandas": lambda frame: frame.set_index("id")},
    "Python objects": {"pandas": lambda frame: frame.astype(object)},
    "Arrow-backed": {
        "pandas": lambda frame: pa.Table.from_pandas(frame, preserve_index=False).to_pandas(types_mapper=pd.ArrowDtype)
    },
    "nullable dtypes": {"pandas": lambda frame: frame.convert_dtypes()},
}
"""The shapes of frames that fit their table, by kind of frame."""
SLICED: Mapping[str, Shape] = _both(_slice_of_more, _slice_of_more) | {
    "batches": lambda content: pa.concat_tables([content, content]).combine_chunks().slice(len(content)).to_batches()
}
"""A slice of a larger frame."""


def without(name: str) -> Mapping[str, Shape]:
    """Return shapes without a column, which record batches lack only in the second batch."""
    frames = _both(lambda frame: frame.drop(name), lambda frame: frame.drop(columns=name))
    return frames | {"batches": _then(lambda content: content.drop([name]))}


UNFIT: dict[str, tuple[Mapping[str, Shape], str]] = {
    "a column missing": (without("family"), "the missing column was filled"),
    "a nullable column missing": (without("flag"), "the missing column was filled"),
    "a column more": (
        _both(lambda frame: frame.with_columns(more=pl.lit(1)), lambda frame: frame.assign(more=1))
        | {"batches": _then(lambda content: content.append_column("more", content.column("id")))},
        "the column more was dropped",
    ),
    "columns of two levels": ({"pandas": _columns_of_two_levels}, "the outer level was dropped"),
    "a column more, its name no text": ({"pandas": _odd_name}, "the column more was dropped"),
}
"""The shapes of frames that do not fit their table, and the loss if they raise no error."""
DOUBLED: Mapping[str, Shape] = {
    "pandas": lambda frame: pd.concat([frame, frame.iloc[:, -1:]], axis="columns"),
    "batches": lambda content: content.append_column(content.column_names[-1], content.column(-1)).to_batches(),
}
"""Shapes with the last column twice, which Polars does not support."""


def unchecked_text(raw: pa.Array) -> pa.Array:
    """Return the bytes of a binary array as text without validation, as a decoder that trusts its server does."""
    plain = raw.cast(pa.large_binary())
    return pa.Array.from_buffers(pa.large_string(), len(plain), plain.buffers(), plain.null_count, plain.offset)


def _with_surrogates(frame: pd.DataFrame) -> pd.DataFrame:
    text = [value.decode(errors="surrogatepass") for value in frame["value"]]
    return frame.assign(value=pd.Series(text, frame.index, dtype=object))


NOT_TEXT: dict[str, Mapping[str, Shape]] = {
    "from a decoder that trusts": {
        "polars": lambda frame: frame.with_columns(
            pl.Series("value", values=unchecked_text(frame["value"].to_arrow()))
        ),
        # pandas takes Arrow's buffers as they are.
        "pandas": lambda frame: frame.assign(
            value=unchecked_text(pa.array(frame["value"], pa.large_binary())).to_pandas()
        ),
        "batches": lambda content: in_batches(
            _with_column(content, "value", unchecked_text(content.column("value").combine_chunks()))
        ),
    },
    "as bytes": _both(_as_it_is, _as_it_is) | {"batches": in_batches},
}
"""Shapes with bytes that are not UTF-8 in a column of text."""
SURROGATES: Mapping[str, Shape] = {"pandas": _with_surrogates}
"""Shapes with strings that UTF-8 cannot encode."""

FILLER = pa.array(["a text that is in no row of the frame, behind the views", "of none"])


def _text(values: Any) -> pa.Array:
    text = pa.array(values, pa.string()) if isinstance(values, pd.Series) else values.to_arrow()
    return text.cast(pa.string())


def _sliced_views(values: Any) -> pa.Array:
    """Return the texts as a slice of views whose buffers also hold other texts."""
    views = pa.concat_arrays([FILLER, _text(values), FILLER]).cast(pa.string_view())
    return views.slice(len(FILLER), len(values))


def _unused_keys(values: Any) -> pa.Array:
    """Return the texts as a dictionary whose first and last keys are unused."""
    text = _text(values)
    keys = pa.array([FILLER[0].as_py(), *dict.fromkeys(text.drop_null().to_pylist()), FILLER[1].as_py()])
    return pa.DictionaryArray.from_arrays(pc.index_in(text, keys).cast(pa.int32()), keys)


def _from_arrow(make: Callable[[Any], pa.Array]) -> dict[str, Shape]:
    return _both(
        lambda frame: frame.with_columns(pl.Series("value", values=make(frame["value"]))),
        lambda frame: frame.assign(
            value=pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([make(frame["value"])])))
        ),
    )


FROM_ARROW: dict[str, Mapping[str, Shape]] = {
    "text as views, a slice of more": _from_arrow(_sliced_views),
    "a dictionary with keys of no row": _from_arrow(_unused_keys),
}
"""Shapes with text that came through Arrow: https://github.com/pola-rs/polars/issues/28503"""


def _arrow_uuids(texts: Iterable[str | None]) -> pa.Array:
    """Return UUIDs in Arrow's extension type, which Polars reads as bytes."""
    storage = pa.array([None if pd.isna(text) else UUID(text).bytes for text in texts], pa.binary(16))
    return pa.ExtensionArray.from_storage(pa.uuid(), storage)


def _arrow_uuid_lists(values: Iterable[Iterable[str | None]]) -> pa.Array:
    """Return lists of UUIDs in Arrow's extension type."""
    lists = [[*texts] for texts in values]
    offsets = pa.array([0, *accumulate(map(len, lists))], pa.int32())
    return pa.ListArray.from_arrays(offsets, _arrow_uuids(chain.from_iterable(lists)))


UUID_LISTS: dict[str, Mapping[str, Shape]] = {"lists of UUIDs of Arrow": _from_arrow(_arrow_uuid_lists)}
UUIDS: dict[str, Mapping[str, Shape]] = {"UUIDs of Arrow": _from_arrow(_arrow_uuids) | {
    "batches": lambda content: in_batches(_with_column(content, "value", _arrow_uuids(content["value"].to_pylist())))
}}  # fmt: skip
