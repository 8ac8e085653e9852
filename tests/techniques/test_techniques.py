"""Every technique moves exactly what it is given, by the names of its columns, and is registered by what it is."""

from __future__ import annotations

import ast
import asyncio
import csv
import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, NoReturn

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from framehaul.bench.measure import IN_FRAMES
from framehaul.bench.trials import STREAMS
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import from_pandas, to_pandas
from framehaul.data.schema import ANALYTICS_METRICS, Column, ColumnType, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies import summary
from framehaul.techniques import Technique, technique, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import DATABASES
from framehaul.techniques.source import source
from framehaul.techniques.streaming import MOVES
from tests.conftest import call, check_each, lacks
from tests.second_table import SECOND_TABLE

ROWS = 2000


class Loaded(NamedTuple):
    """A table on a server, for writers, and its content in frames; `none` is a table that is loaded once."""

    tables: Tables
    table: Table
    sent: Expected
    frames: dict[str, Any]


@pytest.fixture(scope="module")
def loaded(servers: Servers) -> Iterator[dict[tuple[str, str], Loaded]]:
    """Each table on each server, with a copy that is loaded once: readers read it, writers are compared with it."""
    found = dict[tuple[str, str], Loaded]()
    with ExitStack() as stack:
        for database in DATABASES:
            tables = tables_of(servers.of(database))
            stack.enter_context(tables.kept())
            for key, table in {"standard": ANALYTICS_METRICS, "second": SECOND_TABLE}.items():
                full, content = table.renamed(f"{table.name} full"), generator.arrow_table(table, ROWS, 42)
                sent = Expected(table, content)
                sent.keep_reference(tables, full)
                frames = {kind: convert(content, table) for kind, convert in IN_FRAMES.items()}
                found[database, key] = Loaded(tables, table, sent, {**frames, "none": full})
        yield found
        for one in found.values():
            one.tables.drop(one.table.name)
            one.tables.drop(one.frames["none"].name)


def call_or_skip(found: Technique, servers: Servers, *arguments: object) -> Any:
    """What the technique returns; skips the test when it lacks what no package brings, and then says the remedy."""
    try:
        return call(found, servers, *arguments)
    except UnavailableError as error:
        assert lacks(found), "it was named and is not there"
        assert "FRAMEHAUL_POSTGRES_EXTENSIONS" in str(error) or "make tools" in str(error)
        pytest.skip(str(error))


# The second table, whose names are hostile, takes its turn with the slow tests.
@pytest.mark.parametrize("key", ["standard", pytest.param("second", marks=pytest.mark.slow)])
@pytest.mark.parametrize("found", techniques(), ids=lambda found: "-".join((found.origin, *found.key)))
def test_technique_moves_exactly_what_it_is_given(
    found: Technique, key: str, servers: Servers, loaded: dict[tuple[str, str], Loaded]
) -> None:
    one = loaded[found.database, key]
    if key == "second" and found.name == "pandas_clickhouse_sqlalchemy_to_sql":
        with pytest.raises(ValueError, match=r"second .* finds no table with % in its name: rename it"):
            call(found, servers, one.table, one.frames["pandas"])
    elif found.direction == "write":
        one.tables.create(one.table)
        frame = one.frames[found.frame]
        if found.origin == "beyond":  # by name, in any order
            frame = frame[one.table.column_names[::-1]]
        returned = call_or_skip(found, servers, one.table, frame)
        if returned is None:
            assert one.sent.difference_on_server(one.tables) is None
        else:
            assert (found.origin, returned) == ("baseline", ROWS)
    else:
        returned = call_or_skip(found, servers, one.frames["none"])
        if isinstance(returned, int):
            assert found.origin == "baseline"
            assert returned >= ROWS
        else:
            assert one.sent.difference(returned) is None


# Columns go by name: other columns are refused before anything is sent. Two columns of one type are beside each other,
# so that a mix-up fits; and a name is not ASCII.
T = ColumnType
KINDS = {"id": T.INT64, "first": T.TEXT, "second": T.TEXT, "Number": T.INT32, "día": T.FLOAT64}
TABLE = Table("columns", tuple(Column(name, kind) for name, kind in KINDS.items()), ("id",))
CONTENT = generator.arrow_table(TABLE, 3, 1)
TAKES_A_FRAME = [
    one for one in (*techniques(direction="write"), *STREAMS)
    if one.direction == "write" and one.origin in ("beyond", "baseline", "streamed") and one.frame != "none"
]  # fmt: skip


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


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ("id first second día", r"table \w+: missing: 'Number'"),
        ("id first second NUMBER día", "missing: 'Number'; not in the table: 'NUMBER'"),
        ("id first first Number día", "missing: 'second'; more than once: 'first'"),
    ],
)
def test_other_columns_are_refused_before_anything_is_sent(columns: str, complaint: str) -> None:
    names = columns.split()
    content = pa.table([CONTENT[name if name in KINDS else "Number"] for name in names], names)

    def check(found: Technique) -> None:
        frame = {"polars": pl.DataFrame, "pandas": pa.Table.to_pandas, "batches": pa.Table.to_batches}[found.frame]
        batch = r" \(in the batch that begins with row 0\)" if found.frame == "batches" else ""
        with pytest.raises(ValueError, match=f"{complaint}{batch}$"):
            write_nowhere(found, frame(content))

    # Polars has no column twice.
    check_each((one for one in TAKES_A_FRAME if len({*names}) == len(names) or one.frame != "polars"), check)


def test_what_is_no_dataframe_or_text_is_refused_before_anything_is_sent() -> None:
    def check(found: Technique) -> None:
        with pytest.raises(TypeError, match=r"^the frame is lazy: collect\(\) it first$"):
            write_nowhere(found, pl.LazyFrame(CONTENT))
        with pytest.raises(TypeError, match=r"^a NoneType is no dataframe: give one of Polars or pandas$"):
            write_nowhere(found, None)

    check_each((found for found in TAKES_A_FRAME if found.frame != "batches"), check)
    half = to_pandas(CONTENT, TABLE).assign(second=pd.Series(["a", "é", "\ud83d"], dtype=object))
    with pytest.raises(ValueError, match=r"^column second, row 2: '\\ud83d' has half a surrogate pair"):
        from_pandas(half, TABLE)


# The registry


def test_frame_of_a_name_matches_the_functions_types() -> None:
    classes: dict[object, str] = {pl.DataFrame: "pl.DataFrame", pd.DataFrame: "pd.DataFrame", Table: "Table"}

    def check(found: Technique) -> None:
        library = {"pandas": "pd.DataFrame", "polars": "pl.DataFrame", "none": None}[found.frame]
        # Annotations are text where a module imports its libraries late.
        kinds = inspect.get_annotations(found.function).items()
        annotations = {name: classes.get(kind, str(kind)) for name, kind in kinds}
        if library is None:
            assert found.origin == "baseline"
            assert annotations["source"] == "Table" if found.direction == "write" else annotations["return"] == "int"
        else:
            assert annotations["frame" if found.direction == "write" else "return"] in (library, "DataFrame")
        assert (annotations["table"], found.client in CLIENTS) == ("Table", True)

    check_each(techniques(), check)
    labels = [(found.database, found.direction, found.label) for found in techniques()]
    assert len(set(labels)) == len(labels)


def test_the_code_shown_is_the_technique_without_its_registration() -> None:
    def check(found: Technique) -> None:
        function, call_of_it = ast.parse(source(found.database, found.direction, [found.name])).body
        assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        assert (function.name, function.decorator_list) == (found.name, [])
        assert f"with open_{found.client}(server) as " in ast.unparse(call_of_it)

    check_each([*techniques(), *MOVES], check)
    with pytest.raises(KeyError, match="polars_pigeon"):
        source("postgres", "write", ["polars_pigeon"])


def test_published_techniques_are_the_rows_of_the_published_matrix() -> None:
    with summary.MATRIX.open(newline="") as file:
        rows = [(row["database"], row["direction"], row["technique"]) for row in csv.DictReader(file)]
    ours = [(found.database, found.direction, found.label) for found in techniques() if found.origin == "published"]
    assert len(rows) == 56
    assert sorted(ours) == sorted(rows)


@pytest.mark.parametrize(
    ("name", "family", "complaint"),
    [
        ("numpy_asyncpg_copy", "copy_text", "not of the form frame_driver_method"),
        ("polars_oracle_copy", "copy_text", "not of the form frame_driver_method"),
        ("polars_asyncpg_new", "smoke_signals", "unknown family 'smoke_signals'"),
        ("polars_asyncpg_copy_binary", "copy_binary", "two techniques polars_asyncpg_copy_binary"),
    ],
)
def test_bad_registration_is_refused_and_leaves_nothing(name: str, family: str, complaint: str) -> None:
    def function() -> None: ...

    function.__name__, function.__module__ = name, "framehaul.techniques.published.postgres_write"
    before = techniques()
    with pytest.raises(ValueError, match=complaint):
        technique(family=family, label="x")(function)
    assert techniques() == before
