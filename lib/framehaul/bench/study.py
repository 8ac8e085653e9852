"""What a study is: one notebook, registered once, with all that others need to know of it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from framehaul.errors import SettingsError
from framehaul.settings import PRESETS, PROJECT, Preset

NOTEBOOKS = PROJECT / "notebooks"

type Value = int | float | str | list[int]


@dataclass(frozen=True)
class Parameter:
    """A parameter of notebooks, given to make by its name in capitals; it is of its default's type."""

    name: str
    default: Value
    """Of the preset `quick`, and of a notebook as it is opened."""
    help: str
    least: float = 0
    """The least that makes sense, of a number, or of each of several."""
    choices: tuple[str, ...] = ()
    smoke: Value | None = None
    reference: Value | None = None
    """The values of the other presets, where they differ."""

    def at(self, default: Value, smoke: Value | None = None, reference: Value | None = None) -> Parameter:
        """The same with the values of one study."""
        return replace(
            self, default=default, smoke=self.smoke if smoke is None else smoke,
            reference=self.reference if reference is None else reference,
        )  # fmt: skip

    def of(self, preset: Preset) -> Value:
        """The value of a preset."""
        other = {"smoke": self.smoke, "quick": None, "reference": self.reference}[preset]
        return self.default if other is None else other

    @property
    def meaning(self) -> Parameter:
        """What is the same in every study that has it: all but the values of presets."""
        return replace(self, default=type(self.default)(), smoke=None, reference=None)

    def value(self, text: str) -> Value:
        """The value that was given as text; raises SettingsError that names it and says what can be given."""
        if isinstance(self.default, str):
            if self.choices and text not in self.choices:
                raise self._refused(text, f"choose from {', '.join(self.choices)}")
            return text
        several = isinstance(self.default, list)
        number: Callable[[str], Any] = float if isinstance(self.default, float) else int
        kind = "whole numbers" if several else "a number" if number is float else "a whole number"
        try:
            numbers = [number(word) for word in (text.replace(",", " ").split() if several else [text])]
        except ValueError:
            raise self._refused(text, f"give {kind}") from None
        if not numbers or not all(self.least <= one < math.inf for one in numbers):
            raise self._refused(text if several else numbers[0], f"give {kind} of at least {self.least:g}")
        return numbers if several else numbers[0]

    def _refused(self, given: object, remedy: str) -> SettingsError:
        return SettingsError(f"{self.name.upper()}={given!r}: {remedy}")


def as_given(value: Value) -> str:
    """A value as it would be given."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


ROWS = Parameter("rows", 100_000, "rows of a table", least=1, smoke=300, reference=1_000_000)
ROUNDS = Parameter("rounds", 3, "rounds, in each of which every task runs once", least=1, smoke=1, reference=6)
WARMUP = Parameter(
    "warmup", 1, "rounds before them, of which memory and bytes on the wire are kept, and no time", smoke=0
)
RACE = Parameter(
    "race", 1, "1: who falls behind on a part of the rows moves no more of them; 0: everybody moves all, and who takes "
    "twice as long sits out after two rounds", smoke=0, reference=0,
)  # fmt: skip
TRIED = Parameter(
    "tried", "directions", "techniques that edge cases and faults are tried with: all, one of each family and origin, "
    "one of each direction and origin but everyday calls, of each direction one that is beyond and one streamed, "
    "or these and a tenth of all, another each day",
    choices=("all", "families", "directions", "fewest", "tenth"), smoke="fewest", reference="all",
)  # fmt: skip
SEED = Parameter("seed", 20260407, "of the data, and of the order within a round")


@dataclass(frozen=True)
class Study:
    """A notebook and what belongs to it; `module:name` stands for what is imported only when it is needed."""

    notebook: str
    """Its file, without the ending: a number that says when it runs, and the study's name."""
    question: str
    parameters: tuple[Parameter, ...] = ()
    rows: str = ""
    """What a row of its results is, `module:name` of a dataclass; empty when it writes none that have a status."""
    subject: str = "technique"
    """The column of its results that says who was measured."""
    check: str = ""
    """`module:name` of what raises ValueError for values of parameters that do not go together."""
    patience: str = ""
    """`module:name` of a function that says for how many seconds more a cell may take, None for ever, by the values."""
    measured: str = ""
    """`module:name` of a function that gives its passes of techniques, of a results directory and with columns of
    `bench.measured.PLACE`; empty where they are all in the usual place, or there are none."""
    headline: str = ""
    """The tag of the cell whose table the index page begins with."""
    seconds: tuple[int, int, int] = (3, 30, 600)
    """About how long it takes on two cores by each preset; what is done so far corrects it. Of a smoke run, where
    several run at once, what it adds to the time that all of them take."""
    untimed: bool = False
    """Whether it takes no time that work beside it would change: it runs beside others that do not."""
    holds: tuple[str, ...] = ("postgres", "clickhouse")
    """The tables it uses that others use as well, so never at once: the one for all techniques, by its database."""
    alone: bool = False
    """Whether others would change what it reads, such as the servers' catalogs: nothing ever runs beside it."""
    only_reads: bool = False
    """Whether it reads what others have measured: it needs no server, and runs after them."""
    on_demand: bool = False
    """Whether it runs only when it is asked for."""

    def expected_seconds(self, values: Mapping[str, Any], preset: Preset) -> float:
        """Return about how long the study takes on two cores with these values of its parameters.

        What it does grows with rows, rounds and duration; what a kernel and its imports take does not.
        """
        usual = self.seconds[PRESETS.index(preset)]
        start = min(usual, START_SECONDS)
        of_preset = {one.name: one.of(preset) for one in self.parameters}
        work, of_usual = _work(values), _work(of_preset)
        return start + (usual - start) * (work / of_usual if of_usual else 1.0)  # 0 rows stand for all of a file

    @property
    def number(self) -> str:
        """What NOTEBOOKS takes."""
        return self.notebook.partition("_")[0]

    @property
    def name(self) -> str:
        """As its results and figures are called."""
        return self.notebook.partition("_")[2]

    @property
    def results(self) -> str:
        """The file of its passes, or outcomes, in a results directory."""
        return f"{self.name}.csv"

    @property
    def measures_techniques(self) -> bool:
        """Whether its passes are those of techniques, on the same table in every run."""
        return self.rows == TECHNIQUE_PASSES and not self.on_demand


START_SECONDS = 5
"""Of a notebook that measures next to nothing: its kernel, its imports, its figures."""


def _work(values: Mapping[str, Any]) -> float:
    """Return rows x rounds x duration, each 1 where a study has no such parameter."""
    rows = values.get("rows", 1)
    rounds = values.get("rounds", 1) + values.get("warmup", 0)
    return float((sum(rows) if isinstance(rows, list) else rows) * rounds * values.get("duration", 1))


TECHNIQUE_PASSES = "framehaul.bench.store:Result"


def imported(reference: str) -> Any:
    """What `module:name` stands for."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
