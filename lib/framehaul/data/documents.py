"""Lossless conversion of Python objects and of JSON to Arrow, and of Arrow's nested values to JSON.

Arrow itself silently truncates 1.5 to an integer, timestamps to dates, and drops nanoseconds: https://arrow.apache.org/docs/python/generated/pyarrow.array.html
PostgreSQL's jsonb stores a document of JSON unchanged only if it passes the checks below: https://www.postgresql.org/docs/18/datatype-json.html
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from framehaul.data.schema import NESTED, Table

if TYPE_CHECKING:
    import pandas as pd

TEXTS = (pa.string(), pa.large_string(), pa.string_view())
MINUS_ZERO = re.compile(r"-0(\.0*)?([eE].*)?")
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of U+0000, if its backslash is not itself escaped."""
NUMBERS = (int, float, np.number, Decimal)
NOT_OF_THE_TYPE = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""The exceptions raised for a value that is not of a type."""


def first_refused[T](column: Iterable[T | None], check: Callable[[T], object]) -> tuple[int, Exception] | None:
    """Return the row and the error of the first value that `check` refuses; None if there is none."""
    for row, value in enumerate(column):
        if value is not None:
            try:
                check(value)
            except NOT_OF_THE_TYPE as error:
                return row, error
    return None


def exact_objects(values: pd.Series[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of objects as Arrow; None and NA become NULL, NaN inside of nested values stays NaN.

    Raises ValueError, naming column and row, for a value that is not of the type: Arrow would drop unknown fields.
    """
    import pandas as pd

    convert: Callable[..., pa.Array] = partial(scalar_array, nan_is_null=True)
    # pandas converts Arrow's lists to numpy arrays, which have no NULL, and fails on lists of Arrow's UUIDs.
    is_arrow = isinstance(values.dtype, pd.ArrowDtype)
    objects: Any = pa.array(values).to_pylist() if is_arrow else values.to_numpy(object)
    if pa.types.is_nested(kind):
        convert = nested_array
        objects = [None if is_missing(value) else value for value in objects]
    try:
        array = convert(objects, kind)
        array.validate()
    except NOT_OF_THE_TYPE as error:
        row, reason = first_refused(objects, lambda value: convert([value], kind)) or (0, error)
        said = f"{objects[row]} is no {kind}: {reason}"
        if isinstance(reason, UnicodeEncodeError):
            said = f"{objects[row]!r} has half a surrogate pair, which is no text"
        raise ValueError(f"column {values.name}, row {row:,}: {said}") from error
    return array


def nested_array(values: Any, kind: pa.DataType, *, texts: bool = False) -> pa.Array:
    """Return a list of objects as an array of any type; raises one of `NOT_OF_THE_TYPE` for a value of another type.

    A struct may be a dictionary, pairs, or a tuple of all fields; a missing field is NULL. A map may be a dictionary or
    pairs. A list may be a numpy array. With `texts`, dates, timestamps, decimals and integer keys may be text, as in
    JSON.
    """
    if not pa.types.is_nested(kind):
        parses = texts and str in {*map(type, values)} and (pa.types.is_decimal(kind) or pa.types.is_temporal(kind))
        if parses and pa.types.is_time(kind):  # which Arrow does not parse
            return pa.array([None if text is None else dt.time.fromisoformat(text) for text in values], kind)
        return pa.array(values, pa.string()).cast(kind) if parses else scalar_array(values, kind, strict=not texts)
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


def is_missing(value: object) -> bool:
    """Return whether a value is one of pandas' missing values: None, NA, NaT and NaN."""
    import pandas as pd

    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def _list_offsets(parts: list[Any]) -> pa.Array:
    return pa.array(np.append(0, np.cumsum([len(part) for part in parts], dtype=np.int64)), pa.int32())


def _elements_of(value: Any, kind: pa.DataType) -> Any:
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    if not isinstance(value, list | tuple | np.ndarray) or size not in (None, len(value)):
        raise ValueError(f"{value!r} is no {kind}")
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


def scalar_array(values: Any, kind: pa.DataType, *, nan_is_null: bool = False, strict: bool = True) -> pa.Array:
    """Return objects as scalars; raises one of `NOT_OF_THE_TYPE` for a changed value or with `strict`, unit or zone."""
    import pandas as pd

    types, missing = {*map(type, values)}, (type(pd.NA), type(pd.NaT), *((float, np.floating) if nan_is_null else ()))
    if _has(types, *missing):
        values = [None if isinstance(value, missing) and pd.isna(value) else value for value in values]
        types = {*map(type, values)}
    if _has(types, bool, np.bool_) and not pa.types.is_boolean(kind):
        raise ValueError(f"a boolean is no {kind}")
    if pa.types.is_integer(kind) and any(not issubclass(one, (*NUMBERS, type(None))) for one in types):
        value = next(one for one in values if one is not None and not isinstance(one, NUMBERS))
        raise ValueError(f"{value!r} is no number")  # although UUIDs and addresses convert to one
    if pa.types.is_integer(kind) and _has(types, float, np.floating, Decimal):
        return pa.array([float(value) if isinstance(value, np.floating) else value for value in values]).cast(kind)
    if pa.types.is_floating(kind) and kind != pa.float64():
        given = pa.array(values, pa.float64())
        made = given.cast(kind)
        if not np.array_equal(given.to_numpy(False), made.cast(given.type).to_numpy(False), equal_nan=True):
            raise ValueError(f"it has more digits than {kind}")
        return made
    if pa.types.is_temporal(kind):
        if strict:
            _check_moments(values, types, kind)
        return _temporal_array(values, types, kind)
    if kind == pa.string() and _has(types, UUID):
        values = [str(value) if isinstance(value, UUID) else value for value in values]
    return pa.array(values, kind, from_pandas=False)


def _has(types: set[type], *of: type) -> bool:
    return any(issubclass(each, of) for each in types)


def _check_moments(values: Any, types: set[type], kind: pa.DataType) -> None:
    if _has(types - {np.timedelta64}, int, np.integer):
        raise ValueError("nobody says in which unit")
    for one in values:
        if isinstance(one, dt.datetime | np.datetime64 | dt.time) and not pa.types.is_date(kind):
            check_zone("it", getattr(one, "tzinfo", None), getattr(kind, "tz", None))


def check_zone(what: str, zone: object, wanted: str | None) -> None:
    """Raise ValueError for moments with a zone in a column that has none, or without one in a column that has one."""
    if bool(zone) != bool(wanted):
        has = f"the zone {zone}, and the table's column none: take it off, or declare one there"
        raise ValueError(f"{what} has {has if zone else "no zone, and the table's column has one: set its zone"}")


def _temporal_array(values: Any, types: set[type], kind: pa.DataType) -> pa.Array:
    """Return dates, times, timestamps or durations, numpy's in their own unit; raises as `scalar_array` does."""
    if _has(types, float, np.floating, Decimal):
        raise ValueError(f"a number with a point is no {kind}")
    if pa.types.is_date(kind):
        if _has(types, dt.datetime, np.datetime64):
            values = [_day(value) if isinstance(value, dt.datetime | np.datetime64) else value for value in values]
    elif _has(types, np.datetime64, np.timedelta64):
        return pa.array(values).cast(kind)
    elif not pa.types.is_time(kind) and kind.unit != "ns":  # Arrow drops the nanoseconds of pandas
        if any(getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0) for value in values):
            raise ValueError(f"it holds nanoseconds, which {kind} does not have")
        finest = pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", kind.tz)
        return pa.array(values, finest, from_pandas=False).cast(kind)
    return pa.array(values, kind, from_pandas=False)


def _day(value: dt.datetime | np.datetime64) -> dt.date:
    import pandas as pd

    moment = pd.Timestamp(value).tz_localize(None)
    if moment != moment.normalize():
        raise ValueError("it has a time of day: make a date of it")
    return moment.date()


def check_document(text: str) -> None:
    """Raise ValueError for text that is not JSON, or that jsonb rejects or changes: equal keys, -0, U+0000."""
    try:
        value = json.loads(
            text, object_pairs_hook=each_key_once, parse_int=_signed, parse_float=_signed, parse_constant=no_number
        )
    except RecursionError as error:
        raise ValueError("nested too deeply to be read") from error
    # Only an escape can be U+0000, or an unpaired surrogate, which cannot be encoded.
    if "\\u" in text and ESCAPED_NUL.search(json.dumps(value, ensure_ascii=False).encode()):
        raise ValueError("it holds \\u0000, which jsonb does not have: take it out")


def each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the object of these pairs; raises ValueError for a repeated key, because jsonb keeps only the last."""
    each = dict(pairs)
    if len(each) < len(pairs):
        raise ValueError(f"of the keys {', '.join(key for key, _ in pairs)} one is there twice: drop one")
    return each


def no_number(text: str) -> None:
    """Raise ValueError for NaN and infinity, which Python's parser accepts."""
    raise ValueError(f"{text} is no JSON: write null")


def _signed(text: str) -> str:
    """Return the text of a number with all its digits; raises ValueError for -0."""
    if MINUS_ZERO.fullmatch(text):
        raise ValueError(f"it holds {text}, of which jsonb keeps no sign: make it 0")
    return text


def with_documents(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with nested columns as JSON; raises ValueError as `documents` does."""
    for name in table.columns_of(*NESTED):
        if pa.types.is_nested((values := content.column(name)).type):
            content = content.set_column(content.column_names.index(name), name, documents(values, name))
    return content


def without_documents(content: pa.Table, table: Table) -> pa.Table:
    """Return the content with JSON as nested columns; raises ValueError for a document that is not of the type."""
    for column in table.columns:
        if column.type in NESTED and content.schema.field(column.name).type in TEXTS:
            texts, kind = content.column(column.name).to_pylist(), column.types.arrow
            try:
                nested = nested_array([None if text is None else json.loads(text) for text in texts], kind, texts=True)
            except NOT_OF_THE_TYPE as error:
                raise ValueError(f"column {column.name} holds a document that is no {kind}: {error}") from error
            content = content.set_column(content.column_names.index(column.name), column.name, nested)
    return content


def documents(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Return structs, maps and lists as JSON with all fields of a struct; types that JSON lacks become text.

    Raises ValueError, naming column and row, for values that jsonb rejects or changes, such as NaN and repeated keys.
    """
    texts = list[str | None]()
    for row, value in enumerate(values):
        try:
            texts.append(document(value))
        except (ValueError, TypeError) as error:
            raise ValueError(f"column {name}, row {row:,} ({values.type}) is no jsonb: {error}") from error
    return pa.chunked_array([texts], pa.string())


def document(value: pa.Scalar) -> str | None:
    """Return a struct, a map or a list as JSON; raises ValueError or TypeError for what jsonb rejects or changes."""
    if not value.is_valid:
        return None
    try:
        plain = value.as_py(maps_as_pydicts="strict")
    except KeyError as error:
        raise ValueError("a key of a map is there twice, of which jsonb keeps the last: drop one") from error
    except OverflowError as error:
        raise ValueError("it holds a day or a moment of a year that is none of 1 to 9999") from error
    try:
        text = json.dumps(plain, ensure_ascii=False, allow_nan=False, default=_as_text)
    except ValueError as error:
        raise ValueError("it holds NaN or infinity, and JSON, so jsonb, has neither: make it NULL") from error
    if "\\u0000" in text or "-0" in text:
        check_document(text)
    return text


def _as_text(value: object) -> str:
    if isinstance(value, Decimal | dt.date | dt.time):
        return str(value)
    raise TypeError(f"it holds {type(value).__name__}, which JSON has no form of: cast it")
