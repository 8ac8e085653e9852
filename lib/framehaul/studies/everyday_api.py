"""Everyday calls: the line to change, its gain, and whether reads in batches keep memory bounded.

Each call that reads in batches runs in its own process, whose memory is measured.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import pandas as pd
import polars as pl

from framehaul.bench import ratios, statistics, store
from framehaul.bench.children import child, context
from framehaul.bench.meter import Meter
from framehaul.bench.recording import Recording, recorded
from framehaul.bench.rounds import Rounds, in_rounds, right
from framehaul.data import generator
from framehaul.data.frames import to_polars
from framehaul.data.schema import ANALYTICS_METRICS as TABLE
from framehaul.data.schema import ColumnType
from framehaul.servers import Server, Servers
from framehaul.servers.tables import tables_of
from framehaul.studies.registry import EVERYDAY_API
from framehaul.studies.transfers import ONE_LINE
from framehaul.techniques.clients import opened_now
from framehaul.techniques.registry import DATABASES, Database

BATCH_ROWS = 10_000
PART = 10
"""The first of the two tables is ten times smaller."""

type Frames = Iterator[pl.DataFrame | pd.DataFrame]


def changes(passes: pl.DataFrame) -> pl.DataFrame:
    """Return the gains of the changed line and of framehaul for each call of ONE_LINE that has a time.

    `gain` and `gain_of_framehaul`, which is that of `framehaul.write` or `.read`, are ratios of rows/s, paired by
    round, at the fewest and at the most `rows` that all three moved.
    """
    timed = statistics.summary(passes).drop_nulls("median_rows_per_s")
    calls = ONE_LINE.join(timed.select(*statistics.NAMES, "frame", call="label"), on=statistics.NAMES).to_dicts()
    gains = []
    for call in calls:
        here = passes.filter(database=call["database"], direction=call["direction"], status="ok")
        own = f"{call['frame']}_framehaul_{call['direction']}"
        three = [here.filter(technique=name) for name in (call["technique"], call["changed"], own)]
        sizes = set.intersection(*({*one["rows"]} for one in three)) or {0}
        for rows in sorted({min(sizes), max(sizes)}):
            base, *others = (one.filter(rows=rows) for one in three)
            row = call | {"rows": rows or None}
            for gain, other in zip(("gain", "gain_of_framehaul"), others, strict=True):
                names = gain, f"{gain}_low", f"{gain}_high", f"{gain}_rounds"
                row |= dict(zip(names, ratios.ratio(other, base).values, strict=True))
            gains.append(row)
    return pl.DataFrame(gains, infer_schema_length=None)


def pandas_chunks(connection: Any, query: str) -> Frames:
    """Yield parts of the result, all of which the driver has fetched before."""
    yield from pd.read_sql(query, connection, chunksize=BATCH_ROWS)


def polars_batches(connection: Any, query: str) -> Frames:
    """Yield parts of the result, which SQLAlchemy's driver has fetched before; ADBC yields batches as they arrive."""
    yield from pl.read_database(query, connection, iter_batches=True, batch_size=BATCH_ROWS)


def psycopg_cursor(connection: Any, query: str) -> Frames:
    """Fetch from a cursor on the server.

    https://www.psycopg.org/psycopg3/docs/advanced/cursors.html
    """
    with connection.transaction(), connection.cursor("framehaul_batches") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(BATCH_ROWS):
            yield pl.DataFrame(rows, schema=TABLE.column_names, orient="row")


def frame_stream(client: Any, query: str) -> Frames:
    """Yield a frame for each block that the server sends."""
    with client.query_df_stream(query) as stream:
        yield from stream


def arrow_stream(client: Any, query: str) -> Frames:
    """Yield a frame for each Arrow batch as it arrives."""
    with client.query_arrow_stream(query) as stream:
        yield from map(pl.DataFrame, stream)


def driver_iterator(client: Any, query: str) -> Frames:
    """Yield a frame for each batch of rows as they arrive."""
    for rows in client.execute_iter(query, chunk_size=BATCH_ROWS):
        yield pl.DataFrame(rows, schema=TABLE.column_names, orient="row")


class Call(NamedTuple):
    """A call that reads a table in batches; `read` takes an open client and a query."""

    database: Database
    name: str
    label: str
    client: str
    read: Callable[[Any, str], Frames]
    streamed: bool = False

    def batches(self, client: Any) -> Frames:
        """Read the table; where it is `streamed`, SQLAlchemy fetches from a cursor on the server."""
        connection = client.execution_options(stream_results=True) if self.streamed else client
        return self.read(connection, TABLE.postgres_select if self.database == "postgres" else TABLE.clickhouse_select)


PANDAS, POLARS = "pandas.read_sql(chunksize=)", "polars.read_database(iter_batches=True)"
CURSOR, CONNECT = "stream_results=True", "clickhouse-connect"
CALLS = (
    Call("postgres", "pandas_chunksize", PANDAS, "sqlalchemy", pandas_chunks),
    Call("postgres", "pandas_chunksize_streamed", f"{PANDAS}, {CURSOR}", "sqlalchemy", pandas_chunks, True),
    Call("postgres", "polars_iter_batches", POLARS, "sqlalchemy", polars_batches),
    Call("postgres", "polars_iter_batches_streamed", f"{POLARS}, {CURSOR}", "sqlalchemy", polars_batches, True),
    Call("postgres", "polars_iter_batches_adbc", f"{POLARS}, ADBC", "adbc", polars_batches),
    Call("postgres", "psycopg_cursor", "psycopg, a named cursor's fetchmany", "psycopg", psycopg_cursor),
    Call("clickhouse", "connect_df_stream", f"{CONNECT} query_df_stream", "clickhouse_connect", frame_stream),
    Call("clickhouse", "connect_arrow_stream", f"{CONNECT} query_arrow_stream", "clickhouse_connect", arrow_stream),
    Call("clickhouse", "driver_execute_iter", "clickhouse-driver execute_iter", "clickhouse_driver", driver_iterator),
)


def sums_of(frame: pl.DataFrame | pd.DataFrame) -> dict[str, int]:
    """Return the number of rows, the sum of each column of integers and the characters of each column of text."""
    sums = {"rows": len(frame)}
    for name in TABLE.columns_of(ColumnType.INT16, ColumnType.INT32, ColumnType.INT64):
        sums[name] = int(pl.Series(values=frame[name]).cast(pl.Int64).sum())  # a sum is as wide as its column
    for name in TABLE.columns_of(ColumnType.TEXT):
        sums[name] = int(pl.Series(values=frame[name]).cast(pl.String).str.len_chars().sum())
    return sums


def consumed(frames: Frames) -> dict[str, Any]:
    """Take all frames and return their number, the sums of their values, and the seconds without summing."""
    sums, number, summing = Counter[str](), 0, 0.0
    start = time.perf_counter()
    for frame in frames:
        begin = time.perf_counter()
        number += 1
        sums.update(sums_of(frame))
        summing += time.perf_counter() - begin
    return {"seconds": time.perf_counter() - start - summing, "frames": number, "sums": dict(sums)}


def read_once(answer: Connection, server: Server, call: Call) -> None:
    """Read the table once, and send the result of `consumed` and the peak memory."""
    with opened_now(call.client, server) as client:
        meter = Meter(server.process_id)
        meter.start(memory=True)
        found = consumed(call.batches(client))
        answer.send(found | {"peak_rss_bytes": meter.stop().peak_rss_bytes})


@dataclass(frozen=True)
class BatchedRead(store.Timed):
    """A pass of a call that reads in batches; a missing number is None, never 0."""

    database: str
    way: str
    label: str
    rows: int
    frames: int | None = None
    arrow_bytes: int | None = None
    """The size of all rows as Arrow."""
    peak_rss_bytes: int | None = None


@recorded(EVERYDAY_API, BatchedRead)
def run(this_run: Recording, *, rows: int, rounds: int, seed: int) -> None:
    """Read a table of a tenth of the rows, and a table of all rows, with each call that returns batches."""
    both = this_run.servers()
    # Less than one batch shows nothing about memory.
    for size in [rows // PART, rows] if rows // PART >= BATCH_ROWS else [rows]:
        _read_all(this_run, both, size, Rounds(rounds, 0, seed))


def _read_all(this_run: Recording, both: Servers, size: int, rounds: Rounds) -> None:
    """Load a table of `size` rows on both servers and read it with each call, in a child process."""
    content = generator.arrow_table(TABLE, size, rounds.seed)
    sent = sums_of(to_polars(content, TABLE))
    row = this_run.rows(BatchedRead, lambda call: (*call[:3], size))

    def measure(call: Call, _: int) -> dict[str, Any]:
        with child(context(__name__), call.name, read_once, both.of(call.database), call) as process:
            found = process.receive()
        sums = found.pop("sums")
        wrong = ", ".join(name for name in sent if sums.get(name) != sent[name])
        values = found | {"rows_per_s": size / found["seconds"], "arrow_bytes": content.nbytes}
        return right(values, wrong and f"other values came of: {wrong}")

    with ExitStack() as stack:
        for database in DATABASES:
            stack.enter_context(tables_of(both.of(database)).loaded(TABLE, content))
        in_rounds(CALLS, rounds, measure, this_run.log(row))
