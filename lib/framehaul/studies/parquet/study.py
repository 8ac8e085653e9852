"""The study of Parquet files: what is in those of each writer, what each codec costs, and codecs column by column."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from framehaul import servers
from framehaul.harness.environment import server_versions
from framehaul.harness.recording import recording
from framehaul.harness.rounds import check, interruptible
from framehaul.reporting import charts
from framehaul.reporting.tables import dtypes_text, markdown_table, missing_table, ratio_text
from framehaul.reporting.versions import trial_versions_text
from framehaul.results import store
from framehaul.results.statistics import medians
from framehaul.results.statistics import ratio as ratio_of
from framehaul.results.store import EXACT
from framehaul.settings import load_settings
from framehaul.studies.parquet import STUDY
from framehaul.studies.parquet.files import (
    BARELY,
    IN_FILES,
    PUBLISHED_ROW_GROUP_ROWS,
    Bench,
    Chunk,
    Pass,
    Task,
    pass_of,
    rounds,
    tasks_of,
    tasks_per_column,
    trial_name,
)
from framehaul.studies.parquet.writers import NONE, PYARROW, SNAPPY, WRITERS, Codec
from framehaul.studies.warehouse import buildings

CHUNKS = "parquet_chunks.csv"
"""What is in the files; the passes are in `STUDY.results`."""

# https://tech.marksblogg.com/faster-postgresql-to-bigquery.html: ClickHouse 22.9, Snappy, 130,099,920 rows.
PUBLISHED_BEST = ("h3_9", 1_101_585, 422_351)
"""Column, uncompressed and compressed bytes of its best compressed chunk."""
PUBLISHED_RATIOS = {"0.4": 2345, "0.5": 4020, "0.6": 1201, "0.7": 841, "0.8": 1236, "0.9": 1376, "1.0": 2890}
"""How many of its chunks came to which ratio, to one decimal."""

WRITER_COLOURS = {
    "pyarrow": "#0072B2", "polars": "#D55E00", "duckdb": "#E69F00", "clickhouse": "#009E73", "fastparquet": "#999999",
    "pg_parquet": "#CC79A7",
}  # fmt: skip
CODEC_MARKERS = {"none": "s", "snappy": "o", "lz4": "^", "zstd": "D", "gzip": "v"}


class Anatomy:
    """Passes and chunks of a run, ready to be shown."""

    def __init__(self, passes: pl.DataFrame, chunks: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        self.passes, self.chunks = passes, chunks
        self._metadata, self._figures = metadata, figures

    def writers(self) -> Markdown:
        """What is in the file of each writer, by its defaults."""
        return Markdown(writers_table(self.passes, self.chunks))

    def columns(self) -> SVG:
        """What is left of each column, a heat map of columns and writers; also saved as a figure."""
        return self._saved(columns_figure(self.chunks.filter(part="defaults")), "columns")

    def encodings(self) -> Markdown:
        """How each writer encodes each column."""
        return Markdown(encodings_table(self.chunks))

    def row_groups(self) -> SVG:
        """The size of each row group, writer by writer; also saved as a figure."""
        return self._saved(row_groups_figure(self.chunks.filter(part="defaults")), "row_groups")

    def codecs(self) -> Markdown:
        """Size, write and read time of every writer with every codec."""
        return Markdown(codecs_table(self.passes))

    def column_codecs(self) -> Markdown:
        """What each codec makes of each column, with pyarrow."""
        return Markdown(column_codecs_table(self.chunks))

    def codecs_chart(self) -> SVG:
        """Size against write and read time; also saved as a figure."""
        return self._saved(codecs_figure(self.passes), "codecs")

    def per_column(self) -> Markdown:
        """Codecs chosen column by column against one for all."""
        return Markdown(per_column_table(self.passes))

    def published(self) -> Markdown:
        """The published file beside files made with its settings."""
        return Markdown(published_table(self.chunks))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown("\n".join(f"- {sentence}" for sentence in findings(self.passes, self.chunks)))

    def missing(self) -> Markdown:
        """What did not run, or was wrong, and why."""
        return Markdown(missing_table(summary(self.passes), "writer", "trial"))

    def versions(self) -> Markdown:
        """What this was run with."""
        return Markdown(trial_versions_text(self._metadata, STUDY.notebook))

    def _saved(self, figure: Figure, name: str) -> SVG:
        return SVG(charts.save(figure, self._figures / f"{STUDY.name}_{name}.svg"))


def run(*, rows: int, passes: int, warmup: int, seed: int) -> Anatomy:
    """Write, read and take apart the files, and write `results/parquet.csv` and `results/parquet_chunks.csv`.

    Raises ValueError for a parameter that makes no sense, ServerError when the servers cannot be had, ResultsError
    when the files cannot be written.
    """
    check(ROWS=(rows, 1), PASSES=(passes, 1), WARMUP=(warmup, 0))
    chunks: dict[str, list[Chunk]] = {}
    content = buildings.table(rows, seed)
    with (
        recording(STUDY.notebook, STUDY.results, Pass, "file") as made,
        servers.running(made.settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-") as directory,
        Bench(content, both.postgres, Path(directory)).opened(WRITERS) as bench,
    ):

        def record(task: Task, number: int, found: dict[str, Any], in_file: list[Chunk]) -> None:
            made.write(pass_of(made.run_id, task, rows, number, found))
            if in_file:
                chunks.setdefault(task.name, in_file)

        def work(stop: threading.Event) -> None:
            tasks = [*tasks_of(WRITERS), *tasks_per_column(PYARROW, bench.survey(PYARROW))]
            made.expect(len(tasks) * (warmup + passes))
            rounds(tasks, bench, warmup=warmup, passes=passes, seed=seed, record=record, progress=made.progress,
                   stop=stop)  # fmt: skip

        interruptible(work)
        # Of other writers' codecs the passes tell enough.
        kept = [chunk for found in chunks.values() for chunk in found
                if chunk.part != "codec" or chunk.writer == PYARROW.name]  # fmt: skip
        store.write_cells(made.settings.out / "results" / CHUNKS, kept)
        what = f"{rows:,} rows, {passes} passes after {warmup} warm-up, seed {seed}"
        made.metadata |= {"what": what, "servers": both.mode, "server": server_versions(both)}
    return load()


def load() -> Anatomy:
    """The results of the last complete run, without writing any file; raises ResultsError when there is none."""
    settings = load_settings()
    directory = settings.out / "results"
    return Anatomy(*_read(directory), store.read_metadata(directory), settings.out / "figures")


def readme_blocks(directory: Path) -> dict[str, str]:
    """The tables that the README shows, from a results directory; raises ResultsError when the study was not run."""
    passes, chunks = _read(directory)
    return {
        "parquet-writers": writers_table(passes, chunks),
        "parquet-codecs": codecs_table(passes.filter(writer=PYARROW.name)),
    }


def _read(directory: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    passes = store.read(directory / STUDY.results, Pass)
    return passes, store.read(directory / CHUNKS, Chunk)


# What is told of it


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per trial, in the order of first appearance: medians over passes, and bytes per row.

    A trial that ever failed or was skipped has no figures there, and its reason.
    """
    keys = ["trial", "writer", "label", "part", "codec", "level", "columns", "against", "rows"]
    order = {writer.name: at for at, writer in enumerate(WRITERS)}
    found = medians(
        passes, keys, pl.col("types").drop_nulls().first(),
        pl.col("row_order").drop_nulls().unique().sort().str.join(", "), speed="write_seconds",
    ).with_columns(
        (pl.col("file_bytes") / pl.col("rows")).alias("bytes_per_row"),
        *((pl.col(f"{what}_seconds") / pl.col("rows") * 1e6).alias(f"{what}_us_per_row")
          for what in ("write", "read")),
    )  # fmt: skip
    return found.sort(pl.col("writer").replace_strict(order, default=len(order)), "trial", maintain_order=True)


def barely_share(chunks: pl.DataFrame) -> float | None:
    """The share of compressed chunks that stayed at `BARELY` or more of their bytes; None where none is compressed."""
    compressed = chunks.filter(pl.col("codec") != IN_FILES["none"])
    return None if compressed.is_empty() else len(compressed.filter(pl.col("ratio") >= BARELY)) / len(compressed)


def to_one_decimal(chunks: pl.DataFrame) -> Counter[str]:
    """How many chunks come to which ratio, as the article counts them: what is 0.85 or more is 0.9 there."""
    return Counter(f"{value:.1f}" for value in chunks["ratio"])


def published_share(counts: Mapping[str, int]) -> float:
    """The share of chunks at `BARELY` or more, of ratios to one decimal."""
    return sum(count for text, count in counts.items() if float(text) >= BARELY) / sum(counts.values())


def ratio(passes: pl.DataFrame, left: str, right: str, what: str) -> dict[str, float]:
    """How many times as fast one trial is as another at `what` (`write`, `read`), with its bootstrap 95% interval."""
    speeds = passes.with_columns((pl.col("rows") / pl.col(f"{what}_seconds")).alias("rows_per_s"))
    return ratio_of(speeds.filter(trial=left), speeds.filter(trial=right))


def writers_table(passes: pl.DataFrame, chunks: pl.DataFrame) -> str:
    """What is in the file of each writer, by its defaults, as Markdown."""
    header = ["writer", "codec", "row groups", "rows in each", "bytes per row", "compressed over uncompressed",
              f"compressed chunks at {BARELY} or more", "chunks with a dictionary", "with statistics",
              "with page index: offsets, statistics", "types read back", "row order"]  # fmt: skip
    rows = []
    for row in summary(passes).filter(part="defaults").to_dicts():
        here = chunks.filter(trial=row["trial"])
        if row["status"] != "ok":
            rows.append([row["label"], row["status"], *[""] * (len(header) - 2)])
            continue
        groups, barely = here.unique("row_group")["rows"].to_list(), barely_share(here)
        rows.append(
            [
                row["label"], _codec_text(row), f"{len(groups):,}", _spread(groups), f"{row['bytes_per_row']:.1f}",
                f"{_sum(here, 'compressed_bytes') / _sum(here, 'uncompressed_bytes'):.2f}",
                "not compressed" if barely is None else f"{barely:.0%}",
                _share(here, "dictionary_page"), _share(here, "statistics"),
                f"{_share(here, 'offset_index')}, {_share(here, 'column_index')}",
                dtypes_text(row["types"]), row["row_order"],
            ]
        )  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def encodings_table(chunks: pl.DataFrame) -> str:
    """Physical type and encodings of each column and writer, as Markdown; a star where there is a dictionary."""
    defaults = chunks.filter(part="defaults")
    labels = _labels(defaults)
    rows = []
    for column in defaults["column"].unique(maintain_order=True):
        cells = []
        for label in labels:
            here = defaults.filter(label=label, column=column)
            kinds = "; ".join(here["encodings"].unique(maintain_order=True))
            cells.append(f"{here['physical_type'][0]}: {kinds}{' *' if 'yes' in here['dictionary_page'] else ''}")
        rows.append([column, *cells])
    return markdown_table(["column", *labels], rows, text_columns=len(labels) + 1)


def codecs_table(passes: pl.DataFrame) -> str:
    """Every writer with every codec, smallest file first, as Markdown."""
    header = ["writer", "codec", "MB", "bytes per row", "write s", "read s", "write CPU s", "read CPU s",
              "writes, over its Snappy (95% interval)", "reads, over its Snappy (95% interval)"]  # fmt: skip
    found = summary(passes).filter(pl.col("part").is_in(["defaults", "codec"]))
    rows = []
    for label in found["label"].unique(maintain_order=True):
        here = found.filter(label=label).sort("bytes_per_row", nulls_last=True, maintain_order=True)
        for row in here.to_dicts():
            name = _codec_text(row) + (" (its default)" if row["part"] == "defaults" else "")
            if row["status"] != "ok":
                rows.append([label, f"{name}: {row['status']}", *[""] * (len(header) - 2)])
                continue
            snappy = f"{row['writer']}_{SNAPPY.name}"
            rows.append(
                [
                    label, name, f"{row['file_bytes'] / 1e6:,.2f}", f"{row['bytes_per_row']:.1f}",
                    f"{row['write_seconds']:.3f}", f"{row['read_seconds']:.3f}",
                    "" if row["write_cpu_s"] is None else f"{row['write_cpu_s']:.3f}", f"{row['read_cpu_s']:.3f}",
                    *("" if row["trial"] == snappy else ratio_text(ratio(passes, row["trial"], snappy, what))
                      for what in ("write", "read")),
                ]
            )  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def column_codecs_table(chunks: pl.DataFrame) -> str:
    """Compressed over uncompressed bytes of each column with each codec of pyarrow, as Markdown."""
    here = chunks.filter(pl.col("part").is_in(["defaults", "codec"]), writer=PYARROW.name)
    ratios = {(row["trial"], row["column"]): row["ratio"] for row in _by_column(here).to_dicts()}
    codecs = [codec for codec in PYARROW.offers if codec != NONE]
    rows = [
        [column, *(_number(ratios.get((trial_name(PYARROW, codec), column))) for codec in codecs)]
        for column in here["column"].unique(maintain_order=True)
    ]
    return markdown_table(["column", *(codec.text for codec in codecs)], rows)


def per_column_table(passes: pl.DataFrame) -> str:
    """Codecs chosen column by column against the same one for all columns, as Markdown."""
    found = {row["trial"]: row for row in summary(passes).to_dicts()}
    rows = []
    for row in found.values():
        if row["part"] != "per_column":
            continue
        base = found[row["against"]]
        if row["status"] != "ok" or base["status"] != "ok":
            rows.append([_codec_text(base), row["status"], *[""] * 5])
            continue
        rows.append(
            [
                _codec_text(base), _choice_text(row), f"{base['bytes_per_row']:.2f}", f"{row['bytes_per_row']:.2f}",
                f"{row['file_bytes'] / base['file_bytes'] - 1:+.2%}",
                *(ratio_text(ratio(passes, row["trial"], row["against"], what)) for what in ("write", "read")),
            ]
        )  # fmt: skip
    header = ["codec for all columns", "chosen instead", "bytes per row before", "after", "change of size",
              "writes, over one codec (95% interval)", "reads, over one codec (95% interval)"]  # fmt: skip
    return markdown_table(header, rows, text_columns=2)


def published_table(chunks: pl.DataFrame) -> str:
    """The published file and files made with its settings: best chunk and how many barely shrank, as Markdown."""
    column, plain, compressed = PUBLISHED_BEST
    rows = [_published_row("ClickHouse 22.9, published", f"{PUBLISHED_ROW_GROUP_ROWS:,}", column, plain, compressed,
                           PUBLISHED_RATIOS)]  # fmt: skip
    here = chunks.filter(part="published")
    for label in _labels(here):
        mine = here.filter(label=label)
        best = mine.sort("ratio").row(0, named=True)
        rows.append(
            _published_row(label, _spread(mine.unique("row_group")["rows"].to_list()), best["column"],
                           best["uncompressed_bytes"], best["compressed_bytes"], to_one_decimal(mine))
        )  # fmt: skip
    header = ["Snappy", "rows in a row group", "best chunk", "its bytes", "its ratio", "chunks at 0.9 or worse",
              "chunks by ratio, to one decimal"]  # fmt: skip
    return markdown_table(header, rows, text_columns=3)


def _published_row(
    label: str, groups: str, column: str, plain: int, compressed: int, counts: Mapping[str, int]
) -> list[str]:
    told = ", ".join(f"{text}: {counts[text]:,}" for text in sorted(counts))
    return [label, groups, column, f"{plain:,} -> {compressed:,}", f"{plain / compressed:.1f}:1",
            f"{published_share(counts):.0%}", told]  # fmt: skip


def findings(passes: pl.DataFrame, chunks: pl.DataFrame) -> list[str]:
    """What stands out, as sentences; a difference of times inside its interval is not claimed."""
    found = summary(passes).filter(status="ok")
    defaults = found.filter(part="defaults").sort("bytes_per_row")
    return [*_on_sizes(defaults), *_on_chunks(defaults, chunks), *_on_codecs(passes, found),
            *_on_columns(passes, found)]  # fmt: skip


def _on_sizes(defaults: pl.DataFrame) -> Iterator[str]:
    small, large = defaults.row(0, named=True), defaults.row(-1, named=True)
    yield (
        f"By their defaults, {small['label']} writes the smallest file ({small['bytes_per_row']:.1f} bytes per row, "
        f"{small['codec']}) and {large['label']} the largest ({large['bytes_per_row']:.1f}, {large['codec']}): "
        f"{large['bytes_per_row'] / small['bytes_per_row']:.1f} times as large, for the same rows."
    )
    drifted = defaults.filter(pl.col("types") != EXACT)
    for row in drifted.sort("label").to_dicts():
        yield f"What {row['label']} writes comes back in other types: {dtypes_text(row['types'])}."
    moved = defaults.filter(pl.col("row_order") != "kept")["label"].to_list()
    if moved:
        yield f"Rows came back in another order from the files of {_listed(moved)}."


def _on_chunks(defaults: pl.DataFrame, chunks: pl.DataFrame) -> Iterator[str]:
    for row in defaults.sort("label").to_dicts():
        here = chunks.filter(trial=row["trial"])
        barely = here.filter(pl.col("ratio") >= BARELY)
        share = barely_share(here)
        if share is None:
            yield f"{row['label']} compresses nothing unless asked to."
        elif share:
            part = _sum(barely, "compressed_bytes") / _sum(here, "compressed_bytes")
            columns = _listed(barely["column"].unique(maintain_order=True).to_list())
            yield (
                f"{row['label']}: {share:.0%} of the chunks were barely worth compressing ({columns}), "
                f"but they hold only {part:.1%} of the bytes."
                if part < share
                else f"{row['label']}: {share:.0%} of the chunks were barely worth compressing ({columns}); "
                f"they hold {part:.1%} of the bytes."
            )
    own = chunks.filter(pl.col("trial").is_in(defaults["trial"].to_list()))
    for index, what in (("offset_index", "where each page begins"), ("column_index", "the extremes of each page")):
        having = _labels(own.filter(pl.col(index) == "yes"))
        yield f"A page index that tells {what} is written by {_listed(having) if having else 'no writer by default'}."
    plain = [label for label in _labels(own) if "yes" not in own.filter(label=label)["dictionary_page"]]
    if plain:
        yield f"No dictionary is written by {_listed(plain)}."
    base = own.filter(writer=PYARROW.name)
    if not base.is_empty():
        sizes = base.group_by("column").agg(pl.col("compressed_bytes").sum()).sort("compressed_bytes")
        name, most = sizes.row(-1)
        yield f"The column `{name}` holds {most / _sum(base, 'compressed_bytes'):.0%} of the bytes of pyarrow's file."


def _on_codecs(passes: pl.DataFrame, found: pl.DataFrame) -> Iterator[str]:
    mine = {row["trial"]: row for row in found.filter(writer=PYARROW.name).to_dicts()}
    base = mine.get(trial_name(PYARROW, SNAPPY))
    for codec in PYARROW.offers:
        row = mine.get(trial_name(PYARROW, codec))
        if base is None or row is None or codec == SNAPPY:
            continue
        written, read = (_verdict(ratio(passes, row["trial"], base["trial"], what)) for what in ("write", "read"))
        yield (
            f"pyarrow, {codec.text} against Snappy: {row['file_bytes'] / base['file_bytes']:.2f} times the bytes; "
            f"writing {written}, reading {read}."
        )


def _on_columns(passes: pl.DataFrame, found: pl.DataFrame) -> Iterator[str]:
    named = {row["trial"]: row for row in found.to_dicts()}
    for row in named.values():
        base = named.get(row["against"])
        if row["part"] != "per_column" or base is None:
            continue
        if row["columns"] is None:
            yield f"{_codec_text(base)}: no column asks for another codec."
            continue
        written, read = (_verdict(ratio(passes, row["trial"], base["trial"], what)) for what in ("write", "read"))
        yield (
            f"{_choice_text(row)}, all else {_codec_text(base)}: "
            f"{row['file_bytes'] / base['file_bytes'] - 1:+.2%} bytes; writing {written}, reading {read}."
        )


def _verdict(found: dict[str, float]) -> str:
    """What an interval of a ratio of speeds shows."""
    text = ratio_text(found)
    if not text:
        return "not measured"
    if found["ratio_low"] == found["ratio_high"]:
        return f"inconclusive, one round, {text}"  # its interval is a point
    if found["ratio_low"] > 1:
        return f"faster, {text}"
    return f"slower, {text}" if found["ratio_high"] < 1 else f"inconclusive, {text}"


# Charts


def columns_figure(chunks: pl.DataFrame) -> Figure:
    """Compressed over uncompressed bytes: a line for each column, a column for each writer."""
    ratios = {(row["label"], row["column"]): row for row in _by_column(chunks).to_dicts()}
    labels, names = _labels(chunks), chunks["column"].unique(maintain_order=True).to_list()
    colours = mpl.colormaps["YlOrRd"]
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(1.6 + 1.5 * len(labels), 1.2 + 0.42 * len(names)), layout="constrained")
        axes = figure.subplots()
        for y, column in enumerate(names):
            for x, label in enumerate(labels):
                cell = ratios[label, column]
                bare = cell["codec"] == IN_FILES["none"]
                shade = "#f2f2f2" if bare else colours(min(cell["ratio"], 1) * 0.75)
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=shade, linewidth=0))
                text = (
                    f"{cell['bytes_per_row']:.1f} B"
                    if bare
                    else f"{cell['ratio']:.2f}  ({cell['bytes_per_row']:.1f} B)"
                )
                axes.text(x, y, text, ha="center", va="center", fontsize=8)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title("Compressed over uncompressed, and bytes per row", loc="left", fontweight="bold")
        axes.set_xlabel("each writer by its defaults; grey: not compressed")
    return figure


def row_groups_figure(chunks: pl.DataFrame) -> Figure:
    """A bar for each writer, cut into its row groups, with their bytes."""
    labels = _labels(chunks)
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(10.5, 0.9 + 0.42 * len(labels)), layout="constrained")
        axes = figure.subplots()
        for y, label in enumerate(labels):
            here = chunks.filter(label=label)
            groups = here.group_by("row_group").agg(pl.col("compressed_bytes").sum(), pl.col("rows").first())
            start = 0.0
            for row in groups.sort("row_group").to_dicts():
                width = row["compressed_bytes"] / 1e6
                axes.barh(y, width, left=start, color=WRITER_COLOURS[here["writer"][0]], edgecolor="white", height=0.7)
                start += width
            rows = groups["rows"].to_list()
            text = f"{len(rows)} row group{'s' if len(rows) > 1 else ''}, rows: {_spread(rows)}"
            axes.annotate(text, (start, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set_yticks(range(len(labels)), labels)
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.3)
        axes.set_xlim(0)
        axes.grid(axis="x", color="#eeeeee")
        axes.set_axisbelow(True)
        axes.set_xlabel("MB of column chunks, each writer by its defaults")
        axes.set_title("Row groups", loc="left", fontweight="bold")
    return figure


def codecs_figure(passes: pl.DataFrame) -> Figure:
    """Bytes per row against the time to write and to read a row; the line joins what nothing beats in both."""
    found = summary(passes).filter(pl.col("part").is_in(["defaults", "codec"]), status="ok")
    with mpl.rc_context(charts.STYLE):
        figure = Figure(figsize=(12, 5.6), layout="constrained")
        for axes, what in zip(figure.subplots(1, 2), ("write", "read"), strict=True):
            _scatter(axes, found, f"{what}_us_per_row")
            axes.set_xlabel("bytes per row")
            axes.set_ylabel(f"µs per row to {what}, median of passes, logarithmic")
            axes.set_title(f"Size against {what} time", loc="left", fontweight="bold")
        dots = [Line2D([], [], marker="o", linestyle="", color=WRITER_COLOURS[name], label=label)
                for name, label in found.select("writer", "label").unique(maintain_order=True).iter_rows()]  # fmt: skip
        shapes = [Line2D([], [], marker=marker, linestyle="", color=charts.FAINT, label=name)
                  for name, marker in CODEC_MARKERS.items()]  # fmt: skip
        line = Line2D([], [], color=charts.FAINT, linewidth=0.8, label="no other is smaller and faster")
        own = Line2D([], [], marker="o", linestyle="", color="white", markeredgecolor=charts.INK, label="its default")
        figure.legend(handles=[*dots, own, *shapes, line], loc="outside lower center", ncols=7, frameon=False)
    return figure


def _scatter(axes: Axes, found: pl.DataFrame, time_column: str) -> None:
    for row in found.to_dicts():
        x, y = row["bytes_per_row"], row[time_column]
        axes.scatter(x, y, color=WRITER_COLOURS[row["writer"]], marker=CODEC_MARKERS[row["codec"]], s=34, zorder=3,
                     edgecolor=charts.INK if row["part"] == "defaults" else "none", linewidth=0.9)  # fmt: skip
        # Of the writer with all codecs; the others would be written over each other.
        if row["writer"] == PYARROW.name:
            axes.annotate(_codec_text(row), (x, y), xytext=(5, 3), textcoords="offset points", fontsize=7)
    best = unbeaten(found.select("bytes_per_row", time_column).rows())
    axes.plot(*zip(*best, strict=True), color=charts.FAINT, linewidth=0.8, zorder=1)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.tick_params(axis="y", which="both", labelsize=7)
    axes.grid(color="#eeeeee")
    axes.set_axisbelow(True)


def unbeaten(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of points (bytes, time), those that no other beats in both, by bytes."""
    kept: list[tuple[float, float]] = []
    for size, seconds in sorted(points):
        if not kept or seconds < kept[-1][1]:
            kept.append((size, seconds))
    return kept


def _by_column(chunks: pl.DataFrame) -> pl.DataFrame:
    """Ratio and bytes per row of each column of each trial, over all its row groups."""
    return chunks.group_by("trial", "label", "column", maintain_order=True).agg(
        (pl.col("compressed_bytes").sum() / pl.col("uncompressed_bytes").sum()).alias("ratio"),
        (pl.col("compressed_bytes").sum() / pl.col("rows").sum()).alias("bytes_per_row"),
        pl.col("codec").first(),
    )


def _labels(chunks: pl.DataFrame) -> list[str]:
    """The writers, in the order of the registry."""
    present = set(chunks["label"])
    return [writer.label for writer in WRITERS if writer.label in present]


def _codec_text(row: dict[str, Any]) -> str:
    return Codec(row["codec"], row["level"]).text


def _choice_text(row: dict[str, Any]) -> str:
    return "nothing: no column asks for it" if row["columns"] is None else dtypes_text(row["columns"])


def _share(chunks: pl.DataFrame, column: str) -> str:
    return f"{len(chunks.filter(pl.col(column) == 'yes')) / len(chunks):.0%}"


def _sum(chunks: pl.DataFrame, column: str) -> int:
    return int(chunks[column].sum())


def _spread(values: list[int]) -> str:
    """A number, or the smallest and the largest of them."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _listed(names: list[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
