"""One form for every way a path may give a value; what is not the value stays different."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from ipaddress import IPv4Address
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from framehaul.data.equality import (
    Content,
    Difference,
    content_fingerprint,
    content_of,
    difference_in_any_order,
    first_difference,
)
from framehaul.data.schema import DATE32, Column, Types, kind_of, list_types, map_types, struct_types
from framehaul.data.schema import ColumnType as T

UUID_TEXT = "01234567-89ab-cdef-0123-456789abcdef"
DAY = dt.date(2026, 1, 2)
TIME = dt.time(23, 59, 59, 999_999)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)
IN_UTC = MOMENT.replace(tzinfo=dt.UTC)
UUIDS, DAYS, FLOATS = (list_types(types) for types in (T.UUID.value, DATE32, T.FLOAT64.value))
OF_FLOAT = struct_types({"f": T.FLOAT64.value})
MAPS = map_types(T.TEXT.value, T.MAP.value)


def objects(*values: Any) -> pd.Series[Any]:
    return pd.Series([*values], dtype=object)


SAME: list[tuple[T | Types, list[Any], Any]] = [
    (T.INT32, [1, None], pd.Series([1.0, math.nan])),
    (T.INT64, [2**62, None], pd.Series([2**62, None], dtype="Int64")),
    (T.BOOL, [True, False, None], objects("t", "f", None)),
    (T.FLOAT64, [math.nan, -0.0], pd.Series([math.nan, -0.0])),
    (T.FLOAT64, [math.nan], pl.Series(np.frombuffer(bytes.fromhex("bc0a00000000f8ff")))),  # NaN with a payload
    (T.DECIMAL, [Decimal("9" * 28 + "." + "9" * 10)], pl.Series(["9" * 28 + "." + "9" * 10])),
    (T.TEXT, ["é", ""], pl.Series(["é".encode(), b""])),
    (T.BYTES, [b"A\xff", b""], pl.Series(["\\x41ff", "\\x"])),
    (T.UUID, [UUID_TEXT, None], pl.Series([UUID(UUID_TEXT).bytes, None])),
    (T.UUID, [UUID_TEXT], objects(UUID(UUID_TEXT))),
    (T.DATE, [DAY, None], pl.Series(["2026-01-02", None])),
    (T.DATE, [DAY], pl.Series([dt.datetime(2026, 1, 2)])),
    (T.DATE, [DAY], pl.Series([20_455], dtype=pl.UInt16)),
    (T.TIMESTAMP, [MOMENT, None], pl.Series(["2026-01-02 03:04:05.678901", None])),
    (T.TIMESTAMP, [MOMENT], objects(pd.Timestamp(MOMENT))),
    (T.TIMESTAMP_UTC, [IN_UTC], pl.Series(["2026-01-02 05:04:05.678901+02"])),
    (T.TIMESTAMP_UTC, [IN_UTC], pd.Series([IN_UTC]).dt.tz_convert("Europe/Berlin")),
    (T.UINT64, [2**64 - 1, 0, None], objects(Decimal(2**64 - 1), Decimal(0), None)),
    (T.LIST, [[1, None], [], None], objects((1, None), np.array([]), None)),
    (T.LIST, [[2**63 - 1], [None]], pl.Series([[2**63 - 1], [None]], dtype=pl.List(pl.UInt64))),
    (T.TIME, [TIME, None], pl.Series(["23:59:59.999999", None])),
    (T.TIME, [TIME], pl.Series([dt.timedelta(days=1, microseconds=-1)])),
    (T.JSON, ['{"a": 1.50, "b": [null]}', None], pl.Series(['{"b":[null],"a":1.5}', None])),
    (T.JSON, ["[1e2, 9007199254740993]"], objects([100, 2**53 + 1])),
    (T.JSON, ['{"a": 1.0}', None], pl.Series(['{"a":1}', None]).ext.to(pl.Extension("arrow.json", pl.String))),
    (T.STRUCT, [{"a": 1, "b": "x"}, None], pl.Series(['{"b":"x","a":1}', None])),
    (T.STRUCT, [{"a": 1, "b": None}], objects({"a": np.int64(1)})),
    (T.STRUCT, [{"a": 1, "b": "x"}], pd.Series([*np.array([(1, "x")], [("a", "i8"), ("b", "O")])])),
    (T.MAP, [[("b", 1), ("a", None)]], objects({"a": None, "b": 1})),
    (T.MAP, [[("b", 1), ("b", 2)], []], objects([("b", 1), ("b", 2)], [])),
    (T.NESTED_LIST, [[[1, None], []], []], objects([np.array([1, pd.NA]), ()], [])),
    (T.FIXED_LIST, [[1, 2], None], pl.Series([[1, 2], None], dtype=pl.List(pl.Int64))),
    (T.INT128, [str(2**100), "-7", None], objects(2**100, -7, None)),
    (T.WIDE_DECIMAL, ["9" * 56 + ".10", "0"], pl.Series(["9" * 56 + ".1000", "-0.0"])),
    (T.ENUM, ["a", "b", None], pd.Series(["a", "b", None], dtype="category")),
    (T.FIXED_BYTES, [bytes(8)], pl.Series(["\\x" + "00" * 8])),
    (T.IPV4, ["192.0.2.1", None], objects(IPv4Address("192.0.2.1"), None)),
    (T.IPV6, ["2001:db8::1"], pl.Series(["2001:0DB8:0:0:0:0:0:1"])),
    (T.DURATION, [dt.timedelta(microseconds=-1), None], pl.Series([-1, None])),
    (FLOATS, [[math.nan, -0.0, None]], objects([math.nan, -0.0, None])),
    (OF_FLOAT, [{"f": math.nan}, {"f": -0.0}, {"f": None}], pl.Series([{"f": math.nan}, {"f": -0.0}, {"f": None}])),
    (MAPS, [None, [("x", [("b", 1), ("a", 2)])]], objects(None, [("x", [("a", 2), ("b", 1)])])),
    (UUIDS, [[UUID_TEXT, None], []], objects([UUID_TEXT.upper(), None], [])),
    (UUIDS, [[UUID_TEXT], [UUID_TEXT]], objects([UUID(UUID_TEXT).bytes], [UUID(UUID_TEXT)])),
    (DAYS, [[DAY, None], []], objects([np.datetime64(DAY), None], [])),
]  # fmt: skip

DIFFERENT: list[tuple[T | Types, list[Any], Any]] = [
    (T.INT32, [1], pl.Series([1.5])),
    (T.INT32, [1], pl.Series([2**32 + 1])),
    (T.INT32, [7], pl.Series(["007"])),
    (T.INT64, [2**53 + 1, None], pd.Series([float(2**53 + 1), math.nan])),
    (T.FLOAT64, [-0.0], pl.Series([0.0])),
    (T.FLOAT64, [1.5], pl.Series(["1.5"])),
    (T.UUID, [UUID_TEXT], pl.Series([UUID(UUID_TEXT).bytes[::-1]])),
    (T.DATE, [DAY], pl.Series(["02/01/2026"])),
    (T.FLOAT64, [None], pd.Series([math.nan])),
    (T.TEXT, [""], pl.Series([None], dtype=pl.String)),
    (T.TEXT, ["e\u0301"], pl.Series(["é"])),
    (T.DATE, [DAY], pl.Series([dt.datetime(2026, 1, 2, 1)])),
    (T.TIMESTAMP, [MOMENT], pl.Series([MOMENT.replace(microsecond=678_000)])),
    (T.TIMESTAMP_UTC, [IN_UTC], pl.Series(["2026-01-02 05:04:05.678901"])),
    (T.UINT64, [2**64 - 1], pl.Series([float(2**64 - 1)])),
    (T.LIST, [None], pl.Series([[]], dtype=pl.List(pl.Int64))),
    (T.LIST, [[]], pl.Series([[None]], dtype=pl.List(pl.Int64))),
    (T.LIST, [[1, 2]], pl.Series([[2, 1]])),
    (T.LIST, [[1], [2**53 + 1]], pl.Series([[1.0], [float(2**53 + 1)]])),
    (T.TIME, [TIME], pl.Series([dt.timedelta(days=1)])),
    (T.JSON, ['{"a": 1, "a": 2}'], pl.Series(['{"a": 2}'])),
    (T.JSON, ["9007199254740993"], pl.Series(["9007199254740992"])),
    (T.JSON, ["0.0"], pl.Series(["-0.0"])),
    (T.JSON, ["1"], pl.Series(["2"]).ext.to(pl.Extension("arrow.json", pl.String))),
    (T.JSON, ["[1, 2]"], pl.Series(["[2, 1]"])),
    (T.JSON, ["null"], pl.Series([None], dtype=pl.String)),
    (T.STRUCT, [None], pl.Series([{"a": None, "b": None}], dtype=T.STRUCT.value.polars)),
    (T.STRUCT, [{"a": 1, "b": "x"}], pl.Series(['{"a":9223372036854775808,"b":"x"}'])),
    (T.STRUCT, [{"a": 2**53 + 1, "b": "x"}], pl.Series([{"a": float(2**53 + 1), "b": "x"}])),
    (T.STRUCT, [{"a": 1, "b": "x"}], pl.Series(['{"a":1,"b":"x","a":1}'])),
    (T.MAP, [[("b", 1), ("b", 2)]], objects([("b", 2), ("b", 1)])),
    (T.NESTED_LIST, [[[]]], pl.Series([[None]], dtype=pl.List(pl.List(pl.Int64)))),
    (T.WIDE_DECIMAL, ["9" * 56 + ".1"], pl.Series(["9" * 56 + ".2"])),
    (T.IPV4, ["192.0.2.1"], pl.Series(["192.0.2.1/24"])),
    (T.IPV6, ["::1"], pl.Series([bytes(15) + b"\1"])),
    (T.DURATION, [dt.timedelta(seconds=1)], pl.Series([1_000_001])),
    (FLOATS, [[-0.0]], pl.Series([[0.0]])),
    (FLOATS, [[math.nan]], pl.Series([[None]], dtype=pl.List(pl.Float64))),
    (OF_FLOAT, [{"f": -0.0}], pl.Series([{"f": 0.0}])),
    (OF_FLOAT, [{"f": None}], pl.Series([{"f": math.nan}])),
    (UUIDS, [[UUID_TEXT]], objects([UUID_TEXT.replace("0", "f")])),
]


def content(values: Any, kind: T | Types) -> Content:
    types = kind if isinstance(kind, Types) else kind.value
    return content_of({"value": values}, [Column("value", kind_of(types), exactly=types)], nan_is_null=False)


def change(kind: T | Types, sent: list[Any], found: Any) -> str | None:
    """What became of the first value that is another."""
    arrow = (kind if isinstance(kind, Types) else kind.value).arrow
    difference = first_difference(content(pa.array(sent, arrow), kind), content(found, kind))
    return difference and difference.change


@pytest.mark.parametrize(
    ("kind", "sent", "found", "is_same"), [*((*row, True) for row in SAME), *((*row, False) for row in DIFFERENT)]
)
def test_values_are_the_same_whatever_their_dtype_and_as_python_objects(
    kind: T | Types, sent: list[Any], found: Any, is_same: bool
) -> None:
    difference = change(kind, sent, found)
    assert difference is None if is_same else " became " in str(difference)
    assert change(kind, sent, objects(*found.to_list())) == difference


def test_a_difference_is_told_in_one_short_line() -> None:
    cut = "NULL became 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (202 characters)"
    assert change(T.TEXT, [None], pl.Series(["x" * 200])) == cut
    assert change(T.DATE, [dt.date(1969, 12, 31)], pl.Series([None])) == "1969-12-31 became NULL"
    assert change(T.TIMESTAMP, [MOMENT], pl.Series([None])) == "2026-01-02T03:04:05.678901 became NULL"
    found = first_difference(content(pa.array([1, 2]), T.INT64), content(pa.array([1, 3]), T.INT64))
    assert str(found) == "column value, row 1: 2 became 3"
    moments = np.datetime64("5000", "us"), np.datetime64("2000", "ns")  # numpy does not compare them
    assert first_difference(*(Content(rows(0.0).frame, {"value": {0: moment}}) for moment in moments))
    # A value that is shown as what was sent is of another type.
    assert Difference("", 0, 1, type("Whole", (int,), {})(1)).change == "1 (int) became 1 (Whole)"


def rows(*values: float) -> Content:
    return content(pl.Series(values, dtype=pl.Float64), T.FLOAT64)


@pytest.mark.parametrize("key", [[], ["value"]], ids=["no key", "key"])
def test_rows_may_come_in_any_order_and_zero_has_a_sign(key: list[str]) -> None:
    assert difference_in_any_order(rows(1.0, 2.0, 3.0), rows(3.0, 1.0, 2.0), key) is None
    assert difference_in_any_order(rows(1.0, 0.0), rows(-0.0, 1.0), key) == "content differs in value"
    frame = content(pl.Series(["1.0"]), T.FLOAT64)
    assert difference_in_any_order(rows(1.0), frame, key) == "column value, row 0: '1.0' is no Float64"


def test_without_a_key_only_the_columns_that_differ_are_named() -> None:
    columns = [Column("a", T.INT64), Column("b", T.INT64)]
    sent, other, swapped = (
        content_of(pl.DataFrame({"a": [1, 2, 3], "b": b}), columns, nan_is_null=False)
        for b in ([4, 5, 6], [4, 5, 7], [5, 4, 6])
    )
    assert difference_in_any_order(sent, other, ()) == "content differs in b"
    assert difference_in_any_order(sent, swapped, ()) == "content differs in how values are combined into rows"


def test_a_fingerprint_is_of_rows_to_the_bit_in_any_order_and_number_of_frames() -> None:
    frame = pl.DataFrame({"a": [1, 2, 3], "b": [0.0, 1.5, None]})
    assert content_fingerprint(frame) == content_fingerprint(frame[2:], frame[:2])
    assert content_fingerprint(frame) != content_fingerprint(frame.with_columns(b=pl.Series([-0.0, 1.5, None])))
