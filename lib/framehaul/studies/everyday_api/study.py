"""Everyday calls compared with the fastest techniques, and the memory of reads in batches."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import polars as pl

from framehaul import servers
from framehaul.bench import ratios, recording, statistics
from framehaul.bench.children import answer_of, context, ended_with_the_block
from framehaul.bench.environment import server_versions
from framehaul.bench.passes import Pass, columns_of, right
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Rounds, check, in_rounds, interruptible
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, Table
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.everyday_api.batches import BATCH_ROWS, WAYS, Way, read_once, sums_of
from framehaul.studies.registry import EVERYDAY_API
from framehaul.techniques.registry import DATABASES

PART = 10
"""How many times smaller the first of the two tables is."""
CALLED_AS_WELL = (
    "pandas_sqlalchemy_read_sql_query", "polars_sqlalchemy_read_database", "pandas_clickhouse_connect_insert_df",
    "pandas_clickhouse_connect_query_df", "polars_duckdb_insert", "polars_duckdb_scan",
)  # fmt: skip
"""Everyday calls of another origin: published ones, and calls that are measured with checks around them."""
ONE_LINE = {
    ("postgres", "write", "pandas_sqlalchemy_to_sql"):
        ("pandas_adbc_to_sql", "frame.to_sql(table, adbc_connection, if_exists='append', index=False)"),
    ("postgres", "write", "polars_sqlalchemy_write_database"):
        ("polars_adbc_write_database", "frame.write_database(table, url, if_table_exists='append', engine='adbc')"),
    ("postgres", "read", "pandas_sqlalchemy_read_sql_query"):
        ("pandas_adbc_read_sql", "pd.read_sql(query, adbc_connection)"),
    ("postgres", "read", "polars_sqlalchemy_read_database"):
        ("polars_adbc_read_database", "pl.read_database(query, adbc_connection)"),
    ("clickhouse", "write", "pandas_clickhouse_connect_insert_df"):
        ("polars_clickhouse_connect_insert_arrow", "client.insert_arrow(table, pa.Table.from_pandas(frame))"),
    ("clickhouse", "read", "pandas_clickhouse_connect_query_df"):
        ("pandas_clickhouse_connect_query_df_arrow", "client.query_df_arrow(query, dataframe_library='pandas')"),
}  # fmt: skip
"""For the calls that most people begin with: the technique that one changed line makes of it, and that line."""


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


@recording.study(EVERYDAY_API.notebook, BatchedRead)
def run(*, rows: int, rounds: int, seed: int, table: Table = ANALYTICS_METRICS) -> None:
    """Read a table of a tenth of the rows, and of all, in each way that gives batches, and return one row per read.

    Raises ValueError for a parameter that makes no sense, ServerError and ResultsError for what their names say.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, 0, seed)
    terms = {"rows": rows, **vars(schedule)}
    with (
        recording.recording(EVERYDAY_API.notebook, EVERYDAY_API.results, BatchedRead, "read", terms) as this_run,
        servers.running(this_run.settings) as both,
        ended_with_the_block(),
    ):
        versions = "; ".join(server_versions(both).values())
        this_run.metadata |= terms | {"servers": both.mode, "server": {"version": versions}}
        # Fewer rows than fill a batch show nothing about memory.
        sizes = [rows // PART, rows] if rows // PART >= BATCH_ROWS else [rows]
        this_run.expect(len(WAYS) * len(sizes) * rounds)

        def work(stop: threading.Event) -> None:
            for size in sizes:
                _read_all(this_run, both, table, size, schedule, stop)

        interruptible(work)


def _read_all(
    this_run: Recording, both: Servers, table: Table, size: int, rounds: Rounds, stop: threading.Event
) -> None:
    """Load a table of `size` rows on both servers and read it in each way."""
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
    """Return what a process of its own measured of a read; raises ChildError, or WrongResultError for other values."""
    said = answer_of(context(read_once.__module__), way.name, read_once, way.name)
    came = said.pop("came")
    other = [name for name in sent if came.get(name) != sent[name]]
    return right(
        said | {"rows_per_s": rows / said["seconds"]}, f"other values came of: {', '.join(other)}" if other else None
    )


def is_everyday() -> pl.Expr:
    """Return the expression that selects everyday calls among techniques."""
    return (pl.col("origin") == "everyday") | pl.col("technique").is_in(CALLED_AS_WELL)


def changes(passes: pl.DataFrame) -> pl.DataFrame:
    """Return, for each everyday call, the fastest technique on the same terms and its gain, and the one-line change.

    The techniques take the same frame, over one connection, append, and give back exact dtypes. `gain` is the ratio of
    rows/s, paired by round, at `of_rows`, the most rows that both moved; `line` and `line_gain` are empty where no
    single line makes a difference.
    """
    summary = statistics.summary(passes).drop_nulls("median_rows_per_s")
    rows = []
    for call in summary.filter(is_everyday()).to_dicts():
        rivals = summary.filter(
            ~is_everyday(), pl.col("origin").is_in(["published", "beyond"]),
            pl.col("contract").eq_missing(call["contract"]), connections=1, dtypes="exact",
            database=call["database"], direction=call["direction"], frame=call["frame"],
        ).sort("rows", "median_rows_per_s", descending=True)  # fmt: skip
        if rivals.is_empty():
            continue
        key = call["database"], call["direction"], call["technique"]
        changed, line = ONE_LINE.get(key, (None, None))
        rows.append(
            {
                "database": call["database"], "direction": call["direction"], "call": call["label"],
                "technique": call["technique"], "rows_per_s": call["median_rows_per_s"], "line": line,
                **_gain(passes, call, changed, "line_gain"), "instead": rivals["technique"][0],
                **_gain(passes, call, rivals["technique"][0], "gain"),
            }
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def _gain(passes: pl.DataFrame, call: dict[str, Any], technique: str | None, name: str) -> dict[str, Any]:
    """Return the ratio of a technique's rows/s to a call's, with its ends and rounds, at the most rows of both."""
    here = passes.filter(database=call["database"], direction=call["direction"], status="ok")
    found, rows = ratios.with_rows(here.filter(technique=technique or ""), here.filter(technique=call["technique"]))
    known = (found.ratio, found.low, found.high, found.rounds) if found.rounds else (None,) * 4
    return dict(zip((name, f"{name}_low", f"{name}_high", f"{name}_rounds", f"{name}_of"), (*known, rows), strict=True))


def growth(passes: pl.DataFrame) -> pl.DataFrame:
    """Return, for each way of reading in batches, peak memory at fewest and at most rows, and by how much it grew.

    `share` is the growth over the size of the further rows as Arrow: near 0 memory is bounded, from about 1 on all rows
    are held.
    """
    medians = statistics.medians(passes, ["database", "way", "label", "rows"]).filter(status="ok").sort("rows")
    first, last = pl.all().first(), pl.all().last()
    grown = medians.group_by("database", "way", maintain_order=True).agg(first.name.suffix("_fewest"), last)
    further = pl.col("arrow_bytes") - pl.col("arrow_bytes_fewest")
    grew = pl.col("peak_rss_bytes") - pl.col("peak_rss_bytes_fewest")
    return grown.with_columns(share=pl.when(further > 0).then(grew / further))
