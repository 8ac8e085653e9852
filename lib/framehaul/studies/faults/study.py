"""The faults study: made by a run, kept as `results/faults.csv`, drawn as heat maps and tables."""

from __future__ import annotations

import html
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import HTML, SVG, Markdown

from framehaul.harness.environment import server_versions
from framehaul.harness.rounds import interruptible
from framehaul.harness.trials import Run
from framehaul.reporting import charts
from framehaul.reporting.tables import markdown_table, text_table
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import store
from framehaul.settings import Settings, load_settings
from framehaul.studies.ablations import study as ablations
from framehaul.studies.faults import STUDY
from framehaul.studies.faults.breakable import breakable
from framehaul.studies.faults.held import Held, hold_load, survives_a_crash
from framehaul.studies.faults.trial import FAULTS, Cell, run_cells
from framehaul.studies.transfers.study import read_all
from framehaul.techniques.registry import DATABASES, Database

LOADED: tuple[Database, ...] = ("postgres", "clickhouse")
VERDICTS = {
    "safe": charts.Outcome("#009E73", "", "error reported, nothing wrong stored"),
    "unaffected": charts.Outcome("#BBCCEE", "", "not affected"),
    "stored": charts.Outcome("#F0E442", "s", "error reported, data committed"),
    "partial": charts.Outcome("#E69F00", "p", "error reported, a part committed"),
    "doubled": charts.Outcome("#D55E00", "d", "rows are there twice"),
    "silent": charts.Outcome("#882255", "!", "no error, and rows are missing or changed"),
}


SAFE_WAYS = ("all or nothing", "idempotent")
"""Of the ablations: what each safe way changes."""


class Report:
    """The verdicts of a run, ready to be shown."""

    def __init__(self, directory: Path) -> None:
        self.cells = store.read_cells(directory / STUDY.results)
        self._metadata = store.read_metadata(directory)
        self._results, self._figures = directory, directory.parent / "figures"

    def chart(self, database: str, direction: str) -> SVG:
        """One direction as a heat map, techniques by faults; also saved as a figure."""
        chosen = self.cells.filter(database=database, direction=direction)
        title = f"{DATABASES[database]}, {direction}: what a fault leaves behind"
        faults = [fault.name for fault in FAULTS if fault.direction == direction]
        figure = charts.outcome_map(chosen, title, "fault", faults, "verdict", VERDICTS, "not tried")
        return SVG(charts.save(figure, self._figures / f"{STUDY.name}_{database}_{direction}.svg"))

    def faults(self) -> Markdown:
        """What each fault is."""
        rows = [[fault.direction, fault.name, fault.how] for fault in FAULTS]
        return Markdown(markdown_table(["", "fault", "how it is made"], rows, text_columns=3))

    def counts(self) -> Markdown:
        """How many techniques came to which verdict, fault by fault."""
        return Markdown(counts_table(self.cells))

    def price(self) -> Markdown:
        """What the safe ways into ClickHouse cost in speed, from the results of the notebook that measures it."""
        passes = read_all(self._results)
        ratios = ablations.ratios(passes)
        safe = ratios.filter(pl.col("what").is_in(SAFE_WAYS)) if len(ratios) else ratios
        if safe.is_empty():
            return Markdown("Notebook 03 measures what the safe ways cost; it was not run here yet.")
        return Markdown(ablations.ablations_table(safe))

    def usable(self) -> Markdown:
        """After which faults a client could be used again."""
        return Markdown(usable_table(self.cells))

    def details(self, database: str, direction: str) -> HTML:
        """Every cell of a direction: verdict, rows, what was said."""
        chosen = self.cells.filter(database=database, direction=direction)
        header = ["technique", "fault", "verdict", "rows afterwards", "client usable", "what was said"]
        columns = "label", "fault", "verdict", "rows", "usable", "detail"
        return HTML(text_table(header, [[*map(html.escape, row)] for row in chosen.select(columns).rows()]))

    def recovery(self) -> Markdown:
        """Whether acknowledged rows outlived the death of both servers."""
        return Markdown(recovery_table(self._metadata["runs"][STUDY.notebook]["recovery"]))

    def load(self) -> Markdown:
        """What came of the load that was held."""
        return Markdown(held_table([Held(**values) for values in self._metadata["runs"][STUDY.notebook]["held"]]))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))


def run(hold: int) -> Report:
    """Try every technique with every fault, hold a load for `hold` seconds, and write `results/faults.csv`.

    The servers are embedded ones of its own, whatever SERVERS says: they are killed. Raises ValueError for a time that
    makes no sense, ServerError when servers cannot be had, and ResultsError when the file cannot be written.
    """
    if type(hold) is not int or hold < 1:
        raise ValueError(f"HOLD={hold!r}: give a whole number of at least 1")
    settings, made = load_settings(), Run[Cell]()
    expected = sum(fault.direction == technique.direction for fault in FAULTS for technique in made.chosen)
    held: list[Held] = []
    recovery: dict[str, tuple[int, int]] = {}
    with breakable(settings.postgres_extensions) as broken, made.bar(expected, "trial"):

        def work(stop: threading.Event) -> None:
            run_cells(broken, made.chosen, made.record, made.skip, stop)
            recovery.update(survives_a_crash(broken))
            with ThreadPoolExecutor(len(LOADED)) as pool:
                held.extend(pool.map(lambda database: hold_load(broken, database, hold, stop), LOADED))

        interruptible(work)
        versions = server_versions(broken.servers)
    if broken.small_disk is None:
        made.unavailable["disk full"] = "making a file system takes root"
    what = f"{len(made.chosen)} techniques, {len(FAULTS)} faults"
    made.keep(
        settings, STUDY.notebook, STUDY.results,
        {"servers": "embedded", "server": versions, "what": what, "recovery": recovery,
         "held": [asdict(load) for load in held]},
    )  # fmt: skip
    return load(settings)


def load(settings: Settings | None = None) -> Report:
    """The report of the last complete run, without any server; raises ResultsError when there is none."""
    settings = settings or load_settings()
    return Report(settings.out / "results")


def readme_blocks(directory: Path) -> dict[str, str]:
    """The block of the writeup, from a results directory; raises ResultsError when the study was not run."""
    return {"faults": counts_table(store.read_cells(directory / STUDY.results))}


def patience(values: Mapping[str, Any]) -> int:
    """For how many seconds more a cell may take: the load is held."""
    return int(values.get("hold", 0))


def counts_table(cells: pl.DataFrame) -> str:
    """Techniques by fault and verdict, as Markdown."""
    rows = []
    for (database, direction), part in cells.group_by("database", "direction", maintain_order=True):
        for fault in FAULTS:
            found = part.filter(fault=fault.name)
            if direction == fault.direction and not found.is_empty():
                counts = [len(found.filter(verdict=verdict)) for verdict in VERDICTS]
                rows.append([f"{DATABASES[str(database)]} {direction}: {fault.name}", *(f"{n or ''}" for n in counts)])
    return markdown_table(["fault", *(outcome.meaning for outcome in VERDICTS.values())], rows)


def usable_table(cells: pl.DataFrame) -> str:
    """After which errors the same client could go on, by driver's label, as Markdown."""
    rows = []
    for (database, direction, fault), part in cells.filter(pl.col("usable") != "").group_by(
        "database", "direction", "fault", maintain_order=True
    ):
        lost = part.filter(usable="no")["technique"].to_list()
        rows.append(
            [f"{DATABASES[str(database)]} {direction}: {fault}", f"{len(part) - len(lost)} of {len(part)}",
             ", ".join(f"`{name}`" for name in lost)]
        )  # fmt: skip
    return markdown_table(["after", "client could go on", "a new one is needed by"], rows, text_columns=3)


def recovery_table(recovery: dict[str, list[int]]) -> str:
    """Acknowledged rows before, and rows after both servers were killed, as Markdown."""
    rows = [[DATABASES[name], f"{before:,}", f"{after:,}"] for name, (before, after) in recovery.items()]
    return markdown_table(["", "rows acknowledged", "of them there after kill and recovery"], rows)


def held_table(held: list[Held]) -> str:
    """What came of the loads, as Markdown."""
    rows = [
        [
            DATABASES[load.database],
            f"{load.seconds:.0f} s, {load.writers} writers, {load.readers} readers",
            f"{load.frames_written:,} frames, {load.rows_written:,} rows",
            f"{load.rows_found - load.rows_written:+,}",
            f"{load.rows_found - load.ids_found:,}",
            "equal" if load.sum_found_is_sum_sent else "different",
            f"{load.frames_read:,}, {load.frames_read_wrong:,} of them wrong",
            f"{load.first_rss_bytes / 1e6:.0f} to {load.last_rss_bytes / 1e6:.0f} MB",
        ]
        for load in held
    ]
    header = ["", "load", "written", "rows found beyond those", "doubled", "sum of ids", "frames read", "client memory"]
    return markdown_table(header, rows, text_columns=8)
