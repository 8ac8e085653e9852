"""ClickHouse and small batches: how long an insert takes in a steady stream, how parts pile up, what columns cost.

Batches are due at a fixed rate, whatever comes back, and what one takes counts from when it was due: a server that
answers late does not slow the stream down. https://www.scylladb.com/2021/04/22/on-coordinated-omission/
"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from framehaul.data import generator
from framehaul.data.frames import arrow_stream
from framehaul.data.schema import COMMENT, quote_clickhouse, quote_clickhouse_text
from framehaul.errors import AnswerError, UnavailableError
from framehaul.harness.meter import Meter
from framehaul.harness.passes import Ok, Pass, columns_of, right
from framehaul.harness.rounds import Rounds, in_rounds
from framehaul.harness.verify import Expected
from framehaul.servers.tables import ClickHouseTables
from framehaul.studies.table_shapes import STUDY
from framehaul.studies.table_shapes.limits import within_limits
from framehaul.studies.table_shapes.passes import Row, percentile
from framehaul.studies.table_shapes.shapes import STANDARD, STREAM, Shape, narrow
from framehaul.techniques.beyond.clickhouse_write import ARROW
from framehaul.techniques.clients import HttpConnection, open_http_client

if TYPE_CHECKING:
    from framehaul.harness.recording import Recording
    from framehaul.results.store import Writer
    from framehaul.servers import ClickHouseServer

RESULTS = "table_shapes_parts.csv"
"""How many parts there were as time went on."""
BUFFER = f"{STANDARD.table.name}_buffer"
BATCH_ROWS = 10
SENDERS = 8
"""Connections that a stream has at least, so that an insert that waits does not hold the next one up."""
FLUSH_AFTER_SECONDS = 0.2
"""How long the queue of asynchronous inserts keeps rows at most, by default (`async_insert_busy_timeout_max_ms`).

https://clickhouse.com/docs/operations/settings/settings#async_insert_busy_timeout_max_ms
"""
LONG = ("all", "streams")
"""Points whose streams are long enough to tell whether parts pile up."""
LONG_PASSES = 2
"""Of a long stream, at most: whether parts pile up shows in each of them."""
RATES = {"least": (20,), "few": (10, 100)} | dict.fromkeys(LONG, (1, 10, 50, 200))
SECONDS = {"least": 0.3, "few": 0.6} | dict.fromkeys(LONG, 20.0)
LOOK_SECONDS = 0.1
FLUSH_SECONDS = 30
"""How long a run waits for rows that the server has acknowledged and not stored yet."""


@dataclass(frozen=True)
class Mode:
    """A way to send small batches."""

    name: str
    label: str
    durability: str
    """What an answer says of the batch."""
    in_order: bool = True
    """Of time: then the rows of a batch are of one partition, as they mostly are where rows come as they are made."""
    buffered: bool = False
    settings: Mapping[str, str | int] = field(default_factory=dict, hash=False)


STORED = "its rows are in a part, in the file system's cache"
IN_MEMORY = "its rows are in the server's memory: a server that dies has lost them"
MODES = (
    Mode("insert", "INSERT, rows of one month", STORED),
    Mode("insert_all_months", "INSERT, rows of all months", STORED, in_order=False),
    Mode("insert_async", "INSERT with async_insert, waiting for the flush", STORED,
         settings={"async_insert": 1, "wait_for_async_insert": 1}),
    Mode("insert_async_no_wait", "INSERT with async_insert, not waiting", f"{IN_MEMORY}, and errors go unnoticed",
         settings={"async_insert": 1, "wait_for_async_insert": 0}),
    Mode("insert_buffer", "INSERT into a Buffer table", IN_MEMORY, buffered=True),
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """A mode at a rate."""

    mode: Mode
    rate: int

    @property
    def senders(self) -> int:
        """Connections: who waits for a flush has as many as batches are due meanwhile, and as many again."""
        waits = self.mode.settings.get("wait_for_async_insert") == 1
        return max(SENDERS, math.ceil(2 * FLUSH_AFTER_SECONDS * self.rate)) if waits else SENDERS

    @property
    def name(self) -> str:
        """What the progress bar says."""
        return f"{self.mode.name} {self.rate}/s"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A look at the table of a stream: how many active parts and rows it has."""

    run_id: str
    technique: str
    rate: int
    pass_: int
    second: float
    parts: int
    rows: int


@dataclass(frozen=True)
class Streamed:
    """What came of a stream."""

    values: dict[str, Any]
    looks: list[tuple[float, int, int]]


@dataclass(frozen=True)
class Insert:
    """One INSERT into a table of so many columns, of which each has files of its own (wide) or all have one."""

    columns: int
    wide: bool

    @property
    def name(self) -> str:
        """As it stands in the results."""
        return f"insert_{'wide' if self.wide else 'compact'}_part"


def measure(
    this_run: Recording, samples: Writer, server: ClickHouseServer, points: str, rounds: Rounds, stop: threading.Event
) -> None:
    """Streams at every rate, one pass each where points are few; then what an INSERT into many columns holds."""
    rounds = Rounds(min(rounds.passes, LONG_PASSES) if points in LONG else 1, 0, rounds.seed)
    for rate in RATES[points]:
        _streams(this_run, samples, server, rate, SECONDS[points], rounds, stop)
    for columns in (100,) if points == "least" else (100, 400, 1_000):
        _inserts(this_run, server, columns, stop)


def _streams(
    this_run: Recording, samples: Writer, server: ClickHouseServer, rate: int, seconds: float, rounds: Rounds,
    stop: threading.Event,
) -> None:  # fmt: skip
    tables, table = ClickHouseTables(server), STANDARD.table
    batches = max(1, round(rate * seconds))
    content = generator.arrow_table(table, batches * BATCH_ROWS, rounds.seed)
    sent, reference = Expected(table, content), table.renamed(f"{table.name}_sent")

    def row(one: Stream, number: int, outcome: Pass[Streamed]) -> Row:
        values = columns_of(Ok(outcome.values.values) if isinstance(outcome, Ok) else within_limits(outcome))
        return _row(
            this_run.run_id, one.mode.name, one.mode.label, STREAM, BATCH_ROWS, number, batches, rate, values,
            connections=one.senders,
        )  # fmt: skip

    def record(one: Stream, number: int, outcome: Pass[Streamed]) -> None:
        for second, parts, rows in outcome.values.looks if isinstance(outcome, Ok) else ():
            samples.write(Sample(
                run_id=this_run.run_id, technique=one.mode.name, rate=rate, pass_=number, second=second, parts=parts,
                rows=rows,
            ))  # fmt: skip
        keep(one, number, outcome)

    keep, finished = this_run.passes(row)
    streams = [Stream(mode, rate) for mode in MODES]
    this_run.expect(len(streams) * rounds.passes)
    try:
        sent.keep_reference(tables, reference)
        in_rounds(
            streams, rounds, lambda one, _: _stream(one, server, tables, sent, content), record,
            stop=stop, progress=lambda one, _: this_run.progress(one.name), finished=finished,
        )  # fmt: skip
    finally:
        tables.drop_named(BUFFER)
        for ours in (table, reference):
            tables.drop(ours)


def _stream(
    one: Stream, server: ClickHouseServer, tables: ClickHouseTables, sent: Expected, content: pa.Table
) -> Streamed:
    """Send all batches when they are due, look at the table meanwhile, and verify what it holds in the end."""
    table, mode = STANDARD.table, one.mode
    if mode.settings:
        _check_queue(tables)
    tables.drop_named(BUFFER)
    tables.create(table)
    if mode.buffered:
        # Flushed after a second, or 10,000 rows: https://clickhouse.com/docs/engines/table-engines/special/buffer
        tables.create_as(BUFFER, (
            f"CREATE TABLE {quote_clickhouse(BUFFER)} AS {table.clickhouse_name} ENGINE = "
            f"Buffer(currentDatabase(), {quote_clickhouse_text(table.name)}, 1, 0.5, 1, 100, 10000, 1000000, 100000000)"
            f" COMMENT '{COMMENT}'"
        ))  # fmt: skip
    tables.quiesce()
    ordered = content.sort_by(table.partition_by_month_of) if mode.in_order else content
    bodies = [
        b"".join(map(bytes, arrow_stream(ordered.slice(start, BATCH_ROWS))))
        for start in range(0, content.num_rows, BATCH_ROWS)
    ]
    name = BUFFER if mode.buffered else table.name
    query = f"INSERT INTO {quote_clickhouse(name)} ({table.clickhouse_columns}) FORMAT ArrowStream"
    meter, latencies = Meter(server.process_id), [0.0] * len(bodies)
    with ExitStack() as stack:
        connections = [stack.enter_context(open_http_client(server)) for _ in range(one.senders)]
        meter.start()
        looks = stack.enter_context(_looking(server))
        numbers, start = itertools.count(), time.perf_counter()

        def send(connection: HttpConnection) -> None:
            while (number := next(numbers)) < len(bodies):
                due = start + number / one.rate
                time.sleep(max(0.0, due - time.perf_counter()))
                connection.post(query, body=bodies[number], settings={**ARROW, **mode.settings}).read()
                latencies[number] = time.perf_counter() - due

        with ThreadPoolExecutor(one.senders) as pool:
            list(pool.map(send, connections))
        # The last batch has its time as well, where it is answered sooner.
        seconds = max(time.perf_counter() - start, len(bodies) / one.rate)
        usage = meter.stop()
    _wait_until_stored(tables, mode, content.num_rows)
    looks.append((round(time.perf_counter() - start, 3), *_parts(tables)))
    values = {
        "seconds": seconds, "rows_per_s": content.num_rows / seconds, "client_cpu_s": usage.client_cpu_s,
        "server_cpu_s": usage.server_cpu_s, "p50_s": percentile(latencies, 50), "p99_s": percentile(latencies, 99),
        "most_parts": max((parts for _, parts, _ in looks), default=None), "frame_bytes": content.nbytes,
        "bytes_per_s": content.nbytes / seconds,
    }  # fmt: skip
    return right(Streamed(values, looks), sent.difference_on_server(tables))


def _check_queue(tables: ClickHouseTables) -> None:
    """Raises UnavailableError where the server has no queue for asynchronous inserts: it then inserts at once."""
    try:
        tables.run("SYSTEM FLUSH ASYNC INSERT QUEUE")
    except AnswerError as error:
        if "not initialized" in str(error):
            raise UnavailableError(
                "this ClickHouse has no queue for asynchronous inserts (the embedded one is clickhouse-local): use "
                "SERVERS=docker or external"
            ) from None
        # Somebody else's server may not let us flush; its own time comes soon.


@contextmanager
def _looking(server: ClickHouseServer) -> Iterator[list[tuple[float, int, int]]]:
    """Looks at the table in a thread while the block lasts, and once at its end: (seconds, parts, rows)."""
    looks: list[tuple[float, int, int]] = []
    over, start = threading.Event(), time.perf_counter()

    def look() -> None:
        tables = ClickHouseTables(server)
        with tables.kept():
            while True:
                last = over.is_set()
                looks.append((round(time.perf_counter() - start, 3), *_parts(tables)))
                if last:
                    return
                over.wait(LOOK_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield looks
        finally:
            over.set()
            looking.result()


def _parts(tables: ClickHouseTables) -> tuple[int, int]:
    [[parts, rows]] = tables.rows(
        "SELECT count(), sum(rows) FROM system.parts WHERE active AND database = currentDatabase() "
        "AND table = {name:String}",
        name=STANDARD.table.name,
    )
    return int(parts), int(rows)


def _wait_until_stored(tables: ClickHouseTables, mode: Mode, rows: int) -> None:
    """What the server has in memory is flushed; the comparison that follows says what is not there then."""
    if mode.buffered:
        tables.run(f"OPTIMIZE TABLE {quote_clickhouse(BUFFER)}")
    deadline = time.monotonic() + FLUSH_SECONDS
    while _parts(tables)[1] < rows and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _inserts(this_run: Recording, server: ClickHouseServer, columns: int, stop: threading.Event) -> None:
    """One INSERT into parts of one file, and of a file for each column, with the memory that the server says it took.

    https://github.com/ClickHouse/ClickHouse/issues/6943
    """
    shape = Shape(f"narrow_{columns}", f"{columns:,} columns", narrow(columns))
    tables, table = ClickHouseTables(server), shape.table
    content, reference = shape.content(table, BATCH_ROWS, 0), table.renamed(f"{table.name}_sent")
    sent = Expected(table, content)

    def insert(one: Insert, _: int) -> dict[str, Any]:
        setting = f"\nSETTINGS min_bytes_for_wide_part = {0 if one.wide else 10 << 20}\nCOMMENT"
        tables.create_as(table.name, setting.join(table.clickhouse_ddl.rsplit("\nCOMMENT", 1)))
        query = f"INSERT INTO {table.clickhouse_name} ({table.clickhouse_columns}) FORMAT ArrowStream"
        with open_http_client(server) as connection:
            start = time.perf_counter()
            answer = connection.post(query, body=arrow_stream(content), settings=ARROW)
            answer.read()
            seconds = time.perf_counter() - start
        said = json.loads(answer.headers.get("X-ClickHouse-Summary", "{}")).get("memory_usage")
        values = {
            "seconds": seconds, "rows_per_s": BATCH_ROWS / seconds, "frame_bytes": content.nbytes,
            "bytes_per_s": content.nbytes / seconds, "server_memory_bytes": said and int(said),
        }  # fmt: skip
        return right(values, sent.difference_on_server(tables))

    def row(one: Insert, number: int, outcome: Pass[dict[str, Any]]) -> Row:
        label = f"INSERT of {BATCH_ROWS} rows into {'a file for each column' if one.wide else 'one file'}"
        return _row(this_run.run_id, one.name, label, shape.name, BATCH_ROWS, number, 1, None, columns_of(outcome))

    record, finished = this_run.passes(row)
    this_run.expect(2)
    try:
        sent.keep_reference(tables, reference)
        in_rounds(
            [Insert(columns, wide) for wide in (False, True)], Rounds(1), insert, record, stop=stop,
            progress=lambda one, _: this_run.progress(one.name), finished=finished,
        )  # fmt: skip
    finally:
        for ours in (table, reference):
            tables.drop(ours)


def _row(
    run_id: str, name: str, label: str, shape: str, rows: int, number: int, calls: int, rate: int | None,
    values: Mapping[str, Any], connections: int = 1,
) -> Row:  # fmt: skip
    return Row(
        run_id=run_id, notebook=STUDY.notebook, database="clickhouse", direction="write", technique=name, label=label,
        origin="everyday", family="insert_rows", driver="http_client", frame="none", rows=rows, pass_=number,
        connections=connections, contract="append", shape=shape, calls=calls, rate=rate, **values,
    )  # fmt: skip
