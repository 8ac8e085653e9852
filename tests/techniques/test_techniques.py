from __future__ import annotations

import csv
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.errors import UnavailableError
from framehaul.servers import Servers
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.summary import published
from framehaul.techniques import DRIVERS, FAMILIES, Technique, technique, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import Registered
from tests.conftest import call, check_each, lacks
from tests.second_table import SECOND_TABLE

ROWS = 2000
TABLES = {"standard": ANALYTICS_METRICS, "second": SECOND_TABLE}
DATABASES = ("postgres", "clickhouse")


@dataclass(frozen=True)
class Loaded:
    """A table on a server: `table` is for writers, `full` is loaded once for all readers, `frames` is its content."""

    tables: Tables
    table: Table
    full: Table
    sent: Expected
    frames: dict[str, Any]


def every_technique() -> list[Any]:
    """The second table, whose names are hostile, takes its turn with the slow tests."""
    return [
        pytest.param(
            found,
            key,
            id=f"{found.origin}-{found.database}-{found.direction}-{found.name}-{key}",
            marks=[pytest.mark.slow] if key == "second" else [],
        )
        for found in techniques()
        for key in TABLES
    ]


@pytest.fixture(scope="module")
def loaded(servers: Servers) -> Iterator[dict[tuple[str, str], Loaded]]:
    """Each table on each server, with a copy that is loaded once: readers read it, writers are compared with it."""
    found = {}
    with ExitStack() as stack:
        for database in DATABASES:
            tables = tables_of(getattr(servers, database))
            stack.enter_context(tables.kept())
            for key, table in TABLES.items():
                full, sent = (
                    table.renamed(f"{table.name} full"),
                    Expected(table, generator.arrow_table(table, ROWS, 42)),
                )
                sent.keep_reference(tables, full)
                frames = {"polars": generator.polars_frame(table, ROWS, 42),
                          "pandas": generator.pandas_frame(table, ROWS, 42), "none": full}  # fmt: skip
                found[database, key] = Loaded(tables, table, full, sent, frames)
        yield found
        for one in found.values():
            one.tables.drop(one.table)
            one.tables.drop(one.full)


def call_or_skip(found: Technique, servers: Servers, *arguments: object) -> Any:
    """What the technique returns; skips the test when it lacks what no package brings, and then says the remedy."""
    try:
        return call(found, servers, *arguments)
    except UnavailableError as error:
        assert lacks(found), "it was named and is not there"
        assert "FRAMEHAUL_POSTGRES_EXTENSIONS" in str(error) or "make tools" in str(error)
        pytest.skip(str(error))


@pytest.mark.parametrize(("found", "key"), every_technique())
def test_technique_moves_exactly_what_it_is_given(
    found: Technique, key: str, servers: Servers, loaded: dict[tuple[str, str], Loaded]
) -> None:
    one = loaded[found.database, key]
    if key == "second" and found.name == "pandas_clickhouse_sqlalchemy_to_sql":
        with pytest.raises(ValueError, match=r"second .* finds no table with % in its name: rename it"):
            call(found, servers, one.table, one.frames["pandas"])
    elif found.direction == "write":
        one.tables.create(one.table)
        returned = call_or_skip(found, servers, one.table, one.frames[found.frame])
        if returned is None:
            assert one.sent.difference_on_server(one.tables) is None
        else:
            assert (found.origin, returned) == ("baseline", ROWS)
    else:
        returned = call_or_skip(found, servers, one.full)
        if isinstance(returned, int):
            assert found.origin == "baseline"
            assert returned >= ROWS
        else:
            assert one.sent.difference(returned) is None


def test_name_says_frame_and_driver_and_matches_the_functions_types() -> None:
    check_each(techniques(), check_name)


def check_name(found: Technique) -> None:
    frame, _, rest = found.name.partition("_")
    assert frame == found.frame
    assert rest.startswith(f"{found.driver}_")
    library = {"pandas": "pd.DataFrame", "polars": "pl.DataFrame", "none": None}[found.frame]
    annotations = inspect.get_annotations(found.function)
    if library is None:
        assert found.origin == "baseline"
        assert annotations["source"] == "Table" if found.direction == "write" else annotations["return"] == "int"
    else:
        assert annotations["frame" if found.direction == "write" else "return"] == library
    assert annotations["table"] == "Table"
    assert found.driver in DRIVERS
    assert found.family in FAMILIES
    assert found.client in CLIENTS


def test_published_techniques_are_the_rows_of_the_published_matrix() -> None:
    with published.PATH.open(newline="") as file:
        rows = [(row["database"], row["direction"], row["technique"]) for row in csv.DictReader(file)]
    ours = [(found.database, found.direction, found.label) for found in techniques() if found.origin == "published"]
    assert len(rows) == 56
    assert sorted(ours) == sorted(rows)


def test_names_and_labels_are_unique_for_a_database_and_direction() -> None:
    for attribute in ("name", "label"):
        keys = [(found.database, found.direction, getattr(found, attribute)) for found in techniques()]
        assert len(set(keys)) == len(keys)


def test_the_order_is_that_of_the_files_whatever_was_imported_first() -> None:
    code = "import framehaul.techniques.beyond.clickhouse_read\nfrom framehaul.techniques import techniques\n"
    code += "print(*[one.key for one in techniques()], sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [str(one.key) for one in techniques()]
    assert [one.origin for one in techniques("postgres", "read")] == sorted(
        (one.origin for one in techniques("postgres", "read")), key=get_args(Registered).index
    )


def function_called(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__, function.__module__ = name, "framehaul.techniques.published.postgres_write"
    return function


@pytest.mark.parametrize(
    ("name", "family", "complaint"),
    [
        ("numpy_asyncpg_copy", "copy_text", "not of the form frame_driver_method"),
        ("polars_asyncpg", "copy_text", "not of the form frame_driver_method"),
        ("polars_oracle_copy", "copy_text", "not of the form frame_driver_method"),
        ("asyncpg_polars_copy", "copy_text", "not of the form frame_driver_method"),
        ("polars_asyncpg_new", "smoke_signals", "unknown family 'smoke_signals'"),
        ("polars_asyncpg_copy_binary", "copy_binary", "two techniques polars_asyncpg_copy_binary"),
    ],
)
def test_bad_registration_is_refused_and_leaves_nothing(name: str, family: str, complaint: str) -> None:
    before = techniques()
    with pytest.raises(ValueError, match=complaint):
        technique(family=family, label="x")(function_called(name))
    assert techniques() == before
