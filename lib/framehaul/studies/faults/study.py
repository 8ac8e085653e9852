"""The faults study: made by a run, kept as `results/faults.csv`, drawn as heat maps and tables."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import SVG

from framehaul.bench import store
from framehaul.bench.environment import server_versions
from framehaul.bench.rounds import check, interruptible
from framehaul.bench.trials import chosen_techniques, trials
from framehaul.reporting.charts import Outcome, outcome_map
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Column, Listing, Row, bullets, where, words
from framehaul.settings import Settings
from framehaul.studies.faults.breakable import BOTH, breakable
from framehaul.studies.faults.held import hold_load, survives_a_crash
from framehaul.studies.faults.trial import FAULTS, Cell, run_cells
from framehaul.studies.registry import FAULTS_STUDY
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES

VERDICTS = {
    "safe": Outcome("#009E73", "", "error reported, nothing wrong stored"),
    "unaffected": Outcome("#BBCCEE", "", "not affected"),
    "stored": Outcome("#F0E442", "s", "error reported, data committed"),
    "partial": Outcome("#E69F00", "p", "error reported, a part committed"),
    "doubled": Outcome("#D55E00", "d", "rows are there twice"),
    "silent": Outcome("#882255", "!", "no error, and rows are missing or changed"),
}


def run(*, hold: int, tried: str = "all") -> Report:
    """Try every fault, hold a load for `hold` seconds, and write `results/faults.csv`.

    The techniques are those that `chosen_techniques` gives. The servers are embedded ones of its own, whatever SERVERS
    says: they are killed. Raises ValueError for a time or choice that makes no sense, ServerError when servers cannot
    be had, and ResultsError when the file cannot be written.
    """
    check(HOLD=(hold, 1))
    chosen = chosen_techniques(tried)
    with (
        trials(FAULTS_STUDY.notebook, FAULTS_STUDY.results, Cell, "trial", chosen) as (this_run, cells),
        breakable(this_run.settings.postgres_extensions) as broken,
    ):
        this_run.expect(_expected(chosen))

        def work(stop: threading.Event) -> None:
            run_cells(broken, chosen, cells, stop)
            this_run.metadata["recovery"] = survives_a_crash(broken)
            with ThreadPoolExecutor(len(BOTH)) as pool:
                loads = pool.map(lambda database: hold_load(broken, database, hold, stop), BOTH)
                this_run.metadata["held"] = [asdict(load) for load in loads]

        interruptible(work)
        what = f"{len(chosen)} techniques, {len(FAULTS)} faults"
        this_run.metadata |= {"servers": "embedded", "server": server_versions(broken.servers), "what": what}
    return load(this_run.settings)


def of_fault(row: Row) -> str:
    """Which fault a row is about, and where it happened."""
    return f"{where(row)}: {row['fault']}"


def counts_table(cells: pl.DataFrame) -> Listing:
    """Techniques by fault and verdict."""
    counts = cells.group_by("database", "direction", "fault", maintain_order=True).agg(
        (pl.col("verdict") == verdict).sum().alias(verdict) for verdict in VERDICTS
    )
    columns = (Column(outcome.meaning, name, lambda count: f"{count or ''}") for name, outcome in VERDICTS.items())
    return Listing([words("fault", of_fault), *columns], counts)


def answer_text(cells: pl.DataFrame) -> str:
    """Bullet points: of each direction, what faults left that is neither nothing nor all of it."""
    points = []
    for _, here in cells.group_by("database", "direction", maintain_order=True):
        counts = collections.Counter(here["verdict"])
        bad = [f"{counts[name]} x {outcome.meaning}" for name, outcome in VERDICTS.items() if name in counts]
        points.append(f"**{where(here.row(0, named=True))}**, {len(here)} cases: {'; '.join(bad)}.")
    return bullets(points)


def held_table(held: list[dict[str, Any]]) -> Listing:
    """What came of the loads."""
    columns = [
        words("server", lambda row: DATABASES[row["database"]]), Column("seconds", "seconds", "{:.0f}"),
        Column("frames written", "frames_written", "{:,}"), Column("rows written", "rows_written", "{:,}"),
        Column("rows lost", "rows_lost", "{:,}"), Column("rows too many", "rows_more", "{:,}"),
        Column("frames read", "frames_read", "{:,}"), Column("of them wrong", "frames_read_wrong", "{:,}"),
    ]  # fmt: skip
    return Listing(columns, held)


def details_table(cells: pl.DataFrame, database: str, direction: str) -> Listing:
    """Every cell of a direction: verdict, rows, what was said."""
    columns = [
        words("technique", "label"), words("fault", "fault"), words("verdict", "verdict"),
        words("rows afterwards", "rows"), words("what was said", "detail"),
    ]  # fmt: skip
    return Listing(columns, cells.filter(database=database, direction=direction))


class Report(Shown):
    """The verdicts of a run."""

    study = FAULTS_STUDY
    answer = view(answer_text)
    counts = view(counts_table)
    details = view(details_table)

    def chart(self, database: str, direction: str) -> SVG:
        """One direction as a heat map, techniques by faults; also saved as a figure."""
        title = f"{DATABASES[database]}, {direction}: what a fault leaves behind"
        faults = [fault.name for fault in FAULTS if fault.direction == direction]
        cells = self.passes.filter(database=database, direction=direction)
        figure = outcome_map(cells, title, "fault", faults, "verdict", VERDICTS, "not tried")
        return self.saved(figure, f"{database}_{direction}")

    def faults(self) -> Listing:
        """What each fault is."""
        columns = [words("direction", "direction"), words("fault", "name"), words("how it is made", "how")]
        return Listing(columns, map(vars, FAULTS))

    def recovery(self) -> Listing:
        """The rows that were acknowledged before both servers were killed, and those that are there afterwards."""
        columns = [
            words("server", lambda row: DATABASES[row["database"]]),
            Column("rows acknowledged", "before", "{:,}"),
            Column("of them there after kill and recovery", "after", "{:,}"),
        ]
        found = self.run_metadata["recovery"].items()
        return Listing(columns, [{"database": name, "before": rows[0], "after": rows[1]} for name, rows in found])

    def held(self) -> Listing:
        """What came of the load that was held."""
        return held_table(self.run_metadata["held"])


def load(settings: Settings | None = None) -> Report:
    """The report of the last complete run, without any server; raises ResultsError when there is none."""
    return Report.load(settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The block of the writeup, from a results directory; raises ResultsError when the study was not run."""
    return {"faults": str(counts_table(store.read_cells(directory / FAULTS_STUDY.results)))}


def _expected(chosen: Sequence[Technique]) -> int:
    return sum(fault.direction == technique.direction for fault in FAULTS for technique in chosen)


def patience(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell may take: the load is held, and servers that were killed start anew."""
    return int(values.get("hold", 0)) + 4 * _expected(chosen_techniques(values.get("tried", "all")))
