"""The code of techniques as it stands in the library, its call, and the packages that it uses."""

from __future__ import annotations

import dis
import importlib
import inspect
import re
import sys
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
    """The functions of techniques, their calls, and all packages and framehaul modules whose code they run."""

    code: str
    calls: str
    packages: tuple[str, ...]
    modules: frozenset[str]


def source(database: str, direction: str, names: Iterable[str]) -> Source:
    """Return the code of techniques, upserts or streamed moves; raises KeyError for an unknown name."""
    found = [technique_named(database, direction, name) for name in names]
    used = {each for one in found for function in (one.function, CLIENTS[one.client]) for each in uses(function)}
    modules = frozenset(name for name in used if name.partition(".")[0] == OURS)
    packages = {str(one.frame) for one in found} - {"none"} | used - modules - sys.stdlib_module_names
    code = "\n\n\n".join(function_text(one.function) for one in found)
    return Source(code, "\n".join(map(_call, found)), tuple(sorted(packages)), modules)


def technique_named(database: str, direction: str, name: str) -> Technique:
    """Return a technique, an upsert or a streamed move; raises KeyError for an unknown name."""
    return _known()[database, direction, name]


@cache
def _known() -> dict[tuple[str, str, str], Technique]:
    return {one.key: one for one in (*MOVES, *upserts("postgres"), *upserts("clickhouse"), *techniques())}


def function_text(function: Callable[..., Any]) -> str:
    """Return a function as it stands in its file, without the decorator that registers it."""
    text = inspect.getsource(function).strip()
    return text[re.search(r"^(async )?def ", text, re.MULTILINE).start() :]  # type: ignore[union-attr]  # it has one


def uses(function: Callable[..., Any]) -> set[str]:
    """Return the packages that a function uses, and the modules of this library that it runs code of, transitively."""
    found, seen, waiting = set[str](), set[int](), list[Any]([function])
    while waiting:
        one = waiting.pop()
        if hasattr(one, "py_func"):  # compiled by numba
            found.add("numba")
        one = inspect.unwrap(getattr(one, "py_func", one))
        if id(one) in seen:
            continue
        seen.add(id(one))
        home = one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) or ""
        root = home.partition(".")[0]
        if isinstance(one, dict | list | tuple):
            waiting += one.values() if isinstance(one, dict) else one
        elif isinstance(one, FunctionType) and root == OURS:
            found.add(home)
            waiting += _values(one)
        elif isinstance(one, type) and root == OURS:
            waiting += [getattr(value, "fget", None) or value for value in vars(one).values() if callable(value)]
        elif root not in ("", OURS) and (isinstance(one, ModuleType) or not root.startswith("_")):
            found.add(root)
    return found


def _values(function: FunctionType) -> Iterator[Any]:
    """Yield the globals, imported modules and closed-over variables that a function's code names."""
    for code in _codes(function.__code__):
        imports = [at.argval for at in dis.get_instructions(code) if at.opname == "IMPORT_NAME"]
        used = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        for value in (*map(importlib.import_module, imports), *used):
            ours = isinstance(value, ModuleType) and value.__name__.startswith(OURS)
            yield from [vars(value)[name] for name in code.co_names if name in vars(value)] if ours else [value]
    yield from inspect.getclosurevars(function).nonlocals.values()


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _call(found: Technique) -> str:
    """Return code that opens a technique's client and calls the technique."""
    signature = inspect.signature(found.function)
    arguments = [*signature.parameters]
    waits = inspect.iscoroutinefunction(found.function)
    given = "" if signature.return_annotation == "None" else "returned = "
    return (
        f"{'async ' * waits}with {CLIENTS[found.client].__name__}(server) as {arguments[0]}:\n"
        f"    {given}{'await ' * waits}{found.name}({', '.join(arguments)})"
    )
