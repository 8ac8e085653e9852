"""Conversion of Arrow's nested values to JSON, with checks that PostgreSQL's jsonb stores a document unchanged.

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
"""The escape of U+0000, if its backslash is not itself escaped."""


def first_refused[T](column: Iterable[T | None], check: Callable[[T], object]) -> tuple[int, ValueError] | None:
    """Return the row and the error of the first value for which `check` raises ValueError; None if there is none."""
    for row, value in enumerate(column):
        if value is not None:
            try:
                check(value)
            except ValueError as error:
                return row, error
    return None


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
        except ValueError as error:
            raise ValueError(f"column {name}, row {row:,} ({values.type}) is no jsonb: {error}") from error
    return pa.chunked_array([texts], pa.string())


def document(value: pa.Scalar) -> str | None:
    """Return a struct, a map or a list as JSON; raises ValueError for values that jsonb rejects or changes."""
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
