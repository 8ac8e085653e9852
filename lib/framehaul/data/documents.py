"""Documents of JSON that PostgreSQL's jsonb keeps as they are, and what is nested in Arrow as such documents.

https://www.postgresql.org/docs/18/datatype-json.html
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Iterable
from decimal import Decimal

import pyarrow as pa

from framehaul.data.objects import NOT_OF_THE_TYPE, nested_array
from framehaul.data.schema import NESTED, Table

TEXTS = (pa.string(), pa.large_string(), pa.string_view())
MINUS_ZERO = re.compile(r"-0(\.0*)?([eE].*)?")
ESCAPED_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
"""The escape of U+0000, which is not itself escaped."""
FEW_DIGITS = 1_000
MOST_BEFORE_POINT, MOST_BEHIND_POINT = 131_072, 16_383
"""Digits of PostgreSQL's `numeric`, which numbers of its documents are."""


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
            texts, kind = content.column(column.name).to_pylist(), column.types.arrow
            try:
                values = [None if text is None else json.loads(text) for text in texts]
                nested = nested_array(values, kind, texts=True)
            except NOT_OF_THE_TYPE as error:
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
