"""Three measurements of each technique: as it is, again under another name, and cold.

The first two run the same code, so any difference between them is noise. A cold pass finds no memory that earlier
passes have freed, as in a process that has just started.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from types import FunctionType
from typing import Any, cast

from framehaul import servers
from framehaul.bench import measure, recording
from framehaul.bench.environment import server_versions
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Pass
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.studies.registry import NOISE
from framehaul.studies.scaling.study import COMPARED
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction

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
    copy = FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@recording.study(NOISE.notebook, Result)
def run(*, rows: int, rounds: int, warmup: int, seed: int, table: Table = ANALYTICS_METRICS) -> None:
    """Measure the variants of the best published and the best other technique of each direction.

    Raises what `transfers.study.run` raises.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording.recording(NOISE.notebook, NOISE.results, Result, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        versions = "; ".join(server_versions(both).values())
        this_run.metadata |= terms | {"servers": both.mode, "server": {"version": versions}}
        content = generator.arrow_table(table, rows, seed)

        def work(stop: threading.Event) -> None:
            for (database, direction), names in COMPARED.items():
                known = techniques(cast("Database", database), cast("Direction", direction))
                tasks = {
                    task.key: (one, variant, task)
                    for one in known if one.name in names for variant, task in variants(one).items()
                }  # fmt: skip

                def row(task: Technique, number: int, outcome: Pass[Moved]) -> Result:
                    one, variant, _ = tasks[task.key]  # noqa: B023  it is called before the next direction begins
                    passed = vars(recording.result(this_run.run_id, NOISE.notebook, one, rows, number, outcome))
                    kept = {field.name: passed[field.name] for field in fields(Result) if field.name in passed}
                    return Result(variant=variant, **kept)

                this_run.expect(1 + len(tasks) * (warmup + rounds))
                cold = PassOptions(cold={key for key, (_, variant, _) in tasks.items() if variant == COLD})
                every, log = [task for *_, task in tasks.values()], this_run.log(row, stop)
                measure.run(every, both.of(database), table, content, schedule, log, cold)

        interruptible(work)
