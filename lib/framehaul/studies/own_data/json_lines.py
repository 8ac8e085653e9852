"""What the fields of JSON lines hold, from every line: there is no type in them but those of JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from framehaul.data.documents import each_key_once, no_number
from framehaul.studies.own_data.loading import lines_of

MOST_FIELDS = 10_000
"""As many as columns of a CSV: a file whose keys are values has a field for each."""
EXACT_IN_FLOATS, MOST_FLOAT = 2**53, 10**308
SCALARS: dict[frozenset[type], pa.DataType] = {
    frozenset({bool}): pa.bool_(),
    frozenset({str}): pa.string(),
    frozenset({int}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
}
INTEGERS: dict[pa.DataType, tuple[int, int]] = {
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint64(): (0, 2**64 - 1),
    pa.decimal128(38, 0): (1 - 10**38, 10**38 - 1),
}
"""The least and the greatest of the types that integers get, the first that holds them all."""
NAMES = {bool: "a boolean", str: "text", int: "a number", float: "a number", dict: "an object", list: "a list"}


@dataclass
class _Field:
    """What was seen of a field: in which line first each type, and which integers floats do not have."""

    lines: dict[type, int] = field(default_factory=dict)
    rows: int = 0
    elements: set[type] = field(default_factory=set)
    ends: tuple[int, int] = (0, 0)
    """The least and the greatest of the integers, in lists as well; 0 is one of them."""
    rounded: int = 0
    """The first line of an integer that a float would round."""

    def see(self, value: Any, line: int) -> None:
        self.lines.setdefault(type(value), line)
        self.rows += 1
        if type(value) is list:
            self.elements.update(map(type, value))
        for number in value if type(value) is list else (value,):
            if type(number) is int and not self.ends[0] <= number <= self.ends[1]:
                self.ends = min(self.ends[0], number), max(self.ends[1], number)
            if type(number) is int and abs(number) > EXACT_IN_FLOATS and not self.rounded and not _is_float(number):
                self.rounded = line

    def type(self, name: str, rows: int) -> pa.DataType:
        """The type of a column of so many rows.

        Raises ValueError for scalars of several types, and for numbers that have no type in common.
        """
        kinds = frozenset(self.lines)
        if not kinds:
            return pa.null()
        if list in kinds or dict in kinds:
            element = SCALARS.get(frozenset(self.elements - {type(None)}))
            fits = element is not None and (self._are(pa.int64()) if element == pa.int64() else not self.rounded)
            every = kinds == {list} and self.rows == rows  # ClickHouse has no NULL in place of a list
            return pa.list_(element) if every and fits else pa.json_()
        if kinds not in SCALARS:
            seen = " and ".join(f"{NAMES[kind]} in line {line:,}" for kind, line in self.lines.items())
            raise ValueError(f"field {name!r} is {seen}: make it one type, such as text in all lines")
        if SCALARS[kinds] == pa.float64() and self.rounded:
            raise ValueError(
                f"field {name!r} has fractions, and in line {self.rounded:,} an integer past 2^53 that a float would "
                "round: make it text, or give Parquet with decimals"
            )
        if SCALARS[kinds] == pa.int64():
            fitting = [kind for kind in INTEGERS if self._are(kind)]
            if not fitting:
                raise ValueError(f"field {name!r} has integers of more than 38 digits: make it text")
            return fitting[0]
        return SCALARS[kinds]

    def _are(self, kind: pa.DataType) -> bool:
        least, most = INTEGERS[kind]
        return least <= self.ends[0] and self.ends[1] <= most


def fields_of(text: bytes) -> tuple[pa.Schema, int]:
    """The fields of JSON lines, documents as `arrow.json`, and the number of rows.

    Raises ValueError with the line for what is no JSON or no object, and for a field that no column can hold.
    """
    found: dict[str, _Field] = {}
    rows = 0
    for line, one in lines_of(text):
        try:
            values = _object(one)
        except ValueError as error:
            raise ValueError(f"line {line:,}: {error}") from error
        rows += 1
        for name, value in values.items():
            one_field = found.get(name) or found.setdefault(name, _Field())
            if value is not None:
                one_field.see(value, line)
        if len(found) > MOST_FIELDS:
            raise ValueError(f"line {line:,}: more than {MOST_FIELDS:,} fields are not read")
    if rows and not found:
        raise ValueError("none of its objects has a field")
    return pa.schema([(name, one.type(name, rows)) for name, one in found.items()]), rows


def _object(line: bytes) -> dict[str, Any]:
    """The object in a line; raises ValueError for anything else."""
    try:
        found = json.loads(
            line.decode().rstrip(), object_pairs_hook=each_key_once, parse_float=_finite, parse_constant=no_number
        )
        if b"\\u" in line:
            json.dumps(found, ensure_ascii=False).encode()  # halves of surrogate pairs are no text
    except json.JSONDecodeError as error:
        raise ValueError(f"at column {error.colno}, {error.msg}; each line has to be one object of JSON") from error
    except UnicodeError as error:
        raise ValueError(f"no text in UTF-8, write it again as such: {error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply to be read: make it text") from error
    if type(found) is not dict:
        raise ValueError("no object: each line has to be one, with a field for each column")
    return found


def _is_float(number: int) -> bool:
    return abs(number) < MOST_FLOAT and int(float(number)) == number


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits} is more than a float holds: make it text")
    return number
