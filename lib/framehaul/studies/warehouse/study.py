"""From a PostgreSQL table through files into a warehouse: every route into every warehouse, stage by stage."""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
import pyarrow as pa
from IPython.display import SVG, Markdown
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from framehaul import servers
from framehaul.data.equality import content_fingerprint
from framehaul.harness.environment import server_versions
from framehaul.harness.meter import Meter
from framehaul.harness.recording import recording
from framehaul.harness.rounds import check, in_rounds, interruptible, outcome_of
from framehaul.reporting import charts
from framehaul.reporting.tables import markdown_table, ratio_text, thousands
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import store
from framehaul.results.statistics import medians
from framehaul.results.statistics import ratio as ratio_of
from framehaul.results.store import Status
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

https://tech.marksblogg.com/faster-postgresql-to-bigquery.html
"""
FILL_BATCHES = 16
STAGE_COLOURS = {"files": "#0072B2", "load": "#E69F00"}


@dataclass(frozen=True)
class Usage:
    """What a stage took; None where this system cannot tell."""

    seconds: float
    client_cpu_s: float
    server_cpu_s: float | None
    peak_rss_bytes: int | None


@dataclass(frozen=True)
class Pass:
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


class Transfer:
    """The passes of a run, ready to be shown."""

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self._metadata, self._figures = metadata, figures

    def table(self) -> Markdown:
        """Every route into every warehouse, fastest first."""
        return Markdown(routes_table(self.passes))

    def chart(self) -> SVG:
        """Both stages of every route, a panel for each warehouse; also saved as a figure."""
        return SVG(charts.save(_figure(self.passes), self._figures / f"{STUDY.name}.svg"))

    def cost(self) -> Markdown:
        """CPU and memory of each stage, and what lay on the disk in between."""
        return Markdown(cost_table(self.passes))

    def published(self) -> Markdown:
        """Parquet through ClickHouse over compressed CSV: published and measured."""
        return Markdown(published_table(self.passes))

    def findings(self) -> Markdown:
        """Which route is fastest into which warehouse, and which stage it waits for."""
        return Markdown(findings_text(self.passes))

    def missing(self) -> Markdown:
        """What did not run, and what would make it run."""
        return Markdown(missing_table(self.passes))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))


def run(*, rows: int, passes: int, warmup: int, seed: int, parallel: int) -> Transfer:
    """Take the table along every route into every warehouse and write `results/warehouse.csv`.

    `parallel` is how many files, connections or loads may run at once. Raises ValueError for a parameter that makes no
    sense, ServerError when a server cannot be had, ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1), PASSES=(passes, 1), WARMUP=(warmup, 0), parallel=(parallel, 1))
    with (
        recording(STUDY.notebook, STUDY.results, Pass, "route") as made,
        servers.running(made.settings) as both,
    ):
        made.expect(len(ROUTES) * (warmup + passes))

        def work(stop: threading.Event) -> None:
            expected = fill(PostgresTables(both.postgres), rows, seed)
            moves = _Moves(both, made.settings, parallel, rows, expected)
            try:
                for number, route in in_rounds(ROUTES, warmup=warmup, passes=passes, seed=seed, stop=stop):
                    made.progress(route.name)
                    for warehouse, found in moves.along(route):
                        if number > 0:
                            named = (made.run_id, route.name, route.label, route.origin, warehouse.name, rows, number)
                            made.write(Pass(*named, **found))
            finally:
                PostgresTables(both.postgres).drop(SOURCE)

        interruptible(work)
        what = f"{rows:,} rows, {passes} passes, {parallel} at once"
        made.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    return load()


def load() -> Transfer:
    """The results of the last complete run, without any server; raises ResultsError when there is none."""
    settings = load_settings()
    directory = settings.out / "results"
    passes = store.read(directory / STUDY.results, Pass)
    return Transfer(passes, store.read_metadata(directory), settings.out / "figures")


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


class _Moves:
    """Takes the table along routes, and knows what must be in a warehouse at the end."""

    def __init__(self, both: Servers, settings: Settings, parallel: int, rows: int, expected: int) -> None:
        self._both, self._settings, self._parallel = both, settings, parallel
        self._rows, self._expected = rows, expected
        self._postgres, self._clickhouse = Meter(both.postgres.process_id), Meter(both.clickhouse.process_id)

    def along(self, route: Route) -> Iterable[tuple[Warehouse, dict[str, Any]]]:
        """Make the files once, and load them into each warehouse; gives the fields of a pass for each."""
        with tempfile.TemporaryDirectory(prefix="framehaul-warehouse-") as name:
            directory = Path(name)
            made = self._tried(directory, lambda: self._files(route, directory))
            for warehouse in WAREHOUSES:
                yield warehouse, self._loaded(warehouse, directory, made) if made["status"] == "ok" else made

    def _files(self, route: Route, directory: Path) -> dict[str, Any]:
        usage = self._measured(lambda: route.function(self._both, SOURCE, directory, self._parallel))
        files = list(directory.iterdir())
        return {
            "files": len(files), "file_bytes": sum(file.stat().st_size for file in files), "files_s": usage.seconds,
            "files_client_cpu_s": usage.client_cpu_s, "files_server_cpu_s": usage.server_cpu_s,
            "files_peak_rss_bytes": usage.peak_rss_bytes,
        }  # fmt: skip

    def _loaded(self, warehouse: Warehouse, directory: Path, made: dict[str, Any]) -> dict[str, Any]:
        files = sorted(directory.iterdir())

        def work() -> dict[str, Any]:
            with warehouse.opened(self._both, self._settings) as target:
                usage = self._measured(lambda: target.load(files, self._parallel))
                wrong = self._wrong(target.count(), target.content)
            if wrong:
                return {"status": "failed", "reason": wrong}
            seconds = made["files_s"] + usage.seconds
            return made | {
                "load_s": usage.seconds, "seconds": seconds, "rows_per_s": self._rows / seconds,
                "load_client_cpu_s": usage.client_cpu_s, "load_server_cpu_s": usage.server_cpu_s,
                "load_peak_rss_bytes": usage.peak_rss_bytes,
            }  # fmt: skip

        return self._tried(directory, work)

    def _wrong(self, count: int, content: Callable[[], pa.Table]) -> str | None:
        if count != self._rows:
            return f"{count} rows arrived instead of {self._rows}"
        return None if fingerprint(content()) == self._expected else "other values arrived than were sent"

    def _tried(self, directory: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return {"status": "ok"} | work()
        except Exception as error:  # noqa: BLE001  whatever a route raises is its result, not the run's end
            return outcome_of(error, directory)

    def _measured(self, work: Callable[[], object]) -> Usage:
        self._postgres.start()
        self._clickhouse.start()
        begun = time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        one, other = self._clickhouse.stop(), self._postgres.stop()
        known = [usage.server_cpu_s for usage in (one, other) if usage.server_cpu_s is not None]
        return Usage(seconds, one.client_cpu_s, sum(known) if known else None, one.peak_rss_bytes)


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per route and warehouse, as `statistics.medians` makes it; fastest first."""
    found = medians(passes, ["warehouse", "route", "label", "origin", "rows"])
    place = {warehouse.name: at for at, warehouse in enumerate(WAREHOUSES)}
    return found.sort(pl.col("warehouse").replace_strict(place), "seconds", nulls_last=True, maintain_order=True)


def ratio(passes: pl.DataFrame, warehouse: str, route: str, base: str = BASE) -> dict[str, float]:
    """Rows/s of a route over another's into the same warehouse."""
    here = passes.filter(warehouse=warehouse)
    return ratio_of(here.filter(route=route), here.filter(route=base))


def routes_table(passes: pl.DataFrame) -> str:
    """Every route into every warehouse, fastest first, as Markdown."""
    found = summary(passes)
    absent = _absent(found)
    rows = [[_label(name), "all routes", "skipped", *[""] * 6] for name in absent]
    for row in reversed(found.filter(~pl.col("warehouse").is_in(absent)).to_dicts()):
        head = [_label(row["warehouse"]), row["label"]]
        if row["seconds"] is None:
            rows.append([*head, row["status"], *[""] * 6])
            continue
        mark = " ±" if row["unstable"] else ""
        rows.append(
            [
                *head, f"{row['seconds']:.2f}{mark}", f"{row['files_s']:.2f}", f"{row['load_s']:.2f}",
                thousands(row["rows_per_s"]), ratio_text(ratio(passes, row["warehouse"], row["route"])),
                f"{row['file_bytes'] / 1e6:.1f}", f"{row['file_bytes'] / row['rows']:.0f}",
            ]
        )  # fmt: skip
    rows.reverse()
    header = ["warehouse", "route", "seconds", "of them for the files", "for the load", "rows/s",
              "over CSV with gzip (95% interval)", "MB of files", "bytes per row"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def _absent(found: pl.DataFrame, routes: int = 1) -> list[str]:
    """The warehouses into which nothing was loaded, of so many routes at least."""
    counts = found.group_by("warehouse", maintain_order=True).agg(
        (pl.col("status") == "skipped").all().alias("none"), pl.len().alias("routes")
    )
    return counts.filter(pl.col("none"), pl.col("routes") >= routes)["warehouse"].to_list()


def cost_table(passes: pl.DataFrame) -> str:
    """CPU and memory of the stages, as Markdown."""
    rows = [
        [
            _label(row["warehouse"]), row["label"], f"{row['files']:.0f}",
            *(_figure_text(row[f"{stage}_{name}_s"]) for stage in STAGE_COLOURS
              for name in ("client_cpu", "server_cpu")),
            *("" if row[f"{stage}_peak_rss_bytes"] is None else f"{row[f'{stage}_peak_rss_bytes'] / 1e6:.0f} MB"
              for stage in STAGE_COLOURS),
        ]
        for row in summary(passes).filter(status="ok").to_dicts()
    ]  # fmt: skip
    header = ["warehouse", "route", "files", "files: client CPU s", "servers' CPU s", "load: client CPU s",
              "servers' CPU s", "files: peak RSS growth", "load: peak RSS growth"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def published_table(passes: pl.DataFrame) -> str:
    """Parquet through ClickHouse over compressed CSV, published and into each warehouse here, as Markdown."""
    parquet = next(name for name in PUBLISHED if name != BASE)
    rows = [["BigQuery, published in 2023", f"{PUBLISHED[BASE] / PUBLISHED[parquet]:.2f}x"]]
    rows += [
        [f"{_label(warehouse.name)}, here", ratio_text(ratio(passes, warehouse.name, parquet)) or "not measured"]
        for warehouse in WAREHOUSES
    ]
    header = ["warehouse", "Parquet (ClickHouse, with a copy) over CSV with gzip, rows/s (95% interval)"]
    return markdown_table(header, rows)


def findings_text(passes: pl.DataFrame) -> str:
    """One line per warehouse that was loaded: its fastest route, and where the time goes."""
    lines = []
    for (warehouse,), group in summary(passes).filter(status="ok").group_by("warehouse", maintain_order=True):
        best = group.row(0, named=True)
        stage, share = max(
            (("making the files", best["files_s"]), ("loading them", best["load_s"])), key=lambda pair: pair[1]
        )
        lines.append(
            f"- **{_label(str(warehouse))}**: fastest is {best['label']}, "
            f"{ratio_text(ratio(passes, str(warehouse), best['route']))} the rows/s of compressed CSV; "
            f"{share / best['seconds']:.0%} of its time goes into {stage}."
        )
    return "\n".join(lines)


def missing_table(passes: pl.DataFrame) -> str:
    """What was skipped or failed, with the reason, as Markdown; a sentence when there is nothing."""
    bad = summary(passes).filter(pl.col("status") != "ok")
    if bad.is_empty():
        return "Everything ran."
    rows = []
    for (reason, status), group in bad.group_by("reason", "status", maintain_order=True):
        whole = [f"all routes into {_label(name)}" for name in _absent(group, len(ROUTES))]
        others = group.filter(~pl.col("warehouse").is_in(_absent(group, len(ROUTES))))
        places = [*whole, *(f"{row['label']} into {_label(row['warehouse'])}" for row in others.to_dicts())]
        rows.append([", ".join(places), str(status), str(reason)])
    return markdown_table(["route", "", "reason"], rows, text_columns=3)


def readme_blocks(directory: Path) -> dict[str, str]:
    """The tables that the README shows, from a results directory; raises ResultsError when the study was not run."""
    passes = store.read(directory / STUDY.results, Pass)
    return {"warehouse": routes_table(passes), "warehouse-published": published_table(passes)}


def _figure(passes: pl.DataFrame) -> Figure:
    found = summary(passes)
    shown = [warehouse for warehouse in WAREHOUSES if found.filter(warehouse=warehouse.name, status="ok").height]
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(10.5, 0.8 + 2.6 * max(1, len(shown))), layout="constrained")
        for axes, warehouse in zip(figure.subplots(max(1, len(shown)), squeeze=False)[:, 0], shown, strict=False):
            rows = found.filter(warehouse=warehouse.name).to_dicts()
            for y, row in enumerate(rows):
                if row["seconds"] is None:
                    axes.text(
                        0, y, f" {row['status']}", va="center", color=charts.STATUS_INK[row["status"]], fontsize=8
                    )
                    continue
                axes.barh(y, row["files_s"], color=STAGE_COLOURS["files"], height=0.7)
                axes.barh(y, row["load_s"], left=row["files_s"], color=STAGE_COLOURS["load"], height=0.7)
                mark = " ±" if row["unstable"] else ""
                axes.annotate(f"{row['seconds']:.2f} s{mark}", (row["files_s"] + row["load_s"], y), xytext=(4, 0),
                              textcoords="offset points", va="center", fontsize=8)  # fmt: skip
            axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
            for label, row in zip(axes.get_yticklabels(), rows, strict=True):
                label.set_color(charts.PUBLISHED_INK if row["origin"] == "published" else charts.INK)
            axes.invert_yaxis()
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.12)
            axes.set_title(f"PostgreSQL to {warehouse.label}", loc="left", fontweight="bold")
        stages = zip(("table to files", "files into the warehouse"), STAGE_COLOURS.values(), strict=True)
        patches = [Patch(color=colour, label=name) for name, colour in stages]
        figure.legend(handles=patches, loc="outside lower right", ncols=2, frameon=False)
        figure.supxlabel("seconds, medians of passes (±: they vary by more than 10%); names in grey: published",
                         fontsize=8, x=0.01, ha="left")  # fmt: skip
    return figure


def _label(warehouse: str) -> str:
    return next(known.label for known in WAREHOUSES if known.name == warehouse)


def _figure_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
