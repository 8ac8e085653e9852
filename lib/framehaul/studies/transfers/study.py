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
from framehaul.harness.recording import keep_metadata, made, result
from framehaul.harness.rounds import interruptible
from framehaul.reporting import charts
from framehaul.reporting.study import Study
from framehaul.reporting.tables import html_table
from framehaul.reporting.versions import versions_text
from framehaul.results import statistics, store
from framehaul.servers.tables import tables_of
from framehaul.settings import Settings, load_settings
from framehaul.studies.transfers import STUDIES, findings
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import Database, Direction


class Transfers:
    """The results of one notebook, ready to be shown."""

    def __init__(self, study: Study, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self.summary = statistics.summary(passes)
        self._study, self._metadata, self._figures = study, metadata, figures

    def table(self) -> HTML:
        """All techniques with the published columns and ours."""
        return HTML(html_table(self.summary))

    def chart(self) -> SVG:
        """The bars, also saved as `figures/<study>.svg`."""
        return SVG(charts.save(charts.bars(self.summary), self._figures / f"{self._study.name}.svg"))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown(findings.of_direction(self.summary))

    def versions(self) -> Markdown:
        """What this was run with, and the server's settings that matter."""
        return Markdown(versions_text(self._metadata, self._study.notebook))


def run(
    database: str, direction: str, *, rows: int, passes: int, warmup: int, seed: int,
    table: Table = ANALYTICS_METRICS,
) -> Transfers:  # fmt: skip
    """Measure every technique of a database and direction and write its results.

    Raises ValueError for a parameter that makes no sense, ServerError when a server cannot be had, SettingsError and
    ResultsError for what their names say.
    """
    parameters = measure.Parameters(rows, passes, warmup, seed)
    settings, study = load_settings(), study_of(database, direction)
    chosen = techniques(cast("Database", database), cast("Direction", direction))
    run_id, started = store.new_run_id(), dt.datetime.now(dt.UTC)
    with (
        servers.running(settings) as both,
        store.Writer(settings.out / "results" / study.results) as writer,
        # On standard output: a log of the run shows it as it goes.
        tqdm(total=len(chosen) * (warmup + passes), file=sys.stdout, mininterval=1, unit="technique", ncols=100) as bar,
    ):
        server = both.of(database)

        def record(technique: Technique, number: int, outcome: measure.Outcome, wire_bytes: int | None) -> None:
            writer.write(result(run_id, study.notebook, technique, rows, number, outcome, wire_bytes))

        def progress(step: str) -> None:
            bar.set_postfix_str(step[:48], refresh=False)
            bar.update(1 if ":" in step else 0)

        server_metadata = tables_of(server).metadata()
        interruptible(lambda stop: measure.run(chosen, server, table, parameters, record, progress, stop))
        bar.set_postfix_str("done")
    metadata = keep_metadata(settings, study.notebook, made(run_id, started, parameters, both.mode, server_metadata))
    return load(database, direction, settings, metadata)


def load(
    database: str, direction: str, settings: Settings | None = None, metadata: dict[str, Any] | None = None
) -> Transfers:
    """The results of a direction's last complete run, without any server."""
    settings, study = settings or load_settings(), study_of(database, direction)
    directory = settings.out / "results"
    passes = store.read(directory / study.results)
    return Transfers(study, passes, metadata or store.read_metadata(directory), settings.out / "figures")


def study_of(database: str, direction: str) -> Study:
    """The study of a direction; raises ValueError when there is none."""
    for study in STUDIES:
        if study.name == f"{database}_{direction}":
            return study
    raise ValueError(f"{database} {direction}: there is no such direction")


def read_all(directory: Path) -> pl.DataFrame:
    """The passes of all four directions that were run, from a results directory; studies beside them stay apart."""
    files = (path for study in STUDIES if (path := directory / study.results).exists())
    return pl.concat([pl.DataFrame(schema=store.SCHEMA), *map(store.read, files)])
