"""What somebody takes on with a technique: packages, and code of this project."""

from __future__ import annotations

from functools import cache

from framehaul.reporting.tables import Row
from framehaul.techniques.source import Source, source


def needs(row: Row) -> str:
    """Packages to install, and how many lines of this project the code uses below its technique."""
    code = code_of(row)
    own = [f"{code.own_lines} lines of this project"] if code.own_lines else []
    return ", ".join([*code.packages, *own])


def compiled(row: Row) -> bool:
    """Whether it takes loops of this project that numba compiles."""
    return "numba" in code_of(row).packages


def code_of(row: Row) -> Source:
    """The code of the technique of a row, with all that it uses; read once."""
    return _code(row["database"], row["direction"], row["technique"], row["driver"])


@cache
def _code(database: str, direction: str, technique: str, driver: str) -> Source:
    return source(database, direction, {technique: driver})
