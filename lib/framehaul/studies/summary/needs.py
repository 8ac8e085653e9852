"""What somebody takes on with a technique: packages, framehaul among them where the code needs it."""

from __future__ import annotations

from functools import cache

from framehaul.reporting.tables import Row
from framehaul.techniques.source import OURS, Source, source

BESIDE = (f"{OURS}.techniques.", f"{OURS}.servers", f"{OURS}.errors", f"{OURS}.data.schema")
"""What a technique is given, and what is shown with it: its client, and the table."""


def needs(row: Row) -> str:
    """Packages to install; framehaul is one of them where the code uses more of it than the technique."""
    code = code_of(row)
    ours = [OURS] if any(not one.startswith(BESIDE) for one in code.modules) else []
    return ", ".join([*code.packages, *ours])


def compiled(row: Row) -> bool:
    """Whether it takes loops of this project that numba compiles."""
    return "numba" in code_of(row).packages


def code_of(row: Row) -> Source:
    """The code of the technique of a row, with all that it uses; read once."""
    return _code(row["database"], row["direction"], row["technique"])


@cache
def _code(database: str, direction: str, technique: str) -> Source:
    return source(database, direction, [technique])
