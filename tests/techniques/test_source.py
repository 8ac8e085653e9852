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
    function, call = ast.parse(shown).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    assert function.name == found.name
    assert not [one for one in function.decorator_list if "technique" in ast.unparse(one)]
    assert f"with {CLIENTS[found.client].__name__}(server) as " in ast.unparse(call)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(KeyError, match="polars_pigeon"):
        source("postgres", "write", ["polars_pigeon"])
