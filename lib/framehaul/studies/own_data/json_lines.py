"""Read JSON lines as an Arrow table; the type of a column follows from all of its values."""

import codecs
import json
import math
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from framehaul.data.documents import ESCAPED_NUL, each_key_once, no_number

MOST_FIELDS = 10_000
"""The maximum number of fields, as for a CSV: a file that uses values as keys has a field for each."""
FRACTION = re.compile(r'"\\u0000([^"]+)"')
"""A number with a fraction in a document, marked by a NUL so that it keeps all its digits."""
DECODER = json.JSONDecoder(object_pairs_hook=each_key_once, parse_float="\0{}".format, parse_constant=no_number)
ONE_KIND = ({"boolean"}, {"text"}, {"integer"}, {"fraction"}, {"integer", "fraction"})


def table_of_lines(lines: Iterable[bytes]) -> pa.Table:
    """Return a table with a column for each field, NULL where it is missing in a line; blank lines are no rows.

    Objects, and lists that are NULL, mixed, or of numbers past 63 bits, are of type `arrow.json`. Raises ValueError
    with the line for what is no JSON or no object, and with the field for what no column can hold.
    """
    columns, rows = dict[str, list[Any]](), 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = _object(line.removeprefix(codecs.BOM_UTF8))
        except ValueError as error:
            raise ValueError(f"line {number:,}: {error}") from error
        for name, value in values.items():
            column = columns.setdefault(name, [])
            column += [None] * (rows - len(column))
            column.append(value)
        rows += 1
        if len(columns) > MOST_FIELDS:
            raise ValueError(f"line {number:,}: more than {MOST_FIELDS:,} fields are not read")
    if rows and not columns:
        raise ValueError("none of its objects has a field")
    arrays = {}
    for name, column in columns.items():
        try:
            arrays[name] = _array(column + [None] * (rows - len(column)))
        except (pa.ArrowException, ValueError, OverflowError) as error:
            raise ValueError(f"field {name!r} is not of one type that holds it, make it text: {error}") from error
    return pa.table(arrays)


def _object(line: bytes) -> dict[str, Any]:
    """Return the object in a line, with fractions as text after a NUL; raises ValueError for anything else."""
    if ESCAPED_NUL.search(line):
        raise ValueError("it holds \\u0000, which PostgreSQL does not have: take it out")
    try:
        found = DECODER.decode(line.decode().rstrip())
    except json.JSONDecodeError as error:
        raise ValueError(f"at column {error.colno}, {error.msg}; each line has to be one object of JSON") from error
    except RecursionError as error:
        raise ValueError("nested too deeply to be read: make it text") from error
    if type(found) is not dict:
        raise ValueError("no object: each line has to be one, with a field for each column")
    return found


def _array(values: list[Any]) -> pa.Array:
    """Return the column; raises ArrowException, ValueError or OverflowError for scalars without a common type."""
    present = [value for value in values if value is not None]
    kinds = {_kind(value): value for value in reversed(present)}
    if kinds.keys() & {"object", "list"}:
        inside = {_kind(one) for value in present if type(value) is list for one in value}
        if kinds.keys() == {"list"} and len(present) == len(values) and inside - {"NULL"} in ONE_KIND:
            try:
                return pa.array([[*map(_number, value)] for value in values])
            except (pa.ArrowException, OverflowError):
                pass  # integers past 63 bits, or that a float would round
        texts = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
        written = pa.array([text and FRACTION.sub(r"\1", text) for text in texts], pa.string())
        return pa.ExtensionArray.from_storage(pa.json_(), written)
    if kinds.keys() == {"integer"}:
        least, most = min(present), max(present)
        wide = pa.uint64() if least >= 0 and most < 2**64 else pa.decimal128(38, 0)
        return pa.array(values, pa.int64() if least >= -(2**63) and most < 2**63 else wide)
    if kinds and kinds.keys() not in ONE_KIND:
        raise ValueError(" beside ".join(f"{value!r:.40}".replace("\\x00", "") for value in kinds.values()))
    return pa.array([*map(_number, values)])


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "fraction" if value.startswith("\0") else "text"
    return {bool: "boolean", int: "integer", dict: "object", list: "list"}.get(type(value), "NULL")


def _number(value: Any) -> Any:
    """Return a fraction as a float and other values unchanged; raises ValueError when a float is too small."""
    if _kind(value) != "fraction":
        return value
    number = float(value[1:])
    if math.isinf(number):
        raise ValueError(f"{value[1:]} is more than a float holds")
    return number
