"""What no server would store as it is, techniques beyond the published ones refuse before anything is sent."""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from framehaul.bench.measure import IN_FRAMES
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.documents import without_documents
from framehaul.data.equality import content_of, first_difference
from framehaul.data.frames import conform, from_pandas, from_polars, to_pandas, to_polars
from framehaul.data.schema import (
    Column,
    ColumnType,
    Table,
    Types,
    decimal_types,
    enum_types,
    fixed_list_types,
    list_types,
    map_types,
    nested_list_types,
    struct_types,
)
from framehaul.servers import Servers
from framehaul.servers.tables import ClickHouseTables, PostgresTables, tables_of
from framehaul.studies.fidelity.cases import CASES, Case
from framehaul.techniques import Technique, techniques
from framehaul.techniques.beyond import clickhouse_write
from framehaul.techniques.beyond.clickhouse_write import check_nested
from framehaul.techniques.clients import QueryError, open_http_client, open_psycopg
from framehaul.techniques.streaming import copy_batches, in_table_schema, insert_batches
from tests.conftest import call, check_each
from tests.techniques.test_columns import Untouched

KINDS = [kind for kind in ColumnType if kind is not ColumnType.TIMESTAMP_NS]
EVERY_KIND = Table(
    "framehaul_every_kind",
    (
        Column("key", ColumnType.INT32),
        *(Column(f"a {kind.name}", kind) for kind in KINDS),
        *(Column(f"maybe {kind.name}", kind, nullable=kind.value.clickhouse_nullable) for kind in KINDS),
        *(
            Column(f"list of {kind.name}", ColumnType.LIST, exactly=list_types(kind.value))
            for kind in (ColumnType.FLOAT64, ColumnType.TEXT)
        ),
    ),
    ("key",),
)
"""All kinds that both servers hold, and lists that are not NULL, which is no matter of both."""
REFUSED = {
    "postgres": (
        "json: a key twice", r"json: \u0000", "json: no JSON", "enum: a value more", "fixed-size bytes: too few",
        "fixed-size list: one too many", "struct: a field more", "struct: NaN, infinity", "struct: -0.0",
        "struct: NUL in text", "IPv4 address: of a network", "IPv6 address: an IPv4 one",
        "map: a key twice", "int128: one beyond", "wide decimal: a digit more",
    ),
    "clickhouse": (
        "list of int64: NULL", "enum: a value more", "fixed-size bytes: too few", "fixed-size list: NULL",
        "fixed-size list: one too many", "nested list: NULL inside", "struct: NULL", "struct: a field more",
        "IPv4 address: of a network", "IPv6 address: an IPv4 one",
        "map: NULL", "uint256: one beyond", "wide decimal: a digit more",
    ),
}  # fmt: skip
BEYOND = [found for found in techniques(direction="write") if found.origin == "beyond"]


def case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def write_nowhere(found: Technique, of: Case) -> None:
    done = found.function(Untouched(), of.table, of.frame(found.frame))
    if inspect.isawaitable(done):
        asyncio.run(done)  # type: ignore[arg-type]  # a coroutine


@pytest.mark.parametrize(("database", "name"), [(database, name) for database in REFUSED for name in REFUSED[database]])
def test_what_would_be_changed_is_refused_by_its_column_before_anything_is_sent(database: str, name: str) -> None:
    def check(found: Technique) -> None:
        # clickhouse-connect itself says which bytes are too few, before it sends any.
        if "insert_df" in found.name and name.startswith("fixed"):
            return
        with pytest.raises((ValueError, pa.ArrowInvalid), match=r"column '?value"):
            write_nowhere(found, case(name))

    check_each((found for found in BEYOND if found.database == database), check)


def test_a_list_that_is_null_is_told_with_a_remedy() -> None:
    found = next(found for found in BEYOND if found.name == "polars_http_client_arrow_stream")
    with pytest.raises(
        ValueError, match=r"value holds 1 NULL in place of a list, .* Array .* make them empty lists, and keep"
    ):
        write_nowhere(found, case("list of int64: NULL"))


def test_nulls_outside_of_a_slice_are_none_of_it() -> None:
    of = Table(
        "t", (Column("m", ColumnType.MAP, exactly=map_types(ColumnType.TEXT.value, ColumnType.STRUCT.value)),), ()
    )
    values = [[("a", None)], [("a", {"a": 1, "b": None})], None, [("c", None)]]
    content = pa.table({"m": pa.array(values, of.arrow_schema.field("m").type)})
    check_nested(content.slice(1, 1), of)
    for start, kind in ((0, "Tuple"), (2, "Map"), (3, "Tuple")):
        with pytest.raises(ValueError, match=f"column m holds 1 NULL in place of a .*{kind} cannot be NULL"):
            check_nested(content.slice(start, 1), of)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1, "c": 2}', "is no struct"), ('{"a": 1.5}', "1.5 is no int64"), ('{"a": "1"}', "'1' is no int64"),
        ('{"b": 1}', "1 is no string"), ("[1]", "is no struct"), ('{"a": 9223372036854775808}', "too (large|big)"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_such_struct_is_refused_by_its_column(text: str, error: str) -> None:
    table = Table("t", (Column("s", ColumnType.STRUCT),), ())
    with pytest.raises(ValueError, match=f"column s holds a document that is no .*{error}"):
        without_documents(pa.table({"s": [text]}), table)


def test_a_field_that_is_missing_in_a_document_is_null() -> None:
    table = Table("t", (Column("s", ColumnType.STRUCT, nullable=True),), ())
    content = pa.table({"s": ['{"b": "x"}', None, "{}"]})
    assert to_pandas(without_documents(content, table), table)["s"].tolist() == [
        {"a": None, "b": "x"},
        None,
        {"a": None, "b": None},
    ]


def test_fields_go_by_name_and_none_is_dropped() -> None:
    table = Table("t", (Column("s", ColumnType.STRUCT, nullable=True),), ())
    kind = pl.Struct({"b": pl.String, "a": pl.Int32})
    frame = pl.DataFrame({"s": pl.Series([{"b": "x", "a": 1}, None, {"b": None, "a": None}], dtype=kind)})
    expected = [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]
    assert from_polars(frame, table)["s"].to_pylist() == expected
    assert from_pandas(pd.DataFrame({"s": frame["s"].to_list()}), table)["s"].to_pylist() == expected
    for found in (pl.DataFrame({"s": [{"c": 1}]}), pl.DataFrame({"s": [{"a": 1, "b": "x", "c": 1}]})):
        with pytest.raises(ValueError, match="column s holds structs with a field 'c', which"):
            from_polars(found, table)
    with pytest.raises(ValueError, match=r"column s.*struct"):
        from_polars(pl.DataFrame({"s": [1]}), table)


def test_uuids_of_arrow_are_uuids() -> None:
    table = Table("t", (Column("u", ColumnType.UUID, nullable=True),), ())
    texts = ["61626364-6566-6768-696a-6b6c6d6e6f70", None]
    raw = pa.array([b"abcdefghijklmnop", None], pa.binary(16))
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), raw)
    backed = pd.DataFrame({"u": pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([uuids])))})
    assert from_pandas(backed, table)["u"].to_pylist() == texts
    assert from_polars(pl.DataFrame({"u": pl.Series(values=uuids)}), table)["u"].to_pylist() == texts
    with pytest.raises(ValueError, match="16 bytes"):
        from_polars(pl.DataFrame({"u": [b"abc"]}), table)


def test_long_numbers_are_checked_whatever_dtype_they_come_in() -> None:
    table = Table("t", (Column("n", ColumnType.UINT128),), ())
    assert from_polars(pl.DataFrame({"n": pl.Series([2**100], dtype=pl.Int128)}), table)["n"].to_pylist() == [
        str(2**100)
    ]
    for values in (pl.Series([-1], dtype=pl.Int128), pl.Series(["-1"]), pl.Series(["1.5"]), pl.Series(["1_0"])):
        with pytest.raises(ValueError, match=r"column n, row 0: .* is no UInt128"):
            from_polars(pl.DataFrame({"n": values}), table)


def test_no_digit_is_lost_beside_null_in_pandas() -> None:
    table = Table("t", (Column("n", ColumnType.INT64, nullable=True),), ())
    values = [1, None, -33_448_745_904_706_042]
    assert to_pandas(pa.table({"n": values}), table)["n"].tolist() == [1, pd.NA, values[2]]


@pytest.mark.parametrize(
    ("kind", "given", "values"),
    [
        (ColumnType.MAP, pa.map_(pa.large_string(), pa.int64()), [[("a", 2**53 + 1), ("b", None)], []]),
        (ColumnType.MAP, ColumnType.MAP.value.arrow, [[("a", 2**53 + 1), ("b", None)], []]),
        (ColumnType.LIST, pa.large_list(pa.int64()), [[2**53 + 1, None], []]),
        (ColumnType.LIST, pa.list_(pa.int32()), [[1, None], []]),
        (ColumnType.FIXED_LIST, pa.list_(pa.int64(), 2), [[2**53 + 1, None], [0, 1]]),
        (ColumnType.NESTED_LIST, pa.list_(pa.large_list(pa.int64())), [[[2**53 + 1, None], []], []]),
        (ColumnType.STRUCT, pa.struct({"b": pa.large_string(), "a": pa.int64()}.items()), [{"a": 2**53 + 1, "b": "x"}]),
    ],
)  # fmt: skip
def test_no_digit_is_lost_beside_null_inside_of_what_arrow_backs(
    kind: ColumnType, given: pa.DataType, values: list[Any]
) -> None:
    table = Table("t", (Column("n", kind),), ())
    backed = pa.chunked_array([pa.array(values, given), pa.array(values[:1], given)])
    frame = pd.DataFrame({"n": pd.Series(pd.arrays.ArrowExtensionArray(backed))})
    for part in (frame, frame[1:], frame[::-1]):
        expected = [(values + values[:1])[at] for at in part.index]
        assert from_pandas(part, table)["n"].to_pylist() == expected


def test_columns_of_several_levels_are_refused_with_what_to_do() -> None:
    frame = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")]))
    table = Table("t", (Column("a_b", ColumnType.INT64), Column("a_c", ColumnType.INT64)), ())
    with pytest.raises(
        ValueError, match=r"the frame have 2 levels \(a MultiIndex\).*frame.columns = \['_'.join"
    ) as said:
        from_pandas(frame, table)
    frame.columns = eval(str(said.value).partition("frame.columns = ")[2])
    assert from_pandas(frame, table).to_pydict() == {"a_b": [1], "a_c": [2]}


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_verification_holds_every_kind(servers: Servers, database: str) -> None:
    tables, content = tables_of(servers.of(database)), generator.arrow_table(EVERY_KIND, 60, 5)
    content = content.set_column(0, "key", pa.array(range(60), pa.int32()))
    tables.create(EVERY_KIND)
    try:
        tables.load(EVERY_KIND, content)
        found = content_of(tables.content(EVERY_KIND), EVERY_KIND.columns, nan_is_null=False).in_order(["key"])
        prints = tables.column_fingerprints(EVERY_KIND)
        tables.create(EVERY_KIND)
        tables.load(EVERY_KIND, content.slice(1))
        others = tables.column_fingerprints(EVERY_KIND)
    finally:
        tables.drop(EVERY_KIND)
    sent = content_of(content, EVERY_KIND.columns, nan_is_null=False)
    assert not sent.odd
    assert first_difference(sent, found) is None
    assert all(prints[name] != others[name] for name in EVERY_KIND.column_names)


def test_conversions_lose_nothing_of_any_kind() -> None:
    content = generator.arrow_table(EVERY_KIND, 40, 6)
    polars, pandas = to_polars(content, EVERY_KIND), to_pandas(content, EVERY_KIND)
    assert polars.schema == EVERY_KIND.polars_schema
    assert {name: str(kind) for name, kind in pandas.dtypes.items()} == EVERY_KIND.pandas_dtypes
    sent = content_of(content, EVERY_KIND.columns, nan_is_null=False)
    for again in (from_polars(polars, EVERY_KIND), from_pandas(pandas, EVERY_KIND)):
        assert first_difference(sent, content_of(again, EVERY_KIND.columns, nan_is_null=False)) is None


def test_nan_stays_nan_in_lists_of_pandas() -> None:
    table = Table("t", (Column("l", ColumnType.LIST, nullable=True, exactly=list_types(ColumnType.FLOAT64.value)),), ())
    frame = pd.DataFrame({"l": [[math.nan, None], None, []]})
    assert str(from_pandas(frame, table)["l"].to_pylist()) == "[[nan, None], None, []]"


@pytest.mark.parametrize(
    ("name", "database"), [("list of int64: NULL", "clickhouse"), ("json: a key twice", "postgres")]
)
def test_a_batch_that_would_be_changed_is_refused_and_nothing_stored(
    servers: Servers, name: str, database: str
) -> None:
    table, tables = case(name).table, tables_of(servers.of(database))
    batches = case(name).content().cast(table.arrow_schema).to_batches()
    tables.create(table)
    try:
        with pytest.raises(ValueError, match="column value"):
            if database == "clickhouse":
                with open_http_client(servers.clickhouse) as client:
                    insert_batches(client, table, iter(batches))
            else:
                with open_psycopg(servers.postgres) as connection:
                    copy_batches(connection, table, iter(batches))
        assert tables.content(table).is_empty()
    finally:
        tables.drop(table)


@pytest.mark.parametrize(
    ("database", "time", "readers"),
    [
        ("postgres", "24:00:00", {"polars_adbc_fetch", "polars_asyncpg_copy_decoded", "pandas_psycopg_copy_decoded"}),
        ("clickhouse", "25:00:00", {"polars_http_client_arrow_stream", "polars_http_client_native_decoded"}),
        ("clickhouse", "-00:00:01", {"pandas_http_client_arrow_stream", "polars_http_client_native_decoded"}),
    ],
)
def test_a_time_that_no_day_has_is_refused(servers: Servers, database: str, time: str, readers: set[str]) -> None:
    table = Table("framehaul_times", (Column("id", ColumnType.INT32), Column("t", ColumnType.TIME)), ("id",))
    tables = tables_of(servers.of(database))
    tables.create(table)

    def check(found: Technique) -> None:
        with pytest.raises((ValueError, QueryError), match=r"(?i)time64|time-of-day"):
            call(found, servers, table)

    try:
        run: Callable[[str], object] = (
            PostgresTables(servers.postgres).run if database == "postgres" else ClickHouseTables(servers.clickhouse).run
        )
        run(f"INSERT INTO {table.name} VALUES (1, '{time}')")
        chosen = [found for found in techniques(direction="read") if found.name in readers]
        check_each((found for found in chosen if found.database == database), check)
    finally:
        tables.drop(table)


@pytest.mark.parametrize(
    "texts", [("b", "a", "it's", "{é}", "", "x\\n`"), tuple(f"text {at}" for at in range(300, 0, -1))], ids=["8", "16"]
)
def test_enums_travel_as_numbers_and_come_as_texts(servers: Servers, texts: tuple[str, ...]) -> None:
    enum = enum_types(*texts)
    columns = (
        Column("e", ColumnType.ENUM, exactly=enum), Column("id", ColumnType.INT32),
        Column("n", ColumnType.ENUM, nullable=True, exactly=enum),
    )  # fmt: skip
    table = Table("framehaul_enums", columns, ("e", "id"))
    values = [texts[at * 7 % len(texts)] for at in range(2_000)]
    some = [None if at % 3 else value for at, value in enumerate(values)]
    content = pa.Table.from_arrays(
        [pa.array(values), pa.array(range(2_000), pa.int32()), pa.array(some)], schema=table.arrow_schema
    )
    tables, sent = ClickHouseTables(servers.clickhouse), Expected(table, content)
    try:
        for found in techniques("clickhouse"):
            if found.name.endswith("native_presorted"):
                tables.create(table)
                call(found, servers, table, IN_FRAMES[found.frame](content, table))
                assert sent.difference(tables.content(table)) is None
            if found.name.endswith("native_decoded"):
                assert sent.difference(call(found, servers, table)) is None
    finally:
        tables.drop(table)


def test_a_value_that_an_enum_lacks_is_no_null() -> None:
    of = case("enum: a value more")
    unknown = of.content().cast(of.table.arrow_schema)
    with pytest.raises(ValueError, match="column value is an enum that does not have 'grey': add it"):
        to_pandas(unknown, of.table)
    with pytest.raises(pl.exceptions.InvalidOperationError, match="grey"):
        to_polars(unknown, of.table)


MORNING = dt.datetime(2020, 1, 1, 5)


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        (ColumnType.FLOAT32, pd.Series([0.5, math.nan]), pd.Series([0.1])),
        (ColumnType.FLOAT32, pd.Series([0.5, None], dtype=object), pd.Series([1e300], dtype="Float64")),
        (ColumnType.BOOL, pd.Series([0, 1]), pd.Series([5])),
        (ColumnType.BOOL, pd.Series([None, None], dtype=object), pd.Series([0.5])),
        (ColumnType.DATE, pd.to_datetime(pd.Series(["2020-01-01"])), pd.to_datetime(pd.Series(["2020-01-01 05:00"]))),
        (ColumnType.DATE, pd.Series([None, dt.date(2020, 1, 1)]), pd.Series([MORNING], dtype=object)),
        (ColumnType.DATE, pd.Series([dt.datetime(2020, 1, 1)], dtype=object),
         pd.Series([MORNING, dt.date(2020, 1, 1)], dtype=object)),
        (ColumnType.FLOAT64, pd.Series([1, 2]), pd.Series([Decimal("0.1234567890123456789")], dtype=object)),
        (ColumnType.DECIMAL, pd.Series([Decimal("1.5")]), pd.Series([Decimal("0.00000000001")])),
    ],
)  # fmt: skip
def test_a_wider_value_is_kept_or_refused_and_never_rounded(
    kind: ColumnType, fits: pd.Series[Any], does_not: pd.Series[Any]
) -> None:
    table = Table("t", (Column("v", kind, nullable=True),), ())

    def batches(values: pd.Series[Any]) -> list[pa.RecordBatch]:
        arrow = pa.Table.from_pandas(pd.DataFrame({"v": values}), preserve_index=False)
        return [*in_table_schema(iter(arrow.to_batches()), table, lambda *_: None)]

    for taken in (from_pandas(pd.DataFrame({"v": fits}), table), pa.Table.from_batches(batches(fits))):
        kept = taken["v"].to_pylist()
        assert [value for value in kept if value is not None] == [
            value.date() if isinstance(value, dt.datetime) else value for value in fits if not pd.isna(value)
        ]
    with pytest.raises((ValueError, TypeError)):
        from_pandas(pd.DataFrame({"v": does_not}), table)
    with pytest.raises((ValueError, TypeError)):
        batches(does_not)


POINT = struct_types({"x": ColumnType.INT64.value, "y": ColumnType.FLOAT32.value})


@pytest.mark.parametrize(
    ("types", "kind", "value"),
    [
        (POINT, ColumnType.STRUCT, {"x": 1}),
        (struct_types({"at": POINT}), ColumnType.STRUCT, {"at": {"x": 1}}),
        (nested_list_types(POINT), ColumnType.NESTED_LIST, [{"x": 1}, {"x": 2}]),
    ],
)
def test_a_field_that_streamed_structs_do_not_have_is_null(types: Types, kind: ColumnType, value: Any) -> None:
    table = Table("t", (Column("v", kind, exactly=types),), ())
    filled = pa.array([value]).cast(table.arrow_schema.field("v").type).to_pylist()
    (batch,) = in_table_schema(iter([pa.RecordBatch.from_pydict({"v": [value]})]), table, lambda *_: None)
    assert batch.to_pydict() == {"v": filled}
    assert "'y': None" in str(filled)
    of_points = Table("t", (Column("v", ColumnType.STRUCT, exactly=POINT),), ())
    rounded = pa.RecordBatch.from_pydict({"v": pa.array([{"x": 1, "y": 0.1}])})
    with pytest.raises(ValueError, match=r"values that .* does not have"):
        [*in_table_schema(iter([rounded]), of_points, lambda *_: None)]


def test_streamed_lists_of_one_size_may_be_missing_in_a_slice() -> None:
    table = Table("t", (Column("v", ColumnType.FIXED_LIST, nullable=True),), ())
    wanted = table.arrow_schema.field("v").type
    values = [[size] * wanted.list_size if size else None for size in (1, 0, 3)]
    for kind in (wanted, pa.list_(pa.float64(), wanted.list_size)):
        batch = pa.RecordBatch.from_pydict({"v": pa.array(values, kind)}).slice(1)
        (kept,) = in_table_schema(iter([batch]), table, lambda *_: None)
        assert kept.to_pydict() == {"v": values[1:]}


def test_a_moment_among_dates_keeps_its_hours_or_is_refused() -> None:
    table = Table("t", (Column("v", ColumnType.DATE),), ())
    with pytest.raises(ValueError, match="column v, row 1: 2020-01-01 05:00:00 is no date"):
        from_pandas(pd.DataFrame({"v": pd.Series([dt.date(2020, 1, 1), MORNING], dtype=object)}), table)


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(18, 9)], ids=str)
@pytest.mark.parametrize(
    "around",
    [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 1), lambda kind: pa.struct([("x", pa.large_list(kind))])],
    ids=["list", "long list", "list of one", "struct of long lists"],
)
def test_decimals_of_a_few_bytes_reach_polars_as_what_they_are(kind: pa.DataType, around: Any) -> None:
    inner = around(kind)
    value: Any = [Decimal("9.25")] if not pa.types.is_struct(inner) else {"x": [Decimal("9.25")]}
    columns = columns_of(inner)
    frame = to_polars(pa.table({"v": pa.array([value, value], inner)}), Table("t", columns, ()))
    assert frame["v"].to_list() == [value, value]
    assert frame["v"].to_arrow().to_pylist() == [value, value]


def columns_of(kind: pa.DataType) -> tuple[Column, ...]:
    """A column for what is nested, of decimals."""
    if pa.types.is_struct(kind):
        (inner,) = columns_of(kind.field(0).type)
        return (Column("v", ColumnType.STRUCT, exactly=struct_types({"x": inner.types})),)
    decimals = decimal_types(kind.value_type.precision, kind.value_type.scale)
    if pa.types.is_fixed_size_list(kind):
        return (Column("v", ColumnType.FIXED_LIST, exactly=fixed_list_types(decimals, kind.list_size)),)
    return (Column("v", ColumnType.LIST, exactly=list_types(decimals)),)


OF_TIMES = Table("t", (Column("v", ColumnType.LIST, exactly=list_types(ColumnType.TIME.value)),), ())
OF_MOMENTS = Table("t", (Column("v", ColumnType.LIST, exactly=list_types(ColumnType.TIMESTAMP.value)),), ())
OF_BYTES = Table("t", (Column("v", ColumnType.LIST, exactly=list_types(ColumnType.BYTES.value)),), ())
OF_NANOSECONDS = Table("t", (Column("v", ColumnType.LIST, exactly=list_types(ColumnType.TIMESTAMP_NS.value)),), ())


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("polars_http_client_native_rust", OF_TIMES), ("pandas_clickhouse_connect_query_df", OF_TIMES),
        ("pandas_clickhouse_connect_query_df_rust", OF_BYTES), ("pandas_clickhouse_connect_query_df", OF_NANOSECONDS),
        ("polars_clickhouse_connect_query_df_arrow", OF_BYTES), ("polars_clickhouse_driver_query_arrow", OF_TIMES),
        ("polars_clickhouse_driver_query_arrow", OF_MOMENTS),
    ],
)  # fmt: skip
def test_elements_that_a_driver_makes_others_of_are_refused(name: str, table: Table) -> None:
    found = next(found for found in techniques(direction="read") if found.name == name)
    with pytest.raises(ValueError, match="column v is "):
        found.function(Untouched(), table)


@pytest.mark.parametrize("text", ["192.0.2.1/24", "192.0.02.1", "", "1.2.3.4.", "::1", "localhost", " 1.2.3.4"])
def test_what_is_no_address_of_the_version_is_refused_by_its_row(text: str) -> None:
    table = Table("t", (Column("v", ColumnType.IPV4, nullable=True),), ())
    values = {"v": ["0.0.0.0", None, text]}
    with pytest.raises(ValueError, match=r"column v, row 2: .* is no IPV4"):
        from_pandas(pd.DataFrame(values), table)
    with pytest.raises(ValueError, match=r"column v, row 2: .* is no IPV4"):
        from_polars(pl.DataFrame(values), table)
    with pytest.raises(ValueError, match=r"column v, row 2: .* is no IPV4"):
        [*in_table_schema(iter(pa.table(values).to_batches()), table, lambda *_: None)]


def test_nanoseconds_in_documents_stay_or_are_refused() -> None:
    text = ['{"at": "2026-01-02T03:04:05.123456789"}']
    for kind, digits in ((ColumnType.TIMESTAMP_NS, 9), (ColumnType.TIMESTAMP, 6)):
        table = Table("t", (Column("s", ColumnType.STRUCT, exactly=struct_types({"at": kind.value})),), ())
        if digits == 9:
            (value,) = without_documents(pa.table({"s": text}), table)["s"].to_pylist()
            assert value["at"].nanosecond == 789
        else:
            with pytest.raises(ValueError, match=r"column s holds a document .* is no timestamp\[us\]"):
                without_documents(pa.table({"s": text}), table)


UUID_LISTS = Table(
    "framehaul_uuid_lists",
    (Column("one", ColumnType.UUID, nullable=True),
     Column("many", ColumnType.LIST, exactly=list_types(ColumnType.UUID.value))), (),
)  # fmt: skip
UUID_TEXT = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize("wrong", ["a text of 16 byt", "0123", "", UUID_TEXT + "0"])
@pytest.mark.parametrize("name", UUID_LISTS.column_names)
def test_text_that_is_no_uuid_is_refused_where_clickhouse_would_make_null_of_it(name: str, wrong: str) -> None:
    right = {"one": [UUID_TEXT, None], "many": [[UUID_TEXT, None], []]}
    content = pa.table(right, schema=UUID_LISTS.arrow_schema)
    clickhouse_write.check(content, UUID_LISTS)
    bad = right | {name: [wrong, None] if name == "one" else [[], [UUID_TEXT, wrong]]}
    broken = pa.table(bad, schema=UUID_LISTS.arrow_schema)
    polars = pl.DataFrame(broken)
    for refuse in (
        lambda: clickhouse_write.check(broken, UUID_LISTS), lambda: clickhouse_write.validate(polars, UUID_LISTS),
        lambda: clickhouse_write.without_lost_nulls(to_pandas(broken, UUID_LISTS), UUID_LISTS),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"column {name}, row .* is no UUID"):
            refuse()
    assert clickhouse_write.validate(pl.DataFrame(content), UUID_LISTS).height == 2
    assert len(clickhouse_write.without_lost_nulls(to_pandas(content, UUID_LISTS), UUID_LISTS)) == 2


def test_uuids_of_arrow_are_text_in_lists_and_in_batches_as_well() -> None:
    raw = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([UUID(UUID_TEXT).bytes, None], pa.binary(16)))
    given = pa.table({"one": raw, "many": pa.ListArray.from_arrays([0, 1, 2], raw)})
    expected = {"one": [UUID_TEXT, None], "many": [[UUID_TEXT], [None]]}
    assert from_polars(pl.DataFrame(given), UUID_LISTS).to_pydict() == expected
    assert from_pandas(given.to_pandas(types_mapper=pd.ArrowDtype), UUID_LISTS).to_pydict() == expected
    one = replace(UUID_LISTS, columns=UUID_LISTS.columns[:1])
    batches = in_table_schema(iter(given.select(["one"]).to_batches()), one, lambda *_: None)
    assert pa.Table.from_batches(batches).to_pydict() == {"one": expected["one"]}
    with pytest.raises(ValueError, match=r"column many is list<.*not carried in batches: cast it to text"):
        in_table_schema(iter(given.to_batches()), UUID_LISTS, lambda *_: None)


def test_times_with_nanoseconds_are_refused_in_lists_as_well() -> None:
    many = Column("many", ColumnType.LIST, exactly=list_types(ColumnType.TIME.value))
    table = Table("t", (Column("at", ColumnType.TIME), many), ())
    whole = pl.DataFrame({"at": [dt.time(1, 2, 3, 4)], "many": [[dt.time(1), None]]})
    assert conform(whole, table).height == 1
    parts = pl.Series("at", [1]).cast(pl.Time)
    for wrong in (whole.with_columns(parts), whole.with_columns(pl.Series("many", [[1, 1000]]).cast(pl.List(pl.Time)))):
        with pytest.raises(
            ValueError, match="holds times with nanoseconds, and the table has microseconds: round them"
        ):
            conform(wrong, table)


def test_lists_of_what_would_have_to_be_made_text_are_refused_with_the_remedy() -> None:
    remedies = {
        ColumnType.IPV4: "text", ColumnType.JSON: "text", ColumnType.INT128: "text", ColumnType.WIDE_DECIMAL: "text",
        ColumnType.DURATION: "whole numbers", ColumnType.FIXED_BYTES: "bytes of any size",
    }  # fmt: skip
    for kind, remedy in remedies.items():
        with pytest.raises(ValueError, match=f"are not carried: make them lists of {remedy}$"):
            list_types(kind.value)
    for kind in (ColumnType.UUID, ColumnType.ENUM, ColumnType.IPV6, ColumnType.UINT256):
        with pytest.raises(ValueError, match="inside of what is nested is not carried: make it text"):
            struct_types({"x": kind.value})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ColumnType.IPV6, "2001:db8:1:2::10"), (ColumnType.INT128, "1234567890123456"),
        (ColumnType.UINT256, "12345678901234567890123456789012"),
        (ColumnType.WIDE_DECIMAL, "12345678901234567890123456789.12"),
    ],
)  # fmt: skip
def test_text_of_as_many_characters_as_a_type_has_bytes_is_not_taken_for_the_bytes(
    kind: ColumnType, text: str, servers: Servers
) -> None:
    table = Table(f"framehaul_text_{kind.name.lower()}", (Column("id", ColumnType.INT32), Column("v", kind)), ("id",))
    content = pa.table({"id": pa.array([1, 2], pa.int32()), "v": [text, text]}, schema=table.arrow_schema)
    tables, sent = ClickHouseTables(servers.clickhouse), Expected(table, content)

    def check(found: Technique) -> None:
        tables.create(table)
        try:
            call(found, servers, table, IN_FRAMES[found.frame](content, table))
        except ValueError as refused:
            assert "column v is" in str(refused)  # not all carry the type
        else:
            assert sent.difference(tables.content(table)) is None

    try:
        here = [found for found in BEYOND if found.database == "clickhouse" and "adbc_clickhouse" not in found.requires]
        check_each(here, check)
        tables.create(table)
        with open_http_client(servers.clickhouse) as connection:
            insert_batches(connection, table, iter(content.to_batches()))
        assert sent.difference(tables.content(table)) is None
    finally:
        tables.drop(table)
