"""The study of Parquet files: what is in those of each writer, and what each codec costs."""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from IPython.display import Code
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from framehaul import servers
from framehaul.bench import ratios, statistics, store
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Ok, Pass, attempt, columns_of, right
from framehaul.bench.ratios import Ratio
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.reporting import charts, tables
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, Row, bullets, dtypes_text, words
from framehaul.settings import Settings, load_settings
from framehaul.studies.parquet.writers import PYARROW, WRITERS, Writer, split
from framehaul.studies.registry import PARQUET
from framehaul.studies.warehouse import buildings

CHUNKS = "parquet_chunks.csv"
"""What is in the files; the passes are in `results/parquet.csv`."""
FIELDS = {
    "column": "path_in_schema", "physical_type": "physical_type", "codec": "compression", "encodings": "encodings",
    "dictionary_page": "has_dictionary_page", "page_index": "has_offset_index",
    "compressed_bytes": "total_compressed_size", "uncompressed_bytes": "total_uncompressed_size",
}  # fmt: skip
"""The columns of `chunks_of`, with the names that pyarrow has for them."""

WRITER_COLOURS = {
    "pyarrow": "#0072B2", "polars": "#D55E00", "duckdb": "#E69F00", "clickhouse": "#009E73", "fastparquet": "#999999",
    "pg_parquet": "#CC79A7",
}  # fmt: skip
CODEC_MARKERS = {"none": "s", "snappy": "o", "lz4": "^", "zstd": "D", "gzip": "v"}


@dataclass(frozen=True)
class RoundTrip:
    """One file written and read back: a row of the study's file. A missing number is None, never 0.

    `part` is `defaults` or `codec`: whether the writer was asked for the codec; `types` and `row_order` are those of
    `buildings.difference`.
    """

    run_id: str
    trial: str
    writer: str
    label: str
    part: str
    codec: str
    rows: int
    pass_: int
    file_bytes: int | None = None
    row_groups: int | None = None
    write_seconds: float | None = None
    read_seconds: float | None = None
    types: str | None = None
    row_order: str | None = None
    status: Status = "ok"
    reason: str | None = None


@dataclass(frozen=True)
class Trial:
    """A writer and the codec of its file, such as `snappy` or `zstd 3`."""

    writer: Writer
    codec: str

    @property
    def name(self) -> str:
        """The name in results."""
        return f"{self.writer.name}_{self.codec.replace(' ', '_')}"

    @property
    def by_default(self) -> bool:
        """Whether the writer takes this codec when it is asked for none."""
        return self.codec == self.writer.default


def trials_of(*writers: Writer) -> list[Trial]:
    """Return each writer with each codec that it offers."""
    return [Trial(writer, codec) for writer in writers for codec in writer.offers]


def run(*, rows: int, rounds: int, warmup: int, seed: int) -> Anatomy:
    """Write, read and take apart the files, and write `results/parquet.csv` and `results/parquet_chunks.csv`.

    Raises ValueError for a parameter that makes no sense, ServerError when the servers cannot be had, ResultsError
    when the files cannot be written.
    """
    check(ROWS=(rows, 1))
    schedule, content, trials = Rounds(rounds, warmup, seed), buildings.table(rows, seed), trials_of(*WRITERS)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording(PARQUET.notebook, PARQUET.results, RoundTrip, "file", terms) as this_run,
        servers.running(this_run.settings) as both,
        tempfile.TemporaryDirectory(prefix="framehaul-") as directory,
        ExitStack() as stack,
    ):
        this_run.expect(len(trials) * (warmup + rounds))
        path = Path(directory) / "file.parquet"

        @cache
        def client_of(writer: Writer) -> Any:
            return stack.enter_context(writer.opened(both.postgres, content))

        def row(trial: Trial, number: int, ended: Pass[dict[str, Any]]) -> RoundTrip:
            writer, part = trial.writer, "defaults" if trial.by_default else "codec"
            return RoundTrip(
                this_run.run_id, trial.name, writer.name, writer.label, part, trial.codec, rows, number,
                **columns_of(ended),
            )  # fmt: skip

        def measure(trial: Trial, _: int = 0) -> tuple[dict[str, Any], pl.DataFrame]:
            return measured(trial, client_of(trial.writer), content, path)

        record, finished = this_run.passes(row)
        interruptible(
            lambda stop: in_rounds(
                trials, schedule, lambda trial, number: measure(trial, number)[0], record, stop=stop,
                progress=lambda trial, _: this_run.progress(trial.name), finished=finished, home=Path(directory),
            )
        )  # fmt: skip
        # What is in the files is looked at apart from the rounds, which an interrupted run does not repeat.
        ended = {trial: attempt(partial(measure, trial)) for trial in trials if trial.by_default}
        chunks = pl.concat(
            one.values[1].select(pl.lit(trial.name).alias("trial"), pl.lit(trial.writer.label).alias("label"), pl.all())
            for trial, one in ended.items() if isinstance(one, Ok)
        )  # fmt: skip
        store.write_frame(this_run.settings.out / "results" / CHUNKS, chunks)
        this_run.metadata |= terms | {"servers": both.mode, "server": server_versions(both)}
    return Anatomy.load(this_run.settings)


def measured(trial: Trial, client: Any, content: pa.Table, path: Path) -> tuple[dict[str, Any], pl.DataFrame]:
    """Write, read back and verify one file: the values of its pass, and its `chunks_of`.

    Raises WrongResultError where it does not hold what was sent, or another codec, and whatever a writer raises.
    """
    try:
        asked = None if trial.by_default else trial.codec
        _, write_seconds = _timed(lambda: trial.writer.write(client, content, path, asked))
        received, read_seconds = _timed(lambda: pq.read_table(path))
        received.validate(full=True)
        chunks = chunks_of(path)
        wrong, types, row_order = buildings.difference(received, content)
        # A setting may be ignored without a word.
        wanted = split(trial.codec, none="uncompressed")[0].upper()
        for column, codec in chunks.filter(pl.col("codec") != wanted).select("column", "codec").rows():
            wrong = wrong or f"column {column} is compressed with {codec} instead of {wanted}"
        values = {
            "file_bytes": path.stat().st_size, "row_groups": chunks["row_group"].n_unique(),
            "write_seconds": write_seconds, "read_seconds": read_seconds, "types": types, "row_order": row_order,
        }  # fmt: skip
        return right((values, chunks), wrong)
    finally:
        path.unlink(missing_ok=True)


def _timed[V](work: Callable[[], V]) -> tuple[V, float]:
    start = time.perf_counter()
    returned = work()
    return returned, time.perf_counter() - start


def chunks_of(path: Path) -> pl.DataFrame:
    """Return one row per column chunk of a file (one column of one row group), as the file's footer describes it."""
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return pl.DataFrame(
        {"row_group": number, "rows": group.num_rows}
        | {name: getattr(group.column(at), field) for name, field in FIELDS.items()}
        for number, group in enumerate(groups) for at in range(group.num_columns)
    ).with_columns(pl.col("encodings").list.sort().list.join(", "))  # fmt: skip


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The tables that the writeup shows, from a results directory; raises ResultsError when the study was not run."""
    passes, chunks = store.read(directory / PARQUET.results, RoundTrip), store.read_frame(directory / CHUNKS)
    return {
        "parquet-writers": str(writers_table(passes, chunks)),
        "parquet-codecs": str(codecs_table(passes.filter(writer=PYARROW.name))),
    }


def show_source() -> Code:
    """The code of the writers as it stands in the library."""
    return Code("\n\n\n".join(inspect.getsource(writer.write) for writer in WRITERS), language="python")


def summary(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per trial, in the order of the writers: medians over passes, and bytes per row.

    A trial that ever failed or was skipped has no figures there, and its reason.
    """
    trials = statistics.medians(
        passes, ["trial", "writer", "label", "part", "codec", "rows"], pl.col("types").drop_nulls().first(),
        pl.col("row_order").drop_nulls().unique().sort().str.join(", "), speed="write_seconds",
    ).with_columns((pl.col("file_bytes") / pl.col("rows")).alias("bytes_per_row"))  # fmt: skip
    place = pl.col("writer").replace_strict({writer.name: at for at, writer in enumerate(WRITERS)})
    return trials.sort(place, "bytes_per_row", "trial", nulls_last=True, maintain_order=True)


def writers_table(passes: pl.DataFrame, chunks: pl.DataFrame) -> Listing:
    """What is in the file of each writer, by its defaults."""
    inside = chunks.group_by("trial").agg(
        pl.col("rows").min().alias("min_rows"),
        pl.col("rows").max().alias("max_rows"),
        (pl.col("compressed_bytes").sum() / pl.col("uncompressed_bytes").sum()).alias("ratio"),
        pl.col("dictionary_page", "page_index").mean(),
    )

    def back(row: Row) -> str | None:
        if row["types"] is None:  # it did not run
            return None
        return dtypes_text(row["types"]) + ("; rows in another order" if row["row_order"] != "kept" else "")

    columns = [
        words("writer", "label"),
        words("codec", "codec"),
        Column("row groups", "row_groups", "{:,.0f}"),
        Column("rows in each", lambda row: " to ".join(map("{:,}".format, sorted({row["min_rows"], row["max_rows"]})))),
        Column("bytes per row", "bytes_per_row", "{:.1f}"),
        Column("compressed over uncompressed", "ratio", "{:.2f}"),
        Column("chunks with a dictionary, with a page index",
               lambda row: f"{row['dictionary_page']:.0%}, {row['page_index']:.0%}"),
        words("read back", back),
    ]  # fmt: skip
    return Listing(columns, summary(passes).filter(part="defaults").join(inside, on="trial", how="left"))


def codecs_table(passes: pl.DataFrame) -> Listing:
    """Every writer with every codec, smallest file first."""

    def over_snappy(row: Row, what: str) -> Ratio | None:
        base = f"{row['writer']}_snappy"
        return None if row["trial"] == base else ratio(passes, row["trial"], base, what)

    columns = [
        words("writer", "label"),
        words("codec", lambda row: row["codec"] + (" (its default)" if row["part"] == "defaults" else "")),
        Column("MB", lambda row: row["file_bytes"] / 1e6, "{:,.2f}"),
        Column("bytes per row", "bytes_per_row", "{:.1f}"),
        Column("write s", "write_seconds", "{:.3f}"), Column("read s", "read_seconds", "{:.3f}"),
        *(Column(f"{what}s, over its Snappy", partial(over_snappy, what=what)) for what in ("write", "read")),
    ]  # fmt: skip
    return Listing(columns, summary(passes))


def ratio(passes: pl.DataFrame, left: str, right: str, what: str) -> Ratio:
    """How many times as fast one trial is as another at `what` (`write`, `read`)."""
    speeds = passes.with_columns((pl.col("rows") / pl.col(f"{what}_seconds")).alias("rows_per_s"))
    return ratios.ratio(speeds.filter(trial=left), speeds.filter(trial=right))


def answer_text(passes: pl.DataFrame) -> str:
    """The smallest and the largest file that writers make by their defaults."""
    files = summary(passes).filter(status="ok", part="defaults").sort("bytes_per_row")
    small, large = files.row(0, named=True), files.row(-1, named=True)
    return bullets(
        f"{which} file by default: {row['label']}, {row['bytes_per_row']:.1f} bytes per row ({row['codec']})"
        for which, row in (("Smallest", small), ("Largest", large))
    )


def codecs_figure(passes: pl.DataFrame) -> Figure:
    """Bytes per row against the time to write and to read a row; pyarrow's codecs have their names."""
    trials = summary(passes).filter(status="ok")
    with charts.panels(1, 2, height=5.6) as (figure, panels):
        for axes, what in zip(panels, ("write", "read"), strict=True):
            for row in trials.to_dicts():
                x, y = row["bytes_per_row"], row[f"{what}_seconds"] / row["rows"] * 1e6
                edge = charts.INK if row["part"] == "defaults" else "none"
                marker, colour = CODEC_MARKERS[split(row["codec"])[0]], WRITER_COLOURS[row["writer"]]
                axes.scatter(x, y, color=colour, marker=marker, s=34, zorder=3, edgecolor=edge, linewidth=0.9)
                if row["writer"] == PYARROW.name:
                    axes.annotate(row["codec"], (x, y), xytext=(5, 3), textcoords="offset points", fontsize=8)
            charts.quantities(axes.yaxis, "{:g}".format, logarithmic=True)
            axes.grid(color="#eeeeee")
            axes.set_xlabel("bytes per row")
            axes.set_ylabel(f"µs per row to {what}, median of passes, logarithmic")
            charts.title(axes, f"Size against {what} time")
        dot = partial(Line2D, [], [], linestyle="")
        handles = [
            *(dot(marker="o", color=WRITER_COLOURS[name], label=label)
              for name, label in trials.select("writer", "label").unique(maintain_order=True).rows()),
            dot(marker="o", color="white", markeredgecolor=charts.INK, label="its default"),
            *(dot(marker=marker, color=charts.FAINT, label=name) for name, marker in CODEC_MARKERS.items()),
        ]  # fmt: skip
        figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    return figure


class Anatomy(Shown):
    """Passes and chunks of a run."""

    study = PARQUET
    chunks: pl.DataFrame

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """From the files of the last complete run, without any server; raises ResultsError when there is none."""
        settings = settings or load_settings()
        shown = super().load(settings)
        shown.chunks = store.read_frame(settings.out / "results" / CHUNKS)
        return shown

    codecs_chart = chart(codecs_figure, "codecs")
    codecs = view(codecs_table)
    answer = view(answer_text)
    missing = view(lambda passes: tables.missing(summary(passes), "writer", "trial"))

    def writers(self) -> Listing:
        """What is in the file of each writer, by its defaults."""
        return writers_table(self.passes, self.chunks)
