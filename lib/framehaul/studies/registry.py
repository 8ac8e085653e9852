"""Every study there is: a room of this package with `STUDIES`, found without importing what it uses."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import framehaul.studies
from framehaul.errors import SettingsError
from framehaul.reporting.study import Parameter, Study

if TYPE_CHECKING:
    from collections.abc import Mapping

    from framehaul.bench.compare import Run
    from framehaul.settings import Preset


@cache
def studies() -> tuple[Study, ...]:
    """Every study, by the number of its notebook."""
    rooms = (room.name for room in pkgutil.iter_modules(framehaul.studies.__path__) if room.ispkg)
    every = [study for room in rooms for study in importlib.import_module(f"framehaul.studies.{room}").STUDIES]
    return tuple(sorted(every, key=lambda study: study.notebook))


def chosen(numbers: str) -> list[Study]:
    """The studies of these numbers or names (`01 scaling`), or all but those on demand, in the order they run in.

    That is the order of their numbers: who only reads has a higher one than what it reads.

    Raises SettingsError for what is neither.
    """
    known = {key: study for study in studies() for key in (study.number, study.name)}
    wanted = numbers.replace(",", " ").split()
    for one in wanted:
        if one not in known:
            every = ", ".join(f"{study.number} {study.name}" for study in studies())
            raise SettingsError(f"NOTEBOOKS: there is no notebook {one!r}; choose from {every}")
    named = [known[one].notebook for one in wanted]
    selected = [one for one in studies() if one.notebook in named or not (named or one.on_demand)]
    # What sums up others comes as soon as the first of them are there, and again when all are.
    return [*selected, *(one for one in selected[:-1] if one.headline)]


@cache
def parameters() -> dict[str, tuple[Parameter, ...]]:
    """Every parameter of the studies that run without being asked for, as each of them has it, by its name.

    Raises ValueError when one name means two.
    """
    by_name: dict[str, tuple[Parameter, ...]] = {}
    for study in studies():
        for one in () if study.on_demand else study.parameters:
            others = by_name.get(one.name, ())
            if others and others[0].meaning != one.meaning:
                raise ValueError(f"{study.notebook}: {one.name} is another parameter elsewhere")
            by_name[one.name] = (*others, one)
    return by_name


def values(of: Study, preset: Preset, given: Mapping[str, str | None]) -> dict[str, Any]:
    """The values of a study's parameters: as given, else those of the preset.

    Raises SettingsError for one that makes no sense.
    """
    return {
        one.name: one.of(preset) if (text := given.get(one.name)) is None else one.value(text) for one in of.parameters
    }


def technique_files() -> tuple[str, ...]:
    """The results files whose rows are passes of techniques."""
    return tuple(study.results for study in studies() if study.measures_techniques)


def read_run(path: Path, name: str = "") -> Run:
    """The passes of a run's techniques, as `compare.read_run` reads them."""
    from framehaul.bench import compare  # it imports dataframes; who only looks for a study needs none

    return compare.read_run(path, technique_files(), name)
