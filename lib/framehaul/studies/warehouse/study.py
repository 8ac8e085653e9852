"""From a PostgreSQL table through files into a warehouse: every route into every warehouse, stage by stage."""

from __future__ import annotations

import inspect
import itertools
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from IPython.display import Code
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import ratios, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.meter import Meter
from framehaul.bench.passes import Ok, Pass, attempt, columns_of, right
from framehaul.bench.ratios import Ratio
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.data.equality import content_fingerprint
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, fastest_of_each, speed_text, thousands, words
from framehaul.servers import Servers
from framehaul.servers.tables import PostgresTables
from framehaul.settings import Settings, load_settings
from framehaul.studies.warehouse import STUDY, buildings
from framehaul.studies.warehouse.routes import ROUTES, SOURCE, Route
from framehaul.studies.warehouse.warehouses import WAREHOUSES, Warehouse

BASE = "csv_gzip"
"""The route that ratios are over: what the article did before."""
PUBLISHED = {"csv_gzip": 18 * 60 + 11, "clickhouse_local_copy": 14 * 60 + 31}
"""Seconds from PostgreSQL to BigQuery: 130,099,920 buildings, 32 cores, BigQuery in the same region, 2023.

https://tech.marksblogg.com/postgresql-to-bigquery.html
"""
FILL_BATCHES = 16
STAGE_COLOURS = {"files": "#0072B2", "load": "#E69F00"}
LABELS = {warehouse.name: warehouse.label for warehouse in WAREHOUSES}

type Columns = dict[str, Any]
"""Measured columns of a pass."""


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
    files_client_cpu_s: float | None = None
    files_server_cpu_s: float | None = None
    files_peak_rss_bytes: int | None = None
    load_client_cpu_s: float | None = None
    load_server_cpu_s: float | None = None
    load_peak_rss_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None


def run(*, rows: int, passes: int, warmup: int, seed: int, parallel: int) -> Transfer:
    """Take the table along every route into every warehouse and write `results/warehouse.csv`.

    `parallel` is how many files, connections or loads may run at once. Raises ValueError for a parameter that makes no
    sense, ServerError when a server cannot be had, ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1), parallel=(parallel, 1))
    rounds, settings = Rounds(passes, warmup, seed), load_settings()
    bigquery = [settings.bigquery_project, settings.bigquery_dataset, settings.bigquery_endpoint]
    terms = {"rows": rows, "parallel": parallel, "bigquery": bigquery, **vars(rounds)}
    with (
        recording(STUDY.notebook, STUDY.results, Result, "route", terms) as recorder,
        servers.running(settings) as both,
    ):
        recorder.expect(len(ROUTES) * (warmup + passes))
        record, finished = _into_each(recorder, rows)

        def work(stop: threading.Event) -> None:
            tables = PostgresTables(both.postgres)
            try:
                moves = Moves(both, settings, parallel, rows, fill(tables, rows, seed))
                in_rounds(
                    ROUTES, rounds, moves.along, record,
                    stop=stop, progress=lambda route, _: recorder.progress(route.name), finished=finished,
                )  # fmt: skip
            finally:
                tables.drop(SOURCE)

        interruptible(work)
        what = f"{rows:,} rows, {passes} passes, {parallel} at once"
        recorder.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    return Transfer.load(settings)


type Loads = dict[str, Pass[Columns]]
"""How a pass of a route ended in each warehouse, by its name."""


def _into_each(
    recorder: Recording, rows: int
) -> tuple[Callable[[Route, int, Pass[Loads]], None], Callable[[Route, int], bool]]:
    """`record` and `finished` of `in_rounds`, for passes of a route that are a row for each warehouse."""

    def row(way: tuple[Route, str], number: int, outcome: Pass[Columns]) -> Result:
        route, warehouse = way
        return Result(
            recorder.run_id, route.name, route.label, route.origin, warehouse, rows, number, **columns_of(outcome)
        )

    write, written = recorder.passes(row)

    def record(route: Route, number: int, outcome: Pass[Loads]) -> None:
        for warehouse in LABELS:
            if not written((route, warehouse), number):
                write((route, warehouse), number, outcome.values[warehouse] if isinstance(outcome, Ok) else outcome)

    return record, lambda route, number: all(written((route, warehouse), number) for warehouse in LABELS)


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


class Moves:
    """Takes the table along routes, and knows what must be in a warehouse at the end."""

    def __init__(self, both: Servers, settings: Settings, parallel: int, rows: int, expected: int) -> None:
        self._both, self._settings, self._parallel = both, settings, parallel
        self._rows, self._expected = rows, expected
        self._meter = Meter(both.postgres.process_id, both.clickhouse.process_id)
        self._peak_rss_bytes: dict[tuple[str, str], int | None] = {}

    def along(self, route: Route, number: int) -> Loads:
        """Make the files once, and load them into each warehouse; the warm-up measures memory for those that follow."""
        with tempfile.TemporaryDirectory(prefix="framehaul-warehouse-") as name:
            directory = Path(name)
            files = attempt(partial(self._files, route, number, directory), directory)
            if not isinstance(files, Ok):
                return dict.fromkeys(LABELS, files)
            load = partial(self._loaded, route, number, directory, files.values)
            return {warehouse.name: attempt(partial(load, warehouse), directory) for warehouse in WAREHOUSES}

    def _files(self, route: Route, number: int, directory: Path) -> Columns:
        taken = self._measured(
            "files", (route.name, ""), number,
            lambda: route.function(self._both, SOURCE, directory, self._parallel),
        )  # fmt: skip
        sizes = [file.stat().st_size for file in directory.iterdir()]
        return taken | {"files": len(sizes), "file_bytes": sum(sizes)}

    def _loaded(
        self, route: Route, number: int, directory: Path, files: Columns, warehouse: Warehouse
    ) -> Columns:  # fmt: skip
        with warehouse.opened(self._both, self._settings) as target:
            taken = self._measured(
                "load", (route.name, warehouse.name), number,
                lambda: target.load(sorted(directory.iterdir()), self._parallel),
            )  # fmt: skip
            wrong = self._wrong(target.content())
        seconds = files["files_s"] + taken["load_s"]
        return right(files | taken | {"seconds": seconds, "rows_per_s": self._rows / seconds}, wrong)

    def _wrong(self, content: pa.Table) -> str | None:
        if content.num_rows != self._rows:
            return f"{content.num_rows} rows arrived instead of {self._rows}"
        return None if fingerprint(content) == self._expected else "other values arrived than were sent"

    def _measured(self, stage: str, way: tuple[str, str], number: int, work: Callable[[], object]) -> Columns:
        """What a stage takes; None where this system cannot tell, and for memory without a warm-up."""
        self._meter.start(memory=number < 1)
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
        used = self._meter.stop()
        if number < 1:
            self._peak_rss_bytes[way] = used.peak_rss_bytes
        return {
            f"{stage}_s": seconds, f"{stage}_client_cpu_s": used.client_cpu_s,
            f"{stage}_server_cpu_s": used.server_cpu_s, f"{stage}_peak_rss_bytes": self._peak_rss_bytes.get(way),
        }  # fmt: skip


def show_routes(*names: str) -> Code:
    """The code of these routes as it stands in the library."""
    known = {route.name: inspect.getsource(route.function) for route in ROUTES}
    return Code("\n\n".join(known[name] for name in names), language="python")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per route and warehouse, as `statistics.medians` makes it; fastest first."""
    medians = statistics.medians(passes, ["warehouse", "route", "label", "origin", "rows"])
    place = {name: at for at, name in enumerate(LABELS)}
    return medians.sort(pl.col("warehouse").replace_strict(place), "seconds", nulls_last=True, maintain_order=True)


def ratio(passes: pl.DataFrame, warehouse: str, route: str, base: str = BASE) -> Ratio:
    """Rows/s of a route over another's into the same warehouse."""
    here = passes.filter(warehouse=warehouse)
    return ratios.ratio(here.filter(route=route), here.filter(route=base))


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


def published_table(passes: pl.DataFrame) -> Listing:
    """Parquet through ClickHouse over compressed CSV: published, and into each warehouse here."""
    parquet = next(name for name in PUBLISHED if name != BASE)
    ratios: dict[str, Any] = {"BigQuery, published in 2023": f"{PUBLISHED[BASE] / PUBLISHED[parquet]:.2f}x"}
    ratios |= {f"{label}, here": ratio(passes, name, parquet) for name, label in LABELS.items()}
    columns = [
        words("warehouse", "warehouse"),
        Column(
            "Parquet (ClickHouse, with a copy) over CSV with gzip, rows/s", "ratio",
            lambda value: str(value) or "not measured",
        ),
    ]  # fmt: skip
    return Listing(columns, [{"warehouse": name, "ratio": value} for name, value in ratios.items()])


def answer(passes: pl.DataFrame) -> Listing:
    """The fastest route into each warehouse."""
    ran = summary(passes).filter(status="ok")
    over = Column("rows/s over those of compressed CSV", lambda row: ratio(passes, row["warehouse"], row["route"]))
    return fastest_of_each({label: ran.filter(warehouse=name) for name, label in LABELS.items()}, over)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes = store.read(directory / STUDY.results, Result)
    return {"warehouse": str(routes_table(passes)), "warehouse-published": str(published_table(passes))}


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

    study = STUDY
    answer = view(answer)
    table = view(routes_table)
    chart = chart(stages_figure)
    published = view(published_table)
    missing = view(lambda passes: tables.missing(summary(passes), "route", "warehouse"))
