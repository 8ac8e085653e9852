"""The study of Parquet files: what is in those of each writer, what each codec costs, and codecs column by column."""

from __future__ import annotations

import inspect
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import batched
from math import log
from pathlib import Path
from typing import Any, Self

import matplotlib as mpl
import polars as pl
from IPython.display import Code, Markdown
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from framehaul import servers
from framehaul.harness.environment import server_versions
from framehaul.harness.passes import Ok, Pass, attempt
from framehaul.harness.recording import recording
from framehaul.harness.rounds import Rounds, check, in_rounds, interruptible
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, Row, bullets, dtypes_text, words
from framehaul.results import ratios, statistics, store
from framehaul.results.ratios import Ratio, verdicts
from framehaul.results.store import EXACT
from framehaul.settings import Settings, load_settings
from framehaul.studies.parquet import STUDY
from framehaul.studies.parquet.files import (
    BARELY,
    PUBLISHED_ROW_GROUP_ROWS,
    Chunk,
    RoundTrip,
    Task,
    opened,
    row_of,
    tasks_of,
    tasks_per_column,
    trial_name,
)
from framehaul.studies.parquet.writers import NONE, PYARROW, SNAPPY, WRITERS, Codec
from framehaul.studies.warehouse import buildings

CHUNKS = "parquet_chunks.csv"
"""What is in the files; the passes are in `STUDY.results`."""

# https://tech.marksblogg.com/postgresql-to-bigquery.html: ClickHouse 22.9, Snappy, 130,099,920 rows.
PUBLISHED_BEST = ("h3_9", 1_101_585, 422_351)
"""Column, uncompressed and compressed bytes of its best compressed chunk."""
PUBLISHED_RATIOS = {"0.4": 2345, "0.5": 4020, "0.6": 1201, "0.7": 841, "0.8": 1236, "0.9": 1376, "1.0": 2890}
"""How many of its chunks came to which ratio, to one decimal."""

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
    chunks: dict[Task, list[Chunk]] = {}
    with (
        recording(STUDY.notebook, STUDY.results, RoundTrip, "file", terms) as this_run,
        servers.running(this_run.settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-") as directory,
        opened(WRITERS, content, both.postgres, Path(directory)) as bench,
    ):
        tasks = [*tasks_of(WRITERS), *tasks_per_column(PYARROW, bench.survey(PYARROW))]
        this_run.expect(len(tasks) * (warmup + passes))

        def row(task: Task, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
            return row_of(this_run.run_id, task, rows, number, ended)

        def measure(task: Task, number: int) -> dict[str, Any]:
            values, in_file = bench.measured(task)
            if number > 0:
                chunks.setdefault(task, in_file)
            return values

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: in_rounds(
                tasks, rounds, measure, record, stop=stop, progress=lambda task, _: this_run.progress(task.name),
                finished=finished, home=Path(directory),
            )
        )  # fmt: skip
        for task in tasks:
            # An interrupted run has left its passes, and not what was in their files.
            if finished(task, passes) and isinstance(again := attempt(partial(bench.measured, task)), Ok):
                chunks[task] = again.values[1]
        # Of other writers' codecs the passes tell enough.
        kept = [task for task in tasks if task.part != "codec" or task.writer is PYARROW]
        cells = [chunk for task in kept for chunk in chunks.get(task, [])]
        store.write_cells(this_run.settings.out / "results" / CHUNKS, cells)
        this_run.metadata |= terms | {"servers": both.mode, "server": server_versions(both)}
    return Anatomy.load(this_run.settings)


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes, chunks = store.read(directory / STUDY.results, RoundTrip), store.read(directory / CHUNKS, Chunk)
    return {
        "parquet-writers": str(writers_table(passes, chunks)),
        "parquet-codecs": str(codecs_table(passes.filter(writer=PYARROW.name))),
    }


def show_source() -> Code:
    """The code of the writers as it stands in the library."""
    return Code("\n\n\n".join(inspect.getsource(writer.write) for writer in WRITERS), language="python")


# What is derived from passes and chunks

_PLACE = pl.col("writer").replace_strict({writer.name: at for at, writer in enumerate(WRITERS)}, default=len(WRITERS))
_BARELY_SHARE = (pl.col("ratio") >= BARELY).filter(pl.col("codec") != NONE.in_file).mean()


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per trial, in the order of the writers: medians over passes, and bytes per row.

    A trial that ever failed or was skipped has no figures there, and its reason.
    """
    keys = ["trial", "writer", "label", "part", "codec", "level", "columns", "against", "rows"]
    trials = statistics.medians(
        passes, keys, pl.col("types").drop_nulls().first(),
        pl.col("row_order").drop_nulls().unique().sort().str.join(", "), speed="write_seconds",
    ).with_columns(
        (pl.col("file_bytes") / pl.col("rows")).alias("bytes_per_row"),
        *((pl.col(f"{what}_seconds") / pl.col("rows") * 1e6).alias(f"{what}_us_per_row")
          for what in ("write", "read")),
    )  # fmt: skip
    return trials.sort(_PLACE, "trial", maintain_order=True)


def barely_share(chunks: pl.DataFrame) -> float | None:
    """The share of compressed chunks that stayed at `BARELY` or more of their bytes; None where none is compressed."""
    share: float | None = chunks.select(_BARELY_SHARE).item()
    return share


def to_one_decimal(chunks: pl.DataFrame) -> Counter[str]:
    """How many chunks come to which ratio, as the article counts them: what is 0.85 or more is 0.9 there."""
    return Counter(f"{value:.1f}" for value in chunks["ratio"])


def published_share(counts: Mapping[str, int]) -> float:
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
        _BARELY_SHARE.alias("barely"),
        *((pl.col(name) == "yes").mean() for name in ("dictionary_page", "statistics", "offset_index", "column_index")),
    )
    columns = [
        words("writer", "label"), words("codec", _codec_text),
        Column("row groups", "groups", "{:,}"),
        Column("rows in each", lambda row: _spread([row["min_rows"], row["max_rows"]])),
        Column("bytes per row", "bytes_per_row", "{:.1f}"),
        Column("compressed over uncompressed", "ratio", "{:.2f}"),
        Column(f"compressed chunks at {BARELY} or more",
               lambda row: "not compressed" if row["barely"] is None else f"{row['barely']:.0%}"),
        Column("chunks with a dictionary", "dictionary_page", "{:.0%}"),
        Column("with statistics", "statistics", "{:.0%}"),
        Column("with page index: offsets, statistics",
               lambda row: f"{row['offset_index']:.0%}, {row['column_index']:.0%}"),
        words("types read back", "types", dtypes_text), words("row order", "row_order"),
    ]  # fmt: skip
    return Listing(columns, summary(passes).filter(part="defaults").join(inside, on="trial", how="left"))


def encodings_table(chunks: pl.DataFrame) -> Listing:
    """Physical type and encodings of each column and writer; a star where there is a dictionary."""
    defaults = chunks.filter(part="defaults")
    star = pl.when((pl.col("dictionary_page") == "yes").any()).then(pl.lit(" *")).otherwise(pl.lit(""))
    encodings = pl.col("encodings").unique(maintain_order=True).str.join("; ")
    cells = defaults.group_by("column", "label", maintain_order=True).agg(
        pl.format("{}: {}{}", pl.col("physical_type").first(), encodings, star).alias("text")
    )
    columns = [words(label, label) for label in _labels(defaults)]
    return Listing([words("column", "column"), *columns], cells.pivot("label", index="column", values="text"))


def codecs_table(passes: pl.DataFrame) -> Listing:
    """Every writer with every codec, smallest file first."""
    columns = [
        words("writer", "label"),
        words("codec", lambda row: _codec_text(row) + (" (its default)" if row["part"] == "defaults" else "")),
        Column("MB", lambda row: row["file_bytes"] / 1e6, "{:,.2f}"),
        Column("bytes per row", "bytes_per_row", "{:.1f}"),
        Column("write s", "write_seconds", "{:.3f}"), Column("read s", "read_seconds", "{:.3f}"),
        Column("write CPU s", "write_cpu_s", "{:.3f}"), Column("read CPU s", "read_cpu_s", "{:.3f}"),
        *_speeds_over("its Snappy", lambda row: f"{row['writer']}_{SNAPPY.name}", passes),
    ]  # fmt: skip
    return Listing(columns, _with_codecs(passes).sort(_PLACE, "bytes_per_row", nulls_last=True, maintain_order=True))


def column_codecs_table(chunks: pl.DataFrame) -> Listing:
    """Compressed over uncompressed bytes of each column with each codec of pyarrow."""
    here = chunks.filter(pl.col("part").is_in(["defaults", "codec"]), writer=PYARROW.name)
    columns = [Column(codec.text, trial_name(PYARROW, codec), "{:.2f}") for codec in PYARROW.offers if codec != NONE]
    ratios = _by_column(here).pivot("trial", index="column", values="ratio")
    return Listing([words("column", "column"), *columns], ratios)


def per_column_table(passes: pl.DataFrame) -> Listing:
    """Codecs chosen column by column against the same one for all columns."""
    trials = summary(passes)
    chosen = trials.filter(part="per_column").join(
        trials, left_on="against", right_on="trial", suffix="_before", maintain_order="left"
    )
    columns = [
        words("codec for all columns", _codec_text), words("chosen instead", _choice_text),
        Column("bytes per row before", "bytes_per_row_before", "{:.2f}"), Column("after", "bytes_per_row", "{:.2f}"),
        Column("change of size", "change", "{:+.2%}"),
        *_speeds_over("one codec", lambda row: row["against"], passes),
    ]  # fmt: skip
    return Listing(columns, chosen.with_columns(change=pl.col("file_bytes") / pl.col("file_bytes_before") - 1))


def _speeds_over(title: str, base: Callable[[Row], str], passes: pl.DataFrame) -> list[Column]:
    """How many times as fast as another trial each writes and reads; `base` tells that one's name."""

    def over(row: Row, what: str) -> Ratio | None:
        return None if row["trial"] == base(row) else ratio(passes, row["trial"], base(row), what)

    return [Column(f"{what}s, over {title}", partial(over, what=what)) for what in ("write", "read")]


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
        rows.append(mine.sort("ratio").row(0, named=True) | {"groups": mine["rows"], "counts": to_one_decimal(mine)})
    columns = [
        words("Snappy", "label"), words("rows in a row group", "groups", _spread), words("best chunk", "column"),
        Column("its bytes", lambda row: f"{row['uncompressed_bytes']:,} -> {row['compressed_bytes']:,}"),
        Column("its ratio", lambda row: row["uncompressed_bytes"] / row["compressed_bytes"], "{:.1f}:1"),
        Column("chunks at 0.9 or worse", lambda row: published_share(row["counts"]), "{:.0%}"),
        words("chunks by ratio, to one decimal", "counts",
              lambda counts: ", ".join(f"{text}: {counts[text]:,}" for text in sorted(counts))),
    ]  # fmt: skip
    return Listing(columns, rows)


def _with_codecs(passes: pl.DataFrame) -> pl.DataFrame:
    """Of the summary, the trials of one codec for all columns."""
    return summary(passes).filter(pl.col("part").is_in(["defaults", "codec"]))


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


def _codec_text(row: Row) -> str:
    return Codec(row["codec"], row["level"]).text


def _choice_text(row: Row) -> str:
    return "nothing: no column asks for it" if row["columns"] is None else dtypes_text(row["columns"])


def _spread(values: Iterable[int]) -> str:
    """A number, or the smallest and the largest of them."""
    return " to ".join(f"{value:,}" for value in sorted({min(values), max(values)}))


# Findings


def findings(passes: pl.DataFrame, chunks: pl.DataFrame) -> list[str]:
    """What stands out, as sentences; a difference of times that cannot be told from noise is not claimed."""
    good = summary(passes).filter(status="ok")
    defaults = defaults_of(passes)
    compared = [*_codecs_compared(good), *_columns_compared(good)]
    speeds = [ratio(passes, row["trial"], base["trial"], what) for row, base in compared for what in ("write", "read")]
    said = verdicts([(speed, 1) for speed in speeds], "faster", "slower")
    texts = [f"{one}, {speed}".removesuffix(", ") for one, speed in zip(said, speeds, strict=True)]
    times = {
        (row["trial"], base["trial"]): f"writing {written}, reading {read}"
        for (row, base), (written, read) in zip(compared, batched(texts, 2, strict=True), strict=True)
    }
    return [
        *_on_sizes(defaults), *_on_chunks(defaults, chunks), *_on_codecs(good, times), *_on_columns(good, times)
    ]  # fmt: skip


def defaults_of(passes: pl.DataFrame) -> pl.DataFrame:
    """What each writer makes by its defaults, smallest first."""
    return summary(passes).filter(status="ok", part="defaults").sort("bytes_per_row")


def _on_sizes(defaults: pl.DataFrame) -> Iterator[str]:
    small, large = defaults.row(0, named=True), defaults.row(-1, named=True)
    yield (
        f"By their defaults, {small['label']} writes the smallest file ({small['bytes_per_row']:.1f} bytes per row, "
        f"{small['codec']}) and {large['label']} the largest ({large['bytes_per_row']:.1f}, {large['codec']}): "
        f"{large['bytes_per_row'] / small['bytes_per_row']:.1f} times as large, for the same rows."
    )
    for row in defaults.filter(pl.col("types") != EXACT).sort("label").to_dicts():
        yield f"What {row['label']} writes comes back in other types: {dtypes_text(row['types'])}."
    moved = defaults.filter(pl.col("row_order") != "kept")["label"].to_list()
    if moved:
        yield f"Rows came back in another order from the files of {_listed(moved)}."


def _on_chunks(defaults: pl.DataFrame, chunks: pl.DataFrame) -> Iterator[str]:
    for row in defaults.sort("label").to_dicts():
        here = chunks.filter(trial=row["trial"])
        share = barely_share(here)
        if share is None:
            yield f"{row['label']} compresses nothing unless asked to."
        elif share:
            barely, size = pl.col("ratio") >= BARELY, pl.col("compressed_bytes")
            part = here.select(size.filter(barely).sum() / size.sum()).item()
            columns = _listed(here.filter(barely)["column"].unique(maintain_order=True).to_list())
            hold = ", but they hold only" if part < share else "; they hold"
            yield (
                f"{row['label']}: {share:.0%} of the chunks were barely worth compressing ({columns}){hold} "
                f"{part:.1%} of the bytes."
            )
    own = chunks.filter(pl.col("trial").is_in(defaults["trial"].to_list()))
    for index, what in (("offset_index", "where each page begins"), ("column_index", "the extremes of each page")):
        having = _labels(own.filter(pl.col(index) == "yes"))
        yield f"A page index that tells {what} is written by {_listed(having) if having else 'no writer by default'}."
    plain = [label for label in _labels(own) if "yes" not in own.filter(label=label)["dictionary_page"]]
    if plain:
        yield f"No dictionary is written by {_listed(plain)}."
    sizes = own.filter(writer=PYARROW.name).group_by("column").agg(pl.col("compressed_bytes").sum().alias("size"))
    if not sizes.is_empty():
        name, share = sizes.select("column", pl.col("size") / pl.col("size").sum()).sort("size").row(-1)
        yield f"The column `{name}` holds {share:.0%} of the bytes of pyarrow's file."


def _codecs_compared(good: pl.DataFrame) -> Iterator[tuple[Row, Row]]:
    """pyarrow's file of each codec, and that of Snappy."""
    mine = {row["trial"]: row for row in good.filter(writer=PYARROW.name).to_dicts()}
    base = mine.get(trial_name(PYARROW, SNAPPY))
    for codec in PYARROW.offers:
        row = mine.get(trial_name(PYARROW, codec))
        if base is not None and row is not None and codec != SNAPPY:
            yield row, base


def _columns_compared(good: pl.DataFrame) -> Iterator[tuple[Row, Row]]:
    """Each file with codecs by column, and the one that it is compared with."""
    named = {row["trial"]: row for row in good.to_dicts()}
    for row in named.values():
        base = named.get(row["against"])
        if row["part"] == "per_column" and base is not None:
            yield row, base


def _on_codecs(good: pl.DataFrame, times: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for row, base in _codecs_compared(good):
        yield (
            f"pyarrow, {_codec_text(row)} against Snappy: {row['file_bytes'] / base['file_bytes']:.2f} times the "
            f"bytes; {times[row['trial'], base['trial']]}."
        )


def _on_columns(good: pl.DataFrame, times: Mapping[tuple[str, str], str]) -> Iterator[str]:
    for row, base in _columns_compared(good):
        if row["columns"] is None:
            yield f"{_codec_text(base)}: no column asks for another codec."
        else:
            yield (
                f"{_choice_text(row)}, all else {_codec_text(base)}: "
                f"{row['file_bytes'] / base['file_bytes'] - 1:+.2%} bytes; {times[row['trial'], base['trial']]}."
            )


def _listed(names: list[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# Charts


def columns_figure(chunks: pl.DataFrame) -> Figure:
    """Compressed over uncompressed bytes: a line for each column, a column for each writer."""
    chunks = chunks.filter(part="defaults")
    labels, names = _labels(chunks), chunks["column"].unique(maintain_order=True).to_list()
    colours = mpl.colormaps["YlOrRd"]
    with charts.panels(1, width=1.6 + 1.5 * len(labels), height=1.2 + 0.42 * len(names)) as (figure, [axes]):
        for cell in _by_column(chunks).to_dicts():
            x, y, bare = labels.index(cell["label"]), names.index(cell["column"]), cell["codec"] == NONE.in_file
            shade = "#f2f2f2" if bare else colours(min(cell["ratio"], 1) * 0.6)
            size = f"{cell['bytes_per_row']:.1f} B"
            axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=shade, linewidth=0))
            axes.text(x, y, size if bare else f"{cell['ratio']:.2f}  ({size})", ha="center", va="center", fontsize=8)
        charts.name_lines(axes, names)
        axes.set_xlim(-0.5, len(labels) - 0.5)
        axes.set_xticks(range(len(labels)), labels)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        charts.title(axes, "Compressed over uncompressed, and bytes per row")
        axes.set_xlabel("each writer by its defaults; grey: not compressed")
    return figure


def row_groups_figure(chunks: pl.DataFrame) -> Figure:
    """A bar for each writer, cut into its row groups, with their bytes."""
    chunks = chunks.filter(part="defaults")
    labels = _labels(chunks)
    with charts.panels(1, height=0.9 + 0.42 * len(labels)) as (figure, [axes]):
        for y, label in enumerate(labels):
            groups = chunks.filter(label=label).group_by("writer", "row_group", maintain_order=True).agg(
                pl.col("rows").first(), pl.col("compressed_bytes").sum() / 1e6
            )  # fmt: skip
            widths = groups["compressed_bytes"]
            axes.barh(
                [y] * len(groups), widths, left=widths.cum_sum() - widths, color=WRITER_COLOURS[groups["writer"][0]],
                edgecolor="white", height=0.7,
            )  # fmt: skip
            text = f"{len(groups)} row group{'s' if len(groups) > 1 else ''}, rows: {_spread(groups['rows'])}"
            charts.note(axes, sum(widths), y, text, size=8)
        charts.name_lines(axes, labels)
        axes.margins(x=0.3)
        axes.set_xlim(0)
        axes.grid(axis="x", color="#eeeeee")
        axes.set_xlabel("MB of column chunks, each writer by its defaults")
        charts.title(axes, "Row groups")
    return figure


def codecs_figure(passes: pl.DataFrame) -> Figure:
    """Bytes per row against the time to write and to read a row; the line joins what nothing beats in both."""
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
            Line2D([], [], color=charts.FAINT, linewidth=0.8, label="no other is smaller and faster"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    return figure


NEAR = 0.2
"""How far, as logarithms, two points are apart whose names would touch."""


def _scatter(axes: Axes, trials: pl.DataFrame, time_column: str) -> None:
    named = trials.filter(writer=PYARROW.name).select("bytes_per_row", time_column).rows()
    for row in trials.to_dicts():
        x, y = row["bytes_per_row"], row[time_column]
        axes.scatter(x, y, color=WRITER_COLOURS[row["writer"]], marker=CODEC_MARKERS[row["codec"]], s=34, zorder=3,
                     edgecolor=charts.INK if row["part"] == "defaults" else "none", linewidth=0.9)  # fmt: skip
        # Of the writer with all codecs; the others would be written over each other.
        if row["writer"] == PYARROW.name:
            below = any(abs(log(x / beside)) < NEAR and 0 < log(above / y) < NEAR for beside, above in named)
            axes.annotate(_codec_text(row), (x, y), xytext=(5, -10 if below else 3), textcoords="offset points",
                          fontsize=8, zorder=4)  # fmt: skip
    best = unbeaten(trials.select("bytes_per_row", time_column).rows())
    axes.plot(*zip(*best, strict=True), color=charts.FAINT, linewidth=0.8, zorder=1)
    charts.quantities(axes.yaxis, "{:g}".format, logarithmic=True)
    axes.tick_params(axis="y", which="both", labelsize=8)
    axes.grid(color="#eeeeee")


def unbeaten(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of points (bytes, time), those that no other beats in both, by bytes."""
    kept: list[tuple[float, float]] = []
    for size, seconds in sorted(points):
        if not kept or seconds < kept[-1][1]:
            kept.append((size, seconds))
    return kept


class Anatomy(Shown):
    """Passes and chunks of a run."""

    study = STUDY
    chunks: pl.DataFrame

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """From the files of the last complete run, without any server; raises ResultsError when there is none."""
        settings = settings or load_settings()
        shown = super().load(settings)
        shown.chunks = store.read(settings.out / "results" / CHUNKS, Chunk)
        return shown

    row_groups = chart(row_groups_figure, "row_groups", of_frame="chunks")
    columns = chart(columns_figure, "columns", of_frame="chunks")
    encodings = view(encodings_table, of_frame="chunks")
    codecs_chart = chart(codecs_figure, "codecs")
    codecs = view(codecs_table)
    column_codecs = view(column_codecs_table, of_frame="chunks")
    per_column = view(per_column_table)
    published = view(published_table, of_frame="chunks")
    missing = view(lambda passes: tables.missing(summary(passes), "writer", "trial"))

    def writers(self) -> Listing:
        """What is in the file of each writer, by its defaults."""
        return writers_table(self.passes, self.chunks)

    def answer(self) -> Markdown:
        """The sizes, types and order of the writers' files, in a few points."""
        return Markdown(bullets(_on_sizes(defaults_of(self.passes))))

    def findings(self) -> Markdown:
        """What stands out."""
        return Markdown(bullets(findings(self.passes, self.chunks)))
