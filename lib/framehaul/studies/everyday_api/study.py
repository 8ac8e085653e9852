"""What notebook 18 calls: everyday calls beside the fast ones, and the memory of reads in batches."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import SVG, Markdown
from matplotlib.figure import Figure

from framehaul import servers
from framehaul.bench import ratios, statistics, store
from framehaul.bench.children import answer_of, context, ended_with_the_block
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.ratios import verdicts
from framehaul.bench.recording import recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.reporting import charts
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Column, Listing, bullets, megabytes, speed_text, where, words
from framehaul.servers.tables import tables_of
from framehaul.studies.everyday_api import STUDY
from framehaul.studies.everyday_api.batches import BATCH_ROWS, WAYS, Way, read_once, sums_of
from framehaul.studies.summary.needs import code_of
from framehaul.studies.transfers.study import read_all
from framehaul.techniques.registry import DATABASES
from framehaul.techniques.source import OURS, Source

OWN_CODECS = ("copy_binary", "native_format", "key_order")
"""Rooms of `codecs` that write or read a whole format, or order rows for it; the others convert values."""
GROWS = 0.75
"""From where on memory grows with the rows: of what further rows take as Arrow, the part that it grows by."""
LEAST_FURTHER_BYTES = 10_000_000
"""Of further rows as Arrow: less is lost among the memory that any read takes."""
BUFFERED_BYTES = 100_000_000
"""Memory may grow by so much for buffers that are not full yet, and do not grow when they are."""
LABELS = {way.name: way.label for way in WAYS}
"""As they are called today, whatever a run has called them."""
PART = 10
"""How many times smaller the first of the two tables is."""
CALLED_AS_WELL = (
    "pandas_sqlalchemy_read_sql_query", "polars_sqlalchemy_read_database", "pandas_clickhouse_connect_insert_df",
    "pandas_clickhouse_connect_query_df", "polars_duckdb_insert", "polars_duckdb_scan",
)  # fmt: skip
"""Everyday calls of another origin: those that were published, and those that are measured with checks around them."""


@dataclass(frozen=True)
class BatchedRead:
    """One read of a table in batches; a missing number is None, never 0."""

    run_id: str
    database: str
    way: str
    label: str
    rows: int
    pass_: int
    seconds: float | None = None
    rows_per_s: float | None = None
    frames: int | None = None
    arrow_bytes: int | None = None
    """What all rows take as Arrow."""
    peak_rss_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None


def run(*, rows: int, passes: int, seed: int, table: Table = ANALYTICS_METRICS) -> EverydayApi:
    """Read a table of a tenth of the rows, and of all, in each way that promises batches, and write the results.

    Raises ValueError for a parameter that makes no sense, ServerError and ResultsError for what their names say.
    """
    check(ROWS=(rows, 1))
    rounds = Rounds(passes, 0, seed)
    terms = {"rows": rows, **vars(rounds)}
    # Fewer rows than fill a batch say nothing about memory.
    sizes = [rows // PART, rows] if rows // PART >= BATCH_ROWS else [rows]
    with (
        recording(STUDY.notebook, STUDY.results, BatchedRead, "read", terms) as this_run,
        servers.running(this_run.settings) as both,
        ended_with_the_block(),
    ):
        versions = "; ".join(server_versions(both).values())
        this_run.metadata |= terms | {"servers": both.mode, "server": {"version": versions}}
        this_run.expect(len(WAYS) * len(sizes) * passes)

        def of_size(size: int, stop: threading.Event) -> None:
            content = generator.arrow_table(table, size, seed)
            sent = sums_of(to_polars(content, table), table)

            def row(way: Way, number: int, ended: Pass[dict[str, Any]]) -> BatchedRead:
                who = this_run.run_id, way.database, way.name, way.label
                return BatchedRead(*who, size, number, **columns_of(ended))

            record, finished = this_run.passes(row)
            for tables in both_tables:
                tables.create(table)
                tables.load(table, content)
                tables.quiesce()
            in_rounds(
                WAYS, rounds, lambda way, _: _read(way, size, sent) | {"arrow_bytes": content.nbytes}, record,
                stop=stop, progress=lambda way, _: this_run.progress(way.name), finished=finished,
            )  # fmt: skip

        def work(stop: threading.Event) -> None:
            for size in sizes:
                of_size(size, stop)

        both_tables = [tables_of(both.of(database)) for database in DATABASES]
        try:
            interruptible(work)
        finally:
            for tables in both_tables:
                tables.drop(table)
    return EverydayApi.load(this_run.settings)


def _read(way: Way, rows: int, sent: dict[str, int]) -> dict[str, Any]:
    """What a process of its own says of a read; raises ChildError, or WrongResultError when something else came."""
    said = answer_of(context(read_once.__module__), way.name, read_once, way.name)
    came = said.pop("came")
    other = [name for name in sent if came.get(name) != sent[name]]
    return right(
        said | {"rows_per_s": rows / said["seconds"]}, f"other values came of: {', '.join(other)}" if other else None
    )


def is_everyday() -> pl.Expr:
    """Whether a technique is an everyday call."""
    return (pl.col("origin") == "everyday") | pl.col("technique").is_in(CALLED_AS_WELL)


def changes(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Return each everyday call with `instead`, the fastest technique without codecs of ours, and its `gain`.

    Both take the same frame, over one connection, on the terms of a plain append, and give back exact dtypes. The gain
    is of the most rows that both have moved, `gain_rows`; `called` is linked to what documents the call.
    """
    summary = statistics.summary(passes).drop_nulls("median_rows_per_s")
    found = []
    for call in summary.filter(is_everyday()).to_dicts():
        rivals = summary.filter(
            ~is_everyday(), pl.col("origin").is_in(["published", "beyond"]), connections=1, dtypes="exact",
            database=call["database"], direction=call["direction"], frame=call["frame"],
        ).filter(pl.col("contract").eq_missing(call["contract"]))  # fmt: skip
        ranked = rivals.sort("rows", "median_rows_per_s", descending=True).to_dicts()
        instead = next((row["technique"] for row in ranked if not takes_own_codecs(code_of(row))), None)
        if instead is None:
            continue
        here = passes.filter(database=call["database"], direction=call["direction"], status="ok")
        gain, rows = ratios.with_rows(here.filter(technique=instead), here.filter(technique=call["technique"]))
        link = re.search(r"https://[^\s,;]*[^\s,;.]", code_of(call).docstring)
        called = f"[{call['label']}]({link[0]})" if link else call["label"]
        found.append(call | {"called": called, "instead": instead, "gain": gain, "gain_rows": rows})
    return found


def takes_own_codecs(code: Source) -> bool:
    """Whether code takes along an encoder or a decoder of ours."""
    return any(f"{OURS}.codecs.{room}" in code.modules for room in OWN_CODECS)


def changes_table(found: list[dict[str, Any]]) -> Listing:
    """Every everyday call, what to call instead, and what that gains."""
    said = verdicts([(one["gain"], 1) for one in found], "faster", "slower")
    columns = [
        words("direction", where),
        words("what is called", "called"),
        Column("rows/s", lambda row: speed_text(row, "median_rows_per_s")),
        Column("of rows", "rows", "{:,}"),
        words("call instead", "instead", "`{}`"),
        Column("gain", "gain"),
        Column("of rows moved by both", "gain_rows", "{:,}"),
        words("verdict", "said"),
    ]
    return Listing(columns, [one | {"said": word} for one, word in zip(found, said, strict=True)])


def gains_figure(found: list[dict[str, Any]]) -> Figure:
    """How many times as fast what libraries do is."""
    known = sorted((one for one in found if one["gain"].logs), key=lambda one: (where(one), -one["gain"].ratio))
    with charts.panels(1, height=1.2 + 0.3 * len(known)) as (drawn, [axes]):
        for at, gain in enumerate(one["gain"] for one in known):
            axes.plot([gain.low, gain.high], [at, at], color="#0072B2", linewidth=1.5)
            axes.scatter(gain.ratio, at, color="#0072B2", s=30, zorder=3)
        axes.set_xscale("log", base=10)
        axes.axvline(1, color=charts.INK, linewidth=0.8)
        charts.part_lines(axes, [where(one) for one in known])
        charts.name_lines(axes, [f"{where(one)}: {one['label']}" for one in known])
        charts.quantities(axes.xaxis, "{:g}x".format)
        axes.grid(axis="x", color="#eeeeee")
        axes.set_xlabel("rows/s over those of the everyday call, logarithmic (line: range or 95% interval)")
        charts.title(axes, "What one gains over the everyday call")
    return drawn


def memory_table(passes: pl.DataFrame) -> Listing:
    """Peak memory of each way of reading in batches, of few rows and of many."""
    columns = [
        words("server", lambda row: DATABASES[row["database"]]),
        words("what promises batches", "label"),
        Column("rows", lambda row: f"{row['less']['rows']:,} and {row['rows']:,}"),
        Column("peak memory of the fewer", lambda row: row["less"]["peak_rss_bytes"], megabytes),
        Column("of the more", "peak_rss_bytes", megabytes),
        Column("growth, over that of the rows as Arrow", "part", "{:.1f}"),
        words("bounded", "bounded"),
        Column("rows/s of the more", "rows_per_s", "{:,.0f}"),
    ]
    return Listing(columns, grown(passes))


def grown(passes: pl.DataFrame) -> list[dict[str, Any]]:
    """Of each way the medians at most rows, with `less`, those at fewest, and whether memory grows with rows."""
    medians = statistics.medians(passes, ["database", "way", "label", "rows"]).filter(status="ok").sort("rows")
    found = []
    for group in medians.partition_by("way", maintain_order=True):
        less, more = group.row(0, named=True), group.row(-1, named=True)
        further = more["arrow_bytes"] - less["arrow_bytes"]
        peaks = more["peak_rss_bytes"], less["peak_rss_bytes"]
        growth = math.nan if None in peaks else peaks[0] - peaks[1]
        part = growth / further if further else math.nan
        grows = part >= GROWS
        few = further < LEAST_FURTHER_BYTES or (grows and growth < BUFFERED_BYTES)
        said = "not known here" if None in peaks else "too few rows to say" if few else "no" if grows else "yes"
        found.append(more | {"less": less, "part": part, "bounded": said, "label": LABELS[more["way"]]})
    return sorted(found, key=lambda row: [*LABELS].index(row["way"]))


class EverydayApi(Shown):
    """Reads in batches, and the passes of the four directions, where they were run."""

    study = STUDY
    memory = view(memory_table)

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        super().__init__(passes, metadata, figures)
        self._transfers = read_all(figures.parent / "results")

    @cached_property
    def changes(self) -> list[dict[str, Any]]:
        """What takes the place of each everyday call."""
        return changes(self._transfers) if len(self._transfers) else []

    def table(self) -> Listing | Markdown:
        """Every everyday call, what to call instead, and what that gains."""
        return changes_table(self.changes) if self.changes else Markdown("Run notebooks 01 to 04 first.")

    def chart(self) -> SVG:
        """The gains; also saved as a figure."""
        return self.saved(gains_figure(self.changes))

    def answer(self) -> Markdown:
        """The largest and the least gain of each direction, and which batches are bounded."""
        return Markdown(bullets([*_gains(self.changes), *_bounded(self.passes)]))


def _gains(found: list[dict[str, Any]]) -> Iterator[str]:
    by_direction: dict[str, list[dict[str, Any]]] = {}
    for one in sorted((one for one in found if one["gain"].logs), key=lambda one: float(one["gain"].ratio)):
        by_direction.setdefault(where(one), []).append(one)
    for direction, here in by_direction.items():
        least, *_, most = here if len(here) > 1 else here * 2
        yield f"**{direction}**: {least['gain']} over {least['label']}, up to {most['gain']} over {most['label']}."


def _bounded(passes: pl.DataFrame) -> Iterator[str]:
    rows = grown(passes)
    for answer, text in (("no", "grows with the rows"), ("yes", "stays bounded")):
        if here := [row for row in rows if row["bounded"] == answer]:
            most = max(row["rows"] for row in here)
            yield f"**Memory {text}**, up to {most:,} of them, with {'; '.join(row['label'] for row in here)}."


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory; none of what was not run."""
    blocks: dict[str, str] = {}
    transfers = read_all(directory)
    if found := changes(transfers) if len(transfers) else []:
        blocks["everyday"] = str(changes_table(found))
    if (path := directory / STUDY.results).exists() and len(reads := store.read(path, BatchedRead)):
        blocks["everyday-memory"] = str(memory_table(reads))
    return blocks
