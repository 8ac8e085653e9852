"""One change at a time: pairs of techniques that differ in nothing else, from the runs that measured both."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import polars as pl
from matplotlib.figure import Figure

from framehaul.bench import statistics, store
from framehaul.bench.ratios import Ratio, ratio_at_same_rows, verdicts
from framehaul.errors import ResultsError
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, chart, view
from framehaul.reporting.tables import Column, Listing, interval_text, where, words
from framehaul.settings import Settings, load_settings
from framehaul.studies.registry import ABLATIONS
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


PAIRS = (
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


def _measured(passes: pl.DataFrame) -> dict[tuple[Any, ...], pl.DataFrame]:
    """The passes of each technique, by database, direction and name, without those that failed or were skipped."""
    every = passes.partition_by(statistics.NAMES, as_dict=True)
    return {key: of_it for key, of_it in every.items() if set(of_it["status"]) == {"ok"}}


def ratios(passes: pl.DataFrame) -> pl.DataFrame:
    """One row per ablation: its ratio of rows/s, changed over base, and what it shows; largest first in a direction.

    Two are compared with the most rows that both moved, and all pairs are judged together.
    """
    measured = _measured(passes)
    found: list[tuple[Ablation, Ratio]] = []
    for one in PAIRS:
        after, before = (measured.get((one.database, one.direction, name)) for name in (one.changed, one.base))
        if after is not None and before is not None:
            found.append((one, ratio_at_same_rows(after, before)))
    said = verdicts([(ratio, 1) for _, ratio in found], "faster", "slower")
    rows = [
        asdict(one)
        | {"ratio": ratio.ratio, "ratio_low": ratio.low, "ratio_high": ratio.high}
        | {"ratio_rounds": ratio.rounds, "reading": word}
        for (one, ratio), word in zip(found, said, strict=True)
    ]
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


def figure(ratios: pl.DataFrame) -> Figure:
    """The ratios with their intervals."""
    rows = ratios.to_dicts()
    with charts.panels(1, height=1.2 + 0.3 * len(rows)) as (drawn, [axes]):
        for at, row in enumerate(rows):
            colour = COLOURS[row["reading"]]
            axes.plot([row["ratio_low"], row["ratio_high"]], [at, at], color=colour, linewidth=2)
            axes.scatter(row["ratio"], at, color=colour, s=36, zorder=3)
        axes.set_xscale("log", base=2)
        axes.axvline(1, color=charts.INK, linewidth=0.8)
        charts.part_lines(axes, [where(row) for row in rows])
        charts.name_lines(axes, [f"{where(row)}, {row['what']}: {row['change']}" for row in rows])
        charts.quantities(axes.xaxis, "{:g}x".format)
        axes.grid(axis="x", color="#eeeeee")
        told = {row["reading"] for row in rows}
        colours = {reading: colour for reading, colour in COLOURS.items() if reading in told}
        charts.legend(drawn, colours, loc="outside lower left", ncols=3)
        axes.set_xlabel("rows/s, changed over base, logarithmic (line: range or 95% interval)")
        charts.title(axes, "One change at a time")
    return drawn


class Ablations(Shown):
    """The passes of all directions, and the ratio of every ablation whose two techniques were measured in one run."""

    study = ABLATIONS
    as_table = view(lambda passes: ablations_table(ratios(passes)))
    chart = chart(lambda passes: figure(ratios(passes)))
    answer = view(lambda passes: first_to_change(ratios(passes)))

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
    return {"ablations": str(ablations_table(ratios(read_all(directory))))}
