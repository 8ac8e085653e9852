"""The faults study: made by a run, kept as `results/faults.csv`, drawn as heat maps and tables."""

from __future__ import annotations

import collections
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from inspect import getsource
from pathlib import Path
from textwrap import dedent
from typing import Any

import polars as pl
from IPython.display import SVG, Code, Markdown

from framehaul.bench import store
from framehaul.bench.environment import server_versions
from framehaul.bench.rounds import check, interruptible
from framehaul.bench.trials import chosen_techniques, trials
from framehaul.reporting.charts import Outcome, outcome_map
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Column, Listing, Row, bullets, where, words
from framehaul.settings import Settings
from framehaul.studies.ablations import study as ablations
from framehaul.studies.faults import STUDY
from framehaul.studies.faults.breakable import BOTH, BreakableServers, breakable
from framehaul.studies.faults.held import hold_load, survives_a_crash
from framehaul.studies.faults.trial import FAULTS, Cell, kill_under, run_cells
from framehaul.studies.transfers.study import read_all
from framehaul.techniques import Technique
from framehaul.techniques.registry import DATABASES

VERDICTS = {
    "safe": Outcome("#009E73", "", "error reported, nothing wrong stored"),
    "unaffected": Outcome("#BBCCEE", "", "not affected"),
    "stored": Outcome("#F0E442", "s", "error reported, data committed"),
    "partial": Outcome("#E69F00", "p", "error reported, a part committed"),
    "doubled": Outcome("#D55E00", "d", "rows are there twice"),
    "silent": Outcome("#882255", "!", "no error, and rows are missing or changed"),
    "hangs": Outcome("#332288", "h", "waits for an answer that does not come"),
}
SAFE_WAYS = ("all or nothing", "idempotent")
"""Of the ablations: what each safe way changes."""


def run(*, hold: int, tried: str = "all") -> Report:
    """Try every fault, hold a load for `hold` seconds, and write `results/faults.csv`.

    The techniques are those that `chosen_techniques` gives. The servers are embedded ones of its own, whatever SERVERS
    says: they are killed. Raises ValueError for a time or choice that makes no sense, ServerError when servers cannot
    be had, and ResultsError when the file cannot be written.
    """
    check(HOLD=(hold, 1))
    chosen = chosen_techniques(tried)
    with (
        trials(STUDY.notebook, STUDY.results, Cell, "trial", chosen) as (this_run, cells),
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


def usable_table(cells: pl.DataFrame) -> Listing:
    """After which errors the same client could go on, and who could not."""
    lost = pl.col("technique").filter(usable="no")
    after = cells.filter(pl.col("usable") != "").group_by("database", "direction", "fault", maintain_order=True)
    columns = [
        words("after", of_fault),
        words("client could go on", lambda row: f"{row['tried'] - len(row['lost'])} of {row['tried']}"),
        words("a new one is needed by", lambda row: ", ".join(f"`{name}`" for name in row["lost"])),
    ]
    return Listing(columns, after.agg(tried=pl.len(), lost=lost))


def recovery_table(recovery: Mapping[str, list[int]]) -> Listing:
    """Acknowledged rows before, and rows after both servers were killed."""
    rows = [{"database": name, "before": before, "after": after} for name, (before, after) in recovery.items()]
    return Listing(
        [
            words("server", lambda row: DATABASES[row["database"]]),
            Column("rows acknowledged", "before", "{:,}"),
            Column("of them there after kill and recovery", "after", "{:,}"),
        ],
        rows,
    )


def held_table(held: list[dict[str, Any]]) -> Listing:
    """What came of the loads."""
    columns = [
        words("server", lambda row: DATABASES[row["database"]]),
        words("load", lambda row: "{seconds:.0f} s, {writers} writers, {readers} readers".format(**row)),
        words("written", lambda row: "{frames_written:,} frames, {rows_written:,} rows".format(**row)),
        Column("rows found beyond those", lambda row: row["rows_found"] - row["rows_written"], "{:+,}"),
        Column("doubled", lambda row: row["rows_found"] - row["ids_found"], "{:,}"),
        words("sum of ids", lambda row: "equal" if row["sum_found_is_sum_sent"] else "different"),
        words("frames read", lambda row: "{frames_read:,}, {frames_read_wrong:,} of them wrong".format(**row)),
        words(
            "client memory", lambda row: f"{row['first_rss_bytes'] / 1e6:.0f} to {row['last_rss_bytes'] / 1e6:.0f} MB"
        ),
    ]
    return Listing(columns, held)


def details_table(cells: pl.DataFrame, database: str, direction: str) -> Listing:
    """Every cell of a direction: verdict, rows, what was said."""
    columns = [
        words("technique", "label"), words("fault", "fault"), words("verdict", "verdict"),
        words("rows afterwards", "rows"), words("client usable", "usable"), words("what was said", "detail"),
    ]  # fmt: skip
    return Listing(columns, cells.filter(database=database, direction=direction))


class Report(Shown):
    """The verdicts of a run."""

    study = STUDY
    answer = view(answer_text)
    counts = view(counts_table)
    usable = view(usable_table)
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

    def code(self) -> Code:
        """How one of them is made: the servers are killed under every transfer."""
        parts = kill_under, BreakableServers.kill
        return Code("\n\n".join(dedent(getsource(part)) for part in parts), language="python")

    def price(self) -> Listing | Markdown:
        """What the safe ways into ClickHouse cost in speed, from the results of the notebook that measures it."""
        ratios = ablations.ratios(read_all(self.figures.with_name("results")))
        safe = ratios.filter(pl.col("what").is_in(SAFE_WAYS)) if len(ratios) else ratios
        if safe.is_empty():
            return Markdown("Notebook 03 measures what the safe ways cost; it was not run here yet.")
        return ablations.ablations_table(safe)

    def recovery(self) -> Listing:
        """Whether acknowledged rows outlived the death of both servers."""
        return recovery_table(self.run_metadata["recovery"])

    def held(self) -> Listing:
        """What came of the load that was held."""
        return held_table(self.run_metadata["held"])


def load(settings: Settings | None = None) -> Report:
    """The report of the last complete run, without any server; raises ResultsError when there is none."""
    return Report.load(settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The block of the writeup, from a results directory; raises ResultsError when the study was not run."""
    return {"faults": str(counts_table(store.read_cells(directory / STUDY.results)))}


def _expected(chosen: Sequence[Technique]) -> int:
    return sum(fault.direction == technique.direction for fault in FAULTS for technique in chosen)


def patience(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell may take: the load is held, and servers that were killed start anew."""
    return int(values.get("hold", 0)) + 3 * _expected(chosen_techniques(values.get("tried", "all")))
