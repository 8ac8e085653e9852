"""Objects in a column of pandas are the table's values, or refused by the column's name: Arrow would cut them off."""

import datetime as dt
import math
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from framehaul.data.frames import from_pandas
from framehaul.data.schema import DATE32, Column, Table, Types, list_types, map_types, struct_types, timestamp_types
from framehaul.data.schema import ColumnType as T

MIDNIGHT, NOON, ZONED = dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, 12), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OF_MOMENTS = struct_types({"at": T.TIMESTAMP.value})


def taken(kind: T, values: Any, exactly: Types | None = None) -> list[Any]:
    table = Table("t", (Column("v", kind, nullable=True, exactly=exactly),), ())
    series = values if isinstance(values, pd.Series) else pd.Series(values, dtype=object)
    return [*from_pandas(pd.DataFrame({"v": series}), table)["v"].to_pylist()]


def test_lists_of_uuids_of_arrow_are_text() -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(15) + b"\1", None], pa.binary(16)))
    lists = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.ListArray.from_arrays([0, 2, 2], uuids)])))
    assert taken(T.LIST, lists, list_types(T.UUID.value)) == [["00000000-0000-0000-0000-000000000001", None], []]


@pytest.mark.parametrize(
    ("kind", "exactly", "value"),
    [
        (T.INT64, None, 1.5), (T.UINT8, None, 256),
        (T.INT64, None, 2.0**63), (T.TIMESTAMP, None, pd.Timestamp(1)),
        (T.TIMESTAMP, timestamp_types("ms"), dt.datetime(2026, 1, 1, 0, 0, 0, 1001)),
        (T.TIMESTAMP, None, np.datetime64(1, "ns")), (T.DURATION, None, pd.Timedelta(1)), (T.DURATION, None, 1.5),
        (T.DATE, None, NOON), *((kind, None, 1) for kind in (T.TIMESTAMP, T.DATE, T.TIME, T.DURATION)),
        (T.STRUCT, OF_MOMENTS, {"at": 1}), (T.LIST, list_types(T.TIMESTAMP.value), [1]), (T.TIMESTAMP, None, ZONED),
        (T.TIMESTAMP_UTC, None, NOON), (T.STRUCT, OF_MOMENTS, {"at": ZONED}), (T.INT64, None, UUID(int=5)),
        (T.TIME, None, ZONED.timetz()), (T.LIST, list_types(T.TIMESTAMP_UTC.value), [NOON]),
        (T.LIST, None, [1.5]), (T.LIST, None, [math.nan]), (T.LIST, None, 1),
        (T.LIST, None, "12"), (T.LIST, None, [True]),
        (T.LIST, list_types(T.FLOAT32.value), [0.1]),
        (T.LIST, list_types(T.TIMESTAMP.value), np.array([1], "datetime64[ns]")), (T.LIST, list_types(DATE32), [NOON]),
        (T.FIXED_LIST, None, [1]), (T.FIXED_LIST, None, [1, 2, 3]), (T.NESTED_LIST, None, [[1.5]]),
        (T.STRUCT, None, {"a": 1.5}), (T.STRUCT, None, {"a": 1, "c": 1}), (T.STRUCT, None, (1,)),
        (T.STRUCT, None, [("a", 1), ("a", 2)]), (T.STRUCT, OF_MOMENTS, {"at": pd.Timestamp(1)}),
        (T.MAP, None, {"a": 1.5}), (T.MAP, None, [("a", 1, 2)]), (T.MAP, None, [(None, 1)]),
    ],
    ids=str,
)  # fmt: skip
def test_what_would_be_cut_off_is_refused(kind: T, exactly: Types | None, value: object) -> None:
    with pytest.raises(ValueError, match=r"column v"):
        taken(kind, [value], exactly)


@pytest.mark.parametrize(
    ("kind", "exactly", "value", "expected"),
    [
        (T.INT64, None, 2.0, 2), (T.INT64, None, Decimal(2), 2), (T.UINT64, None, 2**64 - 1, 2**64 - 1),
        (T.TIMESTAMP, None, pd.Timestamp(MIDNIGHT), MIDNIGHT), (T.TIMESTAMP, None, np.datetime64(1000, "ns"),
         dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
        (T.DURATION, None, pd.Timedelta(1000), dt.timedelta(microseconds=1)),
        (T.LIST, None, (1, None, 2.0), [1, None, 2]), (T.LIST, None, np.array([1, 2], np.int16), [1, 2]),
        (T.LIST, list_types(T.FLOAT32.value), [0.5, None, float("-inf")], [0.5, None, float("-inf")]),
        (T.LIST, list_types(T.TIMESTAMP.value), np.array([MIDNIGHT], "datetime64[ns]"), [MIDNIGHT]),
        (T.LIST, list_types(DATE32), [MIDNIGHT, MIDNIGHT], [MIDNIGHT.date(), MIDNIGHT.date()]),
        (T.NESTED_LIST, None, np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (T.STRUCT, None, (1, "x"), {"a": 1, "b": "x"}), (T.STRUCT, None, [("b", "x"), ("a", 1)], {"a": 1, "b": "x"}),
        (T.STRUCT, None, {"b": "x"}, {"a": None, "b": "x"}), (T.STRUCT, None, {}, {"a": None, "b": None}),
        (T.MAP, None, {"a": 1}, [("a", 1)]), (T.MAP, None, [("a", 1), ("a", None)], [("a", 1), ("a", None)]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_the_value_is_taken(kind: T, exactly: Types | None, value: object, expected: object) -> None:
    assert taken(kind, [None, value, None], exactly) == [None, expected, None]


def test_nan_in_lists_is_no_null_and_what_arrow_backs_is_looked_at_as_well() -> None:
    assert str(taken(T.LIST, [[math.nan, -0.0, None]], list_types(T.FLOAT64.value))) == "[[nan, -0.0, None]]"
    wide, deep = pa.array([[1.5]]), map_types(T.TEXT.value, list_types(T.INT64.value))
    maps = pa.array([[("k", [1, None])], []], pa.map_(pa.string(), pa.list_(pa.int32())))
    wide, maps = (pd.Series(each, dtype=pd.ArrowDtype(each.type)) for each in (wide, maps))
    with pytest.raises(ValueError, match=r"column v, row 0: .* is no list<item: int64>: Float value 1.5"):
        taken(T.LIST, wide)
    assert taken(T.MAP, maps, deep) == [[("k", [1, None])], []]
