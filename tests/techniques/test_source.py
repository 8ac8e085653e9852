"""What is shown as a technique's code is all that is needed to run it."""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from framehaul.techniques import Technique, techniques
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.source import bound, names_in, source
from framehaul.techniques.streaming import MOVES
from tests.conftest import check_each


def imported(text: str, path: Path) -> ModuleType:
    """The text as a module of its own."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("shown", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["shown"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["shown"]
    return module


def instructions(function: Any) -> tuple[object, ...]:
    return function.__code__.co_code, function.__code__.co_names, function.__doc__


def test_the_code_shown_is_the_code_measured_with_all_that_it_uses(tmp_path: Path) -> None:
    check_each([*techniques(), *MOVES], lambda found: check_code(found, tmp_path))


def check_code(found: Technique, tmp_path: Path) -> None:
    shown = source(found.database, found.direction, {found.name: found.driver})
    path = tmp_path / f"{found.database}_{found.direction}_{found.name}.py"
    function = vars(module := imported(f"{shown.beneath}\n{shown.code}", path))[found.name]
    assert instructions(function) == instructions(found.function)
    assert shown.module == found.function.__module__
    assert shown.docstring == (inspect.getdoc(found.function) or "")
    assert "@technique(" not in shown.text
    opener = CLIENTS[found.client].__name__
    assert f"with {opener}(server) as " in shown.calls
    assert hasattr(module, opener)
    compile(shown.calls, "calls", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    known = vars(builtins).keys() | vars(module).keys()
    for one in vars(module).values():
        if isinstance(one, FunctionType) and one.__module__ == "shown":
            unknown = [name for name in globals_of(inspect.unwrap(one)) if name not in known]
            assert not unknown, (one.__name__, unknown)


def globals_of(function: Any) -> set[str]:
    """The names that a function looks up outside of itself."""
    waiting, found = [function.__code__], set[str]()
    while waiting:
        code = waiting.pop()
        found |= {str(at.argval) for at in dis.get_instructions(code) if at.opname == "LOAD_GLOBAL"}
        waiting += [constant for constant in code.co_consts if hasattr(constant, "co_code")]
    return found


def test_what_differs_between_two_techniques_is_shown() -> None:
    drivers = {"pandas_clickhouse_connect_insert_df": "clickhouse_connect"}
    plain = source("clickhouse", "write", drivers)
    rust = source("clickhouse", "write", {f"{name}_rust": driver for name, driver in drivers.items()})
    assert '"rust_strict"' in rust.code
    assert '"rust_strict"' not in plain.text
    assert "ALTER TABLE {} ADD CONSTRAINT {} PRIMARY KEY" in source(
        "postgres", "write", {"polars_pgpq_key_last": "pgpq"}
    ).code  # fmt: skip


def test_what_several_techniques_share_is_shown_once() -> None:
    drivers = dict.fromkeys(["polars_pgpq_presorted", "polars_pgpq_key_last", "polars_pgpq_copy_freeze"], "pgpq")
    shown = source("postgres", "write", drivers)
    assert [shown.text.count(f"def {name}(") for name in (*drivers, "copy_batches", "open_psycopg")] == [1] * 5
    assert shown.calls.count("with open_psycopg(server) as connection:") == 3


def test_what_brings_a_dialect_is_among_the_packages() -> None:
    brought = {
        "sqlalchemy": "psycopg", "sqlalchemy_psycopg2": "psycopg2", "clickhouse_sqlalchemy": "clickhouse_sqlalchemy",
        "clickhouse_sqlalchemy_http": "clickhouse_sqlalchemy", "clickhouse_connect_sqlalchemy": "clickhouse_connect",
    }  # fmt: skip
    found = [one for one in techniques() if "sqlalchemy" in one.client]
    assert {one.client for one in found} == {*brought}
    for one in found:
        needed = source(one.database, one.direction, {one.name: one.driver}).packages
        assert brought[one.client] in needed, one.name


def test_code_of_no_technique_is_not_made_up() -> None:
    with pytest.raises(KeyError, match="polars_pigeon"):
        source("postgres", "write", {"polars_pigeon": "pigeon"})


def test_showing_code_imports_no_driver() -> None:
    program = (
        "import sys; from framehaul.techniques.source import source; "
        "source('postgres', 'write', {'polars_pgpq_key_last': 'pgpq'}); "
        "print([name for name in ('psycopg', 'pgpq', 'numba', 'polars', 'framehaul.servers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("def f(documents, *rest, named=limit): return documents(rest, named)", {"limit"}),
        ("def f(x):\n    documents = x\n    def inner(): return documents\n    return inner", set()),
        ("def f(x): return [documents for documents in x if g(documents)]", {"g"}),
        ("def f(x): return [documents(one) for one in x]", {"documents"}),
        ("class C[T](Base):\n    documents: T = first\n    def f(self) -> D: return documents",
         {"Base", "first", "D", "documents"}),
        ("@cache\ndef f(x: Kind) -> None: documents[x].y = 1", {"cache", "Kind", "documents"}),
        ("@technique(family=documents)\ndef f(x): return lambda documents: g", {"g"}),
        ("def f():\n    import documents\n    return documents.text", set()),
        ("type A[T] = dict[T, documents]", {"dict", "documents"}),
        ("LIMIT: Final = least + sum(one.size for one in parts)", {"Final", "least", "sum", "parts"}),
    ],
)  # fmt: skip
def test_a_parameter_is_not_taken_for_what_is_named_like_it(text: str, used: set[str]) -> None:
    (statement,) = ast.parse(text).body
    own = {*bound(statement)} if not isinstance(statement, ast.FunctionDef) else set()
    assert {name for name, member in names_in(statement) if not member} - own == used


def test_a_member_is_one_of_what_is_no_parameter() -> None:
    (statement,) = ast.parse("def f(documents): return documents.text + names.text").body
    assert {*names_in(statement)} == {("names", ""), ("names", "text")}
