"""The study of JSON lines on their way to Parquet: run, kept as one row per pass, drawn and summarised."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from IPython.display import SVG, Code, Markdown
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from framehaul.harness.recording import recording
from framehaul.harness.rounds import check, interruptible
from framehaul.reporting import charts
from framehaul.reporting.tables import dtypes_text, markdown_table, missing_table, ratio_text, thousands
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import store
from framehaul.results.statistics import medians, ratio
from framehaul.settings import load_settings
from framehaul.studies.json_parquet import STUDY, json_lines, rounds
from framehaul.studies.json_parquet.catalog import CODECS, CONVERTERS, JSON2PARQUET_VERSION, Converter
from framehaul.studies.json_parquet.rounds import FEW_ROWS, Pass, Task

BASE = "clickhouse"
"""The fastest of the published figures: the one that they are over."""
CODEC_COLOURS = {"snappy": "#0072B2", "zstd": "#E69F00"}

# How many times as long as ClickHouse with snappy: https://tech.marksblogg.com/faster-postgresql-to-bigquery.html
# 11M lines on a laptop of 2020; json2parquet from the seconds that it names, 4x on a virtual machine with 16 cores.
PUBLISHED_CODEC = "snappy"
PUBLISHED_SECONDS = {"clickhouse": 32.0, "json2parquet": 43.8}
PUBLISHED_TIMES = {
    **{name: seconds / PUBLISHED_SECONDS[BASE] for name, seconds in PUBLISHED_SECONDS.items()},
    "pyarrow": 1.38, "awkward": 1.5, "fastparquet": 3.3,
}  # fmt: skip
PUBLISHED_WRITES = {"clickhouse": 2, "json2parquet": 434}
"""System calls `write` for ten lines, of the whole process."""


class JsonToParquet:
    """The passes of the study, ready to be shown."""

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes = passes
        self._metadata, self._figures = metadata, figures

    def table(self) -> Markdown:
        """All tools and codecs, fastest first."""
        return Markdown(times_table(self.passes))

    def chart(self) -> SVG:
        """Rows/s of every tool, a bar for each codec; also saved as a figure."""
        return SVG(charts.save(bars(self.passes), self._figures / f"{STUDY.name}.svg"))

    def cores(self) -> Markdown:
        """CPU time, cores used and memory."""
        return Markdown(cores_table(self.passes))

    def outputs(self) -> Markdown:
        """What the files are like."""
        return Markdown(outputs_table(self.passes))

    def writes(self) -> Markdown:
        """How often each tool wrote into its file."""
        return Markdown(writes_table(self.passes))

    def published(self) -> Markdown:
        """What was published, beside what was measured."""
        return Markdown(published_table(self.passes))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown("\n".join(f"- {sentence}" for sentence in findings(self.passes)))

    def missing(self) -> Markdown:
        """What did not run, and what would make it run."""
        return Markdown(missing_table(summary(self.passes), "tool", "codec"))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))


def run(
    *, rows: int, passes: int, warmup: int, seed: int, converters: Sequence[Converter] = CONVERTERS
) -> JsonToParquet:
    """Measure every tool with every codec and write `results/json_parquet.csv`.

    Raises ValueError for a parameter that makes no sense, ResultsError when the file cannot be written.
    """
    check(ROWS=(rows, 1), PASSES=(passes, 1), WARMUP=(warmup, 0))
    tasks = [Task(converter, codec) for converter in converters for codec in converter.codecs]
    with (
        rounds.written(rows, seed) as files,
        recording(STUDY.notebook, STUDY.results, Pass, "task") as made,
    ):
        made.expect(len(tasks) * (1 + warmup + passes))
        json_bytes = files.lines.stat().st_size
        programs: set[str] = set()

        def record(task: Task, number: int, found: dict[str, Any]) -> None:
            if task.converter.program and "seconds" in found:
                programs.add(task.converter.name)
            made.write(
                Pass(
                    run_id=made.run_id, converter=task.converter.name, label=task.converter.label, codec=task.codec,
                    rows=rows, pass_=number, **found,
                )
            )  # fmt: skip

        def work(stop: threading.Event) -> None:
            rounds.rounds(tasks, files, made.settings, warmup=warmup, passes=passes, seed=seed, record=record,
                               progress=made.progress, stop=stop)  # fmt: skip

        interruptible(work)
        made.metadata |= {
            "json_bytes": json_bytes,
            "what": f"{rows:,} rows, {json_bytes / 1e6:,.1f} MB of JSON lines, {passes} passes after {warmup} warm-up, "
            f"seed {seed}",
            "toolchains": dict.fromkeys(sorted(programs), JSON2PARQUET_VERSION),
        }  # fmt: skip
    return load()


def load() -> JsonToParquet:
    """The results of the last complete run; raises ResultsError when there is none."""
    settings = load_settings()
    directory = settings.out / "results"
    passes = store.read(directory / STUDY.results, Pass)
    return JsonToParquet(passes, store.read_metadata(directory), settings.out / "figures")


def readme_blocks(directory: Path) -> dict[str, str]:
    """The table that the README shows, from a results directory; raises ResultsError when the study was not run."""
    return {"json-to-parquet": published_table(store.read(directory / STUDY.results, Pass))}


def show_source() -> Code:
    """The code of the tools for Python as it stands in the library."""
    return Code("\n\n\n".join(map(inspect.getsource, json_lines.PYTHON.values())), language="python")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per tool and codec, as `statistics.medians` makes it; fastest first, codec by codec."""
    good = (pl.col("status") == "ok").all()
    found = medians(
        passes, ["converter", "label", "codec", "rows"],
        pl.when(good).then(pl.col("types").first()).alias("types"), pl.col("write_calls_reason").first(),
        pl.col("row_order").drop_nulls().unique().sort().str.join(", "),
    )  # fmt: skip
    place = {codec: at for at, codec in enumerate(CODECS)}
    return found.sort(
        pl.col("codec").replace_strict(place), "rows_per_s", descending=[False, True], nulls_last=True,
        maintain_order=True,
    )  # fmt: skip


def times(passes: pl.DataFrame, codec: str, tool: str, base: str) -> dict[str, float]:
    """How many times as long as `base` a tool takes, with its bootstrap 95% interval; NaN where one failed."""
    good = summary(passes).filter(status="ok", codec=codec)["converter"]
    here = passes.filter(pl.col("converter").is_in(good.implode()), codec=codec)
    return ratio(here.filter(converter=base), here.filter(converter=tool))


def times_table(passes: pl.DataFrame) -> str:
    """Tools and codecs, fastest first, as Markdown."""
    rows = []
    for (codec,), group in summary(passes).group_by("codec", maintain_order=True):
        fastest = group["converter"][0]
        for row in group.to_dicts():
            if row["status"] != "ok":
                rows.append([str(codec), row["label"], row["status"], "", "", "", ""])
                continue
            rows.append(
                [
                    str(codec), row["label"], f"{row['seconds']:.3f}", thousands(row["rows_per_s"]),
                    f"{thousands(row['min_rows_per_s'])} to {thousands(row['max_rows_per_s'])}",
                    ratio_text(times(passes, str(codec), row["converter"], fastest)),
                    ratio_text(times(passes, str(codec), row["converter"], BASE)),
                ]
            )  # fmt: skip
    header = ["codec", "tool", "seconds", "rows/s", "slowest to fastest pass", "time over the fastest's (95% interval)",
              "time over ClickHouse's (95% interval)"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def cores_table(passes: pl.DataFrame) -> str:
    """CPU time, cores used and memory, most cores first, as Markdown."""
    found = summary(passes).filter(status="ok").sort("cores_used", descending=True, maintain_order=True)
    rows = [
        [
            row["label"], row["codec"], f"{row['cores_used']:.2f}", f"{row['client_cpu_s']:.3f}",
            f"{row['client_cpu_s'] / row['rows'] * 1e6:.2f}",
            "" if row["peak_rss_bytes"] is None else f"{row['peak_rss_bytes'] / 1e6:,.0f} MB",
        ]
        for row in found.to_dicts()
    ]  # fmt: skip
    header = ["tool", "codec", "cores used", "CPU seconds", "CPU, µs per row", "peak RSS growth"]
    return markdown_table(header, rows, text_columns=2)


def outputs_table(passes: pl.DataFrame) -> str:
    """Size, row groups, types and row order of the files, smallest first, as Markdown."""
    rows = [
        [row["label"], row["codec"], dtypes_text(row["types"]), row["row_order"],
         f"{row['output_bytes'] / 1e6:,.2f}",
         f"{row['output_bytes'] / row['rows']:.1f}", f"{row['row_groups']:,.0f}"]
        for row in summary(passes).filter(status="ok").sort("output_bytes", maintain_order=True).to_dicts()
    ]  # fmt: skip
    header = ["tool", "codec", "types", "row order", "MB", "bytes per row", "row groups"]
    return markdown_table(header, rows, text_columns=4)


def writes_table(passes: pl.DataFrame) -> str:
    """System calls that write into the file, fewest first, as Markdown; beside them what was published."""
    found = summary(passes).filter(pl.col("status") == "ok").sort("write_calls", nulls_last=True, maintain_order=True)
    rows = [
        [
            row["label"], row["codec"], row["write_calls_reason"] or "", *(
                "" if row[name] is None else f"{row[name]:,.0f}" for name in ("write_calls_few_rows", "write_calls")
            ),
            "" if not row["write_calls"] else f"{row['output_bytes'] / row['write_calls'] / 1e3:,.1f}",
            str(PUBLISHED_WRITES.get(row["converter"], "")) if row["codec"] == PUBLISHED_CODEC else "",
        ]
        for row in found.to_dicts()
    ]  # fmt: skip
    header = ["tool", "codec", "not counted", f"calls for {FEW_ROWS} rows", "calls for all rows", "kB per call",
              f"published for {FEW_ROWS} rows"]  # fmt: skip
    if not any(row[2] for row in rows):
        header, rows = [header[at] for at in (0, 1, 3, 4, 5, 6)], [row[:2] + row[3:] for row in rows]
        return markdown_table(header, rows, text_columns=2)
    return markdown_table(header, rows, text_columns=3)


def published_table(passes: pl.DataFrame) -> str:
    """Published and measured times over ClickHouse's, as Markdown; tools that were not published have that empty."""
    rows = []
    for row in summary(passes).filter(codec=PUBLISHED_CODEC).to_dicts():
        said = PUBLISHED_TIMES.get(row["converter"])
        found = times(passes, PUBLISHED_CODEC, row["converter"], BASE)
        rows.append(
            [
                row["label"], _seconds(row), "" if said is None else f"{round(said, 2):g}x",
                ratio_text(found), "" if said is None or row["converter"] == BASE else _verdict(found, said),
            ]
        )  # fmt: skip
    header = [f"tool, {PUBLISHED_CODEC}", "seconds", "published time over ClickHouse's", "measured (95% interval)",
              "against the published"]  # fmt: skip
    return markdown_table(header, rows)


def findings(passes: pl.DataFrame) -> list[str]:
    """Sentences about what was measured, none that the intervals do not carry."""
    found = summary(passes)
    good = found.filter(status="ok")
    if good.is_empty():
        return ["Nothing was measured."]
    sentences = [_fastest_sentence(passes, good.filter(codec=codec)) for codec in CODECS if codec in set(good["codec"])]
    sentences += _codec_sentences(good)
    busiest = good.sort("cores_used", descending=True).row(0, named=True)
    idlest = good.sort("cores_used").row(0, named=True)
    sentences.append(
        f"Most cores are used by {busiest['label']} ({busiest['codec']}): {busiest['cores_used']:.2f}; fewest by "
        f"{idlest['label']} ({idlest['codec']}): {idlest['cores_used']:.2f}."
    )
    written = good.drop_nulls("write_calls").sort("write_calls")
    if not written.is_empty():
        few, many = written.row(0, named=True), written.row(-1, named=True)
        sentences.append(
            f"System calls that write the file: fewest by {few['label']} ({few['codec']}): {few['write_calls']:,.0f}; "
            f"most by {many['label']} ({many['codec']}): {many['write_calls']:,.0f}."
        )
    exact = good.filter(types="exact")["label"].unique(maintain_order=True)
    sentences.append(f"The types are the table's own with {', '.join(exact) or 'no tool'}.")
    return sentences


def _fastest_sentence(passes: pl.DataFrame, good: pl.DataFrame) -> str:
    first, codec = good.row(0, named=True), good["codec"][0]
    rivals = [row["label"] for row in good.to_dicts()[1:]
              if times(passes, codec, row["converter"], first["converter"])["ratio_low"] <= 1]  # fmt: skip
    apart = f"; {', '.join(rivals)} cannot be told apart from it" if rivals else ""
    return f"{codec}: {first['label']} is the fastest with {thousands(first['rows_per_s'])} rows/s{apart}."


def _codec_sentences(good: pl.DataFrame) -> list[str]:
    snappy, zstd = CODECS
    pairs = good.filter(codec=snappy).join(good.filter(codec=zstd), on="converter", maintain_order="left").select(
        (pl.col("output_bytes_right") / pl.col("output_bytes")).alias("bytes"),
        (pl.col("seconds_right") / pl.col("seconds")).alias("seconds"),
    )  # fmt: skip
    if pairs.is_empty():
        return []
    size, seconds = pairs["bytes"], pairs["seconds"]
    return [
        f"Files with {zstd} have {_range(size)} of the size of those with {snappy}, and take {_range(seconds)} of the "
        "time, from tool to tool."
    ]


def _range(values: pl.Series) -> str:
    return f"{min(values.to_list()):.0%} to {max(values.to_list()):.0%}"


def bars(passes: pl.DataFrame) -> Figure:
    """Median rows/s as bars, one for each codec, slowest to fastest pass as whiskers."""
    found = summary(passes)
    tools = found.group_by("converter", "label", maintain_order=True).agg(pl.col("rows_per_s").max())
    tools = tools.sort("rows_per_s", descending=True, nulls_last=True, maintain_order=True)
    codecs = [codec for codec in CODECS if codec in set(found["codec"])]
    height = 0.8 / len(codecs)
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(10.5, 1.1 + 0.5 * len(tools)), layout="constrained")
        axes = figure.subplots()
        for row in found.to_dicts():
            at = tools["converter"].to_list().index(row["converter"])
            y = at + (codecs.index(row["codec"]) - (len(codecs) - 1) / 2) * height
            text, end = row["status"], 0.0
            if row["status"] == "ok":
                text, end = thousands(row["rows_per_s"]), row["max_rows_per_s"]
                axes.barh(y, row["rows_per_s"], color=CODEC_COLOURS[row["codec"]], height=height * 0.9)
                axes.plot([row["min_rows_per_s"], end], [y, y], color=charts.INK, linewidth=1)
            axes.annotate(text, (end, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8,
                          color=charts.STATUS_INK[row["status"]])  # fmt: skip
        axes.set_yticks(range(len(tools)), tools["label"].to_list())
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, max(found["max_rows_per_s"].drop_nulls().to_list(), default=1.0) * 1.1)
        axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
        axes.set_xlabel("rows/s, median of passes (whiskers: slowest and fastest pass)")
        axes.set_title(f"JSON lines to Parquet: {found['rows'][0]:,} rows", loc="left", fontweight="bold")
        patches = [Patch(color=CODEC_COLOURS[codec], label=codec) for codec in codecs]
        axes.legend(handles=patches, loc="lower right", frameon=False)
    return figure


def _seconds(row: dict[str, Any]) -> str:
    return row["status"] if row["seconds"] is None else f"{row['seconds']:.3f}"


def _verdict(found: dict[str, float], said: float) -> str:
    """What an interval says of a published ratio; never more than it shows."""
    if math.isnan(found["ratio_low"]):
        return "not measured"
    if found["ratio_high"] < said:
        return "faster"
    return "slower" if found["ratio_low"] > said else "inconclusive"
