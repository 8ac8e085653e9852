"""Noise: techniques are measured as they are, again under another name, and cold.

The first two run the same code, so any difference between them is noise. A cold pass finds no memory that earlier
passes have freed, as in a process that has just started.
"""

from dataclasses import dataclass, replace

from framehaul.bench import measure, recording, store
from framehaul.bench.measure import PassOptions
from framehaul.bench.meter import Moved
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Pass, Rounds
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS
from framehaul.studies.registry import NOISE
from framehaul.studies.scaling import COMPARED
from framehaul.techniques import Technique
from framehaul.techniques.registry import named, renamed

AS_IT_IS, AGAIN, COLD = "as it is", "again", "cold"


@dataclass(frozen=True, kw_only=True)
class Result(store.Result):
    """One pass of a technique as one of its variants; a missing number is None, never 0."""

    variant: str


def variants(one: Technique) -> dict[str, Technique]:
    """Return a technique as it is and under two other names, by variant; the code of all three is the same."""
    others = {variant: renamed(one.function, f"{one.name}_{variant}") for variant in (AGAIN, COLD)}
    return {AS_IT_IS: one} | {variant: replace(one, function=function) for variant, function in others.items()}


@recorded(NOISE, Result)
def run(this_run: Recording, *, rows: int, rounds: int, warmup: int, seed: int) -> None:
    """Measure the variants of the compared techniques; raises the errors of `transfers.run`."""
    both, content = this_run.servers(), generator.arrow_table(ANALYTICS_METRICS, rows, seed)
    compared = [named(*path, name) for path, names in COMPARED.items() for name in names]
    of = {task: (one, variant) for one in compared for variant, task in variants(one).items()}
    cold = PassOptions(cold={task.key for task, (_, variant) in of.items() if variant == COLD})

    def row(task: Technique, number: int, outcome: Pass[Moved]) -> Result:
        one, variant = of[task]
        passed = recording.result(this_run.run_id, NOISE.notebook, one, rows, number, outcome)
        return Result(variant=variant, **vars(passed))

    schedule, log = Rounds(rounds, warmup, seed), this_run.log(row)
    for path in COMPARED:
        tasks = [task for task in of if task.key[:2] == path]
        measure.run(tasks, both.of(path[0]), ANALYTICS_METRICS, content, schedule, log, cold)
