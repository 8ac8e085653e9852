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


def test_packages_are_those_that_the_code_uses() -> None:
    found = source("postgres", "write", ["polars_pgpq_copy_binary"]).packages
    assert {"numba", "pgpq", "psycopg", "polars"} <= {*found}
    assert "numba" not in source("clickhouse", "write", ["polars_urllib_parquet"]).packages
    with pytest.raises(KeyError, match="polars_pigeon"):
        source("postgres", "write", ["polars_pigeon"])
