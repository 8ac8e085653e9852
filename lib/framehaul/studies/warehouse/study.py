"""From a PostgreSQL table through files into a warehouse: every route into every warehouse, stage by stage."""

from __future__ import annotations

import inspect
import itertools
import shutil
import tempfile
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from IPython.display import Code
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import ratios, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.ratios import Ratio
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.data.equality import content_fingerprint
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, fastest_of_each, speed_text, thousands, words
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings, load_settings
from framehaul.studies.registry import WAREHOUSE
from framehaul.studies.warehouse import buildings
from framehaul.studies.warehouse.routes import ROUTES, SOURCE, Route
from framehaul.studies.warehouse.warehouses import Target, Warehouse, opened_clickhouse, opened_duckdb

BASE = "csv_gzip"
"""The route that ratios are over: what the article did before."""


def _opened_bigquery(_servers: Servers, settings: Settings) -> AbstractContextManager[Target]:
    # Google's client takes seconds to import.
    from framehaul.studies.warehouse import bigquery

    return bigquery.opened(settings)


WAREHOUSES = (
    Warehouse("duckdb", "DuckDB file", opened_duckdb),
    Warehouse("clickhouse", "ClickHouse", opened_clickhouse),
    Warehouse("bigquery", "BigQuery", _opened_bigquery),
)
"""All of them; the first needs nothing but this machine."""
FILL_BATCHES = 16
STAGE_COLOURS = {"files": "#0072B2", "load": "#E69F00"}
LABELS = {warehouse.name: warehouse.label for warehouse in WAREHOUSES}

type Task = tuple[Route, Warehouse]


@dataclass(frozen=True)
class Result:
    """One pass of one route into one warehouse; a missing number is None, never 0."""

    run_id: str
    route: str
    label: str
    origin: str
    warehouse: str
    rows: int
    pass_: int
    files: int | None = None
    file_bytes: int | None = None
    files_s: float | None = None
    load_s: float | None = None
    seconds: float | None = None
    rows_per_s: float | None = None
    status: Status = "ok"
    reason: str | None = None


def run(*, rows: int, rounds: int, warmup: int, seed: int, parallel: int) -> Transfer:
    """Take the table along every route into every warehouse and write `results/warehouse.csv`.

    `parallel` is how many files, connections or loads may run at once. Raises ValueError for a parameter that makes no
    sense, ServerError when a server cannot be had, ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1), parallel=(parallel, 1))
    schedule, settings = Rounds(rounds, warmup, seed), load_settings()
    bigquery = [settings.bigquery_project, settings.bigquery_dataset, settings.bigquery_endpoint]
    terms = {"rows": rows, "parallel": parallel, "bigquery": bigquery, **vars(schedule)}
    with (
        recording(WAREHOUSE.notebook, WAREHOUSE.results, Result, "route", terms) as recorder,
        servers.running(settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-warehouse-") as name,
    ):
        tasks = [*itertools.product(ROUTES, WAREHOUSES)]
        recorder.expect(len(tasks) * (warmup + rounds))
        directory = Path(name) / "files"

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> Result:
            route, warehouse = task
            who = route.name, route.label, route.origin, warehouse.name
            return Result(recorder.run_id, *who, rows, number, **columns_of(ended))

        record, finished = recorder.passes(row)

        def work(stop: threading.Event) -> None:
            tables = PostgresTables(both.postgres)
            try:
                move = Move(both, settings, parallel, rows, fill(tables, rows, seed), directory)
                in_rounds(
                    tasks, schedule, move.along, record, stop=stop, finished=finished, home=directory,
                    progress=lambda task, _: recorder.progress(f"{task[0].name} to {task[1].name}"),
                )  # fmt: skip
            finally:
                tables.drop(SOURCE)

        interruptible(work)
        what = f"{rows:,} rows, {rounds} rounds, {parallel} at once"
        recorder.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    return Transfer.load(settings)


def fill(tables: PostgresTables, rows: int, seed: int) -> int:
    """Make the table of buildings on PostgreSQL, and give the fingerprint of what is in it."""
    tables.create(SOURCE)
    total = 0
    for part in itertools.batched(buildings.batches(rows, seed), FILL_BATCHES, strict=False):
        content = pa.Table.from_batches(part)
        tables.load(SOURCE, content)
        total += fingerprint(content)
    return total % 2**64


def fingerprint(content: pa.Table) -> int:
    """As `equality.content_fingerprint`, of buildings."""
    frame = pl.from_arrow(content.select(buildings.SCHEMA.names).cast(buildings.SCHEMA))
    assert isinstance(frame, pl.DataFrame)
    return content_fingerprint(frame)


@dataclass(frozen=True)
class Move:
    """The servers, the table that is there, and what must be in a warehouse at the end."""

    both: Servers
    settings: Settings
    parallel: int
    rows: int
    expected: int
    """The fingerprint of the table."""
    directory: Path
    """Where files are while a pass lasts."""

    def along(self, task: Task, _: int) -> dict[str, Any]:
        """Make the files, load them into an empty table, and compare every row with what was made.

        Raises UnavailableError where the warehouse or the route cannot be had, WrongResultError for other rows.
        """
        route, warehouse = task
        self.directory.mkdir()
        try:
            with warehouse.opened(self.both, self.settings) as target:
                start = time.perf_counter()
                route.function(self.both, SOURCE, self.directory, self.parallel)
                made = time.perf_counter()
                files = sorted(self.directory.iterdir())
                target.load(files, self.parallel)
                loaded = time.perf_counter()
                content = target.content()
            values = {
                "files": len(files), "file_bytes": sum(file.stat().st_size for file in files),
                "files_s": made - start, "load_s": loaded - made, "seconds": loaded - start,
                "rows_per_s": self.rows / (loaded - start),
            }  # fmt: skip
        finally:
            shutil.rmtree(self.directory)
        if content.num_rows != self.rows:
            return right(values, f"{content.num_rows} rows arrived instead of {self.rows}")
        same = fingerprint(content) == self.expected
        return right(values, None if same else "other values arrived than were sent")


def show_routes(*names: str) -> Code:
    """The code of these routes as it stands in the library."""
    known = {route.name: inspect.getsource(route.function) for route in ROUTES}
    return Code("\n\n".join(known[name] for name in names), language="python")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per route and warehouse, as `statistics.medians` makes it; fastest first."""
    medians = statistics.medians(passes, ["warehouse", "route", "label", "origin", "rows"])
    place = {name: at for at, name in enumerate(LABELS)}
    return medians.sort(pl.col("warehouse").replace_strict(place), "seconds", nulls_last=True, maintain_order=True)


def ratio(passes: pl.DataFrame, warehouse: str, route: str) -> Ratio:
    """Rows/s of a route over those of compressed CSV into the same warehouse."""
    here = passes.filter(warehouse=warehouse)
    return ratios.ratio(here.filter(route=route), here.filter(route=BASE))


def routes_table(passes: pl.DataFrame) -> Listing:
    """Every route into every warehouse, fastest first; without warehouses into which nothing was loaded."""
    routes = summary(passes)
    loaded = (pl.col("status") != "skipped").any().over("warehouse")
    columns = [
        words("warehouse", "warehouse", LABELS.__getitem__),
        words("route", "label"),
        Column("seconds", "seconds", "{:.2f}"),
        Column("files, s", "files_s", "{:.2f}"),
        Column("load, s", "load_s", "{:.2f}"),
        Column("rows/s", "rows_per_s", thousands),
        Column("over CSV with gzip", lambda row: ratio(passes, row["warehouse"], row["route"])),
        Column("MB of files", lambda row: row["file_bytes"] / 1e6, "{:.1f}"),
    ]
    return Listing(columns, routes.filter(loaded))


def answer(passes: pl.DataFrame) -> Listing:
    """The fastest route into each warehouse."""
    ran = summary(passes).filter(status="ok")
    over = Column("rows/s over those of compressed CSV", lambda row: ratio(passes, row["warehouse"], row["route"]))
    return fastest_of_each({label: ran.filter(warehouse=name) for name, label in LABELS.items()}, over)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes = store.read(directory / WAREHOUSE.results, Result)
    return {"warehouse": str(routes_table(passes))}


def stages_figure(passes: pl.DataFrame) -> Figure:
    """Both stages of every route, a panel for each warehouse."""
    routes = summary(passes)
    loaded = [name for name in LABELS if routes.filter(warehouse=name, status="ok").height]
    with charts.panels(max(1, len(loaded)), height=0.8 + 2.6 * max(1, len(loaded))) as (figure, panels):
        for axes, warehouse in zip(panels, loaded, strict=False):
            rows = routes.filter(warehouse=warehouse).to_dicts()
            for at, row in enumerate(rows):
                if row["seconds"] is None:
                    charts.note(axes, 0, at, row["status"], charts.STATUS_INK[row["status"]], 8)
                    continue
                axes.barh(at, row["files_s"], color=STAGE_COLOURS["files"], height=0.7)
                axes.barh(at, row["load_s"], left=row["files_s"], color=STAGE_COLOURS["load"], height=0.7)
                text = speed_text(row, "seconds", "{:.2f} s".format)
                charts.note(axes, row["files_s"] + row["load_s"], at, text or "", size=8)
            charts.name_lines(axes, [row["label"] for row in rows], [row["origin"] for row in rows])
            axes.margins(x=0.12)
            charts.title(axes, f"PostgreSQL to {LABELS[warehouse]}")
        stages = zip(("table to files", "files into the warehouse"), STAGE_COLOURS.values(), strict=True)
        charts.legend(figure, dict(stages), loc="outside lower right", ncols=2)
        charts.footnote(figure, "seconds: bars are the medians of each stage, numbers that of the whole, which may "
                        "differ from their sum\n±: passes vary by more than 10%; names in grey: published")  # fmt: skip
    return figure


class Transfer(Shown):
    """The passes of a run, ready to be shown."""

    study = WAREHOUSE
    answer = view(answer)
    table = view(routes_table)
    chart = chart(stages_figure)
    missing = view(lambda passes: tables.missing(summary(passes), "route", "warehouse"))
