"""The study of JSON lines on their way to Parquet: run, kept as one row per pass, drawn and summarised."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import Code
from matplotlib.figure import Figure

from framehaul.bench import store
from framehaul.bench.passes import Pass, columns_of
from framehaul.bench.ratios import Ratio, ratio
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.statistics import medians
from framehaul.bench.store import Status
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, Row, fastest_of_each, megabytes, thousands, words
from framehaul.studies.drivers.catalog import Commands
from framehaul.studies.json_parquet import json_lines
from framehaul.studies.json_parquet.catalog import CODECS, CONVERTERS, JSON2PARQUET_VERSION, Converter
from framehaul.studies.json_parquet.runner import Task, measured, written
from framehaul.studies.registry import JSON_PARQUET

BASE = "clickhouse"
"""The fastest of the published figures: the one that they are over."""
CODEC_COLOURS = {"snappy": "#0072B2", "zstd": "#E69F00"}

# How many times as long as ClickHouse with snappy: https://tech.marksblogg.com/postgresql-to-bigquery.html
# 11M lines on a laptop of 2020; json2parquet from the seconds that it names, 4x on a virtual machine with 16 cores.
PUBLISHED_CODEC = "snappy"
PUBLISHED_TIMES = {"clickhouse": 1.0, "json2parquet": 43.8 / 32.0, "pyarrow": 1.38, "awkward": 1.5, "fastparquet": 3.3}


@dataclass(frozen=True)
class Conversion:
    """One pass of one tool and codec: a row of the study's file. A missing number is None, never 0.

    `types` and `row_order` are those of `buildings.difference`; `peak_rss_bytes` is missing for a program of its own.
    """

    run_id: str
    converter: str
    label: str
    codec: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    client_cpu_s: float | None = None
    peak_rss_bytes: int | None = None
    output_bytes: int | None = None
    row_groups: int | None = None
    types: str | None = None
    row_order: str | None = None
    status: Status = "ok"
    reason: str | None = None


def run(
    *, rows: int, rounds: int, warmup: int, seed: int, converters: Sequence[Converter] = CONVERTERS
) -> JsonToParquet:
    """Measure every tool with every codec and write `results/json_parquet.csv`.

    Raises ValueError for a parameter that makes no sense, ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, warmup, seed)
    terms = {"rows": rows, **vars(schedule), "converters": [converter.name for converter in converters]}
    tasks = [Task(converter, codec) for converter in converters for codec in converter.codecs]
    with (
        written(rows, seed) as files,
        recording(JSON_PARQUET.notebook, JSON_PARQUET.results, Conversion, "task", terms) as this_run,
    ):
        this_run.expect(len(tasks) * (warmup + rounds))
        commands = Commands(this_run.settings)

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> Conversion:
            tool = task.converter
            return Conversion(this_run.run_id, tool.name, tool.label, task.codec, rows, number, **columns_of(ended))

        def convert(task: Task, _: int) -> dict[str, Any]:
            return measured(task, commands.of(task.converter.name, task.converter.command), files)

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: in_rounds(
                tasks, schedule, convert, record, finished=finished, stop=stop, home=files.directory,
                progress=lambda task, number: this_run.progress(f"{task.converter.name} {task.codec}: pass {number}"),
            )
        )  # fmt: skip
        json_bytes, right = files.lines.stat().st_size, this_run.so_far().filter(status="ok")
        this_run.metadata |= {
            "json_bytes": json_bytes,
            "what": f"{rows:,} rows, {json_bytes / 1e6:,.1f} MB of JSON lines, {rounds} rounds after {warmup} warm-up, "
            f"seed {seed}",
            "toolchains": {"json2parquet": JSON2PARQUET_VERSION} if "json2parquet" in right["converter"] else {},
        }
    return JsonToParquet.load(this_run.settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The table that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    return {"json-to-parquet": str(times_table(store.read(directory / JSON_PARQUET.results, Conversion)))}


def show_source() -> Code:
    """The code of the tools for Python as it stands in the library."""
    return Code("\n\n\n".join(map(inspect.getsource, json_lines.PYTHON.values())), language="python")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per tool and codec, as `statistics.medians` makes it; fastest first, codec by codec."""
    tools = medians(passes, ["converter", "label", "codec", "rows"])
    place = pl.col("codec").replace_strict({codec: at for at, codec in enumerate(CODECS)})
    return tools.sort(place, "rows_per_s", descending=[False, True], nulls_last=True, maintain_order=True)


def times(passes: pl.DataFrame, codec: str, tool: str, base: str) -> Ratio:
    """How many times as long as `base` a tool takes; NaN where one failed."""
    here = passes.filter(codec=codec)
    return ratio(here.filter(converter=base), here.filter(converter=tool))


def times_table(passes: pl.DataFrame) -> Listing:
    """Tools and codecs, fastest first; the published ratio stands beside the measured one."""

    def published(row: Row) -> float | None:
        return PUBLISHED_TIMES.get(row["converter"]) if row["codec"] == PUBLISHED_CODEC else None

    columns = [
        words("codec", "codec"),
        words("tool", "label"),
        Column("seconds", "seconds", "{:.3f}"),
        Column("rows/s", "rows_per_s", thousands),
        Column("time over ClickHouse's", lambda row: times(passes, row["codec"], row["converter"], BASE)),
        Column("published", published, "{:.2f}x"),
        Column("cores used", lambda row: row["client_cpu_s"] / row["seconds"], "{:.2f}"),
        Column("peak RSS growth", "peak_rss_bytes", megabytes),
    ]
    return Listing(columns, summary(passes))


def answer(passes: pl.DataFrame) -> Listing:
    """The fastest tool of each codec."""
    ran = summary(passes).filter(status="ok")
    groups = {codec: ran.filter(codec=codec) for codec in CODECS}
    return fastest_of_each(groups, Column("rows/s", "rows_per_s", thousands))


def bars(passes: pl.DataFrame) -> Figure:
    """Median rows/s as bars, one for each codec, slowest to fastest pass as whiskers."""
    rows = summary(passes)
    tools = rows.group_by("label", maintain_order=True).agg(pl.col("rows_per_s").max())
    labels = tools.sort("rows_per_s", descending=True, nulls_last=True, maintain_order=True)["label"].to_list()
    codecs = [codec for codec in CODECS if codec in set(rows["codec"])]
    height = 0.8 / len(codecs)
    with charts.panels(1, height=1.1 + 0.5 * len(labels)) as (figure, [axes]):
        for row in rows.to_dicts():
            y = labels.index(row["label"]) + (codecs.index(row["codec"]) - (len(codecs) - 1) / 2) * height
            charts.bar(axes, y, row, "rows_per_s", CODEC_COLOURS[row["codec"]], height=height * 0.9, size=8.5)
        charts.name_lines(axes, labels)
        axes.set_xlim(0, max(rows["max_rows_per_s"].drop_nulls().to_list(), default=1.0) * 1.1)
        charts.quantities(axes.xaxis)
        axes.set_xlabel(f"rows/s, {charts.MEDIANS}")
        charts.title(axes, f"JSON lines to Parquet: {rows['rows'][0]:,} rows")
        charts.legend(axes, {codec: CODEC_COLOURS[codec] for codec in codecs})
    return figure


class JsonToParquet(Shown):
    """The passes of the study."""

    study = JSON_PARQUET
    table = view(times_table)
    chart = chart(bars)
    answer = view(answer)
    missing = view(lambda passes: tables.missing(summary(passes), "tool", "codec"))
