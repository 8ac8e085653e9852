"""The code of techniques in the library, and their calls."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import cache

from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import Technique, techniques, upserts
from framehaul.techniques.streaming import MOVES


def source(database: str, direction: str, names: Iterable[str]) -> str:
    """Return the functions of techniques, upserts or streamed moves, and code that calls them.

    Raises KeyError for an unknown name.
    """
    named = [technique_named(database, direction, name) for name in names]
    return "\n\n\n".join([*map(_function, named), "\n".join(map(_call, named))])


def technique_named(database: str, direction: str, name: str) -> Technique:
    """Return a technique, an upsert or a streamed move; raises KeyError for an unknown name."""
    return _known()[database, direction, name]


@cache
def _known() -> dict[tuple[str, str, str], Technique]:
    return {one.key: one for one in (*MOVES, *upserts("postgres"), *upserts("clickhouse"), *techniques())}


def _function(technique: Technique) -> str:
    """Return a function as in its file, without the decorator that registers it."""
    text = inspect.getsource(technique.function).strip()
    return re.sub(r"\A.*?^(?=(async )?def )", "", text, count=1, flags=re.MULTILINE | re.DOTALL)


def _call(technique: Technique) -> str:
    """Return code that opens a technique's client and calls the technique."""
    signature = inspect.signature(technique.function)
    arguments = [*signature.parameters]
    is_async = inspect.iscoroutinefunction(technique.function)
    returned = "" if signature.return_annotation == "None" else "returned = "
    return (
        f"{'async ' * is_async}with {CLIENTS[technique.client].__name__}(server) as {arguments[0]}:\n"
        f"    {returned}{'await ' * is_async}{technique.name}({', '.join(arguments)})"
    )
