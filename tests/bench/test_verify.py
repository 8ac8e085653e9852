import datetime as dt
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, cast

import numpy as np
import pandas as pd
import polars as pl
import psycopg
import pyarrow as pa
import pytest

from framehaul.bench.store import EXACT
from framehaul.bench.verify import Expected, dtype_drift
from framehaul.data import generator
from framehaul.data.frames import to_pandas, to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table, decimal_types, list_types
from framehaul.errors import ServerError
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables, tables_of
from tests.conftest import table_on
from tests.second_table import SECOND_TABLE

ROWS = 200

IDS = ["00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"]
VALUES: dict[str, list[Any]] = {"uuid": IDS, "date": [dt.date(2025, 1, 1), dt.date(1970, 1, 1)], "int32": [1, 0]}
VALUES |= {"float64": [1.5, 0.0], "text": ["a", ""]}
CONTENT = {"key": [1, 2], **VALUES, **{f"maybe_{name}": [values[0], None] for name, values in VALUES.items()}}
"""Two rows: one with values, one with what values are mistaken for."""
COLUMNS = [Column(name, ColumnType[name.upper()]) for name in VALUES]
MAYBE = [replace(column, name=f"maybe_{column.name}", nullable=True) for column in COLUMNS]
EVERY_TYPE = Table("framehaul_every_type", (Column("key", ColumnType.INT64), *COLUMNS, *MAYBE), key=("key",))

CHANGES: dict[str, tuple[str, int, Any]] = {
    "key": ("key", 0, 0),
    "uuid": ("uuid", 0, "00000000-0000-4000-8000-000000000003"),
    "date": ("date", 0, dt.date(2025, 1, 2)),
    "int32": ("int32", 0, 2),
    "float in its last bit": ("float64", 0, float(np.nextafter(1.5, 2))),
    "trailing blank": ("text", 0, "a "),
    "minus zero": ("float64", 1, -0.0),
    "value for NULL uuid": ("maybe_uuid", 1, "00000000-0000-0000-0000-000000000000"),
    "1970 for NULL date": ("maybe_date", 1, dt.date(1970, 1, 1)),
    "0 for NULL integer": ("maybe_int32", 1, 0),
    "0 for NULL float": ("maybe_float64", 1, 0.0),
    "NaN for NULL float": ("maybe_float64", 1, float("nan")),
    "empty for NULL text": ("maybe_text", 1, ""),
    "'None' for NULL text": ("maybe_text", 1, "None"),
    "NULL for text": ("maybe_text", 0, None),
}


def every_type(**changes: list[Any]) -> pa.Table:
    return pa.Table.from_pydict(CONTENT | changes, schema=EVERY_TYPE.arrow_schema)


def changed(name: str) -> tuple[str, pa.Table]:
    column, row, value = CHANGES[name]
    values = list(CONTENT[column])
    values[row] = value
    return column, every_type(**{column: values})


BOTH_FRAMES = pytest.mark.parametrize("make", [to_polars, to_pandas])
BOTH_TABLES = pytest.mark.parametrize("table", [ANALYTICS_METRICS, SECOND_TABLE], ids=["standard", "second"])
BOTH_DATABASES = pytest.mark.parametrize("database", ["postgres", "clickhouse"])

type Make = Callable[[pa.Table, Table], pl.DataFrame | pd.DataFrame]


def swapped(content: pa.Table, name: str) -> pa.Table:
    """Two different values of a column in each other's rows: each column alone still holds the same values."""
    values = content.column(name).to_pylist()
    other = next(i for i, value in enumerate(values) if value != values[0])
    values[0], values[other] = values[other], values[0]
    at = content.column_names.index(name)
    return content.set_column(at, content.schema.field(at), pa.array(values, content.schema.field(at).type))


@BOTH_FRAMES
@BOTH_TABLES
def test_the_same_rows_are_exact_in_any_order_and_other_rows_or_columns_are_wrong(make: Make, table: Table) -> None:
    content = generator.arrow_table(table, ROWS, 42)
    sent, names = Expected(table, content), table.column_names
    for rows in (content, content.take(pa.array(range(ROWS - 1, -1, -1)))):
        received = make(rows, table)
        assert sent.difference(received) is None
        assert dtype_drift(received, table) == EXACT
    for columns in (names[::-1], names[:-1]):
        assert "columns are" in str(sent.difference(received[columns]))
    doubled = pa.concat_tables([content, content.slice(0, 1)])
    for rows, count in ((content.slice(1), ROWS - 1), (doubled, ROWS + 1)):
        assert sent.difference(make(rows, table)) == f"{count} rows instead of {ROWS}"
    one_for_another = pa.concat_tables([content.slice(1), content.slice(1, 1)])
    assert "content differs in" in str(sent.difference(make(one_for_another, table)))
    for name in {*names} - {*table.key}:
        assert sent.difference(make(swapped(content, name), table)) == f"content differs in {name}"


def test_a_frame_that_makes_polars_panic_is_wrong_and_ends_nothing() -> None:
    # Of lists of small decimals Polars makes such a column.
    prices = pa.array([[Decimal("0.01"), None]], pa.list_(pa.decimal64(12, 2)))
    column = Column("prices", ColumnType.LIST, exactly=list_types(decimal_types(12, 2)))
    table = Table("t", (Column("id", ColumnType.INT64), column), ("id",))
    arrow = pa.table({"id": [1], "prices": prices})
    sent = Expected(table, arrow.cast(table.arrow_schema))
    assert "Polars panics" in str(sent.difference(cast("pl.DataFrame", pl.from_arrow(arrow))))
    assert sent.difference(to_polars(arrow, table)) is None


@BOTH_FRAMES
def test_one_changed_value_is_named_by_its_column(make: Make) -> None:
    for name in CHANGES:
        column, content = changed(name)
        if (name, make) != ("NaN for NULL float", to_pandas):  # which is how pandas itself writes NULL
            found = Expected(EVERY_TYPE, every_type()).difference(make(content, EVERY_TYPE))
            assert found == f"content differs in {column}", name


def test_nan_is_no_null_in_polars_and_pandas_has_many_ways_of_saying_null() -> None:
    nan = every_type(maybe_float64=[1.5, float("nan")])
    assert Expected(EVERY_TYPE, nan).difference(to_polars(nan, EVERY_TYPE)) is None
    sent, received = Expected(EVERY_TYPE, every_type()), to_pandas(every_type(), EVERY_TYPE)
    for missing in (None, float("nan"), pd.NA, pd.NaT):
        for name in VALUES:
            received[f"maybe_{name}"] = pd.Series([received[f"maybe_{name}"][0], missing], dtype=object)
        assert sent.difference(received) is None
        wrong = received.assign(text=pd.Series(["a", missing], dtype=object))
        assert sent.difference(wrong) == "content differs in text"


def test_other_dtypes_with_equal_values_are_accepted_and_the_drift_is_named() -> None:
    sent, raw = Expected(EVERY_TYPE, every_type()), [uuid.UUID(text).bytes for text in CONTENT["uuid"]]
    of_pandas, of_polars = to_pandas(every_type(), EVERY_TYPE), to_polars(every_type(), EVERY_TYPE)
    of_pandas = of_pandas.assign(uuid=pd.Series(raw, dtype=object)).astype({"date": "str", "int32": "int64"})
    of_pandas["maybe_date"] = pd.to_datetime(of_pandas["maybe_date"]).astype("datetime64[us]")
    of_polars = of_polars.with_columns(
        pl.Series("uuid", raw, dtype=pl.Binary),
        pl.Series("maybe_uuid", [uuid.UUID(CONTENT["uuid"][0]), None], dtype=pl.Object),
        pl.col("date").cast(pl.String),
        pl.col("maybe_int32").cast(pl.Float64),
    )
    assert sent.difference(of_pandas) is None
    assert dtype_drift(of_pandas, EVERY_TYPE) == "uuid:object;date:str;int32:int64;maybe_date:datetime64[us]"
    assert sent.difference(of_polars) is None
    assert sent.difference(of_polars.with_columns(pl.col("float64").cast(pl.Float32))) is not None
    assert dtype_drift(of_polars, EVERY_TYPE) == "uuid:Binary;date:String;maybe_uuid:Object;maybe_int32:Float64"


def test_text_of_another_zone_is_another_moment() -> None:
    naive, moment = "2026-01-02 03:04:05", dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    for kind, right, wrong, fault in (
        (ColumnType.TIMESTAMP_UTC, f"{naive}+00", naive, "does not say a zone"),
        (ColumnType.TIMESTAMP, naive, f"{naive}Z", "has a zone"),
    ):
        table = Table("framehaul_moment", (Column("id", ColumnType.INT64), Column("at", kind, nullable=True)), ("id",))
        expected = Expected(table, pa.table({"id": [1, 2, 3], "at": [moment, None, moment]}).cast(table.arrow_schema))
        said = f"column at holds text that {fault}"
        for texts, difference in ((right, right), None), ((right, wrong), said), ((wrong, right), said):
            content = {"id": [1, 2, 3], "at": [texts[0], None, texts[1]]}
            for received in (pl.DataFrame(content), pd.DataFrame(content)):
                assert expected.difference(received) == difference


def unchecked(*values: bytes | None) -> pa.Array:
    """Bytes as Arrow text that nobody has checked."""
    raw = pa.array(values, pa.large_binary())
    return pa.Array.from_buffers(pa.large_string(), len(raw), raw.buffers())


@BOTH_FRAMES
@pytest.mark.parametrize("raw", [b"\xff\xfeA", b"\xed\xa0\x80", b"\xe2\x82", b"long enough for no view\xc0\x80"])
def test_text_that_is_no_utf8_is_named_by_column_and_row(make: Make, raw: bytes) -> None:
    sent, frame = Expected(EVERY_TYPE, every_type()), make(every_type(), EVERY_TYPE)
    wrong = "column maybe_text, row 1: text that is no UTF-8"
    for text, difference in ((unchecked(b"a", raw), wrong), (unchecked(b"a", None), None)):
        if isinstance(frame, pl.DataFrame):
            received: Any = frame.with_columns(pl.Series("maybe_text", values=text))
        else:
            received = frame.assign(maybe_text=text.to_pandas())
        assert sent.difference(received) == difference


def test_one_connection_is_kept_and_opened_anew_when_it_is_lost(servers: Servers) -> None:
    tables = PostgresTables(servers.postgres)
    with tables.kept():
        (mine,) = tables.run("SELECT pg_backend_pid()")
        assert tables.run("SELECT pg_backend_pid()") == [mine]
        with psycopg.connect(servers.postgres.dsn(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", mine)
        with pytest.raises((ServerError, psycopg.OperationalError)):
            tables.run("SELECT 1")
        assert tables.run("SELECT 1") == [(1,)]


@BOTH_DATABASES
class TestOnTheServer:
    def prepared(self, servers: Servers, database: str, table: Table, sent: pa.Table, written: pa.Table) -> str | None:
        """What `difference_on_server` says when `written` has taken the place of `sent`."""
        server, expected, reference = getattr(servers, database), Expected(table, sent), table.renamed("framehaul sent")
        with table_on(server, table, written) as tables, table_on(server, reference):
            expected.keep_reference(tables, reference)
            return expected.difference_on_server(tables)

    def test_one_changed_value_is_named_by_its_column(self, servers: Servers, database: str) -> None:
        for name in CHANGES:
            column, content = changed(name)
            found = self.prepared(servers, database, EVERY_TYPE, every_type(), content)
            assert found == f"content differs in {column}", name

    @BOTH_TABLES
    def test_rows_in_any_order_are_accepted_and_no_others(self, servers: Servers, database: str, table: Table) -> None:
        content = generator.arrow_table(table, ROWS, 42)
        found = partial(self.prepared, servers, database, table, content)
        assert found(content.take(pa.array(range(ROWS - 1, -1, -1)))) is None
        assert found(content.slice(1)) == f"{ROWS - 1} rows instead of {ROWS}"
        mixed = found(swapped(content, table.column_names[-1]))
        assert mixed == "content differs in how values are combined into rows"
        if database == "clickhouse":  # PostgreSQL's primary key does not let it in
            assert table.key[0] in str(found(pa.concat_tables([content.slice(1), content.slice(1, 1)])))

    def test_reference_that_the_server_changed_is_refused(self, servers: Servers, database: str) -> None:
        tables, reference = tables_of(getattr(servers, database)), EVERY_TYPE.renamed("framehaul_reference")
        short = to_polars(every_type(), EVERY_TYPE)[1:]
        lossy = type("Lossy", (type(tables),), {"content": lambda self, table: short})(getattr(servers, database))
        with pytest.raises(ValueError, match="the reference table itself is wrong: 1 rows instead of 2"):
            Expected(EVERY_TYPE, every_type()).keep_reference(lossy, reference)
        tables.drop(reference.name)
