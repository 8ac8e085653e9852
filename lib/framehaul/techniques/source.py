"""The code of techniques in the library, and their calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache

from framehaul.techniques.registry import Technique, techniques, upserts
from framehaul.techniques.streaming import MOVES


def source(database: str, direction: str, names: Iterable[str]) -> str:
    """Return the functions of techniques and code that calls them; raises KeyError for an unknown name."""
    named = [technique_named(database, direction, name) for name in names]
    return "\n\n\n".join([*map(_function, named), "\n".join(map(_call, named))])


@cache
def technique_named(database: str, direction: str, name: str) -> Technique:
    """Return a technique, an upsert or a streamed move; raises KeyError for an unknown name."""
    every = (*MOVES, *upserts("postgres"), *upserts("clickhouse"), *techniques())
    by_key: dict[tuple[str, str, str], Technique] = {one.key: one for one in every}
    return by_key[database, direction, name]


def _function(technique: Technique) -> str:
    """Return a function as in its file, under the technique's name and without the decorator that registers it."""
    text = inspect.getsource(technique.function).strip()
    return re.sub(r"\A.*?^((async )?def )\w+", rf"\1{technique.name}", text, count=1, flags=re.MULTILINE | re.DOTALL)


def _call(technique: Technique) -> str:
    """Return code that opens a technique's client and calls the technique."""
    signature = inspect.signature(technique.function)
    every = signature.parameters.values()
    arguments = [one.name for one in every if one.default is one.empty and one.kind is not one.VAR_KEYWORD]
    returned = "" if signature.return_annotation == "None" else "returned = "
    opening, awaiting = ("async ", "await ") if inspect.iscoroutinefunction(technique.function) else ("", "")
    call = f"{returned}{awaiting}{technique.name}({', '.join(arguments)})"
    return f"{opening}with open_{technique.client}(server) as {arguments[0]}:\n    {call}"
