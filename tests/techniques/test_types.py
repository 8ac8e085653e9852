"""What a server or a conversion would change is refused by its column before anything is sent, or arrives exactly."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from framehaul.bench.trials import Trials, all_techniques
from framehaul.data import generator
from framehaul.data.documents import without_documents
from framehaul.data.equality import content_of, first_difference
from framehaul.data.frames import conform, from_pandas, from_polars, to_pandas, to_polars
from framehaul.data.schema import Column, Table, enum_types, list_types, map_types, struct_types
from framehaul.data.schema import ColumnType as T
from framehaul.servers import Servers
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.shapes import SLICED
from framehaul.studies.fidelity.trial import Cell, run_cells
from framehaul.techniques.clients import QueryError
from framehaul.techniques.prepare import check_for_clickhouse
from framehaul.techniques.registry import Database, named
from framehaul.techniques.streaming import in_table_schema
from tests.conftest import call, table_on

KINDS = [kind for kind in T if kind is not T.TIMESTAMP_NS]
EVERY_KIND = Table(
    "framehaul_every_kind",
    (
        Column("key", T.INT32),
        *(Column(f"a {kind.name}", kind) for kind in KINDS),
        *(Column(f"maybe {kind.name}", kind, nullable=kind.value.clickhouse_nullable) for kind in KINDS),
        *(Column(f"list of {kind.name}", T.LIST, exactly=list_types(kind.value)) for kind in (T.FLOAT64, T.TEXT)),
    ),
    ("key",),
)
"""All kinds that both servers hold, and lists that are not NULL, which is no matter of both."""


def table_of(kind: T, *, nullable: bool = False, **more: Any) -> Table:
    """A table of one column `v`."""
    return Table("t", (Column("v", kind, nullable, **more),), ())


# What the matrix does not have: text of as many characters as its type has bytes; numbers of an enum in two bytes, its
# texts in no order; lists of one size of another type, cut from more rows.
AS_LONG_AS_THEIR_BYTES = {
    T.IPV6: "2001:db8:1:2::10", T.INT128: "1234567890123456", T.UINT256: "12345678901234567890123456789012",
    T.WIDE_DECIMAL: "12345678901234567890123456789.12",
}  # fmt: skip
TWO_BYTES = enum_types(*(f"text {at}" for at in range(300, 0, -1)))
MORE_CASES = (
    *(Case(f"as long as {kind.name}", (Column("value", kind),), (pa.array([text, text]),), directions=("write",),
           databases=("clickhouse",))
      for kind, text in AS_LONG_AS_THEIR_BYTES.items()),
    Case("two bytes", (Column("value", T.ENUM, nullable=True, exactly=TWO_BYTES),),
         (pa.array(["text 1", "text 300", None, "text 128"]),), databases=("clickhouse",)),
    Case("of one size", (Column("value", T.FIXED_LIST, nullable=True),),
         (pa.array([[1, 1], None, [3, 3]], pa.list_(pa.float64(), 2)),), databases=("postgres",), shapes=SLICED),
)  # fmt: skip


def test_values_that_were_changed_once_are_exact_or_refused(servers: Servers) -> None:
    cells: list[Cell] = []
    chosen = [found for found in all_techniques() if found.origin in ("beyond", "streamed")]
    run_cells(servers, chosen, Trials(cells.append), cases=MORE_CASES)
    assert [(cell.technique, cell.case, cell.detail) for cell in cells if cell.outcome == "loss"] == []
    exact = {(cell.database, cell.direction, cell.case) for cell in cells if cell.outcome == "exact"}
    assert len(exact) == 4 + 2 + 2, "nothing carries them"


@pytest.mark.parametrize(
    ("database", "time", "readers"),
    [
        ("postgres", "24:00:00", ("polars_adbc_fetch", "polars_asyncpg_copy_decoded", "pandas_psycopg_copy_decoded")),
        ("clickhouse", "25:00:00", ("polars_http_client_arrow_stream", "polars_http_client_native_decoded")),
        ("clickhouse", "-00:00:01", ("pandas_http_client_arrow_stream", "polars_http_client_native_decoded")),
    ],
)
def test_a_time_that_no_day_has_is_refused(
    servers: Servers, database: Database, time: str, readers: tuple[str, ...]
) -> None:
    table = Table("framehaul_times", (Column("id", T.INT32), Column("t", T.TIME)), ("id",))
    with table_on(servers.of(database), table) as tables:
        tables.run(f"INSERT INTO {table.name} VALUES (1, '{time}')")
        for name in readers:
            with pytest.raises((ValueError, QueryError), match=r"(?i)time64|time-of-day"):
                call(named(database, "read", name), servers, table)


@pytest.mark.parametrize("database", ["postgres", "clickhouse"])
def test_verification_holds_every_kind(servers: Servers, database: Database) -> None:
    content, prints = generator.arrow_table(EVERY_KIND, 60, 5), []
    content = content.set_column(0, "key", pa.array(range(60), pa.int32()))
    for part in (content, content.slice(1)):
        with table_on(servers.of(database), EVERY_KIND, part) as tables:
            found = content_of(tables.content(EVERY_KIND), EVERY_KIND.columns, nan_is_null=False).in_order(["key"])
            assert first_difference(content_of(part, EVERY_KIND.columns, nan_is_null=False), found) is None
            prints.append(tables.column_fingerprints(EVERY_KIND))
    assert all(prints[0][name] != prints[1][name] for name in EVERY_KIND.column_names)


# Conversions


def test_conversions_lose_nothing_of_any_kind() -> None:
    content = generator.arrow_table(EVERY_KIND, 40, 6)
    polars, pandas = to_polars(content, EVERY_KIND), to_pandas(content, EVERY_KIND)
    assert polars.schema == EVERY_KIND.polars_schema
    assert {name: str(kind) for name, kind in pandas.dtypes.items()} == EVERY_KIND.pandas_dtypes
    sent = content_of(content, EVERY_KIND.columns, nan_is_null=False)
    for again in (from_polars(polars, EVERY_KIND), from_pandas(pandas, EVERY_KIND)):
        assert first_difference(sent, content_of(again, EVERY_KIND.columns, nan_is_null=False)) is None


MORNING, DAY = dt.datetime(2020, 1, 1, 5), dt.date(2020, 1, 1)


@pytest.mark.parametrize(
    ("kind", "fits", "does_not"),
    [
        (T.FLOAT32, pd.Series([0.5, math.nan]), pd.Series([0.1])),
        (T.FLOAT32, pd.Series([0.5, None], dtype=object), pd.Series([1e300], dtype="Float64")),
        (T.BOOL, pd.Series([0, 1]), pd.Series([5])),
        (T.BOOL, pd.Series([None, None], dtype=object), pd.Series([0.5])),
        (T.DATE, pd.to_datetime(pd.Series(["2020-01-01"])), pd.to_datetime(pd.Series(["2020-01-01 05:00"]))),
        (T.DATE, pd.Series([None, DAY]), pd.Series([MORNING], dtype=object)),
        (T.DATE, pd.Series([dt.datetime(2020, 1, 1)], dtype=object), pd.Series([MORNING, DAY], dtype=object)),
        (T.FLOAT64, pd.Series([1, 2]), pd.Series([Decimal("0.1234567890123456789")], dtype=object)),
        (T.DECIMAL, pd.Series([Decimal("1.5")]), pd.Series([Decimal("0.00000000001")])),
        (T.IPV4, pd.Series(["0.0.0.0", None]), pd.Series(["0.0.0.0", "192.0.2.1/24"])),
        (T.BYTES, pd.Series([b"a"]), pd.Series([256])), (T.TIME, pd.Series([dt.time(1)]), pd.Series([MORNING])),
        *((T.IPV4, pd.Series(["255.255.255.255"]), pd.Series([text]))
          for text in ("192.0.02.1", "", "1.2.3.4.", "::1", "localhost", " 1.2.3.4")),
        *((T.UINT128, pd.Series([str(2**100)]), pd.Series([text])) for text in ("-1", "1.5", "1_0", "")),
    ],
)  # fmt: skip
def test_another_value_is_kept_or_refused_and_never_rounded(
    kind: T, fits: pd.Series[Any], does_not: pd.Series[Any]
) -> None:
    table = table_of(kind, nullable=True)

    def in_batches(values: pd.Series[Any]) -> list[Any]:
        content = pa.Table.from_pandas(pd.DataFrame({"v": values}), preserve_index=False)
        batches = in_table_schema(iter(content.to_batches()), table, "postgres")
        return [*pa.Table.from_batches(batches)["v"].to_pylist()]

    for kept in (from_pandas(pd.DataFrame({"v": fits}), table)["v"].to_pylist(), in_batches(fits)):
        sent = [value.date() if isinstance(value, dt.datetime) else value for value in fits if not pd.isna(value)]
        assert [value for value in kept if value is not None] == sent
    with pytest.raises((ValueError, TypeError), match="v, row" if kind in (T.IPV4, T.UINT128) else None):
        from_pandas(pd.DataFrame({"v": does_not}), table)
    with pytest.raises((ValueError, TypeError)):
        in_batches(does_not)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a": 1, "c": 2}', "is no struct"), ('{"a": 1.5}', "1.5"), ('{"a": "1"}', "'1' is no number"),
        ('{"b": 1}', "got a 'int'"), ("[1]", "is no struct"), ('{"a": 9223372036854775808}', "too (large|big)"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_such_struct_is_refused_by_its_column(text: str, error: str) -> None:
    table = table_of(T.STRUCT, nullable=True)
    with pytest.raises(ValueError, match=f"column v holds a document that is no .*{error}"):
        without_documents(pa.table({"v": [text]}), table)
    missing = without_documents(pa.table({"v": ['{"b": "x"}', None, "{}"]}), table)
    assert missing["v"].to_pylist() == [{"a": None, "b": "x"}, None, {"a": None, "b": None}]


def test_nanoseconds_stay_or_are_refused() -> None:
    text = pa.table({"v": ['{"at": "2026-01-02T03:04:05.123456789"}']})
    fine = table_of(T.STRUCT, exactly=struct_types({"at": T.TIMESTAMP_NS.value}))
    coarse = table_of(T.STRUCT, exactly=struct_types({"at": T.TIMESTAMP.value}))
    assert without_documents(text, fine)["v"][0].as_py()["at"].nanosecond == 789
    with pytest.raises(ValueError, match=r"column v holds a document .*123456789' as a scalar of type timestamp\[us\]"):
        without_documents(text, coarse)
    times, lists = pl.Series([1000, 1]).cast(pl.Time), table_of(T.LIST, exactly=list_types(T.TIME.value))
    for values, held in ((times, table_of(T.TIME)), (times.reshape((2, 1)).arr.to_list(), lists)):
        frame = pl.DataFrame({"v": values})
        assert conform(frame[:1], held).height == 1
        with pytest.raises(ValueError, match="times with nanoseconds, and the table has microseconds: round them"):
            conform(frame, held)


def test_fields_go_by_name_and_none_is_dropped() -> None:
    table = table_of(T.STRUCT, nullable=True)
    values = pl.Series(
        [{"b": "x", "a": 1}, None, {"b": None, "a": None}], dtype=pl.Struct({"b": pl.String, "a": pl.Int32})
    )
    expected = [{"a": 1, "b": "x"}, None, {"a": None, "b": None}]
    assert from_polars(pl.DataFrame({"v": values}), table)["v"].to_pylist() == expected
    for wrong in ({"c": 1}, {"a": 1, "b": "x", "c": 1}):
        with pytest.raises(ValueError, match="column v holds structs with a field 'c', which"):
            from_polars(pl.DataFrame({"v": [wrong]}), table)


def test_nulls_outside_of_a_slice_are_none_of_it() -> None:
    table = table_of(T.MAP, exactly=map_types(T.TEXT.value, T.STRUCT.value))
    values = [[("a", None)], [("a", {"a": 1, "b": None})], None, [("c", None)]]
    content = pa.table({"v": pa.array(values, table.arrow_schema.field("v").type)})
    check_for_clickhouse(content.slice(1, 1), table)
    for start, kind in ((0, "Tuple"), (2, "Map"), (3, "Tuple")):
        with pytest.raises(ValueError, match=f"column v holds 1 NULL in place of a .*{kind} cannot be NULL"):
            check_for_clickhouse(content.slice(start, 1), table)


def test_what_no_frame_can_hold_is_refused() -> None:
    enum = table_of(T.ENUM, exactly=enum_types("red"))
    grey = pa.table({"v": pa.array(["grey"]).cast(enum.arrow_schema.field("v").type)})
    with pytest.raises(ValueError, match="column v is an enum that does not have 'grey': add it"):
        to_pandas(grey, enum)
    with pytest.raises(pl.exceptions.InvalidOperationError, match="grey"):
        to_polars(grey, enum)
    for kind in (T.BOOL, T.FLOAT64):
        values = pa.table({"v": pa.array([True, None], pa.bool_()).cast(kind.value.arrow)})
        with pytest.raises(ValueError, match="column v holds NULL, which its dtype"):
            to_pandas(values, table_of(kind))
        assert to_pandas(values, table_of(kind, nullable=True))["v"].isna().to_list() == [False, True]
