"""What notebook 16 calls: the best techniques of each direction, each as it is, once more under another name, and cold.

Where nothing differs, nothing may be told apart: how often it is here, with real noise, is what the rule of all pages
(`bench.ratios`) is worth on this machine. A process in service has its memory already, one that has just started asks
the kernel for it: the same function is measured as both.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import polars as pl

from framehaul import servers
from framehaul.bench import measure, ratios, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Moved
from framehaul.bench.passes import Pass
from framehaul.bench.recording import recording, result
from framehaul.bench.rounds import Rounds, check, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import UNSTABLE, Column, Listing, Row, thousands, where, words
from framehaul.studies.registry import NOISE
from framehaul.studies.scaling.study import COMPARED
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Key

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
    """A technique as it is, under another name, and to be measured cold: the same code three times."""
    return {AS_IT_IS: one} | {name: replace(one, function=_named(one.function, name)) for name in (AGAIN, COLD)}


def _named(function: Any, name: str) -> FunctionType:
    copy = FunctionType(
        function.__code__, function.__globals__, f"{function.__name__}_{name}", function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def run(*, rows: int, rounds: int, warmup: int, seed: int, table: Table = ANALYTICS_METRICS) -> Noise:
    """Measure the variants of the best published and the best other technique of each direction, and write the results.

    Raises what `transfers.study.run` raises.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording(NOISE.notebook, NOISE.results, Result, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
    ):
        this_run.metadata |= terms | {
            "servers": both.mode,
            "server": {"version": "; ".join(server_versions(both).values())},
        }

        def work(stop: threading.Event) -> None:
            content = generator.arrow_table(table, rows, seed)
            for (database, direction), names in COMPARED.items():
                known = [one for one in techniques() if (one.database, one.direction) == (database, direction)]
                chosen = {
                    changed.key: (one, name, changed)
                    for one in known if one.name in names for name, changed in variants(one).items()
                }  # fmt: skip

                def row(task: Technique, number: int, outcome: Pass[Moved]) -> Result:
                    one, name, _ = chosen[task.key]  # noqa: B023
                    return _row(this_run.run_id, one, name, rows, number, outcome)

                record, finished = this_run.passes(row)
                this_run.expect(1 + len(chosen) * (warmup + rounds))
                measure.run(
                    [changed for *_, changed in chosen.values()], both.of(database), table, content, schedule, record,
                    stop=stop, progress=this_run.progress, finished=finished, times=this_run.times,
                    cold={key for key, (_, name, _) in chosen.items() if name == COLD},
                )  # fmt: skip

        interruptible(work)
    return Noise.load(this_run.settings)


def _row(run_id: str, one: Technique, variant: str, rows: int, number: int, outcome: Pass[Moved]) -> Result:
    whole = vars(result(run_id, NOISE.notebook, one, rows, number, outcome))
    return Result(variant=variant, **{each.name: whole[each.name] for each in fields(Result) if each.name in whole})


def medians(passes: pl.DataFrame) -> dict[tuple[Key, str], Row]:
    """The row of `statistics.medians` of each technique and variant that is right."""
    who = ["database", "direction", "technique", "label", "variant"]
    rows = statistics.medians(passes, who).filter(status="ok").to_dicts()
    return {((row["database"], row["direction"], row["technique"]), row["variant"]): row for row in rows}


def against(passes: pl.DataFrame, variant: str) -> list[dict[str, Any]]:
    """Each technique that has both, with `ratio`, the variant's speed over its own, and what is `said` of it."""
    rows = medians(passes)
    pairs = [
        (rows[key, AS_IT_IS], row) for (key, name), row in rows.items() if name == variant and (key, AS_IT_IS) in rows
    ]
    measured = [ratios.ratio_of_rows(other, one) for one, other in pairs]
    said = ratios.verdicts([(ratio, 1) for ratio in measured], "faster", "slower")
    return [
        {**one, "other": other, "ratio": ratio, "said": words}
        for (one, other), ratio, words in zip(pairs, measured, said, strict=True)
    ]


def same_table(passes: pl.DataFrame) -> Listing:
    """The same technique under two names."""
    columns = [
        words("direction", where), words("technique", "label"),
        Column("rows/s", "rows_per_s", thousands), UNSTABLE,
        Column("again", lambda row: row["other"]["rows_per_s"], thousands),
        Column("again over the first", "ratio"), words("what the rule says", "said"),
    ]  # fmt: skip
    return Listing(columns, against(passes, AGAIN))


def cold_table(passes: pl.DataFrame) -> Listing:
    """Speed with memory that the process has, and with memory that the kernel hands out in the pass."""

    def pair(column: str, form: str) -> Any:
        def both(row: Row) -> str | None:
            values = row[column], row["other"][column]
            return None if None in values else " -> ".join(form.format(value) for value in values)

        return both

    columns = [
        words("direction", where), words("technique", "label"),
        Column("warm, rows/s", "rows_per_s", thousands),
        Column("cold, rows/s", lambda row: row["other"]["rows_per_s"], thousands),
        Column("cold over warm", "ratio"), words("cold is", "said"),
        Column("minor faults", pair("minor_faults", "{:,.0f}")),
        Column("system time of the client, s", pair("client_system_s", "{:.3f}")),
    ]  # fmt: skip
    return Listing(columns, against(passes, COLD))


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory."""
    passes = store.read(directory / NOISE.results, Result)
    return {"noise": str(same_table(passes)), "cold": str(cold_table(passes))}


class Noise(Shown):
    """The passes of a run."""

    study = NOISE

    answer = same = view(same_table)
    cold = view(cold_table)


load = Noise.load
