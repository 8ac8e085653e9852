"""The code of techniques in the library, and their calls."""

import inspect
import json
import re
from collections.abc import Iterable
from functools import cache
from typing import Any

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
    """Return a function as in its file, with the technique's name and defaults, and without its decorators."""
    text = inspect.getsource(technique.function).strip()
    text = re.sub(r"\A.*?^((async )?def )\w+", rf"\1{technique.name}", text, count=1, flags=re.MULTILINE | re.DOTALL)
    parameters, arrow, body = text.partition(") ->")
    defaults = map(_written, technique.function.__defaults__ or ())
    return re.sub(r"= [\w.\"]+", lambda _: f"= {next(defaults)}", parameters) + arrow + body


def _written(default: Any) -> str:
    """Return the default of a parameter as it is written."""
    if callable(default):
        return f"pd.{default.__name__}" if default.__module__.startswith("pandas") else default.__name__
    return json.dumps(default) if isinstance(default, str) else repr(default)


def _call(technique: Technique) -> str:
    """Return code that opens a technique's client and calls the technique."""
    signature = inspect.signature(technique.function)
    arguments = [one.name for one in signature.parameters.values() if one.default is one.empty]
    returned = "" if signature.return_annotation in {None, "None"} else "returned = "
    opening, awaiting = ("async ", "await ") if inspect.iscoroutinefunction(technique.function) else ("", "")
    call = f"{returned}{awaiting}{technique.name}({', '.join(arguments)})"
    return f"{opening}with open_{technique.client}(server) as {arguments[0]}:\n    {call}"
