"""What notebook 18 calls: everyday calls beside the fast ones, and the memory of reads in batches."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl
from IPython.display import Markdown

from framehaul import servers
from framehaul.bench import ratios, statistics, store
from framehaul.bench.children import answer_of, context, ended_with_the_block
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.ratios import Ratio, verdicts
from framehaul.bench.recording import Recording, recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.reporting.shown import Shown, view
from framehaul.reporting.tables import Column, Listing, megabytes, speed_text, where, words
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.everyday_api.batches import BATCH_ROWS, WAYS, Way, read_once, sums_of
from framehaul.studies.registry import EVERYDAY_API
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
PART = 10
"""How many times smaller the first of the two tables is."""
KNOWN_TO_ALL = (
    "pandas_sqlalchemy_to_sql", "polars_sqlalchemy_write_database", "pandas_sqlalchemy_read_sql_query",
    "polars_sqlalchemy_read_database", "pandas_clickhouse_connect_insert_df", "pandas_clickhouse_connect_query_df",
)  # fmt: skip
"""Calls that most people begin with: they are the answer."""
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


def run(*, rows: int, rounds: int, seed: int, table: Table = ANALYTICS_METRICS) -> EverydayApi:
    """Read a table of a tenth of the rows, and of all, in each way that promises batches, and write the results.

    Raises ValueError for a parameter that makes no sense, ServerError and ResultsError for what their names say.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, 0, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording(EVERYDAY_API.notebook, EVERYDAY_API.results, BatchedRead, "read", terms) as this_run,
        servers.running(this_run.settings) as both,
        ended_with_the_block(),
    ):
        versions = "; ".join(server_versions(both).values())
        this_run.metadata |= terms | {"servers": both.mode, "server": {"version": versions}}
        # Fewer rows than fill a batch say nothing about memory.
        sizes = [rows // PART, rows] if rows // PART >= BATCH_ROWS else [rows]
        this_run.expect(len(WAYS) * len(sizes) * rounds)

        def work(stop: threading.Event) -> None:
            for size in sizes:
                _read_all(this_run, both, table, size, schedule, stop)

        interruptible(work)
    return EverydayApi.load(this_run.settings)


def _read_all(
    this_run: Recording, both: Servers, table: Table, size: int, rounds: Rounds, stop: threading.Event
) -> None:
    """A table of so many rows on both servers, and every way of reading it in batches."""
    content = generator.arrow_table(table, size, rounds.seed)
    sent = sums_of(to_polars(content, table), table)

    def row(way: Way, number: int, outcome: Pass[dict[str, Any]]) -> BatchedRead:
        return BatchedRead(this_run.run_id, way.database, way.name, way.label, size, number, **columns_of(outcome))

    record, finished = this_run.passes(row)
    try:
        for database in DATABASES:
            tables = tables_of(both.of(database))
            tables.create(table)
            tables.load(table, content)
            tables.quiesce()
        in_rounds(
            WAYS, rounds, lambda way, _: _read(way, size, sent) | {"arrow_bytes": content.nbytes}, record,
            stop=stop, progress=lambda way, _: this_run.progress(way.name), finished=finished,
        )  # fmt: skip
    finally:
        for database in DATABASES:
            tables_of(both.of(database)).drop(table)


def _read(way: Way, rows: int, sent: dict[str, int]) -> dict[str, Any]:
    """What a process of its own says of a read; raises ChildError, or WrongResultError when something else came."""
    said = answer_of(context(read_once.__module__), way.name, read_once, way.name)
    came = said.pop("came")
    other = [name for name in sent if came.get(name) != sent[name]]
    return right(
        said | {"rows_per_s": rows / said["seconds"]}, f"other values came of: {', '.join(other)}" if other else None
    )


@dataclass(frozen=True)
class Change:
    """An everyday call, the technique that takes its place, and what that gains."""

    call: dict[str, Any]
    fast: dict[str, Any]
    fastest: dict[str, Any]
    gain: Ratio
    rows: int | None
    """Of how many rows the gain is: the most that both have moved."""
    gain_of_fastest: Ratio
    before: Source
    after: Source

    @property
    def called(self) -> str:
        """What is called, linked to what documents it."""
        link = re.search(r"https://[^\s,;]*[^\s,;.]", self.before.docstring)
        return f"[{self.call['label']}]({link[0]})" if link else str(self.call["label"])


def is_everyday() -> pl.Expr:
    """Whether a technique is an everyday call."""
    return (pl.col("origin") == "everyday") | pl.col("technique").is_in(CALLED_AS_WELL)


def changes(passes: pl.DataFrame) -> list[Change]:
    """For every everyday call that has a time: the fastest technique without codecs of ours, and the fastest of all.

    Both take the same frame, over one connection, on the terms of a plain append, and give back exact dtypes.
    """
    summary = statistics.summary(passes).drop_nulls("median_rows_per_s")
    found = []
    for call in summary.filter(is_everyday()).to_dicts():
        rivals = summary.filter(
            ~is_everyday(), pl.col("origin").is_in(["published", "beyond"]), connections=1, dtypes="exact",
            database=call["database"], direction=call["direction"], frame=call["frame"],
        ).filter(pl.col("contract").eq_missing(call["contract"]))  # fmt: skip
        ranked = [(row, code_of(row)) for row in rivals.sort("rows", "median_rows_per_s", descending=True).to_dicts()]
        short = [(row, code) for row, code in ranked if not takes_own_codecs(code)]
        if short:
            (fast, after), (fastest, _) = short[0], ranked[0]
            (gain, rows), (of_fastest, _) = (_gain(passes, one, call) for one in (fast, fastest))
            found.append(Change(call, fast, fastest, gain, rows, of_fastest, code_of(call), after))
    return found


def takes_own_codecs(code: Source) -> bool:
    """Whether code takes along an encoder or a decoder of ours."""
    return any(f"{OURS}.codecs.{room}" in code.modules for room in OWN_CODECS)


def _gain(passes: pl.DataFrame, one: dict[str, Any], call: dict[str, Any]) -> tuple[Ratio, int | None]:
    here = passes.filter(database=call["database"], direction=call["direction"], status="ok")
    return ratios.with_rows(here.filter(technique=one["technique"]), here.filter(technique=call["technique"]))


def changes_table(found: list[Change]) -> Listing:
    """Every everyday call, what to call instead, and what that gains."""
    said = verdicts([(one.gain, 1) for one in found], "faster", "slower")
    columns = [
        words("direction", lambda row: where(row["call"])),
        words("what is called", "called"),
        Column("rows/s", lambda row: speed_text(row["call"], "median_rows_per_s")),
        words("call instead", _instead),
        Column("gain, what libraries do", "gain"),
        Column("of rows", "rows", "{:,}"),
        words("the fastest, with codecs of ours", lambda row: f"`{row['fastest']['technique']}`"),
        Column("gain, with codecs of ours", "gain_of_fastest"),
    ]
    rows = [vars(one) | {"called": one.called, "said": word} for one, word in zip(found, said, strict=True)]
    return Listing(columns, rows)


def _instead(row: Mapping[str, Any]) -> str:
    technique = f"`{row['fast']['technique']}`"
    if row["said"] in ("faster", "not measured"):
        return technique
    return f"nothing for its speed: {technique} is not told to be faster"


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
        found.append(more | {"less": less, "part": part, "bounded": said})
    return found


class EverydayApi(Shown):
    """Reads in batches, and the passes of the four directions, where they were run."""

    study = EVERYDAY_API
    memory = view(memory_table)

    def __init__(self, passes: pl.DataFrame, metadata: dict[str, Any], figures: Path) -> None:
        super().__init__(passes, metadata, figures)
        self._transfers = read_all(figures.parent / "results")

    @cached_property
    def changes(self) -> list[Change]:
        """What takes the place of each everyday call."""
        return changes(self._transfers) if len(self._transfers) else []

    def table(self) -> Listing | Markdown:
        """Every everyday call, what to call instead, and what that gains."""
        return changes_table(self.changes) if self.changes else Markdown("Run notebooks 01 to 04 first.")

    def answer(self) -> Listing | Markdown:
        """What one gains over the calls that most people begin with."""
        known = [one for one in self.changes if one.call["technique"] in KNOWN_TO_ALL]
        return changes_table(known) if known else Markdown("Run notebooks 01 to 04 first.")


def writeup_blocks(directory: Path) -> dict[str, str]:
    """The blocks of the writeup, from a results directory; none of what was not run."""
    blocks: dict[str, str] = {}
    transfers = read_all(directory)
    if found := changes(transfers) if len(transfers) else []:
        blocks["everyday"] = str(changes_table(found))
    if (path := directory / EVERYDAY_API.results).exists() and len(reads := store.read(path, BatchedRead)):
        blocks["everyday-memory"] = str(memory_table(reads))
    return blocks
