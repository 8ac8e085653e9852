"""A study: one notebook, its parameters and its metadata, registered once."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from framehaul.errors import SettingsError
from framehaul.settings import PRESETS, PROJECT, Preset

NOTEBOOKS = PROJECT / "notebooks"
START_SECONDS = 5
"""The time of a notebook's kernel, imports and figures."""
type Value = int | float | str | list[int]


@dataclass(frozen=True)
class Parameter:
    """A parameter of notebooks, given to make by its name in capitals, of its default's type."""

    name: str
    default: Value
    """The value of the preset `quick`, and of a notebook when it is opened."""
    help: str
    least: float = 0
    """The minimum of a number, or of each number of a list."""
    choices: tuple[str, ...] = ()
    smoke: Value | None = None
    reference: Value | None = None
    """The values of the other presets, where they differ."""

    def at(self, default: Value, **others: Any) -> Self:
        """Return the parameter with the values of one study; `others` are those of the presets smoke and reference."""
        return replace(self, default=default, **others)

    def of(self, preset: Preset) -> Value:
        """Return the value of a preset."""
        other: Value | None = None if preset == "quick" else getattr(self, preset)
        return self.default if other is None else other

    def value(self, text: str) -> Value:
        """Return the value that was given as text; raise SettingsError, which names it and the valid values."""
        if isinstance(self.default, str):
            if self.choices and text not in self.choices:
                raise SettingsError(f"{self.name.upper()}={text!r}: choose from {', '.join(self.choices)}")
            return text
        several, number = isinstance(self.default, list), float if isinstance(self.default, float) else int
        try:
            numbers: list[Any] = [number(word) for word in (text.replace(",", " ").split() if several else [text])]
        except ValueError:
            numbers = []
        if not numbers or not all(self.least <= one < math.inf for one in numbers):
            kind = "whole numbers" if several else "a number" if number is float else "a whole number"
            given = text if several or not numbers else numbers[0]
            raise SettingsError(f"{self.name.upper()}={given!r}: give {kind} of at least {self.least:g}")
        return numbers if several else numbers[0]


def as_given(value: Value) -> str:
    """Return a value as text that a user would give."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


ROWS = Parameter("rows", 100_000, "rows of a table", least=1, smoke=300, reference=1_000_000)
ROUNDS = Parameter("rounds", 3, "rounds, in each of which every task runs once", least=1, smoke=1, reference=6)
WARMUP = Parameter("warmup", 1, "discarded first rounds, which measure memory and bytes on the wire", smoke=0)
RACE = Parameter(
    "race", 1, "1: techniques that are slow on a part of the rows end there; 0: all move all rows", smoke=0
)
TRIED = Parameter(
    "tried",
    "directions",
    "techniques for edge cases and faults: all; one of each direction and origin (directions); one beyond and one "
    "streamed (fewest); these and a tenth of all, another each day (tenth)",
    choices=("all", "directions", "fewest", "tenth"),
    smoke="fewest",
    reference="all",
)
SEED = Parameter("seed", 20260407, "seed of the data and of the order within a round")


@dataclass(frozen=True)
class Study:
    """A notebook and its metadata; a `module:name` is only imported when it is needed."""

    notebook: str
    """Its file, without the ending: a number, which is its place in a run, and the study's name."""
    question: str
    parameters: tuple[Parameter, ...] = ()
    rows: str = ""
    """`module:name` of the dataclass of its result rows; empty when its results have no status."""
    subject: str = "technique"
    """The column of its results that identifies the measured technique or task."""
    measured: str = ""
    """`module:name` of a function that returns its passes of techniques from a results directory, with columns of
    `bench.statistics.PLACE`; empty for none, or when all are in the usual place."""
    headline: str = ""
    """The tag of the cell whose table is first on the index page."""
    seconds: tuple[int, int, int] = (3, 30, 600)
    """The expected time on two cores by each preset."""
    raced_seconds: int | None = None
    """The expected time of a million rows with the preset quick, where slow techniques end early (RACE)."""
    only_reads: bool = False
    """True if it only reads results of other studies, and needs no server."""
    on_demand: bool = False
    """True if it runs only on request."""

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise SettingsError, which names the parameter and the valid values, for an invalid value."""
        for one in self.parameters:
            if one.name in values:
                one.value(as_given(values[one.name]))

    def expected_seconds(self, values: Mapping[str, Any], preset: Preset) -> float:
        """Return the expected seconds on two cores with these values.

        A round takes some seconds and some more for each row, by the presets `quick` and `reference`, or by a million
        rows where slow techniques end early.
        """
        of = {one: {each.name: each.of(one) for each in self.parameters} for one in PRESETS}
        _, quick, most = self.seconds
        usual, many = self.seconds[PRESETS.index(preset)], of["reference"]
        if values.get("race") and self.raced_seconds:
            most, many = self.raced_seconds, of["quick"] | {"rows": 1_000_000}

        def of_a_round(total: int, given: Mapping[str, Any]) -> float:
            return max(0, total - START_SECONDS) / _rounds(given)

        rows = _rows(many) - _rows(of["quick"])
        of_a_row = (of_a_round(most, many) - of_a_round(quick, of["quick"])) / rows if rows else 0.0
        each = of_a_round(usual, of[preset]) + of_a_row * (_rows(values) - _rows(of[preset]))
        return min(START_SECONDS, usual) + _rounds(values) * max(0.0, each)

    @property
    def number(self) -> str:
        """The number that NOTEBOOKS takes."""
        return self.notebook.partition("_")[0]

    @property
    def name(self) -> str:
        """The name of its results and figures."""
        return self.notebook.partition("_")[2]

    @property
    def results(self) -> str:
        """The name of its results file."""
        return f"{self.name}.csv"

    @property
    def measures_techniques(self) -> bool:
        """True if its rows are passes of techniques on the same table in every run."""
        return self.rows == "framehaul.bench.store:Result" and not self.on_demand


def _rows(values: Mapping[str, Any]) -> float:
    """Return rows x duration, each 1 in a study without the parameter."""
    return float(values.get("rows", 1) * values.get("duration", 1))


def _rounds(values: Mapping[str, Any]) -> int:
    """Return the rounds with those of the warm-up; 1 in a study without rounds."""
    return int(values.get("rounds", 1) + values.get("warmup", 0))
