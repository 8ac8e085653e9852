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
    content_fingerprint,
    content_of,
    difference_in_any_order,
    first_difference,
)
from framehaul.data.schema import DATE32, Column, ColumnType, list_types, map_types, struct_types

UUID_TEXT = "01234567-89ab-cdef-0123-456789abcdef"
DAY = dt.date(2026, 1, 2)
TIME = dt.time(23, 59, 59, 999_999)
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678_901)
DEEP = "[" * 2_000 + "{}" + "]" * 2_000
BERLIN = "Europe/Berlin"

SAME: list[tuple[ColumnType, list[Any], Any]] = [
    (ColumnType.INT32, [1, None], pd.Series([1.0, math.nan])),
    (ColumnType.INT64, [2**62, None], pd.Series([2**62, None], dtype="Int64")),
    (ColumnType.BOOL, [True, False, None], pd.Series(["t", "f", None], dtype=object)),
    (ColumnType.FLOAT64, [math.nan, -0.0], pd.Series([math.nan, -0.0])),
    (ColumnType.DECIMAL, [Decimal("9" * 28 + "." + "9" * 10)], pl.Series(["9" * 28 + "." + "9" * 10])),
    (ColumnType.TEXT, ["é", ""], pl.Series(["é".encode(), b""])),
    (ColumnType.BYTES, [b"A\xff", b""], pl.Series(["\\x41ff", "\\x"])),
    (ColumnType.UUID, [UUID_TEXT, None], pl.Series([UUID(UUID_TEXT).bytes, None])),
    (ColumnType.DATE, [DAY, None], pl.Series(["2026-01-02", None])),
    (ColumnType.DATE, [DAY], pl.Series([dt.datetime(2026, 1, 2)])),
    (ColumnType.TIMESTAMP, [MOMENT, None], pl.Series(["2026-01-02 03:04:05.678901", None])),
    (ColumnType.TIMESTAMP, [MOMENT], pd.Series([pd.Timestamp(MOMENT)], dtype=object)),
    (ColumnType.TIMESTAMP_UTC, [MOMENT.replace(tzinfo=dt.UTC)], pl.Series(["2026-01-02 05:04:05.678901+02"])),
    (ColumnType.TIMESTAMP_UTC, [MOMENT.replace(tzinfo=dt.UTC)],
     pd.Series([MOMENT.replace(tzinfo=dt.UTC)]).dt.tz_convert(BERLIN)),
    (ColumnType.UINT64, [2**64 - 1, 0, None], pd.Series([Decimal(2**64 - 1), Decimal(0), None], dtype=object)),
    (ColumnType.LIST, [[1, None], [], None], pd.Series([(1, None), np.array([]), None], dtype=object)),
    (ColumnType.LIST, [[2**63 - 1], [None]], pl.Series([[2**63 - 1], [None]], dtype=pl.List(pl.UInt64))),
    (ColumnType.TIME, [TIME, None], pl.Series(["23:59:59.999999", None])),
    (ColumnType.TIME, [TIME], pl.Series([dt.timedelta(days=1, microseconds=-1)])),
    (ColumnType.JSON, ['{"a": 1.50, "b": [null]}', None], pl.Series(['{"b":[null],"a":1.5}', None])),
    (ColumnType.JSON, ["[1e2, 9007199254740993]"], pd.Series([[100, 2**53 + 1]], dtype=object)),
    (ColumnType.JSON, ['{"a": 1.0}', None], pl.Series(['{"a":1}', None]).ext.to(pl.Extension("arrow.json", pl.String))),
    (ColumnType.JSON, [DEEP.format("1.0")], pl.Series([DEEP.format("1e0")])),
    (ColumnType.STRUCT, [{"a": 1, "b": "x"}, None], pl.Series(['{"b":"x","a":1}', None])),
    (ColumnType.STRUCT, [{"a": 1, "b": None}], pd.Series([{"a": np.int64(1)}], dtype=object)),
    (ColumnType.STRUCT, [{"a": 1, "b": "x"}], pd.Series([*np.array([(1, "x")], [("a", "i8"), ("b", "O")])])),
    (ColumnType.MAP, [[("b", 1), ("a", None)]], pd.Series([{"a": None, "b": 1}], dtype=object)),
    (ColumnType.NESTED_LIST, [[[1, None], []], []], pd.Series([[np.array([1, pd.NA]), ()], []], dtype=object)),
    (ColumnType.FIXED_LIST, [[1, 2], None], pl.Series([[1, 2], None], dtype=pl.List(pl.Int64))),
    (ColumnType.INT128, [str(2**100), "-7", None], pd.Series([2**100, -7, None], dtype=object)),
    (ColumnType.WIDE_DECIMAL, ["9" * 56 + ".10", "0"], pl.Series(["9" * 56 + ".1000", "-0.0"])),
    (ColumnType.ENUM, ["a", "b", None], pd.Series(["a", "b", None], dtype="category")),
    (ColumnType.FIXED_BYTES, [bytes(8)], pl.Series(["\\x" + "00" * 8])),
    (ColumnType.IPV4, ["192.0.2.1", None], pd.Series([IPv4Address("192.0.2.1"), None], dtype=object)),
    (ColumnType.IPV6, ["2001:db8::1"], pl.Series(["2001:0DB8:0:0:0:0:0:1"])),
    (ColumnType.DURATION, [dt.timedelta(microseconds=-1), None], pl.Series([-1, None])),
]  # fmt: skip

DIFFERENT: list[tuple[ColumnType, list[Any], Any]] = [
    (ColumnType.INT32, [1], pl.Series([1.5])),
    (ColumnType.INT64, [2**53 + 1, None], pd.Series([float(2**53 + 1), math.nan])),
    (ColumnType.FLOAT64, [-0.0], pl.Series([0.0])),
    (ColumnType.FLOAT64, [None], pd.Series([math.nan])),
    (ColumnType.DECIMAL, [Decimal("0.1")], pl.Series([0.1])),
    (ColumnType.TEXT, [""], pl.Series([None], dtype=pl.String)),
    (ColumnType.TEXT, ["e\u0301"], pl.Series(["é"])),
    (ColumnType.TEXT, ["007"], pl.Series([7])),
    (ColumnType.DATE, [DAY], pl.Series([dt.datetime(2026, 1, 2, 1)])),
    (ColumnType.TIMESTAMP, [MOMENT], pl.Series([MOMENT.replace(microsecond=678_000)])),
    (ColumnType.TIMESTAMP_UTC, [MOMENT.replace(tzinfo=dt.UTC)], pl.Series(["2026-01-02 05:04:05.678901"])),
    (ColumnType.UINT64, [2**64 - 1], pl.Series([float(2**64 - 1)])),
    (ColumnType.LIST, [None], pl.Series([[]], dtype=pl.List(pl.Int64))),
    (ColumnType.LIST, [[1, 2]], pl.Series([[2, 1]])),
    (ColumnType.LIST, [[1], [2**53 + 1]], pl.Series([[1.0], [float(2**53 + 1)]])),
    (ColumnType.TIME, [TIME], pl.Series([dt.timedelta(days=1)])),
    (ColumnType.JSON, ['{"a": 1, "a": 2}'], pl.Series(['{"a": 2}'])),
    (ColumnType.JSON, ["9007199254740993"], pl.Series(["9007199254740992"])),
    (ColumnType.JSON, ["1"], pl.Series(["2"]).ext.to(pl.Extension("arrow.json", pl.String))),
    (ColumnType.JSON, ["[1, 2]"], pl.Series(["[2, 1]"])),
    (ColumnType.JSON, [DEEP.format("1")], pl.Series([DEEP.format("2")])),
    (ColumnType.JSON, ["null"], pl.Series([None], dtype=pl.String)),
    (ColumnType.STRUCT, [None], pl.Series([{"a": None, "b": None}], dtype=ColumnType.STRUCT.value.polars)),
    (ColumnType.STRUCT, [{"a": 1, "b": "x"}], pl.Series(['{"a":9223372036854775808,"b":"x"}'])),
    (ColumnType.STRUCT, [{"a": 1, "b": "x"}], pl.Series([{"a": 1, "b": "x", "c": 0}])),
    (ColumnType.STRUCT, [{"a": 2**53 + 1, "b": "x"}], pl.Series([{"a": float(2**53 + 1), "b": "x"}])),
    (ColumnType.MAP, [[("b", 1), ("b", 2)]], pd.Series([[("b", 2), ("b", 1)]], dtype=object)),
    (ColumnType.NESTED_LIST, [[[]]], pl.Series([[None]], dtype=pl.List(pl.List(pl.Int64)))),
    (ColumnType.INT256, ["1" * 60], pl.Series(["1" * 59 + "2"])),
    (ColumnType.WIDE_DECIMAL, ["0.1"], pl.Series([0.1])),
    (ColumnType.ENUM, ["a"], pl.Series([1])),
    (ColumnType.IPV4, ["192.0.2.1"], pl.Series(["192.0.2.1/24"])),
    (ColumnType.IPV6, ["::1"], pl.Series([bytes(15) + b"\1"])),
    (ColumnType.DURATION, [dt.timedelta(seconds=1)], pl.Series([1_000_001])),
]


def content(values: Any, kind: ColumnType) -> Content:
    return content_of({"value": values}, [Column("value", kind)], nan_is_null=False)


def change(kind: ColumnType, sent: list[Any], found: Any) -> str | None:
    """What became of the first value that is another."""
    difference = first_difference(content(pa.array(sent, kind.value.arrow), kind), content(found, kind))
    return difference and difference.change


@pytest.mark.parametrize(("kind", "sent", "found"), SAME)
def test_other_dtypes_that_say_the_same(kind: ColumnType, sent: list[Any], found: Any) -> None:
    assert change(kind, sent, found) is None


@pytest.mark.parametrize(("kind", "sent", "found"), DIFFERENT)
def test_what_is_not_the_same(kind: ColumnType, sent: list[Any], found: Any) -> None:
    assert " became " in (change(kind, sent, found) or "")


@pytest.mark.parametrize(("kind", "sent", "found"), SAME + DIFFERENT)
def test_python_objects_are_compared_as_columns_are(kind: ColumnType, sent: list[Any], found: Any) -> None:
    assert change(kind, sent, pd.Series(found.to_list(), dtype=object)) == change(kind, sent, found)


@pytest.mark.parametrize("kind", ["list", "struct"])
def test_floats_inside_are_compared_to_the_bit(kind: str) -> None:
    float64 = ColumnType.FLOAT64.value
    types = list_types(float64) if kind == "list" else struct_types({"f": float64})
    columns = [Column("value", ColumnType.LIST if kind == "list" else ColumnType.STRUCT, exactly=types)]

    def changed(*found: float | None) -> bool:
        sent, received = (
            content_of(
                pl.DataFrame({"value": [[one] if kind == "list" else {"f": one} for one in values]}),
                columns, nan_is_null=True,
            )
            for values in ([math.nan, -0.0, None], found)
        )  # fmt: skip
        return first_difference(sent, received) is not None

    assert not changed(math.nan, -0.0, None)
    assert changed(math.nan, 0.0, None)
    assert changed(None, -0.0, None)
    assert changed(math.nan, -0.0, math.nan)


def test_maps_inside_are_in_no_order() -> None:
    kind = map_types(ColumnType.TEXT.value, ColumnType.MAP.value)
    column = [Column("value", ColumnType.MAP, exactly=kind)]
    sent, received = (
        content_of({"value": pa.array([None, [("x", entries)], []], kind.arrow)}, column, nan_is_null=False)
        for entries in ([("b", 1), ("a", 2)], [("a", 2), ("b", 1)])
    )
    assert first_difference(sent, received) is None


def test_a_difference_is_told_in_one_short_line() -> None:
    text, moment = ColumnType.TEXT, ColumnType.TIMESTAMP
    long = pl.Series(["x" * 200])
    assert change(text, [None], long) == "NULL became 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (202 characters)"
    assert change(moment, [MOMENT], pl.Series([None])) == "2026-01-02T03:04:05.678901000 became NULL"
    found = first_difference(content(pa.array([1, 2]), ColumnType.INT64), content(pa.array([1, 3]), ColumnType.INT64))
    assert str(found) == "column value, row 1: 2 became 3"


def rows(*values: float) -> Content:
    return content(pl.Series(values, dtype=pl.Float64), ColumnType.FLOAT64)


@pytest.mark.parametrize("key", [[], ["value"]], ids=["no key", "key"])
def test_rows_may_come_in_any_order_and_zero_has_a_sign(key: list[str]) -> None:
    assert difference_in_any_order(rows(1.0, 2.0, 3.0), rows(3.0, 1.0, 2.0), key) is None
    assert difference_in_any_order(rows(1.0, 0.0), rows(-0.0, 1.0), key) == "content differs in value"
    frame = content(pl.Series(["1.0"]), ColumnType.FLOAT64)
    assert difference_in_any_order(rows(1.0), frame, key) == "column value, row 0: '1.0' is no Float64"


def test_without_a_key_only_the_columns_that_differ_are_named() -> None:
    columns = [Column("a", ColumnType.INT64), Column("b", ColumnType.INT64)]
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


def test_elements_of_lists_are_compared_as_values_of_their_type_are() -> None:
    uuids = Column("value", ColumnType.LIST, exactly=list_types(ColumnType.UUID.value))
    sent = content_of(pa.table({"value": [[UUID_TEXT, None], []]}), [uuids], nan_is_null=False)
    for found in ([[UUID_TEXT.upper(), None], []], [[UUID(UUID_TEXT).bytes, None], []], [[UUID(UUID_TEXT), None], []]):
        came = pd.DataFrame({"value": pd.Series(found, dtype=object)})
        assert first_difference(sent, content_of(came, [uuids], nan_is_null=False)) is None
    other = pl.DataFrame({"value": [[UUID_TEXT.replace("0", "f"), None], []]})
    assert first_difference(sent, content_of(other, [uuids], nan_is_null=False)) is not None
    days = Column("value", ColumnType.LIST, exactly=list_types(DATE32))
    sent = content_of(pa.table({"value": [[DAY, None], []]}), [days], nan_is_null=False)
    came = pd.DataFrame({"value": pd.Series([[np.datetime64(DAY), None], []], dtype=object)})
    assert first_difference(sent, content_of(came, [days], nan_is_null=False)) is None
