"""Cost against rows: the best published and the best other technique of each direction, and streaming moves."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import batched, groupby
from pathlib import Path
from typing import Any, cast

import polars as pl
import pyarrow.parquet as pq
from IPython.display import SVG
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import statistics, store
from framehaul.bench.children import Child, child, context, ended_with_the_block
from framehaul.bench.environment import server_versions
from framehaul.bench.measure import record_passes
from framehaul.bench.meter import Moved, Usage
from framehaul.bench.passes import right
from framehaul.bench.ratios import ratio_of_rows
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.verify import Expected
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Column, Listing, bullets, megabytes, thousands, where, words
from framehaul.servers import Servers
from framehaul.servers.tables import Tables, tables_of
from framehaul.studies.registry import SCALING
from framehaul.studies.scaling.mover import MEMORY, TIME, serve
from framehaul.techniques import Technique, techniques
from framehaul.techniques.registry import DATABASES, Database, Direction
from framehaul.techniques.streaming import MOVES, STREAMED

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
COLOURS = ("#999999", "#0072B2")
"""Of what is compared, the published technique first."""


def sizes(largest: int) -> list[int]:
    """Numbers of rows up to `largest`, from ten thousand, or from a tenth of it when that is less, in half decades."""
    size = min(SMALLEST_ROWS, max(1, largest // 10))
    smaller = []
    while size < largest:
        smaller += [size * step for step in STEPS if size * step < largest]
        size *= 10
    return [*smaller, largest]


def medians(passes: pl.DataFrame) -> pl.DataFrame:
    """Medians of each technique and size, in ascending size, without those of which a pass failed."""
    who = ["database", "direction", "technique", "label", "origin", "rows"]
    return statistics.medians(passes, who).filter(status="ok").sort("rows", maintain_order=True)


def streams_table(by_size: pl.DataFrame) -> Listing:
    """Time and memory of streamed and of whole moves, side by side."""
    pairs = [
        by_size.filter(technique=streamed.name).join(
            by_size.filter(technique=whole.name), on="rows", suffix="_whole", maintain_order="left"
        )
        for streamed, whole in batched(MOVES, 2, strict=True)
    ]
    columns = [
        words("move", lambda row: f"{where(row)}, {row['rows']:,} rows"),
        Column("streamed, rows/s", "rows_per_s", thousands),
        Column("whole, rows/s", "rows_per_s_whole", thousands),
        Column("streamed over whole", lambda row: row["rows_per_s"] / row["rows_per_s_whole"], "{:.2f}x"),
        Column("streamed, peak RSS growth", "peak_rss_bytes", megabytes),
        Column("whole, peak RSS growth", "peak_rss_bytes_whole", megabytes),
    ]
    return Listing(columns, pl.concat(pairs))


def answer_text(by_size: pl.DataFrame) -> str:
    """Bullet points: what the fastest technique gains over the best published one, at every size."""
    points = []
    for (database, direction), (published, beyond) in COMPARED.items():
        here = by_size.filter(database=database, direction=direction)
        base = {row["rows"]: row for row in here.filter(technique=published).to_dicts()}
        gains = [
            f"{ratio_of_rows(row, base[row['rows']]).ratio:.2f}x at {row['rows']:,} rows"
            for row in here.filter(technique=beyond).to_dicts()
            if row["rows"] in base
        ]
        if gains:
            points.append(f"**{DATABASES[database]} {direction}**: {beyond} over {published}: {', '.join(gains)}.")
    return bullets(points)


def growth_figure(by_size: pl.DataFrame, database: str, direction: str) -> Figure:
    """What a direction's techniques take against rows, on logarithmic axes, where nothing can be 0."""
    here = by_size.filter(database=database, direction=direction)
    colours = dict(zip(COMPARED[database, direction], COLOURS, strict=True))
    with charts.panels(2, 3, height=5.4) as (figure, panels):
        for axes in panels[len(PANELS) :]:
            axes.remove()
        for axes, (column, title) in zip(panels, PANELS.items(), strict=False):
            axes.set_title(title, loc="left", fontsize=9)
            for name, colour in colours.items():
                part = here.filter(pl.col(column) > 0, technique=name)
                if len(part):
                    axes.plot(part["rows"].to_list(), part[column].to_list(), color=colour, marker="o", markersize=3.5)
            if not axes.lines:
                axes.set_axis_off()
                axes.text(0, 0.5, "not measured in this run", fontsize=8, color=charts.FAINT)
                continue
            for axis in (axes.xaxis, axes.yaxis):
                charts.quantities(axis, logarithmic=True)
            axes.set_xticks(sorted(set(here["rows"])))
            axes.set_xticks([], minor=True)
            axes.tick_params(which="both", labelsize=8)
            axes.grid(which="major", color="#eeeeee")
        labels: dict[str, str] = dict(here.select("technique", "label").iter_rows())
        named = {labels.get(name, name): colour for name, colour in colours.items()}
        charts.legend(figure, named, loc="outside lower left", fontsize=8)
        heading = f"{DATABASES[database]} {direction} against rows, both logarithmic"
        figure.suptitle(heading, x=0.01, ha="left", fontweight="bold")
    return figure


class Scaling(Shown):
    """The passes of a run over sizes."""

    study = SCALING
    answer = view(lambda passes: answer_text(medians(passes)))
    streams = view(lambda passes: streams_table(medians(passes)))

    def chart(self, database: str, direction: str) -> SVG:
        """Cost against rows of one direction; also saved as a figure."""
        return self.saved(growth_figure(medians(self.passes), database, direction), f"{database}_{direction}")


def run(*, rows: int, rounds: int, warmup: int, seed: int, table: Table = ANALYTICS_METRICS) -> Scaling:
    """Measure the compared techniques at every size up to `rows`, and the moves at a tenth of it and at all of it.

    Fewer than ten thousand rows say nothing about memory: where a tenth is no more, the moves are made at one size.
    Sizes up to a tenth have a warm-up even where none is asked for: there loops are compiled and bytes counted, and
    beside the largest size it costs little.

    Raises what `transfers.study.run` raises.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording(SCALING.notebook, SCALING.results, store.Result, "pass", terms) as this_run,
        servers.running(this_run.settings) as both,
        ended_with_the_block(),
    ):
        of_size = {size: Rounds(rounds, max(warmup, int(size * 10 <= rows)), seed) for size in sizes(rows)}
        ends = [rows // 10, rows] if rows // 10 >= SMALLEST_ROWS else [rows]
        per_size = sum(
            1 + len(names) * (rounds + one.warmup) for one in of_size.values() for names in COMPARED.values()
        )
        this_run.expect(per_size + len(ends) * len(MOVES) * (rounds + 1))
        versions = "; ".join(server_versions(both).values())
        this_run.metadata |= terms | {"servers": both.mode, "server": {"version": versions}}

        def work(stop: threading.Event) -> None:
            for size, rounds_of_size in of_size.items():
                content = generator.arrow_table(table, size, seed)
                for (database, direction), names in COMPARED.items():
                    known = techniques(cast("Database", database), cast("Direction", direction))
                    compared = [one for one in known if one.name in names]
                    record_passes(
                        this_run, SCALING.notebook, compared, both.of(database), table, content, rounds_of_size, stop
                    )
            for size in ends:
                _measure_moves(this_run, both, table, size, schedule, stop)

        interruptible(work)
    return Scaling.load(this_run.settings)


def _measure_moves(
    this_run: Recording, both: Servers, table: Table, size: int, rounds: Rounds, stop: threading.Event
) -> None:
    """Every move of so many rows, one after another: the passes of each are made in a process of its own, and verified.

    When that process ends before its time, all passes of the move that are left fail for the same reason.
    """
    content, reference = generator.arrow_table(table, size, rounds.seed), table.renamed(f"{table.name}_sent")
    sent = Expected(table, content)
    record, finished = this_run.techniques(SCALING.notebook, size)
    for (database, direction), moves in groupby(MOVES, lambda move: (move.database, move.direction)):
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
                    with mover(move.name, file) as process:
                        in_rounds(
                            [move], Rounds(rounds.passes, warmup=1),
                            partial(_moved, process.ask, tables, table, sent, file), record,
                            stop=stop, progress=lambda move, _: this_run.progress(move.name), finished=finished,
                        )  # fmt: skip
            finally:
                for ours in (table, reference):
                    tables.drop(ours)


def _moved(
    make_pass: Callable[[str], dict[str, Any]], tables: Tables, table: Table, sent: Expected, file: Path,
    move: Technique, number: int,
) -> Moved:  # fmt: skip
    """One pass of a move between the table and the file; raises WrongResultError when other rows arrived.

    The warm-up measures memory, which is what moves are about: they have one even where none is asked for.
    """
    purpose = TIME if number > 0 else MEMORY
    if move.direction == "write":
        tables.create(table)
        tables.quiesce()
        cost = make_pass(purpose)
        wrong = sent.difference_on_server(tables)
    else:
        cost = make_pass(purpose)
        wrong = sent.difference(to_polars(pq.read_table(file), table))
    return right(Moved(cost.pop("seconds"), Usage(**cost), store.EXACT), wrong)


def mover(name: str, file: Path) -> AbstractContextManager[Child]:
    """A process for one move, which ends with the block; asked for `TIME` or `MEMORY`, it gives the cost of a pass."""
    return child(context(serve.__module__), name, serve, name, file)


def read_streams(directory: Path) -> pl.DataFrame:
    """The passes of the streamed moves of the scaling study; no rows when it was not run."""
    path = directory / SCALING.results
    growth = store.read(path) if path.exists() else pl.DataFrame(schema=store.SCHEMA)
    streamed = growth.filter(pl.col("technique").is_in([move.name for move in STREAMED]))
    return statistics.never_wrong(streamed, ["technique", "rows"])


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The block of the writeup, of the run in a results directory."""
    return {"streams": str(streams_table(medians(store.read(directory / SCALING.results))))}
