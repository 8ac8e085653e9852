"""Define shapes of frames: other dtypes, chunks, orders and indexes, and frames that do not fit their table."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
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
type Shapes = dict[str, Shape]
"""The shape of each kind of frame that can have it."""

TEXTS = ("given", "family")
"""Two columns of one type."""
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
LONE_SURROGATE = "\ud800"
"""Half of a surrogate pair of UTF-16, which a Python string may contain and UTF-8 cannot encode."""
FILLER = pa.array(["a text that is in no row of the frame, behind the views", "of none"])
"""Two texts that are in no row."""


def _kinds(polars: Shape | None = None, pandas: Shape | None = None, batches: Shape | None = None) -> Shapes:
    shapes = {"polars": polars, "pandas": pandas, "batches": batches}
    return {kind: shape for kind, shape in shapes.items() if shape}


def _same(frame: Any) -> Any:
    return frame


def _cut(content: pa.Table, *places: int) -> list[pa.RecordBatch]:
    """Return a record batch for each part between these places, also for empty parts."""
    whole = pa.record_batch([column.combine_chunks() for column in content.columns], schema=content.schema)
    return [whole.slice(first, end - first) for first, end in pairwise(places)]


def in_batches(content: pa.Table) -> list[pa.RecordBatch]:
    """Return record batches of the first row, no rows, the rows between, and the last row."""
    one, rows = min(len(content), 1), len(content)
    return _cut(content, 0, one, one, max(rows - 1, one), rows)


def _columns(change: Shape, *names: str) -> Shape:
    """Return a shape of Arrow tables whose columns of these names are changed."""

    def changed(content: pa.Table) -> pa.Table:
        for name in names:
            values = change(content.column(name).combine_chunks())
            content = content.set_column(content.column_names.index(name), name, values)
        return content

    return changed


def _cast(kind: pa.DataType, *names: str) -> Shape:
    return _columns(lambda values: values.cast(kind), *names)


def _parts(*changes: Shape) -> Shape:
    """Return a shape of a batch per change: of the first two rows, of the third row if there are three, of the rest."""
    places = (0, 2, 3)[: len(changes)]

    def parts(content: pa.Table) -> list[pa.RecordBatch]:
        changed = [
            change(content[at:end]) for change, (at, end) in zip(changes, pairwise((*places, None)), strict=True)
        ]
        return [batch for part in changed for batch in part.combine_chunks().to_batches()]

    return parts


def _then(change: Shape) -> Shape:
    """Return a shape of two batches, of which the second is changed."""
    return _parts(_same, change)


def _nulls(order: str, *changes: Shape) -> Shape:
    """Return a shape of a batch per change, of the rows whose flag is NULL after the others (ascending) or before."""
    return lambda content: _parts(*changes)(
        content.take(pc.array_sort_indices(content["flag"].is_null().combine_chunks(), order=order))
    )


def _chunked(frame: Any, at: int = 2) -> Any:
    parts = [frame[:at], frame[at : at + 1], frame[at + 1 :]]
    return pl.concat(parts, rechunk=False) if isinstance(frame, pl.DataFrame) else pd.concat(parts)


def _filtered(frame: Any, cut: Shape = _same) -> Any:
    """Return rows that were filtered from a frame with each row twice, which `cut` may cut into chunks of Polars."""
    if isinstance(frame, pd.DataFrame):
        return pd.concat([frame, frame]).sort_values("id", ignore_index=True).loc[lambda twice: twice.index % 2 == 1]
    return cut(pl.concat([frame, frame]).sort("id")).filter(pl.Series([True, False] * len(frame)))


_filtered_in_chunks = partial(_filtered, cut=partial(_chunked, at=3))  # of the second chunk no row is left


def _slice_of_more(frame: Any) -> Any:
    if isinstance(frame, pa.Table):
        return _cut(pa.concat_tables([frame, frame]), len(frame), 2 * len(frame))
    if isinstance(frame, pl.DataFrame):
        return pl.concat([frame, frame], rechunk=True)[len(frame) :]
    return pd.concat([frame, frame], ignore_index=True).iloc[len(frame) :]


def _swapped(frame: Any) -> Any:
    at = dict(zip(TEXTS, TEXTS[::-1], strict=True))
    return frame[[at.get(name, name) for name in frame.columns]]


def _dtypes(polars: Any, pandas: str, *names: str) -> Shapes:
    """Return shapes with these columns in other dtypes."""
    return _kinds(
        lambda frame: frame.cast(dict.fromkeys(names, polars)), lambda frame: frame.astype(dict.fromkeys(names, pandas))
    )


def _nested_backed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the nested columns as `ArrowDtype`, in two chunks."""
    schema = pa.schema([(column.name, column.types.arrow) for column in NESTED])
    parts = [pa.Table.from_pandas(part[schema.names], schema, preserve_index=False) for part in (frame[:2], frame[2:])]
    return frame.assign(**pa.concat_tables(parts).to_pandas(types_mapper=pd.ArrowDtype))


def _lists_of_numpy(frame: pd.DataFrame) -> pd.DataFrame:
    """Return lists as numpy arrays, as `read_parquet` does."""
    arrays = {"numbers": lambda value: np.array(value, np.int64), "words": lambda value: np.array(value, object)}
    return frame.assign(**{name: frame[name].map(array) for name, array in arrays.items()})


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return a Series or an Arrow array as an array of this type."""
    return (values.to_arrow() if isinstance(values, pl.Series) else pa.array(values, kind)).cast(kind)


def _sliced_views(values: Any) -> pa.Array:
    """Return the texts as a slice of views whose buffers also hold other texts."""
    views = pa.concat_arrays([FILLER, _array(values, pa.string()), FILLER]).cast(pa.string_view())
    return views.slice(len(FILLER), len(values))


def _unused_keys(values: Any, *more: None) -> pa.Array:
    """Return the texts as a dictionary whose first and last keys, and `more` keys, are unused."""
    text, (first, last) = _array(values, pa.string()), FILLER.to_pylist()
    keys = pa.array([first, *dict.fromkeys(text.drop_null().to_pylist()), last, *more])
    return pa.DictionaryArray.from_arrays(pc.index_in(text, keys).cast(pa.int8()), keys)


def _unchecked_text(values: Any) -> pa.Array:
    """Return bytes as text without validation, as a decoder that trusts its server does."""
    raw = _array(values, pa.binary()).cast(pa.large_binary())
    return pa.Array.from_buffers(pa.large_string(), len(raw), raw.buffers(), raw.null_count, raw.offset)


def _arrow_uuids(values: Any) -> pa.Array:
    """Return UUIDs in Arrow's extension type, which Polars reads as bytes."""
    raw = [text and UUID(text).bytes for text in _array(values, pa.string()).to_pylist()]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(raw, pa.binary(16)))


def _arrow_uuid_lists(values: Any) -> pa.Array:
    lists = _array(values, pa.list_(pa.string()))
    return pa.ListArray.from_arrays(lists.offsets, _arrow_uuids(lists.values))


def _plain_batches(make: Shape) -> Shape:
    return lambda content: in_batches(_columns(make, "value")(content))


def _from_arrow(make: Shape) -> Shapes:
    """Return shapes whose values are an Arrow array, which pandas keeps as such."""
    return _kinds(
        lambda frame: frame.with_columns(pl.Series("value", values=make(frame["value"]))),
        lambda frame: frame.assign(value=pd.arrays.ArrowExtensionArray(pa.chunked_array([make(frame["value"])]))),
    )


PLAIN = _kinds(_same, _same, in_batches)
OF_BATCHES: dict[str, Shape] = {
    "an empty batch first, last and between": lambda content: _cut(content, 0, 0, 2, 2, 5, 5),
    "batches of one row": lambda content: _cut(content, *range(len(content) + 1)),
    "a dictionary that differs from batch to batch": _parts(
        _columns(pc.dictionary_encode, *TEXTS), _same, _columns(lambda text: _unused_keys(text, None), *TEXTS)
    ),
    "text laid out otherwise from batch to batch": _parts(
        *(_cast(kind, *TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view()))
    ),
    "NULL in the last batch alone": _nulls("ascending", _same, _same, _same),
    "NULL without a type in the first batch": _nulls(
        "descending", _columns(lambda values: pa.nulls(len(values)), "flag"), _same
    ),
}
OF_PANDAS: dict[str, Shape] = {
    "a named index": lambda frame: frame.rename_axis("row"),
    "an index of two levels": lambda frame: frame.set_index([frame.index.rename(name) for name in ("outer", "inner")]),
    "the key as index": lambda frame: frame.set_index("id"),
    "Python objects": lambda frame: frame.astype(object),
    "Arrow-backed": lambda frame: pa.Table.from_pandas(frame).to_pandas(types_mapper=pd.ArrowDtype),
    "nullable dtypes": lambda frame: frame.convert_dtypes(),
}
SHAPES: dict[str, Shapes] = {
    "as the table is": _kinds(_same, _same, pa.Table.to_batches),
    "several chunks": _kinds(_chunked, _chunked, _parts(_same, _same, _same)),
    **{name: {"batches": shape} for name, shape in OF_BATCHES.items()},
    "filtered": _kinds(_filtered, _filtered),
    "filtered, in chunks": _kinds(_filtered_in_chunks),
    "categories for text": _dtypes(pl.Categorical, "category", *TEXTS),
    "an enum for text": _kinds(
        lambda frame: frame.cast({name: pl.Enum(frame[name].unique(maintain_order=True)) for name in TEXTS})
    ),
    "two columns in the other order": _kinds(
        _swapped, _swapped, _then(lambda rows: rows.select(rows.column_names[::-1]))
    ),
    "wider integers": _dtypes(pl.Int64, "int64", "id") | {"batches": _then(_cast(pa.int64(), "id"))},
    "integers for floats": _dtypes(pl.Int64, "int64", "ratio") | {"batches": _then(_cast(pa.int64(), "ratio"))},
    "a lazy frame": _kinds(lambda frame: frame.lazy()),
    **{name: {"pandas": shape} for name, shape in OF_PANDAS.items()},
}
"""The shapes of frames that fit their table."""
NESTED_SHAPES: dict[str, Shapes] = {
    "nested columns": SHAPES["as the table is"],
    "nested columns, several chunks": _kinds(_chunked, _chunked, lambda content: _cut(content, 0, 0, 2, 3, 5)),
    "nested columns, filtered": _kinds(_filtered_in_chunks, _filtered),
    "nested columns, a slice of more": _kinds(_slice_of_more, _slice_of_more),
    "nested columns, Python objects": SHAPES["Python objects"],
    "nested columns, Arrow-backed": _kinds(pandas=_nested_backed),
    "nested columns, nullable dtypes": SHAPES["nullable dtypes"],
    "nested columns, lists of numpy": _kinds(pandas=_lists_of_numpy),
    "nested columns, long offsets": _kinds(batches=_then(_cast(pa.large_list(pa.int64()), "numbers"))),
}
FROM_ARROW: dict[str, Shapes] = {
    "text as views, a slice of more": _from_arrow(_sliced_views),
    "a dictionary with keys of no row": _from_arrow(_unused_keys),
}
"""Shapes with text that came through Arrow: https://github.com/pola-rs/polars/issues/28503"""
UUIDS: dict[str, Shapes] = {"UUIDs of Arrow": _from_arrow(_arrow_uuids) | {"batches": _plain_batches(_arrow_uuids)}}
UUID_LISTS: dict[str, Shapes] = {"lists of UUIDs of Arrow": _from_arrow(_arrow_uuid_lists)}
SLICED = _kinds(_slice_of_more, _slice_of_more, _slice_of_more)
"""A slice of a larger frame."""


def _of_two_levels(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.set_axis(pd.MultiIndex.from_product([["of"], frame.columns]), axis="columns")


def _of_odd_name(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(more=1).set_axis(pd.Index([*frame.columns, LONE_SURROGATE], dtype=object), axis="columns")


def _with_surrogates(frame: pd.DataFrame) -> pd.DataFrame:
    text = [value.decode(errors="surrogatepass") for value in frame["value"]]
    return frame.assign(value=pd.Series(text, dtype=object))


def without(name: str) -> Shapes:
    """Return shapes without a column, which record batches lack only in the second batch."""
    dropped = _then(lambda content: content.drop([name]))
    return _kinds(lambda frame: frame.drop(name), lambda frame: frame.drop(columns=name), dropped)


MORE = _kinds(
    lambda frame: frame.with_columns(more=1),
    lambda frame: frame.assign(more=1),
    _then(lambda content: content.append_column("more", content.column("id"))),
)
UNFIT: dict[str, tuple[Shapes, str]] = {
    "a column missing": (without("family"), "the missing column was filled"),
    "a nullable column missing": (without("flag"), "the missing column was filled"),
    "a column more": (MORE, "the column more was dropped"),
    "columns of two levels": ({"pandas": _of_two_levels}, "the outer level was dropped"),
    "a column more, its name no text": ({"pandas": _of_odd_name}, "the column more was dropped"),
}
"""The shapes of frames that do not fit their table, and the loss if they raise no error."""
DOUBLED = _kinds(
    pandas=lambda frame: pd.concat([frame, frame.iloc[:, -1:]], axis="columns"),
    batches=lambda content: content.append_column(content.column_names[-1], content.column(-1)).to_batches(),
)
"""Shapes with the last column twice, which Polars does not support."""
NOT_TEXT: dict[str, Shapes] = {
    "from a decoder that trusts": _kinds(
        lambda frame: frame.with_columns(pl.Series("value", values=_unchecked_text(frame["value"]))),
        lambda frame: frame.assign(value=_unchecked_text(frame["value"]).to_pandas()),
        _plain_batches(_unchecked_text),
    ),
    "as bytes": PLAIN,
}
"""Shapes with bytes that are not UTF-8 in a column of text."""
SURROGATES = _kinds(pandas=_with_surrogates)
"""Shapes with strings that UTF-8 cannot encode."""
