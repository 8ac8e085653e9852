"""Documents of JSON that PostgreSQL's jsonb keeps as they are, and what is nested in Arrow as such documents.

https://www.postgresql.org/docs/18/datatype-json.html
"""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa

from framehaul.data.schema import FIRST_DAY, LAST_DAY, NESTED, Table, TimeUnit

TEXTS = (pa.string(), pa.large_string(), pa.string_view())
MANY_DIGITS = re.compile(r"\.\d{7}")
"""Of a fraction of a second, which Python cuts off behind six."""
MINUS_ZERO = re.compile(r"-0(\.0*)?([eE].*)?")
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of U+0000, which is not itself escaped."""
FEW_DIGITS = 1_000
MOST_BEFORE_POINT, MOST_BEHIND_POINT = 131_072, 16_383
"""Digits of PostgreSQL's `numeric`, which numbers of its documents are."""
MOST_EXACT = 2**53
"""The most that all whole numbers up to it are floats."""
MOST_DIGITS = 20
"""Of a whole number of 64 bits, with its sign."""
MOMENT = re.compile(r"[0-9]{8}|[0-9]{4}\D[0-9]{1,2}\D[0-9]{1,2}(\D[0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}(\.[0-9]*)?)?")
"""What ClickHouse may take for a moment or a day, and more that looks alike."""
DAY = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}")


def first_refused[T](column: Iterable[T | None], check: Callable[[T], object]) -> tuple[int, ValueError] | None:
    """The row of the first document that a check raises ValueError for, and that; None where it takes all."""
    for row, one in enumerate(column):
        if one is not None:
            try:
                check(one)
            except ValueError as error:
                return row, error
    return None


def check_document(text: str) -> None:
    """Raises ValueError for what is no JSON, and what jsonb refuses or changes: equal keys, -0, U+0000, half a pair."""
    try:
        value = json.loads(
            text, object_pairs_hook=each_key_once, parse_int=digits, parse_float=digits, parse_constant=no_number
        )
    except RecursionError as error:
        raise ValueError("nested too deeply to be read") from error
    if "\\u" in text:  # else nothing stands in it that JSON has to escape
        written = json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
        if ESCAPED_NUL.search(written):
            raise ValueError("it holds \\u0000, which jsonb does not have: take it out")


def check_native_document(text: str) -> None:
    """Raises ValueError for a document that ClickHouse's own type `JSON` refuses, or gives back as another one.

    What becomes of a value there may depend on the rows beside it: the server tries the types that it has found so far
    under the same keys, and of a new list takes the first that holds it, whole numbers as floats, NULL as an empty list
    or object, eight digits as a day. What any row could do to a value is refused whatever the others are.
    https://github.com/ClickHouse/ClickHouse/blob/master/src/Formats/JSONExtractTree.cpp (DynamicNode), tried with 26.9.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=each_key_once, parse_int=_whole_number, parse_float=_double,
            parse_constant=no_number,
        )  # fmt: skip
        if not isinstance(value, dict):
            raise ValueError("it is no object, and the type has nothing else")  # noqa: TRY004  as of other documents
        _check_native_object(value)
    except RecursionError as error:
        raise ValueError("nested too deeply to be read") from error


def _check_native_object(value: dict[str, Any]) -> None:
    for key, each in value.items():
        if "." in key or "%2E" in key:  # which stands for a dot, where a session has dots escaped
            raise ValueError(f"the key {key!r} has a dot, of which the type makes an object in an object")
        if each is None or each == {}:
            raise ValueError(f"the key {key!r} is {'null' if each is None else '{}'}, and the type drops such keys")
        _check_native_value(each)


def _check_native_value(value: Any) -> None:
    if isinstance(value, dict):
        _check_native_object(value)
    elif isinstance(value, list):
        _check_native_list(value)
    elif isinstance(value, str) and _may_become_a_moment(value):
        raise ValueError(f"it holds {value!r}, which the type may take for a moment or a day and write otherwise")


def _check_native_list(values: list[Any]) -> None:
    kinds = {*map(type, values)}
    if NoneType in kinds and (len(kinds) == 1 or kinds & {list, dict}):
        raise ValueError(
            f"it holds the list {json.dumps(values):.60} with null that no number, text or boolean is beside, and the "
            "type may make an empty list or object of it"
        )
    if bool in (scalars := {*_kinds_inside(values)}) and len(scalars - {NoneType}) > 1:
        raise ValueError(f"it holds the list {json.dumps(values):.60} of booleans and others, which become alike")
    for value in values:
        if type(value) is int and abs(value) > MOST_EXACT:
            raise ValueError(f"it holds a list with {value}, and the type may make floats of a list: 2^53 is the most")
        _check_native_value(value)


def _kinds_inside(values: list[Any]) -> Iterator[type]:
    """The types of what is in a list, and in lists in it."""
    for value in values:
        if isinstance(value, list):
            yield from _kinds_inside(value)
        else:
            yield type(value)


def _may_become_a_moment(text: str) -> bool:
    """Whether the type may store a text as a moment or a day that is written otherwise, in some session.

    Days that `Date` has come back as they are, moments with their zone are text; others, and other days, are moments in
    the session's zone.
    """
    if not MOMENT.fullmatch(text):
        return False
    try:
        return not (DAY.fullmatch(text) and FIRST_DAY <= dt.date.fromisoformat(text) <= LAST_DAY)
    except ValueError:
        return True


def _whole_number(text: str) -> int:
    """Raises ValueError for one that is past 64 bits, of which ClickHouse's type makes text."""
    if len(text) > MOST_DIGITS or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"it holds {text:.60}, and the type has whole numbers of 64 bits")
    return int(text)


def _double(text: str) -> float:
    """Raises ValueError for a number that is another one as a float."""
    number = float(text)
    if math.isinf(number) or Decimal(text) != Decimal(repr(number)):
        raise ValueError(f"it holds {text:.60}, and the type has floats of 64 bits")
    return number


def each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these pairs; raises ValueError for a key that is there twice, of which jsonb keeps the last."""
    each = dict(pairs)
    if len(each) < len(pairs):
        raise ValueError(f"of the keys {', '.join(key for key, _ in pairs)} one is there twice: drop one")
    return each


def no_number(text: str) -> None:
    """Raises ValueError for NaN and the infinities, which Python would take."""
    raise ValueError(f"{text} is no JSON: write null")


def digits(text: str) -> str:
    """A number as it is written; raises ValueError for -0, whose sign jsonb does not keep, and for what is no numeric.

    https://www.postgresql.org/docs/18/datatype-numeric.html
    """
    if MINUS_ZERO.fullmatch(text):
        raise ValueError(f"it holds {text}, of which jsonb keeps no sign: make it 0")
    if "e" in text.lower() or len(text) > FEW_DIGITS:
        number = Decimal(text)
        if number.adjusted() >= MOST_BEFORE_POINT or number.as_tuple().exponent < -MOST_BEHIND_POINT:  # type: ignore[operator]  # a number
            raise ValueError(f"it holds {text:.60}, which has more digits than PostgreSQL's numbers: make it text")
    return text


def with_documents(content: pa.Table, table: Table) -> pa.Table:
    """The content with what is nested as documents; raises ValueError, naming column and row, as `documents` does."""
    for name in table.columns_of(*NESTED):
        at, values = content.column_names.index(name), content.column(name)
        if pa.types.is_nested(values.type):
            content = content.set_column(at, name, documents(values, name))
    return content


def without_documents(content: pa.Table, table: Table) -> pa.Table:
    """The content with documents as what is nested in the table; raises ValueError for one that is no such value."""
    for column in table.columns:
        if column.type in NESTED and content.schema.field(column.name).type in TEXTS:
            texts, make = content.column(column.name).to_pylist(), maker(column.types.arrow)
            try:
                values = [None if text is None else make(json.loads(text)) for text in texts]
                nested = pa.array(values, column.types.arrow, from_pandas=False)
            except (ValueError, TypeError, OverflowError) as error:
                kind = column.types.arrow
                raise ValueError(f"column {column.name} holds a document that is no {kind}: {error}") from error
            content = content.set_column(content.column_names.index(column.name), column.name, nested)
    return content


def documents(values: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """Structs, maps and lists as JSON, in which each field of a struct is; what JSON has no type for is text.

    Raises ValueError, naming column and row, for what jsonb refuses or changes, such as NaN and a key that is there
    twice.
    """
    texts = list[str | None]()
    for row, value in enumerate(values):
        try:
            texts.append(document(value))
        except ValueError as error:
            raise ValueError(f"column {name}, row {row:,} ({values.type}) is no jsonb: {error}") from error
    return pa.chunked_array([texts], pa.string())


def document(value: pa.Scalar) -> str | None:
    """A struct, a map or a list as JSON; raises ValueError for what jsonb refuses or changes."""
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
    except TypeError as error:
        raise ValueError(str(error)) from error
    except ValueError as error:
        raise ValueError("it holds NaN or infinity, and JSON, so jsonb, has neither: make it NULL") from error
    if "\\u0000" in text or "-0" in text:
        check_document(text)
    return text


def _as_text(value: object) -> str:
    if isinstance(value, Decimal | dt.date | dt.time):
        return str(value)
    raise TypeError(f"it holds {type(value).__name__}, which JSON has no form of: cast it")


def maker(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes of a value, as JSON or a driver gives it, what Arrow takes for this type; it raises ValueError.

    A struct may be a dictionary, pairs, or a tuple of all fields, and a field that is missing is NULL; a map may be a
    dictionary, or pairs. Nothing is dropped.
    """
    if pa.types.is_struct(kind):
        return _struct_maker(kind)
    if pa.types.is_map(kind):
        return _map_maker(kind)
    if pa.types.is_nested(kind):
        return _list_maker(kind)
    takes = next((takes for fits, takes in SCALARS if fits(kind)), None)
    if pa.types.is_timestamp(kind):
        takes = partial(_moment_of, kind.unit)

    def scalar(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is pd.NA:
            return None
        made = value if takes is None or value is None else takes(value)
        if value is not None and made is None:
            refused(value, kind)
        return made

    return scalar


def refused(value: object, kind: pa.DataType) -> NoReturn:
    """Raises ValueError: a value is none of a type."""
    raise ValueError(f"{value!r} is no {kind}")


def _list_maker(kind: pa.DataType) -> Callable[[Any], Any]:
    make = maker(kind.value_type)

    def lists(value: Any) -> Any:
        if value is not None and not isinstance(value, list | tuple | np.ndarray):
            refused(value, kind)
        return None if value is None else [make(each) for each in value]

    return lists


def _struct_maker(kind: pa.DataType) -> Callable[[Any], Any]:
    makers = {field.name: maker(field.type) for field in kind}

    def structs(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple) and len(value) == len(makers):
            value = dict(zip(makers, value, strict=True))
        elif isinstance(value, list) and all(isinstance(pair, tuple) for pair in value):
            value = each_key_once(value)
        if not isinstance(value, dict) or value.keys() - makers:
            refused(value, kind)
        return {name: make(value.get(name)) for name, make in makers.items()}

    return structs


def _map_maker(kind: pa.DataType) -> Callable[[Any], Any]:
    make_key, make_item, whole = maker(kind.key_type), maker(kind.item_type), pa.types.is_integer(kind.key_type)

    def key(value: Any) -> Any:
        return make_key(int(value) if whole and isinstance(value, str) else value)

    def maps(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, dict):
            pairs: Iterable[Any] = value.items()
        elif isinstance(value, list | np.ndarray):
            pairs = (each.values() if isinstance(each, dict) else each for each in value)
        else:
            refused(value, kind)
        return [(key(one), make_item(other)) for one, other in pairs]

    return maps


def _of(*kinds: type) -> Callable[[Any], Any]:
    return lambda value: value if type(value) in kinds else None


def _whole(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if type(value) is int else None


def _moment_of(unit: TimeUnit, value: Any) -> Any:
    """A moment, of Python's or pandas' or as text of one; None where it has more digits than its unit."""
    if isinstance(value, str):
        exact = unit == "ns" or MANY_DIGITS.search(value)
        value = pd.Timestamp(value) if exact else dt.datetime.fromisoformat(value)
    if isinstance(value, dt.datetime) and unit != "ns":
        left_over = getattr(value, "nanosecond", 0) or (value.microsecond % 1000 if unit == "ms" else 0)
        return None if left_over else value
    return value


def _decoded(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value if isinstance(value, str) else None


SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]], ...] = (
    (pa.types.is_boolean, _of(bool)),
    (pa.types.is_integer, _whole),
    (pa.types.is_floating, lambda value: float(value) if type(value) in (int, float) else None),
    (TEXTS.__contains__, _decoded),
    (pa.types.is_decimal, lambda value: Decimal(value) if isinstance(value, Decimal | str | int) else None),
    (pa.types.is_date, lambda value: dt.date.fromisoformat(value) if isinstance(value, str) else value),
    (pa.types.is_time, lambda value: dt.time.fromisoformat(value) if isinstance(value, str) else value),
)
"""What scalars are made of, by the type."""
