"""Columns go by name: in any order they are written right, and other columns are refused before anything is sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from framehaul.data import generator
from framehaul.data.frames import from_pandas, in_table_order
from framehaul.data.schema import Column, ColumnType
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.fidelity.cases import Case
from framehaul.studies.fidelity.trial import difference_of
from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import open_http_client, open_psycopg
from framehaul.techniques.streaming import copy_batches, insert_batches
from tests.conftest import call, check_each, lacks

# Two columns of one type beside each other, so that a mix-up fits; and a name that is not ASCII.
COLUMNS = {
    "first": (ColumnType.TEXT, ["a1", "a2", "a3"]),
    "second": (ColumnType.TEXT, ["b1", "b2", "b3"]),
    "Number": (ColumnType.INT32, [1, 2, 3]),
    "number_2": (ColumnType.INT32, [4, 5, 6]),
    "día": (ColumnType.FLOAT64, [0.1, 0.2, 0.3]),
    "value": (ColumnType.FLOAT64, [1.1, 1.2, 1.3]),
}
CASE = Case(
    "columns by name",
    tuple(Column(name, kind) for name, (kind, _) in COLUMNS.items()),
    tuple(pa.array(values, kind.value.arrow) for kind, values in COLUMNS.values()),
)
TABLE = CASE.table
WRITES = [found for found in techniques(direction="write") if found.origin == "beyond"]
TAKES_A_FRAME = [
    found for found in techniques(direction="write") if found.origin in ("beyond", "baseline") and found.frame != "none"
]


def names(found: Technique) -> str:
    return f"{found.database}-{found.name}"


class Untouched:
    """A client of which nothing may be called."""

    def __getattr__(self, name: str) -> Untouched:
        return self

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("the client was used")

    __iter__ = __enter__ = __getitem__ = __call__


def write_nowhere(found: Technique, frame: object) -> None:
    done = found.function(Untouched(), TABLE, frame)
    if inspect.isawaitable(done):
        asyncio.run(done)  # type: ignore[arg-type]  # a coroutine


@pytest.mark.parametrize("found", WRITES, ids=names)
def test_columns_may_come_in_any_order(found: Technique, servers: Servers) -> None:
    if lacks(found):
        pytest.skip("it lacks what no package brings")
    tables = tables_of(servers.of(found.database))
    tables.create(TABLE)
    try:
        frame = CASE.frame(found.frame)
        call(found, servers, TABLE, frame[TABLE.column_names[::-1]])
        assert difference_of(CASE, tables.content(TABLE)) is None
    finally:
        tables.drop(TABLE)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (["id", "first", "second", "Number", "día", "value"], r"table \w+: missing: 'number_2'$"),
        ([*TABLE.column_names, "fifth"], "not in the table: 'fifth'$"),
        (
            ["id", "first", "second", "NUMBER", "number_2", "día", "value"],
            "missing: 'Number'; not in the table: 'NUMBER'$",
        ),
        (["value"], "missing: 'id', 'first', 'second', 'Number', 'number_2', 'día'$"),
    ],
)
def test_other_columns_are_refused_before_anything_is_sent(columns: list[str], complaint: str) -> None:
    def check(found: Technique) -> None:
        frame: Any = CASE.frame(found.frame)
        for name in {*columns} - {*TABLE.column_names}:
            frame = (
                frame.assign(**{name: 7})
                if isinstance(frame, pd.DataFrame)
                else frame.with_columns(pl.lit(7).alias(name))
            )
        with pytest.raises(ValueError, match=complaint):
            write_nowhere(found, frame[columns])

    check_each(TAKES_A_FRAME, check)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ([*TABLE.column_names, "first"], "more than once: 'first'$"),
        (["id", "first", "first", *TABLE.column_names[3:]], "missing: 'second'; more than once: 'first'$"),
    ],
)
def test_a_column_that_is_there_twice_is_refused(columns: list[str], complaint: str) -> None:
    def check(found: Technique) -> None:
        with pytest.raises(ValueError, match=complaint):
            write_nowhere(found, CASE.frame("pandas")[columns])

    check_each((found for found in TAKES_A_FRAME if found.frame == "pandas"), check)


def with_labels(labels: Any) -> pd.DataFrame:
    frame = CASE.frame("pandas")
    assert isinstance(frame, pd.DataFrame)
    return frame.set_axis(labels, axis="columns")


def test_labels_that_are_no_names_are_refused() -> None:
    with pytest.raises(ValueError, match="not in the table: 0, 1"):
        in_table_order(with_labels(range(7)), TABLE)


@pytest.mark.parametrize(
    ("frame", "complaint"),
    [
        (pl.LazyFrame(CASE.content()), r"^the frame is lazy: collect\(\) it first$"),
        ({"id": [1]}, "^a dict is no dataframe: give one of Polars or pandas$"),
        (None, "^a NoneType is no dataframe"),
    ],
)
def test_what_is_no_dataframe_is_refused_before_anything_is_sent(frame: object, complaint: str) -> None:
    def check(found: Technique) -> None:
        with pytest.raises(TypeError, match=complaint):
            write_nowhere(found, frame)

    check_each(TAKES_A_FRAME, check)


def test_a_refused_frame_leaves_the_table_as_it_was(servers: Servers) -> None:
    changed = []
    for found in WRITES:
        if lacks(found):
            continue
        tables = tables_of(servers.of(found.database))
        tables.create(TABLE)
        try:
            tables.load(TABLE, CASE.content())
            with pytest.raises(ValueError, match="missing: 'value'"):
                call(found, servers, TABLE, CASE.frame(found.frame)[TABLE.column_names[:-1]])
            if difference := difference_of(CASE, tables.content(TABLE)):
                changed.append((found.database, found.name, difference))
        finally:
            tables.drop(TABLE)
    assert not changed


def test_order_costs_nothing_where_it_is_right() -> None:
    for kind in ("polars", "pandas"):
        frame = CASE.frame(kind)
        assert in_table_order(frame, TABLE) is frame


# Streams of record batches


def batches_of(*tables: pa.Table) -> Iterator[pa.RecordBatch]:
    for content in tables:
        yield from content.to_batches()


@pytest.mark.parametrize(
    ("write", "database", "client"),
    [(copy_batches, "postgres", open_psycopg), (insert_batches, "clickhouse", open_http_client)],
)
def test_batches_go_by_name(write: Callable[..., None], database: str, client: Any, servers: Servers) -> None:
    content, tables = CASE.content(), tables_of(servers.of(database))
    reversed_columns = content.select(TABLE.column_names[::-1])
    tables.create(TABLE)
    try:
        with client(servers.of(database)) as connection:
            write(connection, TABLE, batches_of(reversed_columns.slice(0, 1), content.slice(1)))
        assert difference_of(CASE, tables.content(TABLE)) is None
    finally:
        tables.drop(TABLE)


@pytest.mark.parametrize("write", [copy_batches, insert_batches])
def test_a_first_batch_of_other_columns_is_refused_before_anything_is_sent(write: Callable[..., None]) -> None:
    with pytest.raises(ValueError, match="missing: 'value'"):
        write(Untouched(), TABLE, batches_of(CASE.content().drop(["value"])))


def test_a_later_batch_of_other_columns_undoes_the_copy(servers: Servers) -> None:
    tables = tables_of(servers.postgres)
    tables.create(TABLE)
    try:
        with open_psycopg(servers.postgres) as connection:
            with pytest.raises(ValueError, match="missing: 'value'"):
                copy_batches(connection, TABLE, batches_of(CASE.content(), CASE.content().drop(["value"])))
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert tables.content(TABLE).is_empty()
    finally:
        tables.drop(TABLE)


# Text of pandas that is none


def test_half_a_surrogate_pair_is_refused_by_column_and_row() -> None:
    frame = generator.pandas_frame(TABLE, 5, 1)
    texts = pd.Series(["a", "é", "\ud83d", "b", "c"], dtype=object)
    with pytest.raises(ValueError, match=r"^column second, row 2: '\\ud83d' has half a surrogate pair"):
        from_pandas(frame.assign(second=texts), TABLE)
