"""Parameters of notebooks, as given on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from framehaul.errors import SettingsError
from framehaul.harness.measure import Parameters
from framehaul.studies.drivers.runner import Load
from framehaul.studies.pgbench import presets


def whole_number(name: str, text: str) -> int:
    """A number from the command line; raises SettingsError that names it."""
    if not text.strip().lstrip("-").isdecimal():
        raise SettingsError(f"{name.upper()}={text!r}: give a whole number")
    return int(text)


def number(name: str, text: str) -> float:
    """A number from the command line, which may have a fraction; raises SettingsError that names it."""
    try:
        return float(text)
    except ValueError:
        raise SettingsError(f"{name.upper()}={text!r}: give a number") from None


def parameters_from(text: dict[str, str]) -> Parameters:
    """Parameters from the command line; raises SettingsError that names the one that is no whole number."""
    numbers: dict[str, Any] = {name: whole_number(name, value) for name, value in text.items()}
    with _refused_as_setting():
        return Parameters(**numbers)


def hold_from(text: str) -> int:
    """For how many seconds a load is held, from the command line; raises SettingsError when it is none."""
    seconds = whole_number("hold", text)
    if seconds < 1:
        raise SettingsError(f"HOLD={seconds}: give a whole number of at least 1")
    return seconds


def preset_from(text: str) -> str:
    """The name of a preset for pgbench, from the command line; raises SettingsError when there is none of that name."""
    with _refused_as_setting():
        presets.tests(text)
    return text


@contextmanager
def _refused_as_setting() -> Iterator[None]:
    """What a parameter's own check refuses is a mistake of whoever gave it on the command line."""
    try:
        yield
    except ValueError as error:
        raise SettingsError(str(error)) from error


def load_from(text: dict[str, str]) -> Load:
    """What the study of drivers asks of a server, as given to make; raises SettingsError that names what is bad."""
    numbers: dict[str, Any] = {
        name: (whole_number if name == "connections" else number)(name, value) for name, value in text.items()
    }
    with _refused_as_setting():
        return Load(**numbers)
