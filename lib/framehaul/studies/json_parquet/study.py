"""The study of JSON lines on their way to Parquet: run, kept as one row per pass, drawn and summarised."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import Code
from matplotlib.figure import Figure

from framehaul.harness.passes import Ok, Pass, attempt, columns_of
from framehaul.harness.recording import recording
from framehaul.harness.rounds import Rounds, check, interruptible
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import (
    Column,
    Listing,
    Row,
    bullets,
    dtypes_text,
    megabytes,
    rivals_text,
    spread_text,
    thousands,
    words,
)
from framehaul.results import store
from framehaul.results.ratios import Ratio, ratio, verdicts
from framehaul.results.statistics import medians
from framehaul.studies.drivers.catalog import Commands
from framehaul.studies.json_parquet import STUDY, json_lines
from framehaul.studies.json_parquet.catalog import CODECS, CONVERTERS, JSON2PARQUET_VERSION, Converter
from framehaul.studies.json_parquet.runner import FEW_ROWS, Conversion, Task, convert_in_rounds, written

BASE = "clickhouse"
"""The fastest of the published figures: the one that they are over."""
CODEC_COLOURS = {"snappy": "#0072B2", "zstd": "#E69F00"}

# How many times as long as ClickHouse with snappy: https://tech.marksblogg.com/postgresql-to-bigquery.html
# 11M lines on a laptop of 2020; json2parquet from the seconds that it names, 4x on a virtual machine with 16 cores.
PUBLISHED_CODEC = "snappy"
PUBLISHED_SECONDS = {"clickhouse": 32.0, "json2parquet": 43.8}
PUBLISHED_TIMES = {
    **{name: seconds / PUBLISHED_SECONDS[BASE] for name, seconds in PUBLISHED_SECONDS.items()},
    "pyarrow": 1.38, "awkward": 1.5, "fastparquet": 3.3,
}  # fmt: skip
PUBLISHED_WRITES = {"clickhouse": 2, "json2parquet": 434}
"""System calls `write` for ten lines, of the whole process."""


def run(
    *, rows: int, passes: int, warmup: int, seed: int, converters: Sequence[Converter] = CONVERTERS
) -> JsonToParquet:
    """Measure every tool with every codec and write `results/json_parquet.csv`.

    Raises ValueError for a parameter that makes no sense, ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1))
    rounds = Rounds(passes, warmup, seed)
    terms = {"rows": rows, **vars(rounds), "converters": [converter.name for converter in converters]}
    tasks = [Task(converter, codec) for converter in converters for codec in converter.codecs]
    with (
        written(rows, seed) as files,
        recording(STUDY.notebook, STUDY.results, Conversion, "task", terms) as this_run,
    ):
        this_run.expect(len(tasks) * (1 + warmup + passes))
        commands = Commands(this_run.settings)

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> Conversion:
            return Conversion(
                run_id=this_run.run_id, converter=task.converter.name, label=task.converter.label, codec=task.codec,
                rows=rows, pass_=number, **columns_of(ended),
            )  # fmt: skip

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: convert_in_rounds(
                tasks, files, commands, rounds, record, stop=stop, progress=this_run.progress, finished=finished
            )
        )
        programs = [
            tool.name
            for tool in converters
            if tool.program and isinstance(attempt(partial(commands.of, tool.name, tool.command)), Ok)
        ]
        json_bytes = files.lines.stat().st_size
        this_run.metadata |= {
            "json_bytes": json_bytes,
            "what": f"{rows:,} rows, {json_bytes / 1e6:,.1f} MB of JSON lines, {passes} passes after {warmup} warm-up, "
            f"seed {seed}",
            "toolchains": dict.fromkeys(programs, JSON2PARQUET_VERSION),
        }
    return JsonToParquet.load(this_run.settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The table that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    return {"json-to-parquet": str(published_table(store.read(directory / STUDY.results, Conversion)))}


def show_source() -> Code:
    """The code of the tools for Python as it stands in the library."""
    return Code("\n\n\n".join(map(inspect.getsource, json_lines.PYTHON.values())), language="python")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per tool and codec, as `statistics.medians` makes it; fastest first, codec by codec."""
    good = (pl.col("status") == "ok").all()
    tools = medians(
        passes, ["converter", "label", "codec", "rows"],
        pl.when(good).then(pl.col("types").first()).alias("types"), pl.col("write_calls_reason").first(),
        pl.col("row_order").drop_nulls().unique().sort().str.join(", "),
    )  # fmt: skip
    place = pl.col("codec").replace_strict({codec: at for at, codec in enumerate(CODECS)})
    return tools.sort(place, "rows_per_s", descending=[False, True], nulls_last=True, maintain_order=True)


def times(passes: pl.DataFrame, codec: str, tool: str, base: str) -> Ratio:
    """How many times as long as `base` a tool takes; NaN where one failed."""
    here = passes.filter(codec=codec)
    return ratio(here.filter(converter=base), here.filter(converter=tool))


def _good(passes: pl.DataFrame) -> pl.DataFrame:
    """Of the summary, what ran and was right."""
    return summary(passes).filter(status="ok")


def times_table(passes: pl.DataFrame) -> Listing:
    """Tools and codecs, fastest first."""

    def over(row: Row, base: str) -> Ratio:
        return times(passes, row["codec"], row["converter"], row[base])

    columns = [
        words("codec", "codec"), words("tool", "label"),
        Column("seconds", "seconds", "{:.3f}"), Column("rows/s", "rows_per_s", thousands),
        Column("slowest to fastest pass", spread_text),
        Column("time over the fastest's", partial(over, base="fastest")),
        Column("time over ClickHouse's", partial(over, base="base")),
    ]  # fmt: skip
    fastest = pl.col("converter").first().over("codec").alias("fastest")
    return Listing(columns, summary(passes).with_columns(fastest, base=pl.lit(BASE)))


def cores_table(passes: pl.DataFrame) -> Listing:
    """CPU time, cores used and memory, most cores first."""
    columns = [
        words("tool", "label"), words("codec", "codec"),
        Column("cores used", "cores_used", "{:.2f}"), Column("CPU seconds", "client_cpu_s", "{:.3f}"),
        Column("CPU, µs per row", lambda row: row["client_cpu_s"] / row["rows"] * 1e6, "{:.2f}"),
        Column("peak RSS growth", "peak_rss_bytes", megabytes),
    ]  # fmt: skip
    return Listing(columns, _good(passes).sort("cores_used", descending=True, maintain_order=True))


def outputs_table(passes: pl.DataFrame) -> Listing:
    """Size, row groups, types and row order of the files, smallest first."""
    columns = [
        words("tool", "label"), words("codec", "codec"), words("types", "types", dtypes_text),
        words("row order", "row_order"),
        Column("MB", lambda row: row["output_bytes"] / 1e6, "{:,.2f}"),
        Column("bytes per row", lambda row: row["output_bytes"] / row["rows"], "{:.1f}"),
        Column("row groups", "row_groups", "{:,.0f}"),
    ]  # fmt: skip
    return Listing(columns, _good(passes).sort("output_bytes", maintain_order=True))


def writes_table(passes: pl.DataFrame) -> Listing:
    """System calls that write into the file, fewest first; beside them what was published."""

    def published(row: Row) -> int | None:
        return PUBLISHED_WRITES.get(row["converter"]) if row["codec"] == PUBLISHED_CODEC else None

    kilobytes = (pl.col("output_bytes") / pl.col("write_calls").replace(0, None) / 1e3).alias("kilobytes")
    rows = _good(passes).sort("write_calls", nulls_last=True, maintain_order=True).with_columns(kilobytes)
    reasons = [] if rows["write_calls_reason"].is_null().all() else [words("not counted", "write_calls_reason")]
    columns = [
        words("tool", "label"), words("codec", "codec"), *reasons,
        Column(f"calls for {FEW_ROWS} rows", "write_calls_few_rows", "{:,.0f}"),
        Column("calls for all rows", "write_calls", "{:,.0f}"),
        Column("kB per call", "kilobytes", "{:,.1f}"),
        Column(f"published for {FEW_ROWS} rows", published),
    ]  # fmt: skip
    return Listing(columns, rows)


def published_table(passes: pl.DataFrame) -> Listing:
    """Published and measured times over ClickHouse's; tools that were not published have that empty."""
    rows = [
        row | {"measured": times(passes, PUBLISHED_CODEC, row["converter"], BASE)}
        for row in summary(passes).filter(codec=PUBLISHED_CODEC).to_dicts()
    ]
    compared = [row for row in rows if row["converter"] in PUBLISHED_TIMES and row["converter"] != BASE]
    said = verdicts([(row["measured"], PUBLISHED_TIMES[row["converter"]]) for row in compared], "slower", "faster")
    against = dict(zip((row["converter"] for row in compared), said, strict=True))
    columns = [
        words(f"tool, {PUBLISHED_CODEC}", "label"), Column("seconds", "seconds", "{:.3f}"),
        words("published time over ClickHouse's", lambda row: PUBLISHED_TIMES.get(row["converter"]),
              lambda published: f"{round(published, 2):g}x"),
        Column("measured", "measured"), words("against the published", lambda row: against.get(row["converter"])),
    ]  # fmt: skip
    return Listing(columns, rows)


def findings(passes: pl.DataFrame) -> list[str]:
    """Sentences about what was measured, none that the intervals do not carry."""
    good = _good(passes)
    if good.is_empty():
        return ["Nothing was measured."]
    sentences = [_fastest_sentence(group) for _, group in good.group_by("codec", maintain_order=True)]
    sentences += _codec_sentences(good)
    cores = good.sort("cores_used", descending=True).to_dicts()
    sentences.append(
        f"Most cores are used by {_who(cores[0])}: {cores[0]['cores_used']:.2f}; fewest by {_who(cores[-1])}: "
        f"{cores[-1]['cores_used']:.2f}."
    )
    if written := good.drop_nulls("write_calls").sort("write_calls").to_dicts():
        sentences.append(
            f"System calls that write the file: fewest by {_who(written[0])}: {written[0]['write_calls']:,.0f}; "
            f"most by {_who(written[-1])}: {written[-1]['write_calls']:,.0f}."
        )
    exact = good.filter(types="exact")["label"].unique(maintain_order=True)
    sentences.append(f"The types are the table's own with {', '.join(exact) or 'no tool'}.")
    return sentences


def _fastest_sentence(good: pl.DataFrame) -> str:
    first, rivals = good.row(0, named=True), rivals_text(good.to_dicts())
    apart = f"; not told apart from it: {rivals}" if rivals else ""
    return f"{first['codec']}: {first['label']} is the fastest with {thousands(first['rows_per_s'])} rows/s{apart}."


def _codec_sentences(good: pl.DataFrame) -> list[str]:
    snappy, zstd = CODECS
    pairs = good.filter(codec=snappy).join(good.filter(codec=zstd), on="converter")
    if pairs.is_empty():
        return []
    size, seconds = (_range(pairs, name) for name in ("output_bytes", "seconds"))
    return [
        f"Files with {zstd} have {size} of the size of those with {snappy}, and take {seconds} of the time, from tool "
        "to tool."
    ]


def _range(pairs: pl.DataFrame, name: str) -> str:
    shares = [right / left for left, right in pairs.select(name, f"{name}_right").iter_rows()]
    return f"{min(shares):.0%} to {max(shares):.0%}"


def _who(row: Row) -> str:
    return f"{row['label']} ({row['codec']})"


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

    study = STUDY
    table = view(times_table)
    chart = chart(bars)
    cores = view(cores_table)
    outputs = view(outputs_table)
    writes = view(writes_table)
    published = view(published_table)
    answer = view(lambda passes: bullets(findings(passes)[: len(CODECS)]))
    findings = view(lambda passes: bullets(findings(passes)))
    missing = view(lambda passes: tables.missing(summary(passes), "tool", "codec"))
