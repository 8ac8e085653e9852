"""Measure techniques three times: as they are, again under another name, and cold.

The first two run the same code, so any difference between them is noise. A cold pass finds no memory that earlier
passes have freed, as in a process that has just started.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from types import FunctionType
from typing import Any

from framehaul.bench import measure, recording
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Pass
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.studies.registry import NOISE
from framehaul.studies.scaling.study import COMPARED
from framehaul.techniques import Technique
from framehaul.techniques.registry import named

AS_IT_IS, AGAIN, COLD = "as it is", "again", "cold"


@dataclass(frozen=True, kw_only=True)
class Result:
    """One pass of a technique as one of its variants; a missing number is None, never 0."""

    run_id: str
    database: str
    direction: str
    technique: str
    label: str
    variant: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    client_system_s: float | None = None
    minor_faults: int | None = None
    other_cpu_s: float | None = None
    status: Status = "ok"
    reason: str | None = None


def variants(one: Technique) -> dict[str, Technique]:
    """Return a technique as it is and under two other names, by variant; the code of all three is the same."""
    return {AS_IT_IS: one} | {name: replace(one, function=_renamed(one.function, name)) for name in (AGAIN, COLD)}


def _renamed(function: Any, suffix: str) -> FunctionType:
    """Return a function with the same code whose name ends with the suffix."""
    name = f"{function.__name__}_{suffix}"
    copy = FunctionType(function.__code__, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@recording.study(NOISE.notebook, Result)
def run(*, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Measure the variants of the best published and the best other technique of each direction.

    Raises the errors of `transfers.study.run`.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    with recording.with_servers(NOISE, Result, schedule, rows=rows) as (this_run, both):
        content = generator.arrow_table(ANALYTICS_METRICS, rows, seed)

        def work(stop: threading.Event) -> None:
            for (database, direction), names in COMPARED.items():
                compared = [named(database, direction, name) for name in names]
                tasks = {task.key: (one, variant, task) for one in compared for variant, task in variants(one).items()}

                def row(task: Technique, number: int, outcome: Pass[Moved]) -> Result:
                    one, variant, _ = tasks[task.key]  # noqa: B023  it is called before the next direction begins
                    passed = vars(recording.result(this_run.run_id, NOISE.notebook, one, rows, number, outcome))
                    kept = {field.name: passed[field.name] for field in fields(Result) if field.name in passed}
                    return Result(variant=variant, **kept)

                this_run.expect(1 + len(tasks) * (warmup + rounds))
                cold = PassOptions(cold={key for key, (_, variant, _) in tasks.items() if variant == COLD})
                every, log = [task for *_, task in tasks.values()], this_run.log(row, stop)
                measure.run(every, both.of(database), ANALYTICS_METRICS, content, schedule, log, cold)

        interruptible(work)
