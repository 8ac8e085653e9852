"""What is shown as a technique's code is what is measured."""

from __future__ import annotations

import ast

import pytest

from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.source import source
from framehaul.techniques.streaming import MOVES
from tests.conftest import check_each


def test_the_code_shown_is_the_technique_without_its_registration() -> None:
    check_each([*techniques(), *MOVES], check_code)


def check_code(found: Technique) -> None:
    shown = source(found.database, found.direction, [found.name])
    (function,) = ast.parse(shown.code).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert function.name == found.name
    assert not [one for one in function.decorator_list if "technique" in ast.unparse(one)]
    assert f"with {CLIENTS[found.client].__name__}(server) as " in shown.calls
    compile(shown.calls, "calls", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(
    ("database", "direction", "name", "packages"),
    [
        ("postgres", "write", "polars_pgpq_copy_binary", {"numba", "pgpq", "psycopg", "polars"}),
        ("postgres", "read", "polars_asyncpg_copy_decoded", {"asyncpg", "numba"}),
        ("clickhouse", "write", "polars_urllib_parquet", {"polars"}),
        ("clickhouse", "read", "polars_http_client_native_decoded", {"numba", "polars"}),
    ],
)
def test_packages_are_those_that_the_code_uses(database: str, direction: str, name: str, packages: set[str]) -> None:
    found = source(database, direction, [name])
    assert packages <= {*found.packages}
    assert ("numba" in found.packages) == ("numba" in packages)


def test_code_of_no_technique_is_not_made_up() -> None:
    with pytest.raises(KeyError, match="polars_pigeon"):
        source("postgres", "write", ["polars_pigeon"])
