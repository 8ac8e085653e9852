"""The study of Parquet files: what is in those of each writer, and what each codec costs."""

from __future__ import annotations

import inspect
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import polars as pl
from IPython.display import Code
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from framehaul import servers
from framehaul.bench import ratios, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Ok, Pass, attempt
from framehaul.bench.ratios import Ratio
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, Row, bullets, dtypes_text, words
from framehaul.settings import Settings, load_settings
from framehaul.studies.parquet import STUDY
from framehaul.studies.parquet.files import PUBLISHED_ROW_GROUP_ROWS, RoundTrip, Task, opened, row_of, tasks_of
from framehaul.studies.parquet.writers import PYARROW, SNAPPY, WRITERS, Codec
from framehaul.studies.warehouse import buildings

CHUNKS = "parquet_chunks.csv"
"""What is in the files; the passes are in `STUDY.results`."""

# https://tech.marksblogg.com/postgresql-to-bigquery.html: ClickHouse 22.9, Snappy, 130,099,920 rows.
PUBLISHED_BEST = ("h3_9", 1_101_585, 422_351)
"""Column, uncompressed and compressed bytes of its best compressed chunk."""
PUBLISHED_RATIOS = {"0.4": 2345, "0.5": 4020, "0.6": 1201, "0.7": 841, "0.8": 1236, "0.9": 1376, "1.0": 2890}
"""How many of its chunks came to which ratio of compressed over uncompressed bytes, to one decimal."""
BARELY = 0.9
"""The ratio from which a chunk was barely worth compressing; the article's mark."""

WRITER_COLOURS = {
    "pyarrow": "#0072B2", "polars": "#D55E00", "duckdb": "#E69F00", "clickhouse": "#009E73", "fastparquet": "#999999",
    "pg_parquet": "#CC79A7",
}  # fmt: skip
CODEC_MARKERS = {"none": "s", "snappy": "o", "lz4": "^", "zstd": "D", "gzip": "v"}


def run(*, rows: int, passes: int, warmup: int, seed: int) -> Anatomy:
    """Write, read and take apart the files, and write `results/parquet.csv` and `results/parquet_chunks.csv`.

    Raises ValueError for a parameter that makes no sense, ServerError when the servers cannot be had, ResultsError
    when the files cannot be written.
    """
    check(ROWS=(rows, 1))
    rounds = Rounds(passes, warmup, seed)
    terms = {"rows": rows, **vars(rounds)}
    content = buildings.table(rows, seed)
    with (
        recording(STUDY.notebook, STUDY.results, RoundTrip, "file", terms) as this_run,
        servers.running(this_run.settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-") as directory,
        opened(WRITERS, content, both.postgres, Path(directory)) as bench,
    ):
        tasks = tasks_of(WRITERS)
        this_run.expect(len(tasks) * (warmup + passes))

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
            return row_of(this_run.run_id, task, rows, number, ended)

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: in_rounds(
                tasks,
                rounds,
                lambda task, _: bench.measured(task)[0],
                record,
                stop=stop,
                progress=lambda task, _: this_run.progress(task.name),
                finished=finished,
                home=Path(directory),
            )
        )
        # Of other writers' codecs the passes tell enough. What is in the files is looked at apart from the passes.
        kept = [task for task in tasks if task.part != "codec" or task.writer is PYARROW]
        ended = [attempt(partial(bench.measured, task)) for task in kept]
        chunks = pl.concat(one.values[1] for one in ended if isinstance(one, Ok))
        store.write_frame(this_run.settings.out / "results" / CHUNKS, chunks)
        this_run.metadata |= terms | {"servers": both.mode, "server": server_versions(both)}
    return Anatomy.load(this_run.settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes, chunks = store.read(directory / STUDY.results, RoundTrip), store.read_frame(directory / CHUNKS)
    return {
        "parquet-writers": str(writers_table(passes, chunks)),
        "parquet-codecs": str(codecs_table(passes.filter(writer=PYARROW.name))),
    }


def show_source() -> Code:
    """The code of the writers as it stands in the library."""
    return Code("\n\n\n".join(inspect.getsource(writer.write) for writer in WRITERS), language="python")


# What is derived from passes and chunks

_PLACE = pl.col("writer").replace_strict({writer.name: at for at, writer in enumerate(WRITERS)}, default=len(WRITERS))
_RATIO = pl.col("compressed_bytes") / pl.col("uncompressed_bytes")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per trial, in the order of the writers: medians over passes, and bytes per row.

    A trial that ever failed or was skipped has no figures there, and its reason.
    """
    keys = ["trial", "writer", "label", "part", "codec", "level", "rows"]
    trials = statistics.medians(
        passes, keys, pl.col("types").drop_nulls().first(),
        pl.col("row_order").drop_nulls().unique().sort().str.join(", "), speed="write_seconds",
    ).with_columns(
        (pl.col("file_bytes") / pl.col("rows")).alias("bytes_per_row"),
        *((pl.col(f"{what}_seconds") / pl.col("rows") * 1e6).alias(f"{what}_us_per_row")
          for what in ("write", "read")),
    )  # fmt: skip
    return trials.sort(_PLACE, "trial", maintain_order=True)


def to_one_decimal(chunks: pl.DataFrame) -> Counter[str]:
    """How many chunks come to which ratio, as the article counts them: what is 0.85 or more is 0.9 there."""
    return Counter(f"{value:.1f}" for value in chunks.select(_RATIO).to_series())


def barely_share(counts: Mapping[str, int]) -> float:
    """The share of chunks at `BARELY` or more, of ratios to one decimal."""
    return sum(count for text, count in counts.items() if float(text) >= BARELY) / sum(counts.values())


def ratio(passes: pl.DataFrame, left: str, right: str, what: str) -> Ratio:
    """How many times as fast one trial is as another at `what` (`write`, `read`)."""
    speeds = passes.with_columns((pl.col("rows") / pl.col(f"{what}_seconds")).alias("rows_per_s"))
    return ratios.ratio(speeds.filter(trial=left), speeds.filter(trial=right))


# Tables


def writers_table(passes: pl.DataFrame, chunks: pl.DataFrame) -> Listing:
    """What is in the file of each writer, by its defaults."""
    inside = chunks.group_by("trial").agg(
        pl.col("row_group").n_unique().alias("groups"),
        pl.col("rows").min().alias("min_rows"),
        pl.col("rows").max().alias("max_rows"),
        (pl.col("compressed_bytes").sum() / pl.col("uncompressed_bytes").sum()).alias("ratio"),
        pl.col("dictionary_page", "offset_index").mean(),
    )

    def back(row: Row) -> str | None:
        if row["types"] is None:  # it did not run
            return None
        moved = "; rows in another order" if row["row_order"] != "kept" else ""
        return dtypes_text(row["types"]) + moved

    columns = [
        words("writer", "label"),
        words("codec", _codec_text),
        Column("row groups", "groups", "{:,}"),
        Column("rows in each", lambda row: _spread([row["min_rows"], row["max_rows"]])),
        Column("bytes per row", "bytes_per_row", "{:.1f}"),
        Column("compressed over uncompressed", "ratio", "{:.2f}"),
        Column("chunks with a dictionary, with a page index",
               lambda row: f"{row['dictionary_page']:.0%}, {row['offset_index']:.0%}"),
        words("read back", back),
    ]  # fmt: skip
    return Listing(columns, summary(passes).filter(part="defaults").join(inside, on="trial", how="left"))


def encodings_table(chunks: pl.DataFrame) -> Listing:
    """Physical type and encodings of each column and writer; a star where there is a dictionary."""
    defaults = chunks.filter(part="defaults")
    star = pl.when(pl.col("dictionary_page").any()).then(pl.lit(" *")).otherwise(pl.lit(""))
    encodings = pl.col("encodings").unique(maintain_order=True).str.join("; ")
    cells = defaults.group_by("column", "label", maintain_order=True).agg(
        pl.format("{}: {}{}", pl.col("physical_type").first(), encodings, star).alias("text")
    )
    columns = [words(label, label) for label in _labels(defaults)]
    return Listing([words("column", "column"), *columns], cells.pivot("label", index="column", values="text"))


def codecs_table(passes: pl.DataFrame) -> Listing:
    """Every writer with every codec, smallest file first."""

    def over_snappy(row: Row, what: str) -> Ratio | None:
        base = f"{row['writer']}_{SNAPPY.name}"
        return None if row["trial"] == base else ratio(passes, row["trial"], base, what)

    columns = [
        words("writer", "label"),
        words("codec", lambda row: _codec_text(row) + (" (its default)" if row["part"] == "defaults" else "")),
        Column("MB", lambda row: row["file_bytes"] / 1e6, "{:,.2f}"),
        Column("bytes per row", "bytes_per_row", "{:.1f}"),
        Column("write s", "write_seconds", "{:.3f}"), Column("read s", "read_seconds", "{:.3f}"),
        *(Column(f"{what}s, over its Snappy", partial(over_snappy, what=what)) for what in ("write", "read")),
    ]  # fmt: skip
    return Listing(columns, _with_codecs(passes).sort(_PLACE, "bytes_per_row", nulls_last=True, maintain_order=True))


def published_table(chunks: pl.DataFrame) -> Listing:
    """The published file and files made with its settings: best chunk and how many barely shrank."""
    column, plain, compressed = PUBLISHED_BEST
    rows: list[Row] = [
        {"label": "ClickHouse 22.9, published", "groups": [PUBLISHED_ROW_GROUP_ROWS], "column": column,
         "uncompressed_bytes": plain, "compressed_bytes": compressed, "counts": PUBLISHED_RATIOS}
    ]  # fmt: skip
    here = chunks.filter(part="published")
    for label in _labels(here):
        mine = here.filter(label=label)
        rows.append(mine.sort(_RATIO).row(0, named=True) | {"groups": mine["rows"], "counts": to_one_decimal(mine)})
    columns = [
        words("Snappy", "label"),
        words("rows in a row group", "groups", _spread),
        words("best chunk", "column"),
        Column("its ratio", lambda row: row["uncompressed_bytes"] / row["compressed_bytes"], "{:.1f}:1"),
        Column("chunks at 0.9 or worse", lambda row: barely_share(row["counts"]), "{:.0%}"),
    ]
    return Listing(columns, rows)


def _with_codecs(passes: pl.DataFrame) -> pl.DataFrame:
    """Of the summary, the trials of one codec for all columns."""
    return summary(passes).filter(pl.col("part").is_in(["defaults", "codec"]))


def _labels(chunks: pl.DataFrame) -> list[str]:
    """The writers, in the order of the registry."""
    present = set(chunks["label"])
    return [writer.label for writer in WRITERS if writer.label in present]


def _codec_text(row: Row) -> str:
    return Codec(row["codec"], row["level"]).text


def _spread(values: Iterable[int]) -> str:
    """A number, or the smallest and the largest of them."""
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


def answer_text(passes: pl.DataFrame) -> str:
    """The smallest and the largest file that writers make by their defaults."""
    files = summary(passes).filter(status="ok", part="defaults").sort("bytes_per_row")
    small, large = files.row(0, named=True), files.row(-1, named=True)
    return bullets(
        f"{which} file by default: {row['label']}, {row['bytes_per_row']:.1f} bytes per row ({row['codec']})"
        for which, row in (("Smallest", small), ("Largest", large))
    )


# Charts


def codecs_figure(passes: pl.DataFrame) -> Figure:
    """Bytes per row against the time to write and to read a row."""
    trials = _with_codecs(passes).filter(status="ok")
    with charts.panels(1, 2, height=5.6) as (figure, panels):
        for axes, what in zip(panels, ("write", "read"), strict=True):
            _scatter(axes, trials, f"{what}_us_per_row")
            axes.set_xlabel("bytes per row")
            axes.set_ylabel(f"µs per row to {what}, median of passes, logarithmic")
            charts.title(axes, f"Size against {what} time")
        dot = partial(Line2D, [], [], linestyle="")
        writers = trials.select("writer", "label").unique(maintain_order=True).rows()
        handles = [
            *(dot(marker="o", color=WRITER_COLOURS[name], label=label) for name, label in writers),
            dot(marker="o", color="white", markeredgecolor=charts.INK, label="its default"),
            *(dot(marker=marker, color=charts.FAINT, label=name) for name, marker in CODEC_MARKERS.items()),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    return figure


def _scatter(axes: Axes, trials: pl.DataFrame, time_column: str) -> None:
    for row in trials.to_dicts():
        x, y = row["bytes_per_row"], row[time_column]
        axes.scatter(x, y, color=WRITER_COLOURS[row["writer"]], marker=CODEC_MARKERS[row["codec"]], s=34, zorder=3,
                     edgecolor=charts.INK if row["part"] == "defaults" else "none", linewidth=0.9)  # fmt: skip
        # Of the writer with all codecs; the others would be written over each other.
        if row["writer"] == PYARROW.name:
            axes.annotate(_codec_text(row), (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8, zorder=4)
    charts.quantities(axes.yaxis, "{:g}".format, logarithmic=True)
    axes.tick_params(axis="y", which="both", labelsize=8)
    axes.grid(color="#eeeeee")


class Anatomy(Shown):
    """Passes and chunks of a run."""

    study = STUDY
    chunks: pl.DataFrame

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """From the files of the last complete run, without any server; raises ResultsError when there is none."""
        settings = settings or load_settings()
        shown = super().load(settings)
        shown.chunks = store.read_frame(settings.out / "results" / CHUNKS)
        return shown

    encodings = view(encodings_table, of_frame="chunks")
    codecs_chart = chart(codecs_figure, "codecs")
    codecs = view(codecs_table)
    published = view(published_table, of_frame="chunks")
    answer = view(answer_text)
    missing = view(lambda passes: tables.missing(summary(passes), "writer", "trial"))

    def writers(self) -> Listing:
        """What is in the file of each writer, by its defaults."""
        return writers_table(self.passes, self.chunks)
