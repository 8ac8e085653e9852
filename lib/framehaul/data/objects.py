"""Lossless conversion of Python objects, from pandas, a driver or JSON, to Arrow.

Arrow itself silently truncates 1.5 to an integer, timestamps to dates, and drops nanoseconds: https://arrow.apache.org/docs/python/generated/pyarrow.array.html
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pandas as pd

NOT_OF_THE_TYPE = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""The exceptions raised for a value that is not of a type."""
PAST_MICROSECONDS = re.compile(r"\.\d{7}")
"""The end of a timestamp's text with more digits than Python's datetime has."""


def exact_objects(values: pd.Series[Any], kind: pa.DataType) -> pd.Series[Any]:
    """Return a column of objects backed by Arrow; None becomes NULL, NaN inside of nested values stays NaN.

    Raises ValueError, naming the column, for a value that is not of the type: Arrow would drop unknown fields.
    """
    import pandas as pd

    if isinstance(values.dtype, pd.ArrowDtype):  # pandas would make numpy arrays, which have no NULL
        if values.dtype.pyarrow_dtype == kind:
            return values
        objects = pa.array(values).to_pylist()
    else:
        objects = values.astype(object).where(values.notna(), None).tolist()
    try:
        array = nested_array(objects, kind)
        array.validate()
    except NOT_OF_THE_TYPE as error:
        raise ValueError(f"column {values.name} does not fit {kind}: {error}") from error
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array])), values.index)


def nested_array(values: list[Any], kind: pa.DataType, *, texts: bool = False) -> pa.Array:
    """Return objects as an array of any type; raises one of `NOT_OF_THE_TYPE` for a value of another type.

    A struct may be a dictionary, pairs, or a tuple of all fields; a missing field is NULL. A map may be a dictionary or
    pairs. A list may be a numpy array. With `texts`, dates, timestamps, decimals and integer keys may be text, as in
    JSON.
    """
    if not pa.types.is_nested(kind):
        return scalar_array(_parsed_texts(values, kind) if texts else values, kind)
    missing = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_struct(kind):
        found = [{} if value is None else _fields_by_name(value, kind) for value in values]
        children = [nested_array([value.get(field.name) for value in found], field.type, texts=texts) for field in kind]
        return pa.StructArray.from_arrays(children, fields=[*kind], mask=missing)
    if pa.types.is_map(kind):
        pairs = [[] if value is None else _key_value_pairs(value, kind) for value in values]
        names = [key for each in pairs for key, _ in each]
        if texts and pa.types.is_integer(kind.key_type):
            names = [int(name) if isinstance(name, str) else name for name in names]
        keys = nested_array(names, kind.key_type, texts=texts)
        items = nested_array([item for each in pairs for _, item in each], kind.item_type, texts=texts)
        if keys.null_count:
            raise ValueError("NULL is no key of a map")
        return pa.MapArray.from_arrays(_list_offsets(pairs), keys, items, kind, mask=missing)
    is_fixed = pa.types.is_fixed_size_list(kind)
    filler = [None] * kind.list_size if is_fixed else []
    lists = [filler if value is None else _elements_of(value, kind) for value in values]
    elements = nested_array([*chain.from_iterable(lists)], kind.value_type, texts=texts)
    if is_fixed:
        return pa.FixedSizeListArray.from_arrays(elements, type=kind, mask=missing)
    return pa.ListArray.from_arrays(_list_offsets(lists), elements, kind, mask=missing)


def _list_offsets(parts: list[Any]) -> pa.Array:
    return pa.array(np.append(0, np.cumsum([len(part) for part in parts], dtype=np.int64)), pa.int32())


def _elements_of(value: Any, kind: pa.DataType) -> Any:
    if not isinstance(value, list | tuple | np.ndarray):
        raise ValueError(f"{value!r} is no {kind}")  # noqa: TRY004  like other values that do not fit
    if pa.types.is_fixed_size_list(kind) and len(value) != kind.list_size:
        raise ValueError(f"{value!r} is no {kind}: it has {len(value)} elements")
    return value


def _fields_by_name(value: Any, kind: pa.DataType) -> Mapping[str, Any]:
    names = [field.name for field in kind]
    if isinstance(value, np.void) and value.dtype.names:
        value = {name: value[name] for name in value.dtype.names}
    if isinstance(value, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):  # noqa: PLR2004
        value = dict(value) if len(dict(value)) == len(value) else value
    elif isinstance(value, tuple) and len(value) == len(names):
        value = dict(zip(names, value, strict=True))
    if not isinstance(value, dict) or value.keys() - {*names}:
        raise ValueError(f"{value!r} is no {kind}")
    return value


def _key_value_pairs(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return [*value.items()]
    pairs = [tuple(each.values()) if isinstance(each, dict) else tuple(each) for each in _elements_of(value, kind)]
    if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004  key and value
        raise ValueError(f"{value!r} is no {kind}")
    return pairs


def scalar_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return objects as an array of scalars; raises one of `NOT_OF_THE_TYPE` instead of changing a value."""
    import pandas as pd

    if type(pd.NA) in (types := {*map(type, values)}):
        values = [None if value is pd.NA else value for value in values]
    if _has_types(types, (bool, np.bool_)) and not pa.types.is_boolean(kind):
        raise ValueError(f"a boolean is no {kind}")
    if pa.types.is_integer(kind) and _has_types(types, (float, np.floating, Decimal)):
        given = pa.array([float(value) if isinstance(value, np.floating) else value for value in values])
        return given.cast(kind)
    if pa.types.is_floating(kind) and kind != pa.float64():
        given = pa.array(values, pa.float64())
        return _kept_exactly(given, given.cast(kind))
    if pa.types.is_date(kind) and _has_types(types, (dt.datetime, np.datetime64)):
        given = pa.array([_day(value) for value in values])  # Arrow takes no days of numpy
        return _kept_exactly(given, given.cast(kind))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return _timestamp_array(values, types, kind)
    if kind == pa.string() and UUID in types:
        values = [str(value) if isinstance(value, UUID) else value for value in values]
    return pa.array(values, kind, from_pandas=False)


def _day(value: Any) -> Any:
    return value.item() if isinstance(value, np.datetime64) and np.datetime_data(value)[0] == "D" else value


def _parsed_texts(values: list[Any], kind: pa.DataType) -> list[Any]:
    """Return the values with text parsed, if the type is a date, time, timestamp or decimal."""
    parse = next((parse for fits, parse in PARSERS.items() if fits(kind)), None)
    return values if parse is None else [parse(value) if isinstance(value, str) else value for value in values]


def _timestamp_of(text: str) -> dt.datetime:
    """Return a timestamp: pandas' if the text has more digits than Python's datetime."""
    import pandas as pd

    return pd.Timestamp(text) if PAST_MICROSECONDS.search(text) else dt.datetime.fromisoformat(text)


PARSERS: dict[Callable[[pa.DataType], bool], Callable[[str], Any]] = {
    pa.types.is_decimal: Decimal,
    pa.types.is_date: dt.date.fromisoformat,
    pa.types.is_time: dt.time.fromisoformat,
    pa.types.is_timestamp: _timestamp_of,
}


def _has_types(types: set[type], of: tuple[type, ...]) -> bool:
    return any(issubclass(each, of) for each in types)


def _kept_exactly(given: pa.Array, made: pa.Array) -> pa.Array:
    """Return the cast values; raises ValueError if casting back returns another value."""
    same = pc.or_(pc.equal(made.cast(given.type), given), pc.not_equal(given, given))  # NaN differs from itself
    if pc.all(same).as_py() is False:
        row = pc.index(same, False).as_py()
        raise ValueError(f"{made.type} does not have {given[row].as_py()!r}")
    return made


def _timestamp_array(values: list[Any], types: set[type], kind: pa.DataType) -> pa.Array:
    """Return timestamps or durations, numpy's in their own unit; raises ValueError for a fraction of the unit."""
    import pandas as pd

    if _has_types(types, (np.datetime64, np.timedelta64)):
        return pa.array(values).cast(kind)
    if _has_types(types, (float,)):
        raise ValueError(f"a number with a point is no {kind}")
    if kind.unit == "ns":
        return pa.array(values, kind, from_pandas=False)
    pandas = [value for value in values if isinstance(value, pd.Timestamp | pd.Timedelta)]
    if any(value.nanosecond if isinstance(value, pd.Timestamp) else value.nanoseconds for value in pandas):
        raise ValueError(f"it holds nanoseconds, which {kind} does not have")
    finest = pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", kind.tz)
    return pa.array(values, finest, from_pandas=False).cast(kind)
