"""The code of techniques as it stands in the library, its call, and which packages it uses."""

from __future__ import annotations

import ast
import dis
import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import Technique, techniques, upserts
from framehaul.techniques.streaming import MOVES

OURS = "framehaul"


@dataclass(frozen=True)
class Source:
    """The functions of techniques, and what calls them."""

    module: str
    """Where the first one is."""
    docstring: str
    """Of the first one."""
    code: str
    calls: str
    """What opens the client of each, and its call."""
    packages: tuple[str, ...]
    """What it imports of others, transitively: what has to be installed."""
    modules: frozenset[str]
    """The modules of this library that it runs code of."""


def source(database: str, direction: str, names: Iterable[str]) -> Source:
    """Return the code of techniques, upserts or streamed moves; raises KeyError when there is none of a name."""
    found = [_known()[database, direction, name] for name in names]
    packages, modules = {str(one.frame) for one in found} - {"none"}, set[str]()
    for one in found:
        for function in (one.function, CLIENTS[one.client]):
            for used in uses(function):
                (modules if used.partition(".")[0] == OURS else packages).add(used)
    first = found[0].function
    return Source(
        first.__module__, inspect.getdoc(first) or "", "\n\n\n".join(function_text(one.function) for one in found),
        "\n".join(map(_call, found)), tuple(sorted(packages - sys.stdlib_module_names)), frozenset(modules),
    )  # fmt: skip


def technique_named(database: str, direction: str, name: str) -> Technique:
    """Return a technique, an upsert or a streamed move; raises KeyError when there is none of that name."""
    return _known()[database, direction, name]


@cache
def _known() -> dict[tuple[str, str, str], Technique]:
    every = [*MOVES, *upserts("postgres"), *upserts("clickhouse"), *techniques()]
    return {one.key: one for one in every}


def function_text(function: Callable[..., Any]) -> str:
    """Return a function as it stands in its file, without the decorator that registers it."""
    text = textwrap.dedent(inspect.getsource(function))
    (node,) = ast.parse(text).body
    lines = text.splitlines()
    for decorator in getattr(node, "decorator_list", []):
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "technique":
            del lines[decorator.lineno - 1 : decorator.end_lineno]
    return "\n".join(lines)


def uses(function: Callable[..., Any]) -> set[str]:
    """Return the packages that a function uses, and the modules of this library that it runs code of, transitively."""
    found, seen, waiting = set[str](), set[int](), [function]
    while waiting:
        one: Any = waiting.pop()
        if hasattr(one, "py_func"):  # compiled by numba
            found.add("numba")
            one = one.py_func
        one = inspect.unwrap(one)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType) and one.__module__.startswith(OURS):
            found.add(one.__module__)
            waiting += [value for code in _codes(one.__code__) for value in _values(code, one.__globals__)]
        elif isinstance(one, type) and one.__module__.startswith(OURS):
            waiting += [getattr(value, "fget", None) or value for value in vars(one).values() if callable(value)]
        elif isinstance(one, dict | list | tuple):
            waiting += one.values() if isinstance(one, dict) else one
        else:
            home = one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) or ""
            root = home.partition(".")[0]
            if root not in ("", OURS) and (isinstance(one, ModuleType) or not root.startswith("_")):
                found.add(root)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _values(code: CodeType, known: dict[str, Any]) -> Iterator[Any]:
    """What code uses of its module, of modules of this library, and what it imports when it runs."""
    done = [*dis.get_instructions(code)]
    modules = [importlib.import_module(str(at.argval)) for at in done if at.opname == "IMPORT_NAME"]
    used = [known[at.argval] for at in done if at.opname in ("LOAD_GLOBAL", "LOAD_NAME") and at.argval in known]
    modules += [value for value in used if isinstance(value, ModuleType)]
    for module in modules:
        if module.__name__.startswith(OURS):
            yield from (vars(module)[name] for name in code.co_names if name in vars(module))
        else:
            yield module
    yield from (value for value in used if not isinstance(value, ModuleType))


def _call(found: Technique) -> str:
    """A technique's call with its client, which is open for it alone."""
    client, *others = inspect.signature(found.function).parameters
    waits = inspect.iscoroutinefunction(found.function)
    given = "" if inspect.signature(found.function).return_annotation == "None" else "returned = "
    return (
        f"{'async ' * waits}with {CLIENTS[found.client].__name__}(server) as {client}:\n"
        f"    {given}{'await ' * waits}{found.name}({', '.join([client, *others])})"
    )
