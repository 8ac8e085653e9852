"""Measure the memory of calls that read a table in batches, each in its own process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, cast

import pandas as pd
import polars as pl

from framehaul import servers
from framehaul.bench import recording
from framehaul.bench.children import answer_of, context, ended_with_the_block
from framehaul.bench.meter import Meter
from framehaul.bench.recording import Recording
from framehaul.bench.rounds import Pass, Rounds, check, columns_of, interruptible, right
from framehaul.bench.store import Status
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS, ColumnType, Table
from framehaul.servers import Servers
from framehaul.servers.tables import tables_of
from framehaul.settings import load_settings
from framehaul.studies.registry import EVERYDAY_API
from framehaul.techniques.clients import CLIENTS
from framehaul.techniques.registry import DATABASES, Database

BATCH_ROWS = 10_000
PART = 10
"""The first of the two tables is ten times smaller."""
NUMBERS = (ColumnType.INT16, ColumnType.INT32, ColumnType.INT64)

type Frame = pl.DataFrame | pd.DataFrame


def _postgres(table: Table) -> str:
    return f"SELECT {table.postgres_columns} FROM {table.postgres_name}"


def _clickhouse(table: Table) -> str:
    return f"SELECT {table.clickhouse_columns} FROM {table.clickhouse_name}"


def pandas_chunks(connection: Any, table: Table) -> Iterator[Frame]:
    """Yield parts of the result, all of which the driver has fetched before."""
    yield from pd.read_sql(_postgres(table), connection, chunksize=BATCH_ROWS)


def pandas_chunks_streamed(connection: Any, table: Table) -> Iterator[Frame]:
    """Fetch from a cursor on the server."""
    yield from pandas_chunks(connection.execution_options(stream_results=True), table)


def polars_batches(connection: Any, table: Table) -> Iterator[Frame]:
    """Yield parts of the result, which SQLAlchemy's driver has fetched before; ADBC yields batches as they arrive."""
    yield from pl.read_database(_postgres(table), connection, iter_batches=True, batch_size=BATCH_ROWS)


def polars_batches_streamed(connection: Any, table: Table) -> Iterator[Frame]:
    """Fetch from a cursor on the server."""
    yield from polars_batches(connection.execution_options(stream_results=True), table)


def psycopg_cursor(connection: Any, table: Table) -> Iterator[Frame]:
    """Fetch from a cursor on the server.

    https://www.psycopg.org/psycopg3/docs/advanced/cursors.html
    """
    with connection.transaction(), connection.cursor("framehaul_batches") as cursor:
        cursor.execute(_postgres(table))
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield pl.DataFrame(rows, schema=table.column_names, orient="row")


def connect_stream(client: Any, table: Table) -> Iterator[Frame]:
    """Yield a frame for each block that the server sends."""
    with client.query_df_stream(_clickhouse(table)) as stream:
        yield from stream


def connect_arrow_stream(client: Any, table: Table) -> Iterator[Frame]:
    """Yield a frame for each Arrow batch as it arrives."""
    with client.query_arrow_stream(_clickhouse(table)) as stream:
        yield from map(pl.DataFrame, stream)


def driver_iterator(client: Any, table: Table) -> Iterator[Frame]:
    """Yield a frame for each batch of rows as they arrive."""
    for rows in client.execute_iter(_clickhouse(table), chunk_size=BATCH_ROWS):
        yield pl.DataFrame(rows, schema=table.column_names, orient="row")


class BatchedCall(NamedTuple):
    """A call that reads a table in batches; `read` takes an open client and a table."""

    name: str
    client: str
    label: str
    read: Callable[[Any, Table], Iterator[Frame]]

    @property
    def database(self) -> Database:
        """The database of the client."""
        return "clickhouse" if self.client.startswith("clickhouse") else "postgres"


CONNECT = "clickhouse-connect"
PANDAS, POLARS, CURSOR = "pandas.read_sql(chunksize=)", "polars.read_database(iter_batches=True)", "stream_results=True"
CALLS = (
    BatchedCall("pandas_chunksize", "sqlalchemy", PANDAS, pandas_chunks),
    BatchedCall("pandas_chunksize_streamed", "sqlalchemy", f"{PANDAS}, {CURSOR}", pandas_chunks_streamed),
    BatchedCall("polars_iter_batches", "sqlalchemy", POLARS, polars_batches),
    BatchedCall("polars_iter_batches_streamed", "sqlalchemy", f"{POLARS}, {CURSOR}", polars_batches_streamed),
    BatchedCall("polars_iter_batches_adbc", "adbc", f"{POLARS}, ADBC", polars_batches),
    BatchedCall("psycopg_cursor", "psycopg", "psycopg, a named cursor's fetchmany", psycopg_cursor),
    BatchedCall("connect_df_stream", "clickhouse_connect", f"{CONNECT} query_df_stream", connect_stream),
    BatchedCall("connect_arrow_stream", "clickhouse_connect", f"{CONNECT} query_arrow_stream", connect_arrow_stream),
    BatchedCall("driver_execute_iter", "clickhouse_driver", "clickhouse-driver execute_iter", driver_iterator),
)


def sums_of(frame: Frame, table: Table) -> dict[str, int]:
    """Return the number of rows, the sum of each column of integers and the characters of each column of text."""
    sums = {"rows": len(frame)}
    for name in table.columns_of(*NUMBERS):
        numbers = frame[name]  # a sum of Polars is as wide as its column
        sums[name] = int((numbers.cast(pl.Int64) if isinstance(numbers, pl.Series) else numbers).sum())
    for name in table.columns_of(ColumnType.TEXT):
        texts = frame[name]
        sums[name] = int((texts.str.len_chars() if isinstance(texts, pl.Series) else texts.str.len()).sum())
    return sums


def consumed(frames: Iterator[Frame], table: Table) -> dict[str, Any]:
    """Take all frames and return their number, the sums of their values, and the seconds without summing."""
    sums: dict[str, int] = {}
    number, summing = 0, 0.0
    start = time.perf_counter()
    for frame in frames:
        begin = time.perf_counter()
        sums = {name: sums.get(name, 0) + value for name, value in sums_of(frame, table).items()}
        number += 1
        summing += time.perf_counter() - begin
    return {"seconds": time.perf_counter() - start - summing, "frames": number, "sums": sums}


def read_once(answer: Connection, name: str) -> None:
    """Read the table once, and send the result of `consumed` and the peak memory."""
    call = next(call for call in CALLS if call.name == name)
    with servers.running(load_settings()) as both:
        server = both.of(call.database)
        with cast("AbstractContextManager[Any]", CLIENTS[call.client](server)) as client:
            meter = Meter(server.process_id)
            meter.start(memory=True)
            found = consumed(call.read(client, ANALYTICS_METRICS), ANALYTICS_METRICS)
            usage = meter.stop()
    answer.send(found | {"peak_rss_bytes": usage.peak_rss_bytes})


@dataclass(frozen=True)
class BatchedRead:
    """A pass of a call that reads in batches; a missing number is None, never 0."""

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
    """The size of all rows as Arrow."""
    peak_rss_bytes: int | None = None
    status: Status = "ok"
    reason: str | None = None


@recording.study(EVERYDAY_API.notebook, BatchedRead)
def run(*, rows: int, rounds: int, seed: int) -> None:
    """Read a table of a tenth of the rows, and a table of all rows, with each call that returns batches.

    Raises ValueError for a parameter out of range.
    """
    check(ROWS=(rows, 1))
    schedule = Rounds(rounds, 0, seed)
    with (
        recording.with_servers(EVERYDAY_API, BatchedRead, schedule, rows=rows) as (this_run, both),
        ended_with_the_block(),
    ):
        # Less than one batch shows nothing about memory.
        sizes = [rows // PART, rows] if rows // PART >= BATCH_ROWS else [rows]
        this_run.expect(len(CALLS) * len(sizes) * rounds)

        def work(stop: threading.Event) -> None:
            for size in sizes:
                _read_all(this_run, both, size, schedule, stop)

        interruptible(work)


def _read_all(this_run: Recording, both: Servers, size: int, rounds: Rounds, stop: threading.Event) -> None:
    """Load a table of `size` rows on both servers and read it with each call."""
    content = generator.arrow_table(ANALYTICS_METRICS, size, rounds.seed)
    sent = sums_of(to_polars(content, ANALYTICS_METRICS), ANALYTICS_METRICS)

    def row(call: BatchedCall, number: int, outcome: Pass[dict[str, Any]]) -> BatchedRead:
        return BatchedRead(this_run.run_id, call.database, call.name, call.label, size, number, **columns_of(outcome))

    def measure(call: BatchedCall, _: int) -> dict[str, Any]:
        return _read(call, size, sent) | {"arrow_bytes": content.nbytes}

    try:
        for database in DATABASES:
            tables = tables_of(both.of(database))
            tables.create(ANALYTICS_METRICS)
            tables.load(ANALYTICS_METRICS, content)
            tables.quiesce()
        this_run.in_rounds(CALLS, rounds, measure, row, lambda call: call.name, stop=stop)
    finally:
        for database in DATABASES:
            tables_of(both.of(database)).drop(ANALYTICS_METRICS)


def _read(call: BatchedCall, rows: int, sent: dict[str, int]) -> dict[str, Any]:
    """Return what a child process measured; raises ChildError, or WrongResultError for other values."""
    found = answer_of(context(__name__), call.name, read_once, call.name)
    sums = found.pop("sums")
    wrong = ", ".join(name for name in sent if sums.get(name) != sent[name])
    return right(found | {"rows_per_s": rows / found["seconds"]}, wrong and f"other values came of: {wrong}")
