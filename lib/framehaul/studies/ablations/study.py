"""One change at a time: pairs of techniques that differ in nothing else, from the runs that measured both."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import polars as pl
from IPython.display import SVG
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from framehaul.bench import statistics, store
from framehaul.bench.ratios import Ratio, ratio_at_same_rows, verdicts
from framehaul.errors import ResultsError
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, Row, interval_text, where, words
from framehaul.settings import Settings, load_settings
from framehaul.studies.ablations import STUDY
from framehaul.studies.transfers.study import read_all

COLOURS = {"faster": "#0072B2", "slower": "#D55E00", "inconclusive": charts.FAINT}


@dataclass(frozen=True)
class Ablation:
    """What changes between two techniques of one database and direction."""

    database: str
    direction: str
    what: str
    change: str
    base: str
    changed: str


ABLATIONS = (
    Ablation("postgres", "write", "encoder", "Rust (pgpq) instead of Python rows (psycopg)",
          "polars_psycopg_copy_binary", "polars_pgpq_copy_binary"),
    Ablation("postgres", "write", "format", "binary instead of text, both without Python objects",
          "polars_psycopg_copy_text_streamed", "polars_pgpq_copy_binary"),
    Ablation("postgres", "write", "batch size", "text streamed in slices instead of one buffer",
          "polars_psycopg_copy_text", "polars_psycopg_copy_text_streamed"),
    Ablation("postgres", "write", "presort", "rows in the order of the primary key",
          "polars_pgpq_copy_binary", "polars_pgpq_presorted"),
    Ablation("postgres", "write", "connections", "two instead of one, presorted",
          "polars_pgpq_presorted", "polars_pgpq_presorted_two_connections"),
    Ablation("postgres", "write", "index", "primary key built after the rows instead of with each",
          "polars_pgpq_copy_binary", "polars_pgpq_key_last"),
    Ablation("postgres", "write", "FREEZE", "rows frozen on arrival in an empty table",
          "polars_pgpq_copy_binary", "polars_pgpq_copy_freeze"),
    Ablation("postgres", "write", "staging", "ADBC through a staging table instead of straight",
          "polars_adbc_ingest", "polars_adbc_staging"),
    Ablation("postgres", "read", "types", "types given instead of inferred, from the same text",
          "polars_psycopg_copy_text", "polars_psycopg_copy_text_typed"),
    Ablation("postgres", "read", "format", "binary decoded in C++ (ADBC) instead of text",
          "polars_psycopg_copy_text_typed", "polars_adbc_fetch"),
    Ablation("postgres", "read", "decoder", "compiled loops instead of ADBC, both from binary COPY",
          "polars_adbc_fetch", "polars_asyncpg_copy_decoded"),
    Ablation("postgres", "read", "driver", "the connection's own socket instead of asyncpg's, compiled loops",
          "polars_asyncpg_copy_decoded", "polars_psycopg_copy_decoded"),
    Ablation("postgres", "read", "connections", "two instead of one, compiled loops",
          "polars_asyncpg_copy_decoded", "polars_asyncpg_copy_decoded_two_connections"),
    Ablation("postgres", "read", "connections", "two instead of one, each its own socket",
          "polars_psycopg_copy_decoded", "polars_psycopg_copy_decoded_two_connections"),
    Ablation("postgres", "read", "connections", "two instead of one, text",
          "polars_psycopg_copy_text_typed", "polars_psycopg_copy_text_two_connections"),
    Ablation("postgres", "read", "connections", "two instead of one, ADBC",
          "polars_adbc_fetch", "polars_adbc_two_connections"),
    Ablation("clickhouse", "write", "format", "Arrow stream instead of Parquet",
          "polars_http_client_parquet_zstd", "polars_http_client_arrow_stream"),
    Ablation("clickhouse", "write", "compression", "Parquet with LZ4 instead of zstd",
          "polars_http_client_parquet_zstd", "polars_http_client_parquet_lz4"),
    Ablation("clickhouse", "write", "compression", "Parquet without a codec instead of zstd",
          "polars_http_client_parquet_zstd", "polars_http_client_parquet_uncompressed"),
    Ablation("clickhouse", "write", "batch size", "row groups of 65,536 rows",
          "polars_http_client_parquet_lz4", "polars_http_client_parquet_row_groups"),
    Ablation("clickhouse", "write", "HTTP client", "http.client instead of httpx",
          "polars_httpx_parquet", "polars_http_client_parquet_zstd"),
    Ablation("clickhouse", "write", "threads", "two insert threads and smaller blocks",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_insert_threads"),
    Ablation("clickhouse", "write", "presort", "rows in the order of the sorting key",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_presorted"),
    Ablation("clickhouse", "write", "presplit", "rows of a partition together, smaller blocks",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_by_partition"),
    Ablation("clickhouse", "write", "blocks", "Native, a sorted partition each, instead of a presorted Arrow stream",
          "polars_http_client_arrow_presorted", "polars_http_client_native_presorted"),
    Ablation("clickhouse", "write", "connections", "two instead of one",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_two_connections"),
    Ablation("clickhouse", "write", "all or nothing", "into a new table that takes the place of the old one",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_exchange"),
    Ablation("clickhouse", "write", "idempotent", "with a deduplication token, safe to try again",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_deduplicated"),
    Ablation("clickhouse", "read", "HTTP client", "urllib without compression instead of httpx with",
          "polars_httpx_parquet", "polars_urllib_parquet"),
    Ablation("clickhouse", "read", "format", "Arrow file instead of Parquet",
          "polars_urllib_parquet", "polars_http_client_arrow_file"),
    Ablation("clickhouse", "read", "server's writer", "native Arrow writer instead of the Arrow library",
          "polars_http_client_arrow_library_writer", "polars_http_client_arrow_stream"),
    Ablation("clickhouse", "read", "dictionaries", "LowCardinality as Arrow dictionaries",
          "polars_http_client_arrow_stream", "polars_http_client_arrow_dictionary"),
    Ablation("clickhouse", "read", "streaming", "decoded as it arrives instead of a whole file",
          "polars_http_client_arrow_file", "polars_http_client_arrow_dictionary"),
    Ablation("clickhouse", "read", "compression", "Arrow with LZ4 instead of none",
          "polars_http_client_arrow_dictionary", "polars_http_client_arrow_lz4"),
    Ablation("clickhouse", "read", "format", "Native decoded by compiled loops instead of an Arrow stream",
          "polars_http_client_arrow_preallocated", "polars_http_client_native_decoded"),
    Ablation("clickhouse", "read", "memory", "reads into preallocated memory",
          "polars_http_client_arrow_dictionary", "polars_http_client_arrow_preallocated"),
    Ablation("clickhouse", "read", "HTTP client", "urllib3 instead of http.client",
          "polars_http_client_arrow_dictionary", "polars_urllib3_arrow_stream"),
    Ablation("clickhouse", "read", "connections", "two instead of one",
          "polars_http_client_arrow_preallocated", "polars_http_client_arrow_two_connections"),
)  # fmt: skip
"""What can be pulled, and the two techniques that show it."""

type Steps = tuple[tuple[str, str], ...]
"""Techniques, and what each changes of the one before it; the first is a published one."""

WAYS: dict[tuple[str, str, str], Steps] = {
    ("postgres", "write", "append"): (
        ("polars_asyncpg_copy_binary", "binary COPY of Python rows"),
        ("polars_pgpq_copy_binary", "encoded in Rust (pgpq)"),
        ("polars_pgpq_presorted", "in the order of the primary key"),
    ),
    ("postgres", "write", "bulk load"): (
        ("polars_asyncpg_copy_binary", "binary COPY of Python rows"),
        ("polars_pgpq_copy_binary", "encoded in Rust (pgpq)"),
        ("polars_pgpq_key_last", "key built after the rows"),
    ),
    ("postgres", "read", ""): (
        ("polars_psycopg_copy_text", "COPY as CSV, parsed by Polars"),
        ("polars_adbc_fetch", "binary COPY, decoded in C++ (ADBC)"),
        ("polars_asyncpg_copy_decoded", "decoded by compiled loops"),
        ("polars_asyncpg_copy_decoded_two_connections", "over two connections, in one snapshot"),
    ),
    ("clickhouse", "write", ""): (
        ("polars_httpx_parquet", "Parquet over httpx"),
        ("polars_http_client_parquet_zstd", "over http.client"),
        ("polars_http_client_arrow_stream", "as an Arrow stream"),
        ("polars_http_client_arrow_by_partition", "partition after partition, in smaller blocks"),
        ("polars_http_client_native_presorted", "as sorted Native blocks, a partition each"),
    ),
    ("clickhouse", "read", ""): (
        ("polars_httpx_parquet", "Parquet over httpx"),
        ("polars_urllib_parquet", "over urllib, without compression"),
        ("polars_http_client_arrow_file", "as an Arrow file"),
        ("polars_http_client_arrow_stream", "as a stream, written by ClickHouse itself"),
        ("polars_http_client_native_decoded", "as Native, decoded by compiled loops"),
    ),
}  # fmt: skip
"""From what was published to the fastest there is, one change a step, for each class of each direction."""


type Pair = tuple[str, str, str, str]
"""Database, direction, the technique with a change and the one without."""


def _pair(ablation: Ablation) -> Pair:
    return ablation.database, ablation.direction, ablation.changed, ablation.base


def _measured(passes: pl.DataFrame) -> dict[tuple[Any, ...], pl.DataFrame]:
    """The passes of each technique, by database, direction and name, without those that failed or were skipped."""
    every = passes.partition_by(statistics.NAMES, as_dict=True)
    return {key: of_it for key, of_it in every.items() if set(of_it["status"]) == {"ok"}}


def _ways(measured: Container[tuple[Any, ...]]) -> Iterator[tuple[str, str, str, list[tuple[str, str]]]]:
    """The steps of each way that were measured; what one that was not changes is the next one's as well."""
    for (database, direction, contract), way in WAYS.items():
        present: list[tuple[str, str]] = []
        changes: list[str] = []
        for technique, change in way:
            changes.append(change)
            if (database, direction, technique) in measured:
                present.append((technique, ", ".join(changes)))
                changes = []
        yield database, direction, contract, present


def judged(passes: pl.DataFrame) -> dict[Pair, dict[str, Any]]:
    """The ratio of rows/s of each pair, ablations and steps, and what may be said of it: by the rule for all of them.

    Two are compared with the most rows that both moved.
    """
    measured = _measured(passes)
    pairs = [_pair(ablation) for ablation in ABLATIONS]
    for database, direction, _, way in _ways(measured):
        pairs += [(database, direction, changed, base) for (base, _), (changed, _) in pairwise(way)]
    found: dict[Pair, Ratio] = {}
    for database, direction, changed, base in pairs:
        after, before = (measured.get((database, direction, technique)) for technique in (changed, base))
        if after is not None and before is not None:
            found[database, direction, changed, base] = ratio_at_same_rows(after, before)
    said = verdicts([(one, 1) for one in found.values()], "faster", "slower")
    return {
        pair: {
            "ratio": one.ratio, "ratio_low": one.low, "ratio_high": one.high, "ratio_rounds": one.rounds,
            "reading": word,
        }
        for (pair, one), word in zip(found.items(), said, strict=True)
    }  # fmt: skip


def ratios(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per ablation: its ratio of rows/s, changed over base, and what it shows; largest first in a direction."""
    found = judged(passes)
    rows = [asdict(ablation) | found[_pair(ablation)] for ablation in ABLATIONS if _pair(ablation) in found]
    return pl.DataFrame(rows).sort("database", "direction", "ratio", descending=True) if rows else pl.DataFrame()


def ablations_table(ratios: pl.DataFrame) -> Listing:
    """What each ablation gives."""
    return Listing(
        [
            words("ablation", lambda row: f"{where(row)}: {row['what']}"),
            words("change", "change"),
            Column("rows/s, changed over base", "ratio", "{:.2f}x"),
            Column("its range or interval", interval_text),
            words("verdict", "reading"),
        ],
        ratios,
    )


def first_to_change(ratios: pl.DataFrame) -> str:
    """One sentence for each direction: the ablations that are told to be faster, largest first."""
    lines = []
    for _, group in ratios.group_by("database", "direction", maintain_order=True):
        rows = group.to_dicts()
        helpful = [f"{row['change']} ({row['ratio']:.2f}x)" for row in rows if row["reading"] == "faster"]
        text = "; ".join(helpful[:3]) if helpful else "no change stands out of the noise in this run"
        lines.append(f"- **{where(rows[0])}**: {text}.")
    return "\n".join(lines)


def steps(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per step of each way: how many times as fast it is as the step before, and these multiplied so far.

    A technique that was not measured is left out, and what it changes is the next one's as well.
    """
    found = judged(passes)
    rows: list[dict[str, Any]] = []
    first: dict[str, Any] = {"ratio": None, "ratio_low": None, "ratio_high": None, "ratio_rounds": None, "reading": ""}
    for database, direction, contract, way in _ways(_measured(passes)):
        last, before, so_far = "", 0.0, 1.0
        for technique, change in way:
            gain = found[database, direction, technique, last] if last else first
            if last:
                before, so_far = so_far, so_far * gain["ratio"]
            rows.append(
                {
                    "database": database, "direction": direction, "contract": contract, "technique": technique,
                    "change": change, "before": before, "so_far": so_far,
                }
                | gain
            )  # fmt: skip
            last = technique
    return pl.DataFrame(rows, infer_schema_length=None)


def _way(row: Row) -> str:
    return f"{where(row)}{', ' if row['contract'] else ''}{row['contract']}"


def steps_table(steps: pl.DataFrame) -> Listing:
    """What each step gives, and all of them so far."""
    return Listing(
        [
            words("way", _way),
            words("step", "change"),
            words("technique", "technique"),
            Column("rows/s, over the step before", "ratio", "{:.2f}x"),
            Column("its range or interval", lambda row: interval_text(row) if row["ratio"] else None),
            words("verdict", "reading"),
            Column("multiplied so far", "so_far", "{:.2f}x"),
        ],
        steps,
    )


def waterfall(steps: pl.DataFrame) -> Figure:
    """For each step a bar that reaches as far as all so far, its own part of it in colour."""
    rows = steps.to_dicts()
    furthest = max((row["so_far"] for row in rows), default=1.0)
    with charts.panels(1, height=1.2 + 0.3 * len(rows)) as (drawn, [axes]):
        for at, row in enumerate(rows):
            ends = sorted((row["before"], row["so_far"]))
            axes.barh(at, ends[0], color="#dddddd", height=0.7)
            axes.barh(at, ends[1] - ends[0], left=ends[0], color=COLOURS.get(row["reading"], "#dddddd"), height=0.7)
            gain = f" ({row['ratio']:.2f}x)" if row["ratio"] else ""
            charts.note(axes, ends[1] + furthest / 100, at, f"{row['so_far']:.2f}x{gain}")
        axes.set_xlim(0, furthest * 1.2)
        _name_ratios(drawn, axes, rows, [_way(row) for row in rows], [f"{_way(row)}: {row['change']}" for row in rows])
        axes.set_xlabel("rows/s: what all steps so far give, multiplied (in brackets: over the step before)")
        charts.title(axes, "From what was published to the fastest, a change a step")
    return drawn


def _name_ratios(drawn: Figure, axes: Axes, rows: Sequence[Row], groups: Sequence[str], labels: Sequence[str]) -> None:
    """What ratios on a panel, one a line, belong to, and what their colours say."""
    axes.axvline(1, color=charts.INK, linewidth=0.8)
    charts.part_lines(axes, groups)
    charts.name_lines(axes, labels)
    charts.quantities(axes.xaxis, "{:g}x".format)
    axes.grid(axis="x", color="#eeeeee")
    told = {row["reading"] for row in rows}
    colours = {reading: colour for reading, colour in COLOURS.items() if reading in told}
    charts.legend(drawn, colours, loc="outside lower left", ncols=3)


def figure(ratios: pl.DataFrame) -> Figure:
    """The ratios with their intervals."""
    rows = ratios.to_dicts()
    with charts.panels(1, height=1.2 + 0.3 * len(rows)) as (drawn, [axes]):
        for at, row in enumerate(rows):
            colour = COLOURS[row["reading"]]
            axes.plot([row["ratio_low"], row["ratio_high"]], [at, at], color=colour, linewidth=2)
            axes.scatter(row["ratio"], at, color=colour, s=36, zorder=3)
        axes.set_xscale("log", base=2)
        labels = [f"{where(row)}, {row['what']}: {row['change']}" for row in rows]
        _name_ratios(drawn, axes, rows, [where(row) for row in rows], labels)
        axes.set_xlabel("rows/s, changed over base, logarithmic (line: range or 95% interval)")
        charts.title(axes, "One change at a time")
    return drawn


class Ablations(Shown):
    """The passes of all directions, and the ratio of every ablation whose two techniques were measured in one run."""

    study = STUDY
    as_table = view(lambda passes: ablations_table(ratios(passes)))
    chart = chart(lambda passes: figure(ratios(passes)))
    steps = view(lambda passes: steps_table(steps(passes)))
    first = answer = view(lambda passes: first_to_change(ratios(passes)))

    def waterfall(self) -> SVG:
        """The steps of every way; also saved as a figure."""
        return self.saved(waterfall(steps(self.passes)), "steps")

    @classmethod
    def load(cls, settings: Settings | None = None) -> Self:
        """From the runs of the four directions; raises ResultsError when there is none."""
        out = (settings or load_settings()).out
        passes = read_all(out / "results")
        if passes.is_empty():
            raise ResultsError("there are no results yet; run the notebooks of the four directions first")
        return cls(passes, store.read_metadata(out / "results"), out / "figures")


load = Ablations.load


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, of the run in a results directory."""
    passes = read_all(directory)
    return {"ablations": str(ablations_table(ratios(passes))), "steps": str(steps_table(steps(passes)))}
