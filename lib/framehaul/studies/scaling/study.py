"""Cost against rows: the best published and the best other technique of each direction, and streaming moves."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from IPython.display import SVG, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from framehaul import servers
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.harness import measure
from framehaul.harness.measure import Outcome
from framehaul.harness.meter import Usage
from framehaul.harness.recording import keep_metadata, made, result
from framehaul.harness.rounds import interruptible
from framehaul.harness.verify import Expected
from framehaul.reporting import charts
from framehaul.reporting.tables import markdown_table, thousands
from framehaul.reporting.versions import versions_text
from framehaul.results import committed, store
from framehaul.results.statistics import never_wrong
from framehaul.results.store import EXACT
from framehaul.servers import Servers
from framehaul.servers.tables import Tables, tables_of
from framehaul.settings import load_settings
from framehaul.studies.scaling import STUDY
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction
from framehaul.techniques.streaming import MOVES

SMALLEST_ROWS = 10_000
STEPS = (1, 3)
"""Sizes within a power of ten."""

COMPARED = {
    ("postgres", "write"): ("polars_asyncpg_copy_binary", "polars_pgpq_key_last"),
    ("postgres", "read"): ("polars_psycopg_copy_text", "polars_asyncpg_copy_decoded_two_connections"),
    ("clickhouse", "write"): ("polars_httpx_parquet", "polars_http_client_arrow_two_connections"),
    ("clickhouse", "read"): ("polars_urllib_csv", "polars_http_client_native_decoded"),
}
"""For each direction, the best published technique and the best other one of the reference runs."""
PANELS = {
    "rows_per_s": "rows/s",
    "peak_rss_bytes": "peak RSS growth, bytes",
    "client_cpu_s": "client CPU, s",
    "server_cpu_s": "server CPU, s",
    "wire_bytes": "bytes on the wire",
}


def sizes(largest: int) -> list[int]:
    """Numbers of rows up to `largest`, from ten thousand, or from a tenth of it when that is less, in half decades."""
    size = min(SMALLEST_ROWS, max(1, largest // 10))
    found = []
    while size < largest:
        found += [size * step for step in STEPS if size * step < largest]
        size *= 10
    return [*found, largest]


class Scaling:
    """The results of a run over sizes, ready to be shown."""

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self._metadata, self._figures = metadata, figures

    def chart(self, database: str, direction: str) -> SVG:
        """Cost against rows of one direction, on logarithmic axes; also saved as a figure."""
        figure = _figure(self._medians(), database, direction)
        return SVG(charts.save(figure, self._figures / f"{STUDY.name}_{database}_{direction}.svg"))

    def streams(self) -> Markdown:
        """Streamed against whole: time, memory, and how the memory grows."""
        return Markdown(streams_table(self._medians()))

    def growth(self) -> Markdown:
        """How the speed of each technique changes from the smallest to the largest size."""
        return Markdown(growth_table(self._medians()))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(versions_text(self._metadata, STUDY.notebook))

    def _medians(self) -> pl.DataFrame:
        return medians(self.passes)


def run(*, rows: int, passes: int, warmup: int, seed: int, table: Table = ANALYTICS_METRICS) -> Scaling:
    """Measure the compared techniques at every size up to `rows`, and the moves at a tenth of it and at all of it.

    Sizes up to a tenth have a warm-up even where none is asked for: there loops are compiled and bytes counted, and
    beside the largest size it costs little.

    Raises what `transfers.study.run` raises.
    """
    parameters = measure.Parameters(rows, passes, warmup, seed)
    settings = load_settings()
    run_id, started = store.new_run_id(), dt.datetime.now(dt.UTC)
    steps, stream_sizes = sizes(rows), sorted({max(1, rows // 10), rows})
    with (
        servers.running(settings) as both,
        store.Writer(settings.out / "results" / STUDY.results) as writer,
        tqdm(
            total=len(steps) * len(COMPARED) + len(stream_sizes) * len(MOVES) * passes, file=sys.stdout, ncols=100
        ) as bar,
    ):

        def record(size: int, technique: Technique, number: int, outcome: Outcome, wire_bytes: int | None) -> None:
            writer.write(result(run_id, STUDY.notebook, technique, size, number, outcome, wire_bytes))

        def work(stop: Any) -> None:
            for size in steps:
                for (database, direction), names in COMPARED.items():
                    known = {found.name: found for found in techniques(cast("Database", database),
                                                                       cast("Direction", direction))}  # fmt: skip
                    measure.run(
                        [known[name] for name in names], both.of(database), table,
                        measure.Parameters(size, passes, max(warmup, int(size * 10 <= rows)), seed),
                        lambda *found, size=size: record(size, *found), stop=stop,
                    )  # fmt: skip
                    bar.update()
            for size in stream_sizes:
                content = generator.arrow_table(table, size, seed)
                for move, number, outcome in _moves(both, table, content, passes):
                    if stop.is_set():
                        raise KeyboardInterrupt
                    record(size, move, number, outcome, None)
                    bar.update()

        interruptible(work)
        server_metadata = {"version": "; ".join(
            tables_of(both.of(database)).metadata()["version"] for database in ("postgres", "clickhouse")
        ), "settings": {}}  # fmt: skip
    metadata = keep_metadata(settings, STUDY.notebook, made(run_id, started, parameters, both.mode, server_metadata))
    return load(metadata)


def load(metadata: dict[str, Any] | None = None) -> Scaling:
    """The results of the last complete run, without any server."""
    settings = load_settings()
    directory = settings.out / "results"
    passes = store.read(directory / STUDY.results)
    return Scaling(passes, metadata or store.read_metadata(directory), settings.out / "figures")


def medians(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per technique and size, in ascending size, with the medians over passes."""
    who = ["database", "direction", "technique", "label", "origin", "rows"]
    return (
        never_wrong(passes, who)
        .group_by(who, maintain_order=True)
        .agg(pl.col(*PANELS, "seconds").median(), pl.col("rows_per_s").min().alias("min_rows_per_s"),
             pl.col("rows_per_s").max().alias("max_rows_per_s"))
        .sort("rows", maintain_order=True)
    )  # fmt: skip


def streams_table(found: pl.DataFrame) -> str:
    """Streamed and whole moves side by side, as Markdown."""
    rows = []
    for streamed, whole in zip(MOVES[::2], MOVES[1::2], strict=True):
        pair = found.filter(technique=streamed.name).join(
            found.filter(technique=whole.name), on="rows", suffix="_whole"
        )
        rows += [
            [
                f"{DATABASES[row['database']]} {row['direction']}, {row['rows']:,} rows",
                thousands(row["rows_per_s"]),
                thousands(row["rows_per_s_whole"]),
                f"{row['rows_per_s'] / row['rows_per_s_whole']:.2f}x",
                _megabytes(row["peak_rss_bytes"]),
                _megabytes(row["peak_rss_bytes_whole"]),
            ]
            for row in pair.to_dicts()
        ]
    header = ["move", "streamed, rows/s", "whole, rows/s", "streamed over whole", "streamed, peak RSS growth",
              "whole, peak RSS growth"]  # fmt: skip
    return markdown_table(header, rows)


def growth_table(found: pl.DataFrame) -> str:
    """Speed at the smallest and the largest size, as Markdown."""
    rows = []
    for (database, direction), names in COMPARED.items():
        for name in names:
            part = found.filter(database=database, direction=direction, technique=name).to_dicts()
            if part:
                first, last = part[0], part[-1]
                rows.append(
                    [
                        f"{DATABASES[database]} {direction}: {first['label']}",
                        f"{thousands(first['rows_per_s'])} at {first['rows']:,}",
                        f"{thousands(last['rows_per_s'])} at {last['rows']:,}",
                        f"{last['rows_per_s'] / first['rows_per_s']:.2f}x",
                    ]
                )
    return markdown_table(["technique", "rows/s, smallest", "rows/s, largest", "largest over smallest"], rows)


def _moves(both: Servers, table: Table, content: pa.Table, passes: int) -> Iterator[tuple[Technique, int, Outcome]]:
    """The passes of every move, each verified."""
    sent, reference = Expected(table, content), table.renamed(f"{table.name}_sent")
    for (database, direction), moves in itertools.groupby(MOVES, lambda move: (move.database, move.direction)):
        tables = tables_of(both.of(database))
        with tempfile.TemporaryDirectory(prefix="framehaul-") as directory:
            file = Path(directory) / "rows.parquet"
            try:
                if direction == "write":
                    pq.write_table(content, file)
                    sent.keep_reference(tables, reference)
                else:
                    tables.create(table)
                    tables.load(table, content)
                    tables.quiesce()
                for move in moves:
                    for number, outcome in enumerate(_passes(move, table, file, sent, tables, passes), 1):
                        yield move, number, outcome
            finally:
                for ours in (table, reference):
                    tables.drop(ours)


def _passes(
    move: Technique, table: Table, file: Path, sent: Expected, tables: Tables, passes: int
) -> Iterator[Outcome]:
    """The passes of one move, in a process of its own; the first that fails is the last."""
    with _child(move.name, file) as make_pass:
        for _ in range(passes):
            if move.direction == "write":
                tables.create(table)
                tables.quiesce()
            cost = make_pass()
            if isinstance(cost, str):
                yield Outcome("failed", reason=cost)
                return
            if move.direction == "write":
                difference = sent.difference_on_server(tables)
            else:
                difference = sent.difference(to_polars(pq.read_table(file), table))
            if difference:
                yield Outcome("failed", reason=difference)
            else:
                yield Outcome("ok", cost.pop("seconds"), Usage(**cost), EXACT)


@contextmanager
def _child(name: str, file: Path) -> Iterator[Any]:
    """A process that makes passes of a move: call what this gives for a pass's cost, or for what went wrong."""
    with subprocess.Popen(
        [sys.executable, "-m", "framehaul.studies.scaling.mover", name, str(file)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        requests, answers, errors = process.stdin, process.stdout, process.stderr
        assert requests is not None
        assert answers is not None
        assert errors is not None

        def make_pass() -> dict[str, Any] | str:
            try:
                print("go", file=requests, flush=True)
                answer = answers.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                told = errors.read().strip().splitlines()
                return told[-1][:400] if told else f"the process of {name} ended"
            cost: dict[str, Any] = json.loads(answer)
            return cost

        try:
            yield make_pass
        finally:
            requests.close()


def _figure(found: pl.DataFrame, database: str, direction: str) -> Figure:
    names = COMPARED[(database, direction)]
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(10.5, 3.1), layout="constrained")
        panels = figure.subplots(1, len(PANELS))
        for axes, (column, title) in zip(panels, PANELS.items(), strict=True):
            for name, colour in zip(names, ("#999999", "#0072B2"), strict=True):
                part = found.filter(database=database, direction=direction, technique=name).drop_nulls(column)
                _line(axes, part, column, colour)
            axes.set_title(title, loc="left", fontsize=8)
            if not axes.lines:
                axes.set_axis_off()
                axes.text(0, 0.5, "not measured in this run", fontsize=8, color=charts.FAINT)
        known = dict(found.filter(database=database, direction=direction).select("technique", "label").rows())
        labels = [str(known.get(name, name)) for name in names]
        handles = [mpl.lines.Line2D([], [], color=colour, marker="o") for colour in ("#999999", "#0072B2")]
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8)
        title = f"{DATABASES[database]} {direction} against rows"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def _line(axes: Axes, part: pl.DataFrame, column: str, colour: str) -> None:
    """A quantity against rows, both logarithmic; what is 0 has no place there and is left out."""
    part = part.filter(pl.col(column) > 0)
    axes.tick_params(labelsize=7)
    if part.is_empty():
        return
    axes.plot(part["rows"].to_list(), part[column].to_list(), color=colour, marker="o", markersize=3.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.tick_params(which="both", labelsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: _tick(value))
        axis.set_minor_formatter(lambda value, _: _tick(value) if f"{value:e}"[0] in "25" else "")
    axes.xaxis.set_minor_formatter(lambda *_: "")
    axes.grid(which="major", color="#eeeeee")
    axes.set_axisbelow(True)


def _tick(value: float) -> str:
    """A number on an axis: 20k, 1.5M, 0.02."""
    return thousands(value) if value >= 1 else f"{value:g}"


def _megabytes(value: float | None) -> str:
    return "" if value is None else f"{value / 1e6:.0f} MB"


def read_streams(directory: Path) -> pl.DataFrame:
    """The passes of the streamed moves of the scaling study; no rows when it was not run."""
    path = directory / STUDY.results
    return streams_among(store.read(path)) if path.exists() else pl.DataFrame(schema=store.SCHEMA)


def streams_among(growth: pl.DataFrame) -> pl.DataFrame:
    """Of the passes of the scaling study, those of the streamed moves."""
    streamed = growth.filter(pl.col("technique").str.starts_with("stream_"))
    return never_wrong(streamed, ["technique", "rows"])


def readme_blocks(_: Path) -> dict[str, str]:
    """The block of the writeup, from the committed run that is about this."""
    return {"streams": streams_table(medians(store.read(committed.SCALING_RUN / STUDY.results)))}
