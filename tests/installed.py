"""What is there where only these distributions were installed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from typing import Any

from packaging.requirements import Requirement

from framehaul.settings import PROJECT


def project() -> dict[str, Any]:
    """The project's table of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    return table


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions_for(requirements: Iterable[str]) -> set[str]:
    """What pip installs for these: they, and what they require, by normalised name."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        name = canonical(wanted.name)
        if name in found and not wanted.extras:
            continue
        found.add(name)
        try:
            further = _requirements_of(wanted.name)
        except PackageNotFoundError:  # for another system
            continue
        environments = [{"extra": extra} for extra in ("", *wanted.extras)]
        waiting += [at for at in further if at.marker is None or any(map(at.marker.evaluate, environments))]
    return found


def modules_beside(requirements: Iterable[str]) -> set[str]:
    """Modules of all other distributions than pip installs for these, by their first names."""
    allowed = distributions_for(requirements)
    return {root for root, owners in owners_of_modules().items() if not {*map(canonical, owners)} & allowed}


owners_of_modules = cache(packages_distributions)


@cache
def _requirements_of(name: str) -> list[Requirement]:
    return [Requirement(text) for text in requires(name) or ()]
