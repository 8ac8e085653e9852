"""What the notebooks call: run one database and direction, then show its table, chart, findings and code."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path
from typing import Any, cast

import polars as pl
from IPython.display import HTML, SVG, Markdown
from tqdm import tqdm

from framehaul import servers
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness import measure
from framehaul.harness.recording import keep_facts, made, result
from framehaul.harness.rounds import interruptible
from framehaul.reporting import charts
from framehaul.reporting.tables import html_table
from framehaul.reporting.versions import versions_text
from framehaul.results import statistics, store
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings, load_settings
from framehaul.studies.transfers import findings
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction


class Study:
    """The results of one notebook, ready to be shown."""

    def __init__(self, notebook: str, passes: pl.DataFrame, facts: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self.summary = statistics.summary(passes)
        self._notebook, self._facts, self._figures = notebook, facts, figures

    def table(self) -> HTML:
        """All techniques with the published columns and ours."""
        return HTML(html_table(self.summary))

    def chart(self) -> SVG:
        """The bars, also saved as `figures/<notebook>.svg`."""
        return SVG(charts.save(charts.bars(self.summary), self._figures / f"{self._notebook}.svg"))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown(findings.of_direction(self.summary))

    def versions(self) -> Markdown:
        """What this was run with, and the server's settings that matter."""
        return Markdown(versions_text(self._facts, self._notebook))


def run(
    notebook: str, database: str, direction: str, *, rows: int, passes: int, warmup: int, seed: int,
    table: Table = ANALYTICS_METRICS,
) -> Study:  # fmt: skip
    """Measure every technique of a database and direction and write `results/<notebook>.csv`.

    Raises ValueError for a parameter that makes no sense, ServerError when a server cannot be had, SettingsError and
    ResultsError for what their names say.
    """
    parameters = measure.Parameters(rows, passes, warmup, seed)
    settings = load_settings()
    chosen = techniques(cast("Database", database), cast("Direction", direction))
    run_id, started = store.new_run_id(), dt.datetime.now(dt.UTC)
    with (
        servers.running(settings) as both,
        store.Writer(settings.out / "results" / f"{notebook}.csv") as writer,
        # On standard output: a log of the run shows it as it goes.
        tqdm(total=len(chosen) * (warmup + passes), file=sys.stdout, mininterval=1, unit="technique", ncols=100) as bar,
    ):
        server = both.of(database)

        def record(technique: Technique, number: int, outcome: measure.Outcome, wire_bytes: int | None) -> None:
            writer.write(result(run_id, notebook, technique, rows, number, outcome, wire_bytes))

        def progress(step: str) -> None:
            bar.set_postfix_str(step[:48], refresh=False)
            bar.update(1 if ":" in step else 0)

        server_facts = tables_of(server).facts()
        interruptible(lambda stop: measure.run(chosen, server, table, parameters, record, progress, stop))
        bar.set_postfix_str("done")
    facts = keep_facts(settings, notebook, made(run_id, started, parameters, both.mode, server_facts))
    return load(notebook, settings, facts)


def load(notebook: str, settings: Settings | None = None, facts: dict[str, Any] | None = None) -> Study:
    """The results of a notebook's last complete run, without any server."""
    settings = settings or load_settings()
    directory = settings.out / "results"
    passes = store.read(directory / f"{notebook}.csv")
    return Study(notebook, passes, facts or store.read_facts(directory), settings.out / "figures")
